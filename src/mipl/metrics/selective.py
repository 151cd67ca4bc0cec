"""Selective prediction: metrics of the most confident examples.

A threshold cannot separate equal confidences: such examples are selected together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mipl.errors import SettingError
from mipl.metrics._inputs import Floats, checked, top_label
from mipl.metrics.calibration import expected_calibration_error


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """One point for each of the u distinct confidences, from the most confident examples to all."""

    coverage: Floats  # (u,), fraction of the examples that are selected
    accuracy: Floats  # (u,), accuracy on the selected examples
    threshold: Floats  # (u,), lowest selected confidence

    @property
    def risk(self) -> Floats:
        """1 − accuracy (u,): the risk–coverage curve is (coverage, risk)."""
        return 1.0 - self.accuracy

    def to_dict(self) -> dict[str, list[float]]:
        """Return lists for JSON."""
        return {name: getattr(self, name).tolist() for name in ("coverage", "accuracy", "threshold")}


def accuracy_at_coverage(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> CoverageCurve:
    """Return the accuracy on the most confident examples for every threshold; the last point is all examples.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
    """
    confidence, correct = top_label(probabilities, labels)  # (m,), (m,)
    threshold, group = np.unique(confidence, return_inverse=True)  # (u,) ascending, (m,)
    selected = np.cumsum(np.bincount(group)[::-1])  # (u,)
    hits = np.cumsum(np.bincount(group, correct)[::-1])  # (u,)
    return CoverageCurve(
        coverage=selected / len(confidence), accuracy=hits / selected, threshold=threshold[::-1]
    )


def area_under_risk_coverage(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the mean over i = 1 … m of the error among the i most confident examples, from 0 to 1.

    Shapes as in :func:`accuracy_at_coverage`. The value is the mean over all orders of equal confidences, so
    that a constant confidence gives the error of all examples.
    """
    confidence, correct = top_label(probabilities, labels)
    _, group = np.unique(-confidence, return_inverse=True)  # (m,) 0: the most confident
    size, wrong = np.bincount(group), np.bincount(group, 1.0 - correct)  # (u,), (u,)
    before, wrong_before = np.cumsum(size) - size, np.cumsum(wrong) - wrong
    i = np.arange(1, len(group) + 1)
    own = np.repeat(np.arange(len(size)), size)  # the group of the i-th example
    expected = wrong_before[own] + wrong[own] * (i - before[own]) / size[own]  # errors among the first i
    return float((expected / i).mean())


def accuracy_at_top(probabilities: npt.ArrayLike, labels: npt.ArrayLike, share: float) -> float:
    """Return the accuracy on the ⌈share · m⌉ most confident examples and ties with the last of them.

    Shapes as in :func:`accuracy_at_coverage`; ``share`` is a fraction above 0 and at most 1.
    """
    p, y = checked(probabilities, labels)
    chosen = _top(p, share)
    return float((p.argmax(axis=1) == y)[chosen].mean())


def calibration_error_at_top(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, share: float, *, bins: int = 15
) -> float:
    """Return the ECE (Eq. 2) on the same examples as :func:`accuracy_at_top`."""
    p, y = checked(probabilities, labels)
    chosen = _top(p, share)
    return expected_calibration_error(p[chosen], y[chosen], bins=bins)


def _top(p: Floats, share: float) -> npt.NDArray[np.bool_]:
    """Return the mask (m,) of the ⌈share · m⌉ most confident rows and ties with the last of them."""
    if not 0 < share <= 1:
        raise SettingError(f"share is {share!r}; give a fraction above 0 and at most 1.")
    confidence = p.max(axis=1)
    count = math.ceil(share * len(p) - 1e-9)  # 0.07 · 100 is slightly more than 7
    return np.asarray(confidence >= np.sort(confidence)[::-1][max(count, 1) - 1])
