"""Report the confident bags, send the rest to a person: operating points, their guarantee, and decisions.

A bag is reported when its confidence is at least a threshold. The error of an operating point is that among
the *reported* bags, P(prediction wrong | confidence ≥ threshold), the selective risk; what is sent to review
does not count.

**The guarantee** of :func:`at_max_error`. Let the n calibration bags be independent draws from what the
model will meet, none of them used to train or calibrate it. Before they are looked at, K counts
N_1 < … < N_K = n are fixed, from n, ε and δ alone. The k-th threshold lies just above the (N_k + 1)-th
largest confidence t (for N_K there is no threshold), so that the bags with confidence > t are reported: N of
them, N_k or, where confidences tie, fewer. Given t and which bags are above it, those bags are independent
draws from the law of a bag with confidence > t, because nothing else was asked of them: the bag *at* t, which
decides what t is, is not counted. So their number of errors is Binomial(N, R(t)), with R(t) the selective
risk, and the exact (Clopper–Pearson) upper bound at level δ/K lies below R(t) with probability at most δ/K.
By the union bound all K bounds hold together with probability at least 1 − δ, whichever is chosen then;
chosen is the largest N whose bound is at most ε. Nothing is assumed of how error and confidence go together,
nor that the confidence is calibrated; the choice depends on the order of the confidences alone.

Fixed-sequence testing, which spends all of δ on every threshold in turn, asks for thresholds fixed
beforehand: if they are taken from the confidences of the calibration bags, which of them is the first to
violate ε depends on those bags, and the level is proven only if the risk crosses ε once.
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
# K: more thresholds find a finer coverage, but each has a smaller share of δ, which few bags cannot afford
MOST_THRESHOLDS, BAGS_A_THRESHOLD = 15, 30
COLUMNS = ("bag_id", "predicted", "confidence", "prediction_set", "decision", "reason")


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """Which bags are reported, and what labelled bags say of the error among them."""

    rule: str  # max_error, coverage or threshold
    threshold: float | None  # the lowest confidence that is reported; None: nothing is
    note: str  # one sentence: what holds, or why nothing is reported
    labelled: int = 0  # bags with true labels that it was measured on
    reported: int | None = None  # of these, how many it reports
    errors: int | None = None  # of those, how many are wrong
    bound: float | None = None  # on the error of what is reported, exceeded with probability at most delta
    delta: float | None = None

    def reports(self, confidence: npt.ArrayLike) -> Bools:
        """Return which of the bags with these confidences (m,) are reported."""
        given = np.asarray(confidence, dtype=np.float64)
        return np.zeros(given.shape, dtype=np.bool_) if self.threshold is None else given >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return dataclasses.asdict(self)


def upper_bound(errors: int, count: int, delta: float) -> float:
    """Return the Clopper–Pearson upper bound on a rate from ``errors`` in ``count`` independent trials.

    It is the rate for which as few errors as these have the chance δ: the true rate is above it with a
    probability of at most δ. Without a trial, and where every one is an error, it is 1.
    """
    if not 0 <= errors <= count:
        raise DataError(f"{errors} errors among {count} bags cannot be.")
    _check_delta(delta)
    return 1.0 if errors == count else float(beta.ppf(1.0 - delta, errors + 1, count - errors))


def least_bags(max_error: float, delta: float) -> int | None:
    """Return the number of bags from which ``max_error`` can be guaranteed if none is wrong; None: no number.

    It is the smallest n with (1 − ε)ⁿ ≤ δ.
    """
    return None if max_error == 0 else math.ceil(math.log(delta) / math.log1p(-max_error) - 1e-9)


def at_max_error(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, max_error: float, delta: float = 0.05
) -> OperatingPoint:
    """Return the largest coverage whose error is at most ``max_error`` with probability 1 − ``delta``.

    ``confidence`` and ``correct`` (n,) are of labelled bags that the model was neither trained nor calibrated
    on. What is guaranteed, and why, is said at the top of this file. If no threshold meets it, the threshold
    is None: that is an answer, and the note says what is missing.
    """
    c, wrong = _checked(confidence, correct)
    if not 0 <= max_error < 1:
        raise SettingError(f"The maximum error is {max_error}: give a share from 0 to below 1, such as 0.05.")
    _check_delta(delta)
    n, least = len(c), least_bags(max_error, delta)
    nothing = OperatingPoint("max_error", None, "", n, 0, 0, None, delta)
    wanted = f"an error of at most {max_error:g} with probability {1 - delta:g}"
    if least is None:
        return dataclasses.replace(
            nothing, note="No threshold meets this: no number of bags can rule out every error."
        )
    if n < least:
        return dataclasses.replace(
            nothing,
            note=f"No threshold meets {wanted}: that takes {least} labelled bags without an error among the "
            f"reported, and there are {n}.",
        )
    counts = _counts(n, max_error, delta)
    level = delta / len(counts)
    ordered = np.sort(c)[::-1]
    best, tightest = nothing, 1.0
    for count in counts:  # rising: the last one that passes has the largest coverage
        # just above the next largest confidence: "at least this" then says "more than that one"
        threshold = 0.0 if count == n else float(np.nextafter(ordered[count], np.inf))
        above = c >= threshold
        reported, errors = int(above.sum()), int(wrong[above].sum())
        bound = upper_bound(errors, reported, level)
        tightest = min(tightest, bound)
        if bound <= max_error:
            best = OperatingPoint("max_error", threshold, "", n, reported, errors, bound, delta)
    if best.threshold is None:
        return dataclasses.replace(
            best, note=f"No threshold meets {wanted}: the smallest bound found on {n} bags is {tightest:.3g}."
        )
    return dataclasses.replace(
        best,
        note=f"Among reported bags {wanted}; of {n} labelled bags {best.reported} are reported, "
        f"{best.errors} of them wrong.",
    )


def at_threshold(threshold: float) -> OperatingPoint:
    """Return the point that reports every bag with at least this confidence."""
    if not 0 <= threshold <= 1:
        raise SettingError(f"The threshold is {threshold}: give a confidence between 0 and 1.")
    return OperatingPoint("threshold", float(threshold), f"Reported from a confidence of {threshold:g} on.")


def at_coverage(confidence: npt.ArrayLike, coverage: float) -> OperatingPoint:
    """Return the point that reports the most confident share of bags with these confidences (m,).

    Equal confidences stay together, so the share is the largest that does not exceed ``coverage``.
    """
    c, _ = _checked(confidence, np.ones(np.shape(confidence)))
    if not 0 <= coverage <= 1:
        raise SettingError(f"The coverage is {coverage}: give a share between 0 and 1.")
    most = math.floor(coverage * len(c) + 1e-9)
    ordered = np.sort(c)[::-1]
    threshold = 0.0 if most == len(c) else float(np.nextafter(ordered[most], np.inf))
    if not (c >= threshold).any():
        return OperatingPoint(
            "coverage", None, f"No threshold reports more than nothing and at most {coverage:g} of the bags."
        )
    return OperatingPoint("coverage", threshold, f"Reported: the most confident {coverage:g} of the bags.")


def measured(
    point: OperatingPoint, confidence: npt.ArrayLike, correct: npt.ArrayLike, delta: float = 0.05
) -> OperatingPoint:
    """Return a point that was fixed without these labelled bags, with its error on them and the bound."""
    c, wrong = _checked(confidence, correct)
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
    """Return one row a bag under the names of ``COLUMNS``; predicted is the most probable class.

    ``probabilities`` (m, k); ``sets`` (m, k), the prediction sets, an empty field without them. The predicted
    class is always in its set, also where a conformal set is empty: a larger set holds the truth as often.
    """
    confidence, top = probabilities.max(axis=1), probabilities.argmax(axis=1).tolist()
    rows = []
    for i, (bag, report) in enumerate(zip(ids, point.reports(confidence).tolist(), strict=True)):
        if point.threshold is None:
            reason = "no threshold meets the rule"
        else:
            reason = f"confidence is {'at least' if report else 'below'} {point.threshold:.6g}"
        shown = [] if sets is None else [name for j, name in enumerate(classes) if sets[i, j] or j == top[i]]
        rows.append(
            {
                "bag_id": bag,
                "predicted": classes[top[i]],
                "confidence": float(confidence[i]),
                "prediction_set": shown,
                "decision": "report" if report else "review",
                "reason": reason,
            }
        )
    return rows


def write_decisions(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows of :func:`decisions` as CSV; the classes of a set are separated by ``|``."""
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
    """Return N_1 < … < N_K = n, from the fewest bags that can pass at level δ/K, with the largest such K."""
    for size in range(min(MOST_THRESHOLDS, n // BAGS_A_THRESHOLD), 1, -1):
        fewest = least_bags(max_error, delta / size)
        if fewest is not None and n - fewest + 1 >= size:
            return [round(count) for count in np.linspace(fewest, n, size).tolist()]
    return [n]


def _checked(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Bools]:
    c, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    if c.ndim != 1 or not c.size or c.shape != right.shape:
        raise DataError(
            f"Confidences have shape {c.shape} and marks of right or wrong {right.shape}: give one of each "
            "for each bag, and at least one bag."
        )
    if not ((c >= 0) & (c <= 1 + 1e-6)).all() or not np.isin(right, (0, 1)).all():
        raise DataError("A confidence is not between 0 and 1, or a mark of right or wrong is not 0 or 1.")
    return c, right == 0


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise SettingError(
            f"delta is {delta}: give the chance that the guarantee may fail, between 0 and 1, such as 0.05."
        )
