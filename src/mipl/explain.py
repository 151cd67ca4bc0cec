"""The attention of a model over the instances of single bags, as tables and figures."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from mipl.data.bag import Bag
from mipl.data.bags import Bags
from mipl.data.geometry import placement
from mipl.errors import DataError, listed
from mipl.estimators import BagClassifier
from mipl.files import atomic_folder, write_json
from mipl.reports.figures import attention_strip, style
from mipl.reports.heat_map import heat_map, tissue_map

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
COLUMNS = ("index", "x", "y", "attention", "rank")  # and evidence(class) for the two most probable
DRAWN = 1600  # pixels of the longer side of an image in a figure
MARKER = "explain.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """The prediction of a model for a bag, and its attention over the n instances."""

    bag: Bag
    label: str  # the most probable class
    confidence: float
    truth: str | None
    attention: Floats  # (n,), summing to 1
    evidence: Mapping[str, Floats] = dataclasses.field(
        default_factory=dict
    )  # by class (n,), the two most probable
    image: npt.NDArray[np.uint8] | None = None  # (h, w, 3), the tile or a thumbnail of the slide

    @property
    def order(self) -> Ints:
        """(n,) indices of the instances by decreasing attention; ties in the order of the bag."""
        return np.argsort(-self.attention, kind="stable")

    @property
    def positions(self) -> npt.NDArray[Any] | None:
        """(n, 2) x and y of the instances, or None if the bag has no such coordinates."""
        coordinates = self.bag.coordinates
        return coordinates if coordinates is not None and coordinates.shape[1] == 2 else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per instance: ``COLUMNS``, evidence for classes; index from 0, rank from 1."""
        ranks = np.empty(len(self.attention), dtype=np.int64)
        ranks[self.order] = np.arange(1, len(ranks) + 1)
        positions = [(None, None)] * len(ranks) if self.positions is None else self.positions.tolist()
        return [
            {
                "index": i,
                "x": x,
                "y": y,
                "attention": float(self.attention[i]),
                "rank": int(ranks[i]),
                **{f"evidence({name})": float(values[i]) for name, values in self.evidence.items()},
            }
            for i, (x, y) in enumerate(positions)
        ]

    def figure(self) -> Figure:
        """Return maps over the image, a heat map at the coordinates, or images or bars by attention."""
        prediction = f"predicted {self.label}, confidence {self.confidence:.1%}"
        prediction += "" if self.truth is None else f"; true label {self.truth}"
        if self.image is not None:
            place = placement(self.bag, self.image.shape[1], self.image.shape[0])
            assert self.positions is not None
            figure = tissue_map(
                _reduced(self.image),
                (place.width, place.height),
                self.attention,
                self.positions,
                self.evidence,
                place.patch,
            )
            note = f"instances: {len(self.attention):,}; numbers: rank by attention, where they fit"
        elif self.positions is not None:
            figure = heat_map(self.attention, self.positions)
            note = f"instances: {len(self.attention):,}; numbers: rank by attention, where they fit"
        else:
            labels = self.bag.instance_labels
            positives = None if labels is None or self.bag.label is None else labels == self.bag.label
            figure = attention_strip(self.attention, positives, _images(self.bag.instances), first=0)
            note = "attention, in decreasing order; #: index of the instance; dashed: uniform attention"
            if positives is not None and positives.any():
                note += "; framed: of the true class"
        return _add_title(figure, self.bag.id, prediction, note)


def explain(
    classifier: BagClassifier,
    bags: Bags,
    ids: Sequence[str],
    images: Mapping[str, npt.NDArray[np.uint8]] | None = None,
) -> list[Explanation]:
    """Return one explanation per distinct id, in the given order.

    Args:
        classifier: a trained model with attention.
        bags: the bags.
        ids: the bags to explain.
        images: by id, the tile or a thumbnail of the slide (h, w, 3), to draw maps over.
    """
    index = {str(bag): i for i, bag in enumerate(bags.ids.tolist())}
    for bag in ids:
        if bag not in index:
            near = difflib.get_close_matches(bag, list(index), n=1, cutoff=0.0)
            raise DataError(f"There is no bag '{bag}' in the data. Did you mean '{near[0]}'?")
    chosen = bags[np.array([index[bag] for bag in dict.fromkeys(ids)], dtype=np.int64)]
    attention, p = classifier.attention_weights(chosen), classifier.predict_proba(chosen)
    evidence = classifier.evidence(chosen)
    names = list(map(str, classifier.classes_.tolist()))
    tops = np.argsort(-p, axis=1, kind="stable")[:, :2]
    return [
        Explanation(
            bag,
            str(names[int(row.argmax())]),
            float(row.max()),
            None if bag.label is None else str(chosen.classes[bag.label]),
            weights,
            {names[j]: values[:, j] for j in top.tolist()},
            None if images is None else images.get(bag.id),
        )
        for bag, row, weights, values, top in zip(chosen, p, attention, evidence, tops, strict=True)
    ]


