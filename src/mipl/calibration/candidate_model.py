"""P(S | y) with a rate for each pair of classes, and a test of "false candidates come by chance".

The likelihood Σ_S p that calibrates by candidate sets is right if every false candidate is equally probable,
whatever the true class. The test compares how often two classes are candidates together with what chance
predicts; it reads the sets alone, because a model whose errors resemble the false candidates makes chance
look like a confusion. Where chance is rejected, class c is a false candidate of a bag of class y with a rate
ρ[y, c], independently of the other classes and of the instances:

    P(S | y) = [y ∈ S] Π_{c ∈ S, c ≠ y} ρ[y, c] Π_{c ∉ S} (1 − ρ[y, c]).

Rates are estimated by EM with the class probabilities of a model fixed. Candidates that depend on the
instances beyond the class are outside the model, and errors of the probabilities enter the rates: what is
computed with estimated rates is approximate.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from mipl.calibration.scaling import FLOOR, log_sum
from mipl.seeding import rng_for

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
STEPS = 100  # of EM
PSEUDO_BAGS = 1.0  # of each class, with the overall rate
SIMULATIONS = 99  # of sets by chance
LEVEL = 0.01  # of the test: no simulation may be as far from chance as the sets


@dataclasses.dataclass(frozen=True)
class CandidateModel:
    """The rates ρ[y, c] of false candidates."""

    rates: Floats  # (k, k), 1 on the diagonal

    def log_likelihood(self, sets: Bools) -> Floats:
        """Return log P(S | y) (m, k) of sets (m, k); −inf outside the set."""
        absent = np.log1p(-np.minimum(self.rates, 1.0 - 1e-12))
        np.fill_diagonal(absent, 0.0)
        present = np.log(np.maximum(self.rates, np.exp(FLOOR)))
        found = sets.astype(np.float64) @ present.T + (~sets).astype(np.float64) @ absent.T
        return np.where(sets, found, -np.inf)


def estimate_candidates(log_p: Floats, sets: Bools) -> CandidateModel:
    """Estimate the rates by EM, with log-probabilities (m, k) of a model that was not trained on the sets (m,
    k)."""
    m, k = sets.shape
    overall = float((sets.sum() - m) / max(m * (k - 1), 1))
    z = np.maximum(log_p, FLOOR)
    rates = np.full((k, k), overall)
    np.fill_diagonal(rates, 1.0)
    for _ in range(STEPS):
        joint = z + CandidateModel(rates).log_likelihood(sets)
        posterior = np.exp(joint - log_sum(joint)[:, None])  # (m, k)
        bags = posterior.sum(axis=0)[:, None]
        rates = (posterior.T @ sets + PSEUDO_BAGS * overall) / (bags + PSEUDO_BAGS)
        np.fill_diagonal(rates, 1.0)
    return CandidateModel(rates)


def chance_p_value(sets: Bools) -> float | None:
    """Test whether the false candidates of sets (m, k) come by chance; return a p-value, 0.01 or more.

    The likelihood-ratio statistic G = 2 Σ O log(O / E) compares the counts O of bags in which two classes are
    candidates together with their expectation E by chance, given the sizes of the sets and the class
    proportions of maximum likelihood. Its distribution is that over sets simulated by chance. The proportions
    are not fitted again to simulated sets, which makes the test conservative.

    Returns:
        The p-value, or None where the sets say nothing: fewer than four classes, or no set of more than one
        and fewer than all labels.
    """
    k = sets.shape[1]
    sizes = sets.sum(axis=1)
    used = sets[(sizes > 1) & (sizes < k)]
    if k < 4 or not len(used):
        return None
    sizes = used.sum(axis=1)
    proportions = _class_proportions(used)
    expected = _expected_pairs(proportions, sizes)
    found = _statistic(used, expected)
    rng = rng_for("sets by chance")
    larger = 0
    for _ in range(SIMULATIONS):
        truth = rng.choice(k, len(used), p=proportions)
        order = rng.random(used.shape)
        order[np.arange(len(used)), truth] = -1.0  # first in the order
        simulated = order.argsort(axis=1).argsort(axis=1) < sizes[:, None]
        larger += _statistic(simulated, expected) >= found
    return (1 + larger) / (1 + SIMULATIONS)


def by_chance(sets: Bools) -> bool:
    """Return whether the test does not reject that the false candidates of sets (m, k) come by chance."""
    p_value = chance_p_value(sets)
    return p_value is None or p_value > LEVEL


def _class_proportions(sets: Bools) -> Floats:
    """Return the class proportions (k,) that maximise the likelihood of sets (m, k) by chance, by EM."""
    values = sets.astype(np.float64)
    proportions = np.full(sets.shape[1], 1.0 / sets.shape[1])
    for _ in range(STEPS):
        inside = values * proportions
        proportions = (inside / inside.sum(axis=1, keepdims=True)).mean(axis=0)
    return np.asarray(proportions / proportions.sum())


def _expected_pairs(proportions: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
    """Return the expected number of sets (k, k) of these sizes (m,) with both classes."""
    k = len(proportions)
    one = ((sizes - 1) / (k - 1)).sum()  # one of the two is the true class
    none = ((sizes - 1) * (sizes - 2) / ((k - 1) * (k - 2))).sum()
    either = proportions[:, None] + proportions
    return np.asarray(either * one + (1.0 - either) * none)


def _statistic(sets: Bools, expected: Floats) -> float:
    values = sets.astype(np.float64)
    pairs = np.triu_indices(sets.shape[1], 1)
    observed, e = (values.T @ values)[pairs], np.maximum(expected[pairs], 1e-12)
    return float(2.0 * (observed * np.log(np.where(observed > 0, observed, 1.0) / e)).sum())
