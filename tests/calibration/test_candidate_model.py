"""P(S | y) with a rate per pair of classes, and the test of chance."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.calibration.candidate_model import CandidateModel, by_chance, chance_p_value, estimate_candidates
from mipl.calibration.scaling import fit_scaling
from mipl.data.candidates import add_false_positives


def drawn(rates, m, seed):
    """Return true labels (m,) and sets (m, k) with a rate per pair of classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, len(rates), m)
    sets = rng.random((m, len(rates))) < rates[y]
    sets[np.arange(m), y] = True
    return y, sets


def lookalikes(k=5, near=0.6, far=0.1):
    """Return rates by which a class is confused with the next one above all."""
    return np.where(np.roll(np.eye(k, dtype=bool), 1, axis=1), near, far)


def scores(y, k, seed, sharpness=2.0):
    """Return calibrated log-probabilities (m, k) of Gaussian scores; a class is most like the next one."""
    means = sharpness * (np.eye(k) + 0.7 * np.roll(np.eye(k), 1, axis=1))
    x = means[y] + np.random.default_rng(seed).standard_normal((len(y), k))
    z = x @ means.T
    return z - np.logaddexp.reduce(z, axis=1, keepdims=True)


@given(seed=st.integers(0, 999), k=st.integers(2, 4))
@settings(max_examples=20, deadline=None)
def test_the_probabilities_of_all_sets_with_a_class_sum_to_one(seed, k):
    rates = np.random.default_rng(seed).random((k, k))
    np.fill_diagonal(rates, 1.0)
    sets = np.array(list(itertools.product([False, True], repeat=k)))
    p = np.exp(CandidateModel(rates).log_likelihood(sets))
    np.testing.assert_allclose(p.sum(axis=0), 1.0, atol=1e-9)
    for row, s in zip(p, sets, strict=True):
        for y in range(k):
            others = [rates[y, c] if s[c] else 1 - rates[y, c] for c in range(k) if c != y]
            assert row[y] == pytest.approx(s[y] * np.prod(others), abs=1e-9)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_random_candidates_pass_as_chance_whatever_the_class_proportions(r):
    rejected = 0
    for seed in range(10):
        y = np.random.default_rng(seed).choice(6, 400, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
        rejected += not by_chance(add_false_positives(y, 6, r, "chance", seed))
    assert rejected == 0  # at a level of 1%, conservative


def test_lookalikes_are_no_chance():
    assert chance_p_value(drawn(lookalikes(), 400, 0)[1]) == 0.01


@pytest.mark.parametrize("sets", [np.ones((9, 5), bool), np.eye(5, dtype=bool), np.ones((9, 3), bool)])
def test_sets_that_say_nothing_are_not_tested(sets):
    assert chance_p_value(sets) is None
    assert by_chance(sets)


def test_rates_are_recovered_and_the_temperature_is_that_of_labels():
    rates, k = lookalikes(), 5
    y, sets = drawn(rates, 4000, 1)
    log_p = scores(y, k, 1)
    model = estimate_candidates(log_p, sets)
    off = ~np.eye(k, dtype=bool)
    assert np.abs(model.rates - rates)[off].mean() < 0.02
    labels, estimated = (
        fit_scaling(log_p, evidence).temperature
        for evidence in (np.eye(k, dtype=bool)[y], model.log_likelihood(sets))
    )
    assert labels == pytest.approx(1.0, abs=0.05)
    assert estimated == pytest.approx(labels, abs=0.05)
