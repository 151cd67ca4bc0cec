"""Class proportions from candidate sets: maximum likelihood, the likelihood-ratio test, ambiguity."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from mipl import make_classifier
from mipl.data.benchmarks import gaussian_bags
from mipl.training.balancing import ambiguity, balanced_prior, class_prior


def sets_of(labels, k, proportion, rng):
    """Return candidate sets with the label, and every other class with the probability ``proportion``."""
    sets = rng.random((len(labels), k)) < proportion
    sets[np.arange(len(labels)), labels] = True
    return sets


def test_ambiguity_is_the_proportion_of_other_classes_that_are_candidates():
    for r in range(5):
        sets = torch.stack([(torch.arange(5) <= r).roll(i) for i in range(7)])
        assert ambiguity(sets) == pytest.approx(r / 4)


def test_the_prior_has_the_greatest_likelihood():
    rng = np.random.default_rng(0)
    proportions = np.array([0.5, 0.3, 0.15, 0.05])
    sets = sets_of(rng.choice(4, size=4000, p=proportions), 4, 0.4, rng)
    prior = class_prior(torch.tensor(sets)).numpy()
    np.testing.assert_allclose(prior, proportions, atol=0.04)
    for _ in range(50):
        other = np.maximum(prior + rng.normal(0, 0.02, 4), 1e-6)
        assert np.log(sets @ (other / other.sum())).mean() <= np.log(sets @ prior).mean() + 1e-6


@given(st.integers(0, 2**16), st.integers(2, 8), st.integers(20, 300), st.floats(0.05, 0.8))
@settings(deadline=None, max_examples=30)
def test_the_balanced_prior_is_as_uniform_as_the_sets_allow(seed, k, m, proportion):
    rng = np.random.default_rng(seed)
    sets = sets_of(rng.choice(k, size=m, p=rng.dirichlet(np.ones(k))), k, proportion, rng)
    prior, likeliest = balanced_prior(torch.tensor(sets)).numpy(), class_prior(torch.tensor(sets)).numpy()
    assert prior.sum() == pytest.approx(1)
    assert (prior >= 0).all()
    rejected = chi2.ppf(0.95, k - 1) / 2
    assert np.log(sets @ likeliest).sum() - np.log(sets @ prior).sum() <= rejected
    if np.ptp(prior) > 1e-9:  # not uniform: the sets reject more uniform proportions
        more = 0.99 * prior + 0.01 / k
        assert np.log(sets @ likeliest).sum() - np.log(sets @ more).sum() > rejected


def test_ambiguous_sets_have_a_uniform_prior_and_small_sets_keep_the_proportions():
    rng = np.random.default_rng(0)
    ambiguous = np.array([rng.permutation(5) <= 3 for _ in range(175)])
    np.testing.assert_allclose(balanced_prior(torch.tensor(ambiguous)), 0.2)
    skewed = np.array([0.6, 0.3, 0.1])
    small = sets_of(rng.choice(3, size=2000, p=skewed), 3, 0.1, rng)
    np.testing.assert_allclose(balanced_prior(torch.tensor(small)), skewed, atol=0.05)


def test_the_history_has_the_entropy_of_the_class_proportions():
    bags = gaussian_bags(bags=60, k=4)
    model = make_classifier("sam-cn", ensemble=1, epochs=4).fit(bags)
    assert all(0 < value <= 1 + 1e-6 for value in model.history_["class_entropy"])
    one = dataclasses.replace(bags, candidates=np.eye(4, dtype=bool)[np.zeros(60, int)], labels=None)
    with pytest.warns(UserWarning, match="one candidate|cannot be learned"):
        same = make_classifier("sam-cn", ensemble=1, epochs=2).fit(one)
    assert max(same.history_["class_entropy"]) < 1e-6
