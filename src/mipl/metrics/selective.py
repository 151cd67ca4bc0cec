"""How good the answers are when a model may stay silent on what it is least sure of.

No threshold parts equal confidences: wherever a share of the examples is chosen, they enter together.
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
    """One point for each of the u distinct confidences, from the surest examples to all of them."""

    coverage: Floats  # (u,), share of the examples that are answered
    accuracy: Floats  # (u,), share of the answers that are right
    threshold: Floats  # (u,), the lowest confidence that is answered

    @property
    def risk(self) -> Floats:
        """(u,) share of the answers that are wrong: the risk–coverage curve is (coverage, risk)."""
        return 1.0 - self.accuracy

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


def area_under_risk_coverage(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the mean over i = 1 … m of the error among the i most confident examples, from 0 to 1.

    Shapes as in :func:`accuracy_at_coverage`. Equal confidences have no order: the value is the mean over all
    of their orders, so that a constant confidence gives just the error of all the examples.
    """
    confidence, correct = top_label(probabilities, labels)
    _, group = np.unique(-confidence, return_inverse=True)  # (m,) 0: the surest
    size, wrong = np.bincount(group), np.bincount(group, 1.0 - correct)  # (u,), (u,)
    before, wrong_before = np.cumsum(size) - size, np.cumsum(wrong) - wrong
    place = np.arange(1, len(group) + 1)  # i
    own = np.repeat(np.arange(len(size)), size)  # the group of the i-th example
    expected = wrong_before[own] + wrong[own] * (place - before[own]) / size[own]  # errors among the first i
    return float((expected / place).mean())


def accuracy_at_top(probabilities: npt.ArrayLike, labels: npt.ArrayLike, share: float) -> float:
    """Return the accuracy on the ⌈share · m⌉ most confident examples and those as confident as the last.

    Shapes as in :func:`accuracy_at_coverage`; ``share`` is above 0 and at most 1.
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
    """Return the mask (m,) of the most confident ⌈share · m⌉ rows, with those equal to the last of them."""
    if not 0 < share <= 1:
        raise SettingError(f"share is {share!r}; give the part to keep, above 0 and at most 1.")
    confidence = p.max(axis=1)
    count = math.ceil(share * len(p) - 1e-9)  # 0.07 · 100 is a hair more than 7
    return np.asarray(confidence >= np.sort(confidence)[::-1][max(count, 1) - 1])
