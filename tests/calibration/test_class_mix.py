"""Prior correction against Bayes' rule, and EM against the likelihood."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mipl.calibration.class_mix import correct_class_mix, estimate_class_mix
from mipl.errors import DataError, SettingError

MIXES = st.lists(st.floats(0.05, 1), min_size=3, max_size=3).map(lambda x: np.array(x) / sum(x))


@given(before=MIXES, after=MIXES, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_the_posterior_of_another_prior_is_exact(before, after, seed):
    likelihood = np.random.default_rng(seed).random((20, 3))  # of the data in each class

    def posterior(prior):
        return likelihood * prior / (likelihood * prior).sum(axis=1, keepdims=True)

    assert correct_class_mix(posterior(before), before, after) == pytest.approx(posterior(after))
    assert correct_class_mix(posterior(before), 7 * before, before) == pytest.approx(posterior(before))


def test_the_estimate_maximises_the_likelihood():
    rng = np.random.default_rng(0)
    before, after = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
    labels = rng.choice(3, size=3000, p=after)
    means = rng.normal(size=(3000, 2)) + 2 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    densities = np.exp(-0.5 * ((means[:, None] - 2 * np.array([[0, 0], [1, 0], [0, 1]])) ** 2).sum(axis=2))
    p = densities * before / (densities * before).sum(axis=1, keepdims=True)
    found = estimate_class_mix(p, before)

    def loss(z):
        mix = np.exp(z) / np.exp(z).sum()
        return -np.log(densities @ mix).mean()

    best = np.exp(minimize(loss, np.zeros(3)).x)
    assert found == pytest.approx(best / best.sum(), abs=1e-3)
    assert found == pytest.approx(after, abs=0.05)


def test_bad_mixes_are_named():
    with pytest.raises(SettingError, match="needs 2 shares"):
        correct_class_mix([[0.5, 0.5]], [0.5, 0.5], [1.0])
    with pytest.raises(SettingError, match="not all of them 0"):
        correct_class_mix([[0.5, 0.5]], [0.5, 0.5], [0.0, 0.0])
    with pytest.raises(DataError, match="probability 0 for every class"):
        correct_class_mix([[1.0, 0.0]], [0.5, 0.5], [0.0, 1.0])
