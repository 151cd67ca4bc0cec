"""Several starts: the weights they give bags to begin with, and how they are judged."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from mipl import make_classifier
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.seeding import rng_for
from mipl.training import starts as module
from mipl.training.checks import MiplNotice
from mipl.training.judging import ENOUGH
from mipl.training.recipes import make_recipe
from mipl.training.starts import Starts, several_starts


def shuffled(bags):
    """Return the bags with the candidate sets of others: nothing to be learned."""
    sets = rng_for("noise", 0).permutation(bags.candidates)
    return dataclasses.replace(bags, candidates=sets, labels=None, missing_truth=True)


def test_first_weights_are_shares_of_the_sets_and_right_more_often_than_chance():
    bags = gaussian_bags(120, k=5, r=2, seed=3)
    recipe = make_recipe("stable", epochs=20, starts=4)
    found = several_starts(bags, recipe, 0)
    assert found.weights.shape == bags.candidates.shape
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, atol=1e-5)
    assert (found.weights[~bags.candidates] == 0).all()
    assert (found.weights.argmax(axis=1) == bags.labels).mean() > 0.6  # by chance a third
    assert found.advantage > ENOUGH
    assert np.array_equal(found.weights, several_starts(bags, recipe, 0).weights)
    assert not np.array_equal(found.weights, several_starts(bags, recipe, 1).weights)


def test_noise_gives_starts_no_advantage():
    bags = shuffled(gaussian_bags(300, k=5, r=2, seed=3))
    recipe = make_recipe("stable", epochs=40, starts=5)
    assert several_starts(bags, recipe, 0).advantage < ENOUGH


def test_starts_take_weights_that_bags_carry_into_account():
    bags = gaussian_bags(40, k=3, r=1, seed=0)
    sure = np.where(np.eye(3, dtype=bool)[bags.labels], 0.999, 0.001) * bags.candidates
    told = dataclasses.replace(bags, weights=sure / sure.sum(axis=1, keepdims=True))
    found = several_starts(told, make_recipe("stable", epochs=2, starts=2), 0)
    assert (found.weights.argmax(axis=1) == bags.labels).mean() > 0.9


@pytest.mark.parametrize(
    ("m", "starts", "held_out", "each"),
    [(120, 10, 0.1, 12), (125, 3, 0.1, 12), (120, 4, 0.0, 0), (90, 3, 0.1, 0)],
)
def test_each_start_is_judged_by_bags_of_its_own_that_it_has_not_seen(monkeypatch, m, starts, held_out, each):
    bags, trained = gaussian_bags(m, k=3, r=1, seed=0), []
    train = module.train_together

    def seen(method, nets, sets, *rest, **named):
        trained.extend(set(own.ids) for own in sets)
        return train(method, nets, sets, *rest, **named)

    monkeypatch.setattr(module, "train_together", seen)
    recipe = make_recipe("stable", epochs=2, starts=starts, held_out=held_out)
    found = several_starts(bags, recipe, 0)
    assert len(set(found.bags)) == len(found.bags) == each * starts
    for own, part in zip(trained, found.bags.reshape(starts, each), strict=True):
        assert own == set(bags.ids) - set(bags.ids[part])


def test_a_network_with_one_answer_agrees_with_no_starts_and_one_that_has_learned_with_them():
    predictions = torch.eye(4).repeat(20, 1)
    found = Starts(np.zeros((80, 4), np.float32), np.arange(80), predictions, 9.0)
    assert found.agreement(torch.tensor([0.7, 0.1, 0.1, 0.1]).repeat(80, 1)) == pytest.approx(0.0, abs=1e-9)
    assert found.agreement(0.8 * predictions + 0.05) > ENOUGH
    assert found.agreement(predictions.roll(1, dims=1)) < -ENOUGH


@pytest.mark.slow
def test_images_with_the_sets_of_others_leave_a_network_that_says_it_has_learned_nothing():
    bags = digits_mipl()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make_classifier("mam-cn", epochs=20, random_state=0).fit(shuffled(bags))
    assert any("has learned nothing" in str(w.message) for w in caught if issubclass(w.category, MiplNotice))
    assert len(model.history_["advantage"]) == 2
    assert model.predict_proba(bags).max(axis=1).mean() < 1 / bags.k + 0.1


def test_a_network_that_does_not_follow_its_starts_is_found_out(monkeypatch):
    monkeypatch.setattr(Starts, "agreement", lambda self, p: 0.5)
    with pytest.warns(MiplNotice, match="has learned nothing"):
        model = make_classifier("sam-cn", epochs=6, starts=2, pretrain=10).fit(digits_mipl(r=1))
    assert model.history_["advantage"] == [0.5, 0.5]
    assert len(model.history_["loss"]) == 3  # the warm-up
