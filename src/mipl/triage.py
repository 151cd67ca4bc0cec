"""Selective classification: report confident bags, send the others to review.

A bag is reported when its confidence is at least a threshold. The error of an operating point is the error
among the *reported* bags, P(prediction wrong | confidence ≥ threshold), also called the selective risk; bags
sent to review do not count.

**The guarantee** of :func:`at_max_error`. Let the n labelled bags be independent draws from the distribution
of future bags, none of them used to train or calibrate the model, and let R(t) be the error among future bags
with confidence ≥ t.

*Fixed-sequence testing*, for a model with out-of-fold confidences. The thresholds t_1 > t_2 > … are quantiles
of these confidences, chosen from them, n, ε and δ alone. Above the first, their share times n is three times
the least number of bags that can pass, but the share is at most one half unless 1.5 times that number asks
for more; from there the share increases in equal steps up to reporting everything. The thresholds are fixed
before the labelled bags are looked at. Of the N labelled bags with confidence ≥ t_j the number of errors is
therefore, given N, Binomial(N, R(t_j)), and if R(t_j) > ε the exact (Clopper–Pearson) upper bound at level δ
is at most ε with probability at most δ. Thresholds are tested in their order, each at the full level δ, up to
the first that fails; the last that passed is used.
*Proof.* If no R(t_j) is above ε there is nothing to show. Otherwise let j be the first index with
R(t_j) > ε; it is fixed, because the thresholds are. A threshold with an error above ε is at j or after it and
is used only if t_j passed, which has probability at most δ. ∎ No relation between error and confidence is
assumed, nor that R is monotone, nor calibrated confidence. Ties are on the same side of a threshold.

*Without out-of-fold confidences* (a single network, or a model of an earlier version) thresholds come from
the ranks of the labelled bags, and δ is divided. K counts N_1 < … < N_K = n are fixed from n, ε and δ alone.
The k-th threshold lies just above the (N_k + 1)-th largest confidence t (for N_K there is no threshold), so
that the bags with confidence > t are reported: N of them, which is N_k, or fewer in case of ties. Given t and
the set of bags above it, these are independent draws from the distribution of a bag with confidence > t,
because they are not selected in any other way: the bag *at* t, which determines t, is not counted. Their
number of errors is therefore Binomial(N, R), the bound at level δ/K lies below R with probability at most
δ/K, and by the union bound all K bounds hold together with probability at least 1 − δ. Selected is the
largest N whose bound is at most ε. (The full level δ would not do here: which threshold is the first to
violate ε then depends on the labelled bags.)
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincinv

from mipl.errors import DataError, SettingError
from mipl.files import atomic_file

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# With a divided δ, more thresholds (K) give a finer choice of coverage, but each needs more bags.
MAX_THRESHOLDS, BAGS_PER_THRESHOLD = 15, 30
STEPS = 25  # thresholds of a fixed sequence
# The expected number of bags above the first of them, in units of the least number that can pass: more leave
# room for errors, but may be more bags than the confident ones.
LEAST_START, START, MOST_SHARE = 1.5, 3.0, 0.5
COLUMNS = ("bag_id", "predicted", "confidence", "prediction_set", "decision", "reason", "typicality")


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
    return 1.0 if errors == count else float(betaincinv(errors + 1, count - errors, 1.0 - delta))


def min_bags(max_error: float, delta: float) -> int | None:
    """Return the smallest number of bags that can guarantee ``max_error`` if none is misclassified.

    It is the smallest n with (1 − ε)ⁿ ≤ δ; None if ``max_error`` is 0, which no number of bags can guarantee.
    """
    return None if max_error == 0 else math.ceil(math.log(delta) / math.log1p(-max_error) - 1e-9)


def at_max_error(
    confidence: npt.ArrayLike,
    correct: npt.ArrayLike,
    max_error: float,
    delta: float = 0.05,
    *,
    out_of_fold: npt.ArrayLike | None = None,
) -> OperatingPoint:
    """Return the largest coverage found whose error is at most ``max_error`` with probability 1 − ``delta``.

    The guarantee and its proof are in the docstring of this module.

    Args:
        confidence: (n,) confidences of labelled bags that the model was neither trained nor calibrated on.
        correct: (n,) whether the predictions of these bags are correct.
        max_error: The largest error allowed among reported bags, ε.
        delta: The probability with which the guarantee may fail, δ.
        out_of_fold: (m,) the model's out-of-fold confidences (:meth:`BagClassifier.out_of_fold_proba`), from
            which the thresholds come. Without them fewer bags are reported.

    Returns:
        The operating point; its threshold is None if no threshold meets ``max_error``, and its note says what
        is missing.
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
    if out_of_fold is None:
        tried = _by_rank(c, wrong, max_error, delta)
        passed = [point for point in tried if _bound(point) <= max_error]
    else:
        thresholds = fixed_thresholds(out_of_fold, n, max_error, delta)
        tried = _tested(thresholds, c, wrong, delta, delta)
        passed = list(itertools.takewhile(lambda point: _bound(point) <= max_error, tried))
    if not passed:
        return nothing(f"{wanted}: {_missing(tried, n, max_error, delta, out_of_fold is not None)}")
    best = passed[-1]  # coverage increases
    note = (
        f"Among reported bags {wanted}; of {n} labelled bags {best.reported} are reported, "
        f"{best.errors} of them wrong."
    )
    return dataclasses.replace(best, note=note)


