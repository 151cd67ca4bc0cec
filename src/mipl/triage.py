"""Selective classification: report confident bags, send the others to review.

A bag is reported when its confidence is at least a threshold. The error of an operating point is the error
among the *reported* bags, P(prediction wrong | confidence ≥ threshold), also called the selective risk; bags
sent to review do not count.

**The guarantee** of :func:`at_max_error`. Let the n calibration bags be independent draws from the
distribution of future bags, none of them used to train or calibrate the model. Before looking at them, K
counts N_1 < … < N_K = n are fixed from n, ε and δ alone. The k-th threshold lies just above the (N_k + 1)-th
largest confidence t (for N_K there is no threshold), so that the bags with confidence > t are reported: N of
them, which is N_k, or fewer in case of ties. Given t and the set of bags above it, these bags are
independent draws from the distribution of a bag with confidence > t, because they are not selected in any
other way: the bag *at* t, which determines t, is not counted. Their number of errors is therefore
Binomial(N, R(t)), where R(t) is the selective risk, and the exact (Clopper–Pearson) upper bound at level δ/K
lies below R(t) with probability at most δ/K. By the union bound, all K bounds hold together with probability
at least 1 − δ, whichever of them is selected; selected is the largest N whose bound is at most ε. No relation
between error and confidence is assumed, nor calibrated confidence; the selection depends only on the order of
the confidences.

Fixed-sequence testing, which spends all of δ on each threshold in turn, needs thresholds that are fixed in
advance: with thresholds taken from the confidences of the calibration bags, the first one to violate ε
depends on these bags, and the level is proven only if the risk crosses ε once.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from mipl.errors import DataError, SettingError
from mipl.files import atomic_file

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# More thresholds (K) give a finer choice of coverage, but each has a smaller part of δ and needs more bags.
MAX_THRESHOLDS, BAGS_PER_THRESHOLD = 15, 30
COLUMNS = ("bag_id", "predicted", "confidence", "prediction_set", "decision", "reason")


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """A threshold on the confidence, and the error among reported bags as measured on labelled bags."""

    rule: str  # max_error, coverage or threshold
    threshold: float | None  # the lowest confidence that is reported; None: no bag is reported
    note: str  # one sentence: the guarantee, or why no bag is reported
    labelled: int = 0  # number of bags with true labels
    reported: int | None = None  # number of labelled bags that are reported
    errors: int | None = None  # number of reported labelled bags that are misclassified
    bound: float | None = None  # upper bound on the error, exceeded with probability at most delta
    delta: float | None = None

    def reports(self, confidence: npt.ArrayLike) -> Bools:
        """Return which of the bags with these confidences (m,) are reported."""
        c = np.asarray(confidence, dtype=np.float64)
        return np.zeros(c.shape, dtype=np.bool_) if self.threshold is None else c >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return dataclasses.asdict(self)


def upper_bound(errors: int, count: int, delta: float) -> float:
    """Return the Clopper–Pearson upper bound on a rate from ``errors`` in ``count`` independent trials.

    It is the rate at which at most this many errors have probability δ; the true rate exceeds it with
    probability at most δ. The bound is 1 if there are no trials or every trial is an error.
    """
    if not 0 <= errors <= count:
        raise DataError(f"{errors} errors among {count} bags are impossible.")
    _check_delta(delta)
    return 1.0 if errors == count else float(beta.ppf(1.0 - delta, errors + 1, count - errors))


def min_bags(max_error: float, delta: float) -> int | None:
    """Return the smallest number of bags that can guarantee ``max_error`` if none is misclassified.

    It is the smallest n with (1 − ε)ⁿ ≤ δ; None if ``max_error`` is 0, which no number of bags can guarantee.
    """
    return None if max_error == 0 else math.ceil(math.log(delta) / math.log1p(-max_error) - 1e-9)


def at_max_error(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, max_error: float, delta: float = 0.05
) -> OperatingPoint:
    """Return the largest coverage whose error is at most ``max_error`` with probability 1 − ``delta``.

    The guarantee and its proof are in the docstring of this module.

    Args:
        confidence: (n,) confidences of labelled bags that the model was neither trained nor calibrated on.
        correct: (n,) whether the predictions of these bags are correct.
        max_error: The largest error allowed among reported bags, ε.
        delta: The probability with which the guarantee may fail, δ.

    Returns:
        The operating point; its threshold is None if no threshold meets ``max_error``, and its note says why.
    """
    c, wrong = _validate(confidence, correct)
    if not 0 <= max_error < 1:
        raise SettingError(
            f"The maximum error is {max_error}: give a fraction of at least 0 and below 1, such as 0.05."
        )
    _check_delta(delta)
    n, needed = len(c), min_bags(max_error, delta)
    wanted = f"an error of at most {max_error:g} with probability {1 - delta:g}"

    def nothing(note: str) -> OperatingPoint:
        return OperatingPoint("max_error", None, f"No threshold meets {note}", n, 0, 0, None, delta)

    if needed is None:
        return nothing("this: no number of bags can rule out every error.")
    if n < needed:
        return nothing(
            f"{wanted}: {needed} labelled bags are needed among the reported even without an error, and "
            f"there are {n}."
        )
    tried = _bounds(c, wrong, max_error, delta)
    passed = [point for point in tried if point.bound is not None and point.bound <= max_error]
    if not passed:
        tightest = min(point.bound for point in tried if point.bound is not None)
        return nothing(f"{wanted}: the smallest bound on {n} bags is {tightest:.3g}.")
    best = passed[-1]  # coverage increases
    note = (
        f"Among reported bags {wanted}; of {n} labelled bags {best.reported} are reported, "
        f"{best.errors} of them wrong."
    )
    return dataclasses.replace(best, note=note)


def _bounds(c: Floats, wrong: Bools, max_error: float, delta: float) -> list[OperatingPoint]:
    """Return the K operating points of :func:`at_max_error` with bounds at level δ/K, by coverage."""
    n, counts = len(c), _counts(len(c), max_error, delta)
    descending = np.sort(c)[::-1]
    points = []
    for count in counts:
        # just above the next largest confidence, so that "at least" means "greater than" it
        threshold = 0.0 if count == n else float(np.nextafter(descending[count], np.inf))
        above = c >= threshold
        reported, errors = int(above.sum()), int(wrong[above].sum())
        bound = upper_bound(errors, reported, delta / len(counts))
        points.append(OperatingPoint("max_error", threshold, "", n, reported, errors, bound, delta))
    return points


def at_threshold(threshold: float) -> OperatingPoint:
    """Return the operating point that reports every bag with at least this confidence."""
    if not 0 <= threshold <= 1:
        raise SettingError(f"The threshold is {threshold}: give a confidence between 0 and 1.")
    return OperatingPoint(
        "threshold", float(threshold), f"Reported: bags with a confidence of at least {threshold:g}."
    )


def at_coverage(confidence: npt.ArrayLike, coverage: float) -> OperatingPoint:
    """Return the operating point that reports the most confident fraction of bags.

    Ties are reported or reviewed together, so the fraction is the largest that does not exceed ``coverage``.

    Args:
        confidence: (m,) confidences of the bags.
        coverage: Fraction of the bags to report.
    """
    c, _ = _validate(confidence, np.ones(np.shape(confidence)))
    if not 0 <= coverage <= 1:
        raise SettingError(f"The coverage is {coverage}: give a fraction between 0 and 1.")
    count = math.floor(coverage * len(c) + 1e-9)
    descending = np.sort(c)[::-1]
    threshold = 0.0 if count == len(c) else float(np.nextafter(descending[count], np.inf))
    if not (c >= threshold).any():
        return OperatingPoint(
            "coverage", None, f"No threshold reports at least one and at most {coverage:g} of the bags."
        )
    return OperatingPoint("coverage", threshold, f"Reported: the most confident {coverage:g} of the bags.")


def measured(
    point: OperatingPoint, confidence: npt.ArrayLike, correct: npt.ArrayLike, delta: float = 0.05
) -> OperatingPoint:
    """Return an operating point with its error on labelled bags, and the upper bound on it.

    Args:
        point: Operating point that was chosen without these labels.
        confidence: (n,) confidences of the labelled bags.
        correct: (n,) whether their predictions are correct.
        delta: The probability with which the bound may fail.
    """
    c, wrong = _validate(confidence, correct)
    above = point.reports(c)
    reported, errors = int(above.sum()), int(wrong[above].sum())
    bound = upper_bound(errors, reported, delta)
    note = (
        f"{point.note} {errors} of {reported} were wrong on {len(c)} labelled bags: an error of at most "
        f"{bound:.3g} with probability {1 - delta:g}."
    )
    return dataclasses.replace(
        point, note=note, labelled=len(c), reported=reported, errors=errors, bound=bound, delta=delta
    )


def decisions(
    ids: Sequence[str],
    classes: Sequence[Any],
    probabilities: Floats,
    point: OperatingPoint,
    sets: Bools | None = None,
) -> list[dict[str, Any]]:
    """Return one row per bag with the columns ``COLUMNS``; the prediction is the most probable class.

    Args:
        ids: Ids of the m bags.
        classes: Names of the k classes.
        probabilities: (m, k) class probabilities.
        point: Decides which bags are reported.
        sets: (m, k) prediction sets; without them the field is empty. The predicted class is always added to
            its set, which may be empty otherwise; this can only increase the coverage.
    """
    confidence, top = probabilities.max(axis=1), probabilities.argmax(axis=1).tolist()
    rows = []
    for i, (bag, report) in enumerate(zip(ids, point.reports(confidence).tolist(), strict=True)):
        if point.threshold is None:
            reason = "no threshold meets the rule"
        else:
            reason = f"confidence is {'at least' if report else 'below'} {point.threshold:.6g}"
        names = [] if sets is None else [name for j, name in enumerate(classes) if sets[i, j] or j == top[i]]
        rows.append(
            {
                "bag_id": bag,
                "predicted": classes[top[i]],
                "confidence": float(confidence[i]),
                "prediction_set": names,
                "decision": "report" if report else "review",
                "reason": reason,
            }
        )
    return rows


def write_decisions(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of :func:`decisions` as CSV, with the classes of a set separated by ``|``."""
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            written = {
                **row,
                "confidence": repr(row["confidence"]),
                "prediction_set": "|".join(str(name) for name in row["prediction_set"]),
            }
            writer.writerow([written[name] for name in COLUMNS])


def _counts(n: int, max_error: float, delta: float) -> list[int]:
    """Return N_1 < … < N_K = n for the largest K such that N_1 bags without an error pass at level δ/K."""
    for size in range(min(MAX_THRESHOLDS, n // BAGS_PER_THRESHOLD), 1, -1):
        fewest = min_bags(max_error, delta / size)
        if fewest is not None and n - fewest + 1 >= size:
            return [round(count) for count in np.linspace(fewest, n, size).tolist()]
    return [n]


def _validate(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Bools]:
    c, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    if c.ndim != 1 or not c.size or c.shape != right.shape:
        raise DataError(
            f"confidence has shape {c.shape} and correct {right.shape}: give one value of each per bag, and "
            "at least one bag."
        )
    if not ((c >= 0) & (c <= 1 + 1e-6)).all() or not np.isin(right, (0, 1)).all():
        raise DataError("A confidence is not between 0 and 1, or a value of correct is not 0 or 1.")
    return c, right == 0


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise SettingError(
            f"delta is {delta}: give the probability of a failed guarantee, between 0 and 1, such as 0.05."
        )
