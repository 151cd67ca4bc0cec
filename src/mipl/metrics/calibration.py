"""Calibration: the reliability curve and calibration errors.

Equal-width bins are (r/R, (r+1)/R], open on the left, with 0 in the first bin and 1 in the last. Values are
compared in float64 with r/R rounded to float64: 0.2 is the third of fifteen edges and falls into the bin
below it, while the float32 nearest to 0.2 is slightly larger and falls into the bin above. So the bin depends
only on the value and not on the dtype of the array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mipl.errors import SettingError
from mipl.metrics._inputs import Floats, Ints, checked, checked_probabilities, top_label
from mipl.seeding import rng_for

BLOCK = 1_000_000  # simulated predictions in memory at a time


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Confidence and accuracy in R equal-width bins; both are NaN for empty bins."""

    edges: Floats  # (R + 1,)
    count: Ints  # (R,)
    confidence: Floats  # (R,)
    accuracy: Floats  # (R,)

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return lists for JSON, with None for NaN."""
        columns = {
            name: getattr(self, name).tolist() for name in ("edges", "count", "confidence", "accuracy")
        }
        return {name: [None if x != x else x for x in column] for name, column in columns.items()}


def reliability_curve(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> ReliabilityCurve:
    """Return P_r and A_r of Eq. 2 for each bin of the top-label confidence.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
        bins: number of equal-width bins R.
    """
    edges = _edges(bins)  # (R + 1,)
    confidence, correct = top_label(probabilities, labels)  # (m,), (m,)
    inside = _equal_width(confidence, bins)  # (m,)
    count = np.bincount(inside, minlength=bins)  # (R,)
    size = np.where(count > 0, count, np.nan)  # 0/0 would warn
    return ReliabilityCurve(
        edges=edges,
        count=count,
        confidence=np.bincount(inside, confidence, minlength=bins) / size,
        accuracy=np.bincount(inside, correct, minlength=bins) / size,
    )


def expected_calibration_error(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> float:
    """Eq. 2: mean over the examples of their bin's |A_r − P_r|, in equal-width bins; (m, k) and (m,)."""
    _check_bins(bins)
    confidence, correct = top_label(probabilities, labels)
    return _weighted_gap(confidence, correct, _equal_width(confidence, bins))


def calibration_error_if_calibrated(
    probabilities: npt.ArrayLike, *, bins: int = 15, draws: int = 1000, seed: int = 0
) -> float:
    """Return the expected ECE of a perfectly calibrated model with the same confidences.

    On m examples even such a model has an ECE above 0, because the accuracy in a bin is random. An ECE near
    this value is no evidence of miscalibration. It is estimated by simulation: each predicted label is
    correct with probability equal to its confidence.

    Args:
        probabilities: (m, k) with rows that sum to 1; only the largest value of each row matters.
        bins: number of equal-width bins, as in :func:`expected_calibration_error`.
        draws: number of simulated sets of m labels.
        seed: seed of the simulation.

    Returns:
        The mean ECE over the draws. The order of the rows does not change it.

    Raises:
        SettingError: ``bins`` or ``draws`` is not an integer of at least 1.
        DataError: a row is not a distribution.

    >>> round(calibration_error_if_calibrated([[0.5, 0.5]]), 12)  # correct or not, the gap is 0.5
    0.5
    """
    _check_bins(bins)
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise SettingError(f"draws is {draws!r}; give an integer of at least 1.")
    confidence = np.sort(checked_probabilities(probabilities).max(axis=1))  # (m,)
    # Sorted, the examples of a bin are adjacent: each of the b non-empty bins is one slice.
    _, starts = np.unique(_equal_width(confidence, bins), return_index=True)  # (b,)
    expected = np.add.reduceat(confidence, starts)  # (b,) expected number of correct predictions
    rng = rng_for("calibrated labels", int(seed))
    total = 0.0
    rows = max(1, BLOCK // confidence.size)
    for first in range(0, draws, rows):
        correct = rng.random((min(rows, draws - first), confidence.size)) < confidence  # (rows, m)
        count = np.add.reduceat(correct, starts, axis=1, dtype=np.int64)  # (rows, b)
        total += float(np.abs(count - expected).sum())
    return total / (draws * confidence.size)


def maximum_calibration_error(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> float:
    """Largest |A_r − P_r| of Eq. 2 over the non-empty bins; (m, k) and (m,)."""
    curve = reliability_curve(probabilities, labels, bins=bins)
    return float(np.nanmax(np.abs(curve.accuracy - curve.confidence)))


def adaptive_calibration_error(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> float:
    """Eq. 2 in equal-mass bins: R groups of m/R examples in the order of confidence; (m, k) and (m,).

    Equal confidences are in the bin of the first of them, so that neither the order of the examples nor
    repeating all of them changes the value. With fewer examples than bins each confidence has its own bin.
    """
    _check_bins(bins)
    confidence, correct = top_label(probabilities, labels)
    return _weighted_gap(confidence, correct, _equal_mass(confidence, bins))


def classwise_calibration_error(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> float:
    """Mean over the k classes of Eq. 2 for a class's probability against being the true label.

    The mean includes classes that do not occur in the labels (m,).
    """
    _check_bins(bins)
    p, y = checked(probabilities, labels)
    k = p.shape[1]
    truth = y[:, None] == np.arange(k)  # (m, k)
    inside = _equal_width(p, bins) + bins * np.arange(k)  # (m, k), separate bins for each class
    return _weighted_gap(p.ravel(), truth.ravel(), inside.ravel())  # mean over m·k: (1/k) Σ_j of Eq. 2


def _weighted_gap(confidence: Floats, correct: npt.NDArray[np.float64 | np.bool_], inside: Ints) -> float:
    """Eq. 2, with |B_r|·|A_r − P_r| = |Σ (correct − confidence)|: empty bins need no special case."""
    return float(np.abs(np.bincount(inside, correct - confidence)).sum() / confidence.size)


def _equal_width(values: Floats, bins: int) -> Ints:
    """Return the bin of each value: the number of inner edges below it; any shape."""
    return np.searchsorted(_edges(bins)[1:-1], values, side="left")


def _equal_mass(values: Floats, bins: int) -> Ints:
    """Return ⌊R · rank / m⌋ (m,), where equal values have the rank of the first of them."""
    rank = np.searchsorted(np.sort(values), values, side="left")  # (m,)
    return rank * bins // values.size


def _edges(bins: int) -> Floats:
    """Return r/R (R + 1,), each the nearest float64, which np.linspace does not guarantee."""
    _check_bins(bins)
    return np.arange(bins + 1) / bins


def _check_bins(bins: int) -> None:
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise SettingError(f"bins is {bins!r}; give an integer of at least 1.")