def fixed_thresholds(out_of_fold: npt.ArrayLike, n: int, max_error: float, delta: float) -> list[float]:
    """Return the descending thresholds of a fixed sequence for n labelled bags; the last one reports all.

    Args:
        out_of_fold: (m,) out-of-fold confidences.
        n: Number of labelled bags, of which only the number is used.
        max_error: ε, above 0.
        delta: δ.
    """
    descending = np.sort(_confidences(out_of_fold))[::-1]
    m, needed = len(descending), min_bags(max_error, delta)
    if needed is None:
        raise SettingError("No thresholds can rule out every error: give a maximum error above 0.")
    first = min(1.0, max(LEAST_START * needed / n, min(START * needed / n, MOST_SHARE)))
    ranks = [math.ceil(round(share * m, 9)) for share in np.linspace(first, 1.0, STEPS).tolist()]
    thresholds = [0.0 if rank >= m else float(descending[rank - 1]) for rank in ranks]
    return sorted(set(thresholds), reverse=True)


def _tested(
    thresholds: Sequence[float], c: Floats, wrong: Bools, level: float, delta: float
) -> list[OperatingPoint]:
    """Return the operating point of each threshold with its bound at a level."""
    order = np.argsort(c)
    errors_from = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)  # (n + 1,)
    first = np.searchsorted(c[order], thresholds, side="left")
    n = len(c)
    return [
        OperatingPoint("max_error", t, "", n, n - i, errors, upper_bound(errors, n - i, level), delta)
        for t, i, errors in zip(thresholds, first.tolist(), errors_from[first].tolist(), strict=True)
    ]


def _bound(point: OperatingPoint) -> float:
    return 1.0 if point.bound is None else point.bound


def _missing(tried: list[OperatingPoint], n: int, max_error: float, delta: float, fixed: bool) -> str:
    """Return what the labelled bags say now, and how many more of them could suffice."""
    if fixed:  # one threshold, fixed in advance: its bound holds by itself
        first = tried[0]
        now = (
            f"at the first threshold {first.errors} of {first.reported} labelled bags are wrong, which "
            f"bounds the error by {_bound(first):.3g}"
        )
    else:
        now = f"the smallest bound on {n} bags is {min(map(_bound, tried)):.3g}"
    more = further_bags(tried, n, max_error, delta / (1 if fixed else len(tried)))
    if more is None:
        return f"{now}; more labelled bags are unlikely to help, because more than {max_error:g} are wrong."
    return (
        f"{now}; if errors stay as frequent, about {more} further labelled bags could suffice (label all of "
        "them before you repeat this)."
    )


