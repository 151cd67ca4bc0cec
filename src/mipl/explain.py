"""Which instances a model looked at: the attention of single bags, as tables and figures."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from mipl.data.bags import Bag, Bags
from mipl.errors import DataError
from mipl.estimators import BagClassifier
from mipl.files import atomic_folder, write_json
from mipl.reports.figures import attention_strip, style
from mipl.reports.heat_map import heat_map

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
COLUMNS = ("index", "x", "y", "attention", "rank")
MARKER = "explain.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """What a model predicts for a bag, and the weight of each of its n instances in that."""

    bag: Bag
    label: str  # the most probable class
    confidence: float
    truth: str | None
    attention: Floats  # (n,), summing to 1

    @property
    def order(self) -> Ints:
        """(n,) the instances from the most attention to the least; equal ones as they stand in the bag."""
        return np.argsort(-self.attention, kind="stable")

    @property
    def places(self) -> npt.NDArray[Any] | None:
        """(n, 2) x and y of the instances, if the bag has them."""
        known = self.bag.coordinates
        return known if known is not None and known.shape[1] == 2 else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one row an instance under the names of ``COLUMNS``; index from 0, rank from 1."""
        ranks = np.empty(len(self.attention), dtype=np.int64)
        ranks[self.order] = np.arange(1, len(ranks) + 1)
        places = [(None, None)] * len(ranks) if self.places is None else self.places.tolist()
        return [
            {"index": i, "x": x, "y": y, "attention": float(self.attention[i]), "rank": int(ranks[i])}
            for i, (x, y) in enumerate(places)
        ]

    def figure(self) -> Figure:
        """Return a heat map of a bag with coordinates, else its images or bars by attention."""
        found = f"predicted {self.label}, confidence {self.confidence:.1%}"
        found += "" if self.truth is None else f"; true label {self.truth}"
        if self.places is not None:
            drawn = heat_map(self.attention, self.places)
            note = f"instances: {len(self.attention):,}; numbers: rank by attention, where there is room"
        else:
            marks = self.bag.instance_labels
            positives = None if marks is None or self.bag.label is None else marks == self.bag.label
            drawn = attention_strip(self.attention, positives, _images(self.bag.instances), first=0)
            note = "share of the attention, from the most on; #: index of the instance; dashed: all equal"
            if positives is not None and positives.any():
                note += "; framed: of the true class"
        return _titled(drawn, self.bag.id, found, note)


def explain(classifier: BagClassifier, bags: Bags, ids: Sequence[str]) -> list[Explanation]:
    """Return the explanations of the bags with these ids, each once, in the order they are asked for."""
    place = {str(bag): i for i, bag in enumerate(bags.ids.tolist())}
    for bag in ids:
        if bag not in place:
            near = difflib.get_close_matches(bag, list(place), n=1, cutoff=0.0)
            raise DataError(f"There is no bag '{bag}' in the data. Did you mean '{near[0]}'?")
    chosen = bags[np.array([place[bag] for bag in dict.fromkeys(ids)], dtype=np.int64)]
    attention, p = classifier.attention_weights(chosen), classifier.predict_proba(chosen)
    names = classifier.classes_.tolist()
    return [
        Explanation(
            bag,
            str(names[int(row.argmax())]),
            float(row.max()),
            None if bag.label is None else str(chosen.classes[bag.label]),
            weights,
        )
        for bag, row, weights in zip(chosen, p, attention, strict=True)
    ]


def write_explanations(folder: Path, explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Write a CSV, a PNG and an SVG for each bag, and ``explain.json``; return what that lists.

    A folder of explanations that is there already is replaced whole.
    """
    stems = file_names([explanation.bag.id for explanation in explanations])
    listed = []
    with atomic_folder(folder, MARKER) as temporary:
        for stem, each in zip(stems, explanations, strict=True):
            with (temporary / f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(each.rows())
            with style():
                figure = each.figure()
                figure.savefig(temporary / f"{stem}.png", dpi=200)
                figure.savefig(temporary / f"{stem}.svg", dpi=200, metadata={"Date": None})
            listed.append(
                {
                    "bag_id": each.bag.id,
                    "label": each.label,
                    "confidence": each.confidence,
                    "instances": len(each.attention),
                    "files": [f"{stem}.{kind}" for kind in ("csv", "png", "svg")],
                }
            )
        write_json(temporary / MARKER, {"bags": listed})
    return listed


def file_names(ids: Sequence[str]) -> list[str]:
    """Return for each bag a name without what folders and shells read in it; no two are alike."""
    names: list[str] = []
    for bag in ids:
        plain = re.sub(r"[^\w.-]+", "_", bag).strip("._")[:80] or "bag"
        name, number = plain, 2
        # compared in lower case: some systems do not tell A.csv from a.csv
        while name.lower() in {taken.lower() for taken in names}:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return names


def _images(instances: npt.NDArray[Any]) -> Floats | None:
    """Return instances (n, h, w) or (n, c, h, w) as ink or colours from 0 to 1; None: they are vectors."""
    if instances.ndim == 2:
        return None
    pictures = np.asarray(instances, dtype=np.float64)
    pictures = pictures / 255.0 if instances.dtype == np.uint8 else pictures
    low, high = pictures.min(), pictures.max()
    if low < 0 or high > 1:  # normalised for a network: any range will do for a look
        pictures = (pictures - low) / (high - low)
    if pictures.ndim == 3:
        return pictures
    return pictures.transpose(0, 2, 3, 1) if pictures.shape[1] == 3 else np.asarray(pictures.mean(axis=1))


def _titled(figure: Figure, title: str, found: str, note: str) -> Figure:
    """Put a title and two lines of explanation above a figure, making room for them."""
    wide, tall = figure.get_size_inches()
    lines = [
        (line, points, weight)
        for text, points, weight in ((title, 10.0, "bold"), (found, 8.5, "normal"), (note, 7.0, "normal"))
        for line in textwrap.wrap(text, int(107 * wide / points))  # a letter is some 0.6 of its height wide
    ]
    room = 0.14 + sum(1.45 * points / 72 for _, points, _ in lines)
    figure.set_size_inches(wide, tall + room)
    engine, share = figure.get_layout_engine(), tall / (tall + room)
    if engine is None:
        for ax in figure.axes:
            ax.set_position((0, 0, 1, share))
    else:
        engine.set(rect=(0.01, 0, 0.97, share))  # type: ignore[call-arg]
    y = 1 - 0.06 / (tall + room)
    for line, points, weight in lines:
        put = figure.text(0.02, y, line, va="top", fontsize=points, fontweight=weight)
        put.set_parse_math(False)  # ids and names are the user's
        y -= 1.45 * points / 72 / (tall + room)
    return figure
