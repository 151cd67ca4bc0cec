"""The signal test: do predictions fit the candidate sets of their own bags better than those of others?"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.training.signal import ENOUGH, signal_score


def sets_of(labels, k, proportion, rng):
    """Return candidate sets with the label, and every other class with the probability ``proportion``."""
    sets = rng.random((len(labels), k)) < proportion
    sets[np.arange(len(labels)), labels] = True
    return sets


@given(st.integers(0, 2**16), st.integers(2, 4), st.integers(2, 6))
@settings(deadline=None)
def test_the_score_equals_that_of_all_permutations(seed, k, m):
    """Against the mean and the standard deviation over every order of the sets, one by one."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(k), size=m)
    sets = sets_of(rng.integers(k, size=m), k, 0.5, rng)
    totals = [(p * sets[list(order)]).sum() for order in itertools.permutations(range(m))]
    expected = ((p * sets).sum() - np.mean(totals)) / max(np.std(totals), 1e-6)
    assert signal_score(torch.tensor(p), torch.tensor(sets)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("concentration", [0.1, 10.0])  # confident and unconfident predictions
def test_the_score_is_a_standard_score_for_unrelated_predictions(concentration):
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(300):
        sets = sets_of(rng.integers(5, size=200), 5, 0.6, rng)
        p = rng.dirichlet(np.full(5, concentration), size=200)
        scores.append(signal_score(torch.tensor(p), torch.tensor(sets)))
    assert abs(np.mean(scores)) < 0.2
    assert 0.85 < np.std(scores) < 1.15


def test_correct_predictions_have_a_high_score_and_opposite_ones_a_low_one():
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=100)
    sets = sets_of(labels, 5, 0.75, rng)
    right = torch.eye(5, dtype=torch.float64)[labels]
    assert signal_score(right, torch.tensor(sets)) > ENOUGH
    outside = (~sets + 1e-3) / (~sets + 1e-3).sum(axis=1, keepdims=True)
    assert signal_score(torch.tensor(outside), torch.tensor(sets)) < -ENOUGH


def test_one_answer_for_all_bags_has_no_signal_however_confident():
    rng = np.random.default_rng(0)
    sets = torch.tensor(sets_of(rng.integers(4, size=60), 4, 0.5, rng))
    for row in ([1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]):
        assert signal_score(torch.tensor([row]).repeat(60, 1), sets) == pytest.approx(0.0, abs=1e-6)


def test_equal_sets_have_no_signal():
    p = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(3), size=20))
    for row in ([True, True, True], [True, False, False]):
        assert signal_score(p, torch.tensor([row]).repeat(20, 1)) == pytest.approx(0.0, abs=1e-6)