def further_bags(tried: Sequence[OperatingPoint], n: int, max_error: float, level: float) -> int | None:
    """Return how many further labelled bags could make a threshold pass if errors stay as frequent.

    Args:
        tried: Operating points with their errors on n labelled bags.
        n: Number of labelled bags.
        max_error: ε.
        level: The level of each bound.

    Returns:
        The least number over the thresholds; None if the errors are too frequent at all of them.
    """
    errors, reported = (
        np.array([getattr(point, name) for point in tried]) for name in ("errors", "reported")
    )
    hopeful = errors < max_error * reported
    if not hopeful.any():
        return None
    errors, reported = errors[hopeful], reported[hopeful]

    def passes(factor: float) -> bool:
        more = (np.ceil(factor * counts).astype(np.int64) for counts in (errors, reported))
        return bool((bdtr(*more, max_error) <= level).any())

    low, high = 1.0, 2.0  # factors of the number of bags
    while not passes(high) and high < 1e6:
        low, high = high, 2 * high
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return math.ceil(high * n) - n


def _by_rank(c: Floats, wrong: Bools, max_error: float, delta: float) -> list[OperatingPoint]:
    """Return the K operating points at ranks of the labelled bags with bounds at level δ/K, by coverage."""
    n, counts = len(c), _counts(len(c), max_error, delta)
    descending = np.sort(c)[::-1]
    # just above the next largest confidence, so that "at least" means "greater than" it
    thresholds = [0.0 if k == n else float(np.nextafter(descending[k], np.inf)) for k in counts]
    return _tested(thresholds, c, wrong, delta / len(counts), delta)


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
    typicality: Floats | None = None,
    rare: float = 0.0,
) -> list[dict[str, Any]]:
    """Return one row per bag with the columns ``COLUMNS``; the prediction is the most probable class.

    Args:
        ids: Ids of the m bags.
        classes: Names of the k classes.
        probabilities: (m, k) class probabilities.
        point: Decides which bags are reported.
        sets: (m, k) prediction sets; without them the field is empty. The predicted class is always added to
            its set, which may be empty otherwise; this can only increase the coverage.
        typicality: (m,) conformal p-values of the bags' features (`Reference.typicality`); without them the
            field is None. They do not change a decision, which would change its guarantee.
        rare: Up to this p-value, the reason says that the bag is unlike the held-out bags.
    """
    confidence, top = probabilities.max(axis=1), probabilities.argmax(axis=1).tolist()
    rows = []
    for i, (bag, report) in enumerate(zip(ids, point.reports(confidence).tolist(), strict=True)):
        if point.threshold is None:
            reason = "no threshold meets the rule"
        else:
            reason = f"confidence is {'at least' if report else 'below'} {point.threshold:.6g}"
        if typicality is not None and typicality[i] <= rare:
            reason += "; unlike the held-out bags, so look at it"
        names = [] if sets is None else [name for j, name in enumerate(classes) if sets[i, j] or j == top[i]]
        rows.append(
            {
                "bag_id": bag,
                "predicted": classes[top[i]],
                "confidence": float(confidence[i]),
                "prediction_set": names,
                "decision": "report" if report else "review",
                "reason": reason,
                "typicality": None if typicality is None else float(typicality[i]),
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
                "typicality": "" if row["typicality"] is None else f"{row['typicality']:.6g}",
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
    if not _in_range(c) or not np.isin(right, (0, 1)).all():
        raise DataError("A confidence is not between 0 and 1, or a value of correct is not 0 or 1.")
    return c, right == 0


def _confidences(values: npt.ArrayLike) -> Floats:
    c = np.asarray(values, dtype=np.float64)
    if c.ndim != 1 or not c.size or not _in_range(c):
        raise DataError("The out-of-fold confidences are not values between 0 and 1, at least one of them.")
    return c


def _in_range(c: Floats) -> bool:
    return bool(((c >= 0) & (c <= 1 + 1e-6)).all())


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise SettingError(
            f"delta is {delta}: give the probability of a failed guarantee, between 0 and 1, such as 0.05."
        )
