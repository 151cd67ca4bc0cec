"""Comparison of methods: Friedman and Nemenyi tests over data sets, corrected intervals over splits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.stats

from mipl.errors import DataError, SettingError
from mipl.metrics._inputs import Floats


@dataclass(frozen=True, eq=False)
class Friedman:
    """The Friedman test of l methods on N data sets, without (as the paper) and with correction for ties."""

    ranks: Floats  # (l,), mean rank of each method; 1 is best
    datasets: int  # N
    chi2: float  # χ²_F without correction for ties
    f: float  # F_F of χ²_F, with l − 1 and (l − 1)(N − 1) degrees of freedom
    p: float  # p-value of F_F
    critical: float  # critical value of F_F at level alpha
    chi2_ties: float  # χ²_F corrected for ties, from SciPy
    f_ties: float  # F_F of it


def friedman(scores: npt.ArrayLike, *, higher_is_better: bool, alpha: float = 0.05) -> Friedman:
    """Test whether l ≥ 3 methods are equally good on N ≥ 2 data sets; ``scores`` is (N, l)."""
    table = _checked(scores)
    n, methods = table.shape
    ranks = mean_ranks(table, higher_is_better=higher_is_better)
    # 12N / (l(l+1)) · [Σ R² − l(l+1)²/4], the paper's formula
    spread = float((ranks**2).sum()) - methods * (methods + 1) ** 2 / 4
    chi2 = 12 * n / (methods * (methods + 1)) * spread
    f = _f_statistic(chi2, n, methods)
    degrees = (methods - 1, (methods - 1) * (n - 1))
    flat = bool((table == table[:, :1]).all())  # SciPy would divide by zero
    chi2_ties = 0.0 if flat else float(scipy.stats.friedmanchisquare(*table.T).statistic)
    return Friedman(
        ranks=ranks,
        datasets=n,
        chi2=chi2,
        f=f,
        p=float(scipy.stats.f.sf(f, *degrees)),
        critical=float(scipy.stats.f.isf(_level(alpha), *degrees)),
        chi2_ties=chi2_ties,
        f_ties=_f_statistic(chi2_ties, n, methods),
    )


def mean_ranks(scores: npt.ArrayLike, *, higher_is_better: bool) -> Floats:
    """Return the mean rank (l,) of each column of ``scores`` (N, l) over its rows; ties get their mean."""
    table = _checked(scores)
    ranks: Floats = scipy.stats.rankdata(-table if higher_is_better else table, axis=1).mean(axis=0)
    return ranks


def critical_difference(methods: int, datasets: int, alpha: float = 0.05) -> float:
    """Return the smallest difference of mean ranks that is significant in Nemenyi's test."""
    q = float(scipy.stats.studentized_range.isf(_level(alpha), methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * datasets))


def nemenyi(scores: npt.ArrayLike) -> Floats:
    """Return the p-values (l, l) of Nemenyi's test for each pair of columns of ``scores`` (N, l)."""
    try:
        from scikit_posthocs import posthoc_nemenyi_friedman
    except ImportError as error:
        raise SettingError("Nemenyi's test needs scikit-posthocs: pip install 'mipl[stats]'.") from error
    return np.asarray(posthoc_nemenyi_friedman(_checked(scores)), dtype=np.float64)


def cliques(ranks: npt.ArrayLike, difference: float) -> list[tuple[int, ...]]:
    """Return the maximal groups of methods whose mean ranks (l,) are within the critical difference.

    Groups of one are left out; each lists its methods from the best rank to the worst.
    """
    values = np.asarray(ranks, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    found: list[tuple[int, ...]] = []
    last = 0  # end of the previous group, which contains a group that ends no later
    for first in range(len(order)):
        end = int(np.searchsorted(values[order], values[order[first]] + difference, side="right"))
        if end > last and end - first > 1:
            found.append(tuple(int(i) for i in order[first:end]))
        last = max(last, end)
    return found


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two methods over splits of one data set, corrected for shared training bags."""

    mean: float
    low: float  # of the confidence interval
    high: float
    p: float  # of the two-sided test that the difference is 0
    splits: int


def corrected_difference(
    differences: npt.ArrayLike, test_share: float, level: float = 0.95
) -> PairedDifference:
    """Return the mean of paired differences with the interval and test of Nadeau and Bengio (2003).

    Training sets of different splits overlap, so that the variance of the mean of J differences is
    (1/J + n_test/n_train) σ² instead of σ²/J. With one split the interval is infinite.

    Args:
        differences: (J,) difference of the two methods on each split.
        test_share: n_test/n_train.
        level: the coverage of the interval.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or test_share <= 0:
        raise DataError(
            "Paired differences must be finite numbers, one per split, and n_test/n_train positive."
        )
    mean, J = float(values.mean()), len(values)
    if J == 1:
        return PairedDifference(mean, -math.inf, math.inf, math.nan, 1)
    error = math.sqrt((1 / J + test_share) * float(values.var(ddof=1)))
    width = float(scipy.stats.t.isf((1 - _level(level)) / 2, J - 1)) * error
    if error == 0:  # the same difference on every split
        return PairedDifference(mean, mean, mean, float(mean == 0), J)
    p = 2 * float(scipy.stats.t.sf(abs(mean) / error, J - 1))
    return PairedDifference(mean, mean - width, mean + width, p, J)


def holm(p_values: npt.ArrayLike) -> Floats:
    """Return p-values (n,) adjusted for n tests by Holm's procedure; NaN where one is NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full_like(p, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1.0)
    return adjusted


def _f_statistic(chi2: float, n: int, methods: int) -> float:
    """Return F_F = (N − 1) χ² / (N(l − 1) − χ²); infinite if all data sets rank the methods alike."""
    rest = n * (methods - 1) - chi2
    return (n - 1) * chi2 / rest if rest > 1e-9 * n * methods else math.inf


def _checked(scores: npt.ArrayLike) -> Floats:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 3 or not np.isfinite(table).all():
        raise DataError(
            f"Scores of shape {table.shape} cannot be ranked: give at least 2 data sets (rows) by 3 methods "
            "(columns), all finite."
        )
    return table


def _level(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise SettingError(f"alpha is {alpha}: it must lie between 0 and 1.")
    return alpha
