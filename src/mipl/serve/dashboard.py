"""The content of the review page: the bags of one data set and a model's predictions for them."""

from __future__ import annotations

import base64
import csv
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.calibration.model import check_unseen, truth_of
from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix
from mipl.data.formats.table import label_fields
from mipl.data.splits import one_per_group
from mipl.errors import DataError, SettingError
from mipl.estimators import BagClassifier
from mipl.metrics import expected_calibration_error, reliability_curve
from mipl.triage import upper_bound

MAX_INSTANCES = 48  # shown per bag, those of highest attention
MAX_FEATURES = 64  # shown per instance
DELTA = 0.05
Array = NDArray[Any]


class Dashboard:
    """Bags with a model's predictions and, where they have labels, its measured error.

    Predictions are computed once, on construction.

    Args:
        model: A trained classifier.
        bags: The bags to review.
    """

    def __init__(self, model: BagClassifier, bags: Bags) -> None:
        self.model, self.bags = model, bags
        self.classes = [str(name) for name in model.classes_.tolist()]
        self.index = {bag: i for i, bag in enumerate(bags.ids.tolist())}
        # raises an error now, and not at the export, for names that a table cannot hold
        label_fields(bags.ids.tolist(), None, tuple(self.classes), None, None, None)
        self.probabilities = model.predict_proba(bags)  # (m, k)
        self.truth = None if bags.labels is None else truth_of(model, bags).argmax(axis=1)  # (m,)
        self.warning = None
        try:
            check_unseen(model, bags)
        except DataError:
            self.warning = "The model was trained or calibrated on these bags: its error here is optimistic."
        self.measured, self.reliability = self._measured_errors(), self._reliability()

    def overview(self, reviews: dict[str, str]) -> dict[str, Any]:
        """Return one row per bag, the least confident first, and the measured error and calibration.

        Args:
            reviews: Labels of the reviewed bags, by bag id.
        """
        confidence = self.probabilities.max(axis=1)
        top = self.probabilities.argmax(axis=1)
        order = np.argsort(confidence, kind="stable")
        ids = self.bags.ids.tolist()
        class_index = {name: j for j, name in enumerate(self.classes)}
        rows = [
            {
                "place": i,
                "bag_id": ids[i],
                "label": int(top[i]),
                "confidence": float(confidence[i]),
                "truth": None if self.truth is None else int(self.truth[i]),
                "review": class_index[reviews[ids[i]]] if ids[i] in reviews else None,
            }
            for i in order.tolist()
        ]
        return {
            "classes": self.classes,
            "bags": rows,
            "delta": DELTA,
            "warning": self.warning,
            "measured": self.measured,
            "reliability": self.reliability,
        }

    def _measured_errors(self) -> list[dict[str, Any]] | None:
        """Return the reported bags, errors and error bound for each threshold, from the highest confidence.

        One bag per group (patient) counts, as in ``mipl triage``; the bound holds for a threshold that was
        fixed before looking at these labels.
        """
        if self.truth is None:
            return None
        chosen = one_per_group(self.bags, "triage")
        p = self.probabilities[chosen]
        confidence, wrong = p.max(axis=1), p.argmax(axis=1) != self.truth[chosen]
        order = np.argsort(-confidence, kind="stable")
        confidence, errors = confidence[order], np.cumsum(wrong[order])
        last = np.flatnonzero(np.append(np.diff(confidence) != 0, True))  # ties are reported together
        return [
            {
                "threshold": float(confidence[i]),
                "reported": i + 1,
                "errors": int(errors[i]),
                "bound": upper_bound(int(errors[i]), i + 1, DELTA),
            }
            for i in last.tolist()
        ]

    def _reliability(self) -> dict[str, Any] | None:
        if self.truth is None:
            return None
        return {
            "ece": expected_calibration_error(self.probabilities, self.truth),
            **reliability_curve(self.probabilities, self.truth).to_dict(),
        }

    def bag(self, place: int) -> dict[str, Any]:
        """Return the probabilities of one bag and its instances of highest attention."""
        chosen = self.bags[place : place + 1]
        bag = self.bags[place]
        try:
            attention = self.model.attention_weights(chosen)[0]  # (n,)
        except SettingError:  # a method without attention
            attention = None
        n = len(bag)
        order = np.arange(n) if attention is None else np.argsort(-attention, kind="stable")
        return {
            "place": place,
            "bag_id": bag.id,
            "probabilities": self.probabilities[place].tolist(),
            "candidates": None if bag.candidates is None else self._candidates(bag.candidates),
            "size": n,
            "instances": [
                {
                    "number": i,
                    "attention": None if attention is None else float(attention[i]),
                    "coordinates": None if bag.coordinates is None else bag.coordinates[i].tolist(),
                    **_displayed(bag.instances[i]),
                }
                for i in order[:MAX_INSTANCES].tolist()
            ],
        }

    def _candidates(self, row: Array) -> list[str]:
        return [str(self.bags.classes[j]) for j in np.flatnonzero(row)]

    def label_table(self, reviews: dict[str, str]) -> str:
        """Return a label table (CSV) for ``mipl fit --labels``; the only candidate is the reviewer's label.

        Bags that are not reviewed keep their candidate sets; without candidate sets they are left out.
        """
        ids = self.bags.ids.tolist()
        if self.bags.candidates is None:
            ids = [bag for bag in ids if bag in reviews]
        if not ids:
            raise DataError("No bag has been reviewed yet: there is nothing to export.")
        sets = [[reviews[bag]] if bag in reviews else self._own_candidates(bag) for bag in ids]
        classes = tuple(dict.fromkeys([*self.classes, *map(str, self.bags.classes)]))
        columns = label_fields(ids, candidate_matrix(sets, classes, ids), classes, None, None, None)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()

    def _own_candidates(self, bag: str) -> list[str]:
        assert self.bags.candidates is not None
        return self._candidates(self.bags.candidates[self.index[bag]])


def _displayed(instance: Array) -> dict[str, Any]:
    """Return an image (h, w), (1, h, w) or (3, h, w) as RGB bytes, or the first values of a vector."""
    values = np.asarray(instance, dtype=np.float64)
    if values.ndim == 1:
        return {"values": values[:MAX_FEATURES].tolist(), "features": len(values)}
    image = values[None] if values.ndim == 2 else values  # (c, h, w)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        return {"values": values.ravel()[:MAX_FEATURES].tolist(), "features": values.size}
    low, high = (0.0, 255.0) if instance.dtype == np.uint8 else (float(image.min()), float(image.max()))
    pixels = np.round(255 * (image - low) / ((high - low) or 1.0)).astype(np.uint8)
    return {
        "width": image.shape[2],
        "height": image.shape[1],
        "pixels": base64.b64encode(
            np.broadcast_to(pixels, (3, *image.shape[1:])).transpose(1, 2, 0).tobytes()
        ).decode("ascii"),
    }
