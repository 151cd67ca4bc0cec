"""The content of the review page: the bags of one data set and a model's predictions for them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.calibration.model import check_unseen, truth_of
from mipl.data.bag import Bag
from mipl.data.bags import Bags
from mipl.data.formats.table import label_fields
from mipl.data.geometry import placement
from mipl.data.splits import one_per_group
from mipl.errors import DataError, MiplError
from mipl.estimators import BagClassifier
from mipl.metrics import expected_calibration_error, reliability_curve
from mipl.serve.images import Images
from mipl.serve.reviews import Review
from mipl.triage import upper_bound

MAX_INSTANCES = 48  # shown per bag, those of highest attention
MAX_FEATURES = 64  # shown per instance
MAX_PATCHES = 20_000  # drawn over an image
DELTA = 0.05
Array = NDArray[Any]


class Dashboard:
    """Bags with a model's predictions and, where they have labels, its measured error.

    Predictions are computed once, on construction.

    Args:
        model: A trained classifier.
        bags: The bags to review.
        images: Their images; None: no images are shown.
    """

    def __init__(self, model: BagClassifier, bags: Bags, images: Images | None = None) -> None:
        self.model, self.bags, self.images = model, bags, images
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

    def overview(self, reviews: Sequence[Review], audit: Sequence[str] = ()) -> dict[str, Any]:
        """Return one row per bag: those of the audit, then the least confident first; and measured errors.

        Args:
            reviews: The latest review of each bag by each reviewer.
            audit: Bags that were drawn at random, in the order in which they were drawn.
        """
        confidence = self.probabilities.max(axis=1)
        top = self.probabilities.argmax(axis=1)
        drawn = {bag: i for i, bag in enumerate(audit)}
        ids = self.bags.ids.tolist()
        place = np.array([drawn.get(bag, len(drawn)) for bag in ids], dtype=np.int64)
        order = np.lexsort((np.where(place < len(drawn), 0, confidence), place))
        class_index = {name: j for j, name in enumerate(self.classes)}
        given: dict[str, list[dict[str, Any]]] = {}
        for review in reviews:
            given.setdefault(review.bag, []).append(
                {
                    "reviewer": review.reviewer,
                    "label": class_index[review.label],
                    "comment": review.comment,
                }
            )
        rows = [
            {
                "place": i,
                "bag_id": ids[i],
                "label": int(top[i]),
                "confidence": float(confidence[i]),
                "truth": None if self.truth is None else int(self.truth[i]),
                "selected": "random" if ids[i] in drawn else "chosen",
                "reviews": given.get(ids[i], []),
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
        attention = evidence = None
        if self.model.has_attention:
            attention = self.model.attention_weights(chosen)[0]  # (n,)
            evidence = self.model.evidence(chosen)[0]  # (n, k)
        n = len(bag)
        order = np.arange(n) if attention is None else np.argsort(-attention, kind="stable")
        return {
            "place": place,
            "bag_id": bag.id,
            "probabilities": self.probabilities[place].tolist(),
            "candidates": None if bag.candidates is None else self._candidates(bag.candidates),
            "size": n,
            "image": self._image(bag, attention, evidence, self.probabilities[place]),
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

    def _image(
        self, bag: Bag, attention: Array | None, evidence: Array | None, probabilities: Array
    ) -> dict[str, Any] | None:
        """Return the size of a bag's image, and of its patches place, attention and evidence for two classes.

        Everything is in fractions of the image. A bag without an image has None; one whose image does not fit
        its patches has the reason.
        """
        if self.images is None or bag.id not in self.images:
            return None
        try:
            width, height = self.images.size(bag.id)
            about: dict[str, Any] = {"width": width, "height": height}
            if bag.coordinates is None:
                return about
            place = placement(bag, width, height)
        except MiplError as error:
            return {"problem": str(error)}
        if place.patch is None:
            return about
        size = np.array([place.width, place.height])
        shown = np.arange(len(bag))
        if attention is not None and len(bag) > MAX_PATCHES:
            shown = np.argsort(-attention, kind="stable")[:MAX_PATCHES]
        layers: list[dict[str, Any]] = []
        if attention is not None and evidence is not None:
            top = np.argsort(-probabilities, kind="stable")[:2].tolist()
            layers = [
                {"name": "attention", "label": None, "values": (attention * len(bag))[shown].tolist()},
                *({"name": "evidence", "label": j, "values": evidence[shown, j].tolist()} for j in top),
            ]
        return {
            **about,
            "patch": (np.array(place.patch) / size).tolist(),
            "numbers": shown.tolist(),
            "corners": (np.asarray(bag.coordinates)[shown] / size).tolist(),
            "layers": layers,
        }


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