def write_explanations(folder: Path, explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Write a CSV, a PNG and an SVG per bag, and ``explain.json``, and return the content of the latter.

    An existing folder of explanations is replaced as a whole.
    """
    stems = file_names([explanation.bag.id for explanation in explanations])
    listed = []
    with atomic_folder(folder, MARKER) as temporary:
        for stem, each in zip(stems, explanations, strict=True):
            with (temporary / f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
                rows = each.rows()
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
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
    """Return a distinct file name for each bag, without characters that are special in paths and shells."""
    names: list[str] = []
    for bag in ids:
        safe = re.sub(r"[^\w.-]+", "_", bag).strip("._")[:80] or "bag"
        name, number = safe, 2
        # compared in lower case: some file systems do not distinguish A.csv from a.csv
        while name.lower() in {taken.lower() for taken in names}:
            name, number = f"{safe}-{number}", number + 1
        names.append(name)
    return names


def read_images(path: Path, bags: Sequence[str]) -> dict[str, npt.NDArray[np.uint8]]:
    """Return the image of each bag: a file if there is one bag, or a folder of files named as the bags."""
    from mipl.data.images.folder import match_images, read_image

    if not path.is_dir():
        if len(set(bags)) > 1:
            raise DataError(f"{path} is one image for {len(set(bags))} bags: give the folder of the images.")
        return {bags[0]: read_image(path)}
    found = match_images(path, bags)
    missing = [bag for bag in bags if bag not in found]
    if missing:
        raise DataError(f"{path} has no image of the bag {listed(missing)}: add it, or leave the bag out.")
    return {bag: read_image(found[bag]) for bag in dict.fromkeys(bags)}


def _reduced(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return an image of at most ``DRAWN`` pixels, each the mean of those it stands for."""
    factor = -(-max(image.shape[:2]) // DRAWN)
    if factor == 1:
        return image
    edges = [np.arange(0, side, factor) for side in image.shape[:2]]
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float32), edges[0], axis=0), edges[1], axis=1)
    sizes = [np.diff(np.append(edge, side)) for edge, side in zip(edges, image.shape[:2], strict=True)]
    reduced: npt.NDArray[np.uint8] = np.round(sums / np.outer(*sizes)[..., None]).astype(np.uint8)
    return reduced


def _images(instances: npt.NDArray[Any]) -> Floats | None:
    """Return instances (n, h, w) or (n, c, h, w) as grey or RGB images from 0 to 1; None for vectors."""
    if instances.ndim == 2:
        return None
    images = np.asarray(instances, dtype=np.float64)
    images = images / 255.0 if instances.dtype == np.uint8 else images
    low, high = images.min(), images.max()
    if low < 0 or high > 1:  # normalised for a network: rescaled for display
        images = (images - low) / (high - low)
    if images.ndim == 3:
        return images
    return images.transpose(0, 2, 3, 1) if images.shape[1] == 3 else np.asarray(images.mean(axis=1))


def _add_title(figure: Figure, title: str, prediction: str, note: str) -> Figure:
    """Add a title and two lines of text above a figure, which grows by their height."""
    wide, tall = figure.get_size_inches()
    texts = ((title, 10.0, "bold"), (prediction, 8.5, "normal"), (note, 7.0, "normal"))
    lines = [
        (line, points, weight)
        for text, points, weight in texts
        for line in textwrap.wrap(text, int(107 * wide / points))  # a letter is about 0.6 of its height wide
    ]
    header = 0.14 + sum(1.45 * points / 72 for _, points, _ in lines)
    figure.set_size_inches(wide, tall + header)
    engine, fraction = figure.get_layout_engine(), tall / (tall + header)
    if engine is None:
        for ax in figure.axes:
            ax.set_position((0, 0, 1, fraction))
    else:
        engine.set(rect=(0.01, 0, 0.97, fraction))  # type: ignore[call-arg]
    y = 1 - 0.06 / (tall + header)
    for line, points, weight in lines:
        text = figure.text(0.02, y, line, va="top", fontsize=points, fontweight=weight)
        text.set_parse_math(False)  # ids and names are user input
        y -= 1.45 * points / 72 / (tall + header)
    return figure
