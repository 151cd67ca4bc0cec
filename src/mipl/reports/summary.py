"""The numbers of a report and the sentences they allow: nothing is said that the arrays do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mipl import metrics

THRESHOLD = 0.9  # the confidence from which the page reports a bag without a person
THRESHOLDS = (0.5, 0.7, 0.8, THRESHOLD, 0.95)


@dataclass(frozen=True)
class Reported:
    """What happens when only predictions with a confidence of at least ``threshold`` are reported."""

    threshold: float
    count: int
    accuracy: float  # of those reported; NaN for none
    confidence: float  # mean of those reported; NaN for none


@dataclass(frozen=True)
class Summary:
    """A model's numbers on m samples of k classes."""

    title: str
    m: int
    k: int
    seconds: float
    accuracy: float
    ece: float
    brier: float
    nll: float
    confidence: float  # mean
    highest: float  # highest confidence of all
    reported: tuple[Reported, ...]  # one for each of THRESHOLDS

    @property
    def sure(self) -> Reported:
        """What is reported at THRESHOLD."""
        return self.reported[THRESHOLDS.index(THRESHOLD)]


def summarise(title: str, probabilities: npt.ArrayLike, labels: npt.ArrayLike, seconds: float) -> Summary:
    """Return the numbers for probabilities (m, k) and labels (m,)."""
    right = metrics.accuracy(probabilities, labels)  # refuses what is not a table of probabilities
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    confidence, correct = p.max(axis=1).clip(max=1.0), p.argmax(axis=1) == y  # (m,), (m,)
    return Summary(
        title=title,
        m=p.shape[0],
        k=p.shape[1],
        seconds=seconds,
        accuracy=right,
        ece=metrics.expected_calibration_error(p, y),
        brier=metrics.brier(p, y),
        nll=metrics.negative_log_likelihood(p, y),
        confidence=float(confidence.mean()),
        highest=float(confidence.max()),
        reported=tuple(_reported(confidence, correct, threshold) for threshold in THRESHOLDS),
    )


def margin(row: Summary) -> float:
    """Return half the width of the accuracy's 95% interval, by Agresti and Coull: never 0."""
    share = (row.accuracy * row.m + 2) / (row.m + 4)
    return 1.96 * math.sqrt(share * (1 - share) / (row.m + 4))


def sigmoid_ceiling(k: int) -> float:
    """Return e/(e + k − 1), the most that a softmax over k outputs of a sigmoid can give."""
    return math.e / (math.e + k - 1)


def findings(rows: Sequence[Summary]) -> list[str]:
    """Return what the numbers of all models say side by side."""
    said = []
    if len(rows) > 1:
        right, error = ([row.accuracy for row in rows], [row.ece for row in rows])
        spread, apart = max(right) - min(right), max(error) - min(error)
        said.append(
            f"Accuracy runs from {min(right):.1%} to {max(right):.1%}, {points(spread)} apart; the expected "
            f"calibration error from {min(error):.1%} to {max(error):.1%}, {points(apart)} apart."
        )
        if apart > 2 * spread:
            said[0] += (
                " The models differ more in what their confidence is worth than in how often they are right."
            )
        elif spread > 2 * apart:
            said[0] += (
                " The models differ more in how often they are right than in what their confidence is worth."
            )
    return said + [_at_threshold(row) for row in rows]


def tendency(row: Summary) -> str:
    """Return how a model's mean confidence compares with its accuracy."""
    gap = row.confidence - row.accuracy
    both = f"Mean confidence {row.confidence:.1%}, accuracy {row.accuracy:.1%}"
    if abs(gap) < 0.01:
        return f"{both}: on average within one point of each other."
    return f"{both}: on average {'over' if gap > 0 else 'under'}-confident by {points(abs(gap))}."


def points(share: float) -> str:
    """Return a difference of two shares in percentage points."""
    text = f"{100 * share:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def _reported(
    confidence: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_], threshold: float
) -> Reported:
    chosen = confidence >= threshold  # (m,)
    if not chosen.any():  # the mean of nothing would warn
        return Reported(threshold, 0, math.nan, math.nan)
    means = float(correct[chosen].mean()), float(confidence[chosen].mean())
    return Reported(threshold, int(chosen.sum()), *means)


def _at_threshold(row: Summary) -> str:
    sure, rest = row.sure, row.m - row.sure.count
    level = f"{sure.threshold:.0%}"
    if sure.count == 0:
        return (
            f"{row.title} never reaches {level} confidence; its highest is {row.highest:.1%}. "
            f"A rule that reports from {level} on leaves all {row.m} bags to a person."
        )
    others = {0: "none is left to a person", 1: "the other one goes to a person"}
    left = others.get(rest, f"the other {rest} go to a person")
    return (
        f"{row.title} reports {sure.count} of {row.m} bags at {level} confidence or more and is right on "
        f"{sure.accuracy:.1%} of them, with a mean confidence of {sure.confidence:.1%}; {left}."
    )
