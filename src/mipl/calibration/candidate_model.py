"""P(S | y) with a rate for each pair of classes, and a test of "false candidates come by chance".

The likelihood Σ_S p that calibrates by candidate sets is right if every false candidate is equally probable,
whatever the true class. Here class c is a false candidate of a bag of class y with a rate ρ[y, c],
independently of the other classes and of the instances:

    P(S | y) = [y ∈ S] Π_{c ∈ S, c ≠ y} ρ[y, c] Π_{c ∉ S} (1 − ρ[y, c]).

Rates are estimated by EM with the class probabilities fixed. A model whose errors resemble the false
candidates makes both look alike, and candidates that depend on the instances beyond the class are outside the
model: what is computed with estimated rates is approximate.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from mipl.calibration.scaling import FLOOR, log_sum

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
STEPS = 100
PSEUDO_BAGS = 1.0  # of each class, with the overall rate
LEVEL = 0.01  # of the test


@dataclasses.dataclass(frozen=True)
class CandidateModel:
    """Estimated rates and the likelihood-ratio test of one rate for all pairs of classes."""

    rates: Floats  # (k, k) ρ[y, c]; the diagonal is 1
    statistic: float  # twice the difference of the log-likelihoods
    degrees: int  # k (k − 1) − 1
    p_value: float

    @property
    def by_chance(self) -> bool:
        """Whether a single rate is not rejected."""
        return self.p_value >= LEVEL

    def log_likelihood(self, sets: Bools) -> Floats:
        """Return log P(S | y) (m, k) of sets (m, k); −inf outside the set."""
        return _log_likelihood(sets, self.rates)


def estimate_candidates(log_p: Floats, sets: Bools) -> CandidateModel | None:
    """Estimate the rates from log-probabilities (m, k) that were not trained on these sets (m, k), by EM.

    Returns:
        The model, or None where there is nothing to test: two classes, or sets that are all of one label or
        all full.
    """
    m, k = sets.shape
    overall = float((sets.sum() - m) / max(m * (k - 1), 1))
    if k < 3 or not 0.0 < overall < 1.0:
        return None
    z = np.maximum(log_p, FLOOR)
    one = np.full((k, k), overall)
    np.fill_diagonal(one, 1.0)
    chance = float(log_sum(z + _log_likelihood(sets, one)).sum())
    rates = one
    for _ in range(STEPS):
        joint = z + _log_likelihood(sets, rates)
        posterior = np.exp(joint - log_sum(joint)[:, None])  # (m, k)
        bags = posterior.sum(axis=0)[:, None]
        rates = (posterior.T @ sets + PSEUDO_BAGS * overall) / (bags + PSEUDO_BAGS)
        np.fill_diagonal(rates, 1.0)
    statistic = 2.0 * (float(log_sum(z + _log_likelihood(sets, rates)).sum()) - chance)
    degrees = k * (k - 1) - 1
    return CandidateModel(rates, statistic, degrees, float(chi2.sf(max(statistic, 0.0), degrees)))


def _log_likelihood(sets: Bools, rates: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        present = np.log(rates)
    absent = np.log1p(-np.where(np.eye(len(rates), dtype=np.bool_), 0.0, np.minimum(rates, 1.0 - 1e-12)))
    found = sets.astype(np.float64) @ np.maximum(present, FLOOR).T + (~sets).astype(np.float64) @ absent.T
    return np.where(sets, found, -np.inf)
