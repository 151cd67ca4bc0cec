"""Scores of bags that need no label, and those of held-out bags to compare new bags with.

Scores use the probabilities *before* calibration: a temperature is fitted to the calibration bags, whose
calibrated confidence would therefore not be comparable with that of new bags. Out-of-fold scores do not
serve: they come from the few members that left a bag out, those of new bags from all members.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.data.bags import Bags
from mipl.data.features import aligned
from mipl.data.splits import one_per_group
from mipl.errors import DataError

Floats = npt.NDArray[np.float64]
CONFIDENCE, FEATURES = "confidence", "features"
RARE = 0.01  # of bags like the held-out ones, the fraction that is called unlike them


@dataclasses.dataclass(frozen=True)
class Reference:
    """The scores of held-out bags, one bag per group (patient)."""

    digest: str  # of the bags
    scores: dict[str, tuple[float, ...]]  # by name, as :func:`bag_scores`; n values each

    @classmethod
    def of(cls, model: Any, bags: Bags) -> Reference:
        """Return the scores of bags that the model was not trained on; no label is read."""
        bags = aligned(bags, model.trained_on_.get("feature_names"))
        digest = bags.content_digest()
        if model.trained_on_.get("digest") == digest:
            raise DataError("The model was trained on these bags, so new bags differ from them: use others.")
        scores = bag_scores(model, bags[one_per_group(bags, "reference")])
        return cls(digest, {name: tuple(values.tolist()) for name, values in scores.items()})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reference:
        """Return the scores from the result of ``dataclasses.asdict``."""
        scores = {str(name): tuple(map(float, values)) for name, values in content["scores"].items()}
        sizes = set(map(len, scores.values()))
        if CONFIDENCE not in scores or len(sizes) != 1 or 0 in sizes:
            raise ValueError("the reference scores are incomplete")
        return cls(str(content["digest"]), scores)

    def typicality(self, distances: Floats) -> Floats:
        """Return the conformal p-value (m,) of each distance to the training bags: small for unlike bags."""
        known = np.sort(self.scores[FEATURES])
        at_least = len(known) - np.searchsorted(known, distances, side="left")
        return np.asarray((1 + at_least) / (1 + len(known)))

    @property
    def rare(self) -> float:
        """The p-value up to which a bag is unlike the held-out bags: 1%, or the least possible."""
        return max(RARE, 1 / (1 + len(self.scores[CONFIDENCE])))


def bag_scores(model: Any, bags: Bags) -> dict[str, Floats]:
    """Return scores (m,) of bags by name, from a trained classifier.

    ``confidence``: the highest probability; ``p(class)``: the probability of each class; ``features``: the
    distance to the training bags, if the model has their statistics.
    """
    plain = copy.copy(model)
    plain.calibration_ = None
    p = plain.predict_proba(bags)
    scores = {CONFIDENCE: p.max(axis=1)}
    distances = model.feature_distances(bags)
    if distances is not None:
        scores[FEATURES] = distances
    return {**scores, **{f"p({name})": p[:, j] for j, name in enumerate(model.classes_.tolist())}}
