"""Calibration errors without the bias of bins, and the split of the log score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mipl.errors import SettingError
from mipl.metrics._inputs import Floats, Ints, checked, top_label
from mipl.metrics.calibration import _check_bins, _equal_mass
from mipl.seeding import rng_for

GRID = 2048  # points in [0, 1] on which residuals are smoothed
FLOOR = 1e-300  # of a probability whose logarithm is taken


class LogScoreSplit(NamedTuple):
    """The two parts of the negative log-likelihood, in nats; they sum to it."""

    refinement: float  # what remains after the best recalibration
    calibration: float  # what recalibration removes; below 0 if there is nothing to remove


def smooth_calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the SmoothECE of the top-label confidence (Błasiok and Nakkiran, ICLR 2024).

    The residuals 1[correct] − confidence are smoothed over the confidence with a Gaussian kernel, reflected
    at 0 and 1; the error is the integral of the absolute value. The width of the kernel is the one that
    equals the error, so that there is nothing to choose.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
    """
    from scipy.fft import dct, idct  # when needed: importing the metrics brings NumPy alone

    confidence, correct = top_label(probabilities, labels)
    place = np.clip(confidence, 0, 1) * GRID - 0.5  # between the centres of cells
    low = np.clip(np.floor(place).astype(np.int64), 0, GRID - 2)
    upper = np.clip(place - low, 0, 1)
    residual = (correct - confidence) / len(confidence)
    masses = np.bincount(low, residual * (1 - upper), minlength=GRID)
    masses += np.bincount(low + 1, residual * upper, minlength=GRID)
    spectrum = dct(masses, type=2)  # a reflected Gaussian multiplies it by exp(−(π j σ)²/2)
    frequencies = np.pi * np.arange(GRID)

    def smoothed(width: float) -> float:
        return float(np.abs(idct(spectrum * np.exp(-0.5 * (frequencies * width) ** 2), type=2)).sum())

    low_width, high_width = 0.0, 1.0  # the smoothed error decreases with the width
    for _ in range(30):
        middle = (low_width + high_width) / 2
        low_width, high_width = (middle, high_width) if smoothed(middle) > middle else (low_width, middle)
    return (low_width + high_width) / 2


def debiased_calibration_error(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> float:
    """Return the root mean square calibration error without the bias of small bins.

    Kumar, Liang and Ma, Verified Uncertainty Calibration (NeurIPS 2019). In bins with equally many examples
    the squared gap of confidence and accuracy exceeds the true one by the variance of the accuracy, which is
    estimated and subtracted: sqrt(max(0, Σ n_r/m ((A_r − P_r)² − A_r(1 − A_r)/(n_r − 1)))). Bins of one
    example are left out.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
        bins: number of bins.
    """
    _check_bins(bins)
    confidence, correct = top_label(probabilities, labels)
    inside = _equal_mass(confidence, bins)
    count = np.bincount(inside, minlength=bins)
    some = count > 1
    size = count[some]
    accuracy = np.bincount(inside, correct, minlength=bins)[some] / size
    gap = accuracy - np.bincount(inside, confidence, minlength=bins)[some] / size
    squares = size * (gap**2 - accuracy * (1 - accuracy) / (size - 1))
    return float(np.sqrt(max(0.0, squares.sum() / max(size.sum(), 1))))


def log_score_split(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, folds: int = 5, seed: int = 0
) -> LogScoreSplit:
    """Return how much of the negative log-likelihood recalibration would remove (Berta et al., 2025).

    The refinement is the loss after temperature scaling with Laplace smoothing, fitted on the other folds;
    the calibration is the rest.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
        folds: number of folds; fewer for fewer examples.
        seed: seed of the folds.
    """
    if not isinstance(folds, int) or folds < 2:
        raise SettingError(f"folds = {folds!r} must be an integer of at least 2.")
    p, y = checked(probabilities, labels)
    m, k = p.shape
    z = np.log(np.maximum(p, FLOOR))
    loss = float(-z[np.arange(m), y].mean())
    if m < 2:
        return LogScoreSplit(loss, 0.0)
    fold = rng_for("log score split", seed).permutation(m) % min(folds, m)
    recalibrated = np.empty(m)
    for number in range(min(folds, m)):
        test, train = fold == number, fold != number
        sharpness = _sharpness(z[train], y[train])
        own = _scaled(z[test], sharpness)[np.arange(test.sum()), y[test]]
        uniform = 1 / (train.sum() + 1)
        recalibrated[test] = -np.log((1 - uniform) * np.exp(own) + uniform / k)
    refinement = float(recalibrated.mean())
    return LogScoreSplit(refinement, loss - refinement)


def _sharpness(z: Floats, y: Ints) -> float:
    """Return 1/T of the maximum likelihood, within [1/100, 100]; the loss is convex in it."""
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(y))

    def loss(log_sharpness: float) -> float:
        return float(-_scaled(z, np.exp(log_sharpness))[rows, y].mean())

    bounds = (-np.log(100.0), np.log(100.0))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x))


def _scaled(z: Floats, sharpness: float) -> Floats:
    """Return log softmax(sharpness · z) (m, k)."""
    scores = sharpness * z
    scores = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
