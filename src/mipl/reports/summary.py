"""The metrics of a report, and sentences that describe them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mipl import metrics

THRESHOLD = 0.9  # the confidence from which on a bag is reported without a person
THRESHOLDS = (0.5, 0.7, 0.8, THRESHOLD, 0.95)


@dataclass(frozen=True)
class Reported:
    """The result of reporting only predictions with a confidence of at least ``threshold``."""

    threshold: float
    count: int
    accuracy: float  # of the reported bags; NaN for none
    confidence: float  # mean over the reported bags; NaN for none


@dataclass(frozen=True)
class Summary:
    """The metrics of a model on m samples of k classes."""

    title: str
    m: int
    k: int
    seconds: float
    accuracy: float
    ece: float
    brier: float
    nll: float
    confidence: float  # mean
    highest: float  # highest confidence
    reported: tuple[Reported, ...]  # one per threshold of THRESHOLDS

    @property
    def confident(self) -> Reported:
        """The result of reporting from THRESHOLD on."""
        return self.reported[THRESHOLDS.index(THRESHOLD)]


def summarise(title: str, probabilities: npt.ArrayLike, labels: npt.ArrayLike, seconds: float) -> Summary:
    """Return the metrics of probabilities (m, k) and labels (m,)."""
    accuracy = metrics.accuracy(probabilities, labels)  # checks both arrays
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    confidence, correct = p.max(axis=1).clip(max=1.0), p.argmax(axis=1) == y  # (m,), (m,)
    return Summary(
        title=title,
        m=p.shape[0],
        k=p.shape[1],
        seconds=seconds,
        accuracy=accuracy,
        ece=metrics.expected_calibration_error(p, y),
        brier=metrics.brier(p, y),
        nll=metrics.negative_log_likelihood(p, y),
        confidence=float(confidence.mean()),
        highest=float(confidence.max()),
        reported=tuple(_reported(confidence, correct, threshold) for threshold in THRESHOLDS),
    )


def margin(row: Summary) -> float:
    """Return half the width of the 95% confidence interval of the accuracy by Agresti and Coull."""
    p = (row.accuracy * row.m + 2) / (row.m + 4)
    return 1.96 * math.sqrt(p * (1 - p) / (row.m + 4))


def sigmoid_ceiling(k: int) -> float:
    """Return e/(e + k − 1), the highest probability of a softmax over k outputs of a sigmoid."""
    return math.e / (math.e + k - 1)


def findings(rows: Sequence[Summary]) -> list[str]:
    """Return sentences that compare the models."""
    sentences = []
    if len(rows) > 1:
        accuracy, error = [row.accuracy for row in rows], [row.ece for row in rows]
        spread, error_spread = max(accuracy) - min(accuracy), max(error) - min(error)
        sentences.append(
            f"Accuracy ranges from {min(accuracy):.1%} to {max(accuracy):.1%} ({points(spread)}), the "
            f"expected calibration error from {min(error):.1%} to {max(error):.1%} ({points(error_spread)})."
        )
        if error_spread > 2 * spread:
            sentences[0] += " The models differ more in calibration than in accuracy."
        elif spread > 2 * error_spread:
            sentences[0] += " The models differ more in accuracy than in calibration."
    return sentences + [_at_threshold(row) for row in rows]


def tendency(row: Summary) -> str:
    """Return a sentence that compares the mean confidence of a model with its accuracy."""
    gap = row.confidence - row.accuracy
    both = f"Mean confidence {row.confidence:.1%}, accuracy {row.accuracy:.1%}"
    if abs(gap) < 0.01:
        return f"{both}: on average within one point of each other."
    return f"{both}: on average {'over' if gap > 0 else 'under'}-confident by {points(abs(gap))}."


def points(difference: float) -> str:
    """Return a difference of two fractions in percentage points."""
    text = f"{100 * difference:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def _reported(
    confidence: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_], threshold: float
) -> Reported:
    chosen = confidence >= threshold  # (m,)
    if not chosen.any():  # NumPy would warn about the mean of nothing
        return Reported(threshold, 0, math.nan, math.nan)
    means = float(correct[chosen].mean()), float(confidence[chosen].mean())
    return Reported(threshold, int(chosen.sum()), *means)


def _at_threshold(row: Summary) -> str:
    confident = row.confident
    rest, level = row.m - confident.count, f"{confident.threshold:.0%}"
    if confident.count == 0:
        return (
            f"{row.title} never reaches {level} confidence; its highest is {row.highest:.1%}. "
            f"A rule that reports from {level} on leaves all {row.m} bags to a person."
        )
    others = {0: "none is left to a person", 1: "the other one goes to a person"}
    left = others.get(rest, f"the other {rest} go to a person")
    return (
        f"{row.title} reports {confident.count} of {row.m} bags at {level} confidence or more; "
        f"{confident.accuracy:.1%} of them are correct, with a mean confidence of "
        f"{confident.confidence:.1%}; {left}."
    )
