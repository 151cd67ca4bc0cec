"""Accuracy when a model may stay silent on what it is least sure of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mipl.errors import SettingError
from mipl.metrics._inputs import Floats, top_label


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """One point for each of the u distinct confidences, from the surest examples to all of them."""

    coverage: Floats  # (u,), share of the examples that are answered
    accuracy: Floats  # (u,), share of the answers that are right
    threshold: Floats  # (u,), the lowest confidence that is answered

    def to_dict(self) -> dict[str, list[float]]:
        """Return lists that JSON can hold."""
        return {name: getattr(self, name).tolist() for name in ("coverage", "accuracy", "threshold")}


def accuracy_at_coverage(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> CoverageCurve:
    """Return the accuracy on the most confident examples, for every share that a threshold can choose.

    ``probabilities`` is (m, k) with rows that sum to 1, ``labels`` (m,) holds column indices. No threshold
    parts equal confidences, so they enter together; the last point covers everything.
    """
    confidence, correct = top_label(probabilities, labels)  # (m,), (m,)
    threshold, group = np.unique(confidence, return_inverse=True)  # (u,) ascending, (m,)
    answered = np.cumsum(np.bincount(group)[::-1])  # (u,)
    right = np.cumsum(np.bincount(group, correct)[::-1])  # (u,)
    return CoverageCurve(
        coverage=answered / len(confidence), accuracy=right / answered, threshold=threshold[::-1]
    )


def most_confident(probabilities: npt.ArrayLike, share: float) -> npt.NDArray[np.int64]:
    """Return the rows of probabilities (m, k) with the highest confidence, a ``share`` of all, at least one.

    Of equal confidences the earlier row is taken.
    """
    if not 0 < share <= 1:
        raise SettingError(f"The share is {share}: it must be above 0 and at most 1.")
    confidence = np.asarray(probabilities, dtype=np.float64).max(axis=1)  # (m,)
    return np.argsort(-confidence, kind="stable")[: max(1, round(share * len(confidence)))].astype(np.int64)
