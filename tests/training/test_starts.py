"""Several starts: the weights they give bags to begin with, and how they are judged."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from mipl import make_classifier
from mipl.data.benchmarks import digits_mipl, digits_vectors, gaussian_bags
from mipl.data.splits import stratified_split
from mipl.estimators import fit_together
from mipl.nn.encoders import Standardize
from mipl.seeding import rng_for
from mipl.training import judging
from mipl.training import starts as module
from mipl.training.checks import MiplNotice
from mipl.training.judging import ENOUGH, worth_starts
from mipl.training.recipes import make_recipe
from mipl.training.scaling import fit_scaling
from mipl.training.starts import Starts, several_starts

PLAIN = nn.Identity()


def shuffled(bags):
    """Return the bags with the candidate sets of others: nothing to be learned."""
    sets = rng_for("noise", 0).permutation(bags.candidates)
    return dataclasses.replace(bags, candidates=sets, labels=None, missing_truth=True)


def test_first_weights_are_shares_of_the_sets_and_right_more_often_than_chance():
    bags = gaussian_bags(120, k=5, r=2, seed=3)
    recipe = make_recipe("stable", epochs=20, starts=4)
    found = several_starts(bags, recipe, 0, PLAIN)
    assert found.weights.shape == bags.candidates.shape
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, atol=1e-5)
    assert (found.weights[~bags.candidates] == 0).all()
    assert (found.weights.argmax(axis=1) == bags.labels).mean() > 0.6  # by chance a third
    assert found.advantage > ENOUGH
    assert np.array_equal(found.weights, several_starts(bags, recipe, 0, PLAIN).weights)
    assert not np.array_equal(found.weights, several_starts(bags, recipe, 1, PLAIN).weights)


def test_noise_gives_starts_no_advantage():
    bags = shuffled(gaussian_bags(300, k=5, r=2, seed=3))
    recipe = make_recipe("stable", epochs=40, starts=5)
    assert several_starts(bags, recipe, 0, PLAIN).advantage < ENOUGH


def test_starts_take_weights_that_bags_carry_into_account():
    bags = gaussian_bags(40, k=3, r=1, seed=0)
    sure = np.where(np.eye(3, dtype=bool)[bags.labels], 0.999, 0.001) * bags.candidates
    told = dataclasses.replace(bags, weights=sure / sure.sum(axis=1, keepdims=True))
    found = several_starts(told, make_recipe("stable", epochs=2, starts=2), 0, PLAIN)
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
    found = several_starts(bags, recipe, 0, PLAIN)
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


def test_vectors_begin_from_starts_where_a_tenth_of_the_bags_is_too_few_to_judge_by(monkeypatch):
    large, clear = gaussian_bags(175, k=5, r=3), gaussian_bags(175, k=5, r=1)  # 100 and 17 bags are needed
    recipe = make_recipe("stable")
    assert worth_starts(large, recipe)
    assert not worth_starts(clear, recipe)
    assert not worth_starts(gaussian_bags(90, k=5, r=3), recipe)  # nor could any number judge
    assert not worth_starts(gaussian_bags(1010, k=5, r=3), recipe)
    for off in ({"starts": 0}, {"held_out": 0.0}, {"warmup": 0.0}):
        assert not worth_starts(large, make_recipe("stable", **off))
    assert not worth_starts(large, make_recipe("paper"))
    assert not worth_starts(digits_mipl(r=3), recipe)  # on the images themselves
    monkeypatch.setattr(judging, "LARGEST", large.source.size - 1)
    assert not worth_starts(large, recipe)


def test_noise_on_vectors_that_begin_from_starts_is_said_and_not_believed():
    bags = gaussian_bags(150, k=4)
    with pytest.warns(MiplNotice, match="learned nothing: its 3 starts' predictions fit"):
        model = make_classifier("sam-cn", epochs=20, starts=3, random_state=0).fit(shuffled(bags))
    assert model.predict_proba(bags).max(axis=1).mean() < 1 / bags.k + 0.1


def test_starts_scale_vectors_as_the_network_does():
    bags = gaussian_bags(120, k=5, r=2, seed=3)
    large = dataclasses.replace(bags, source=bags.source * np.float32(64.0))  # exact in float32
    recipe = make_recipe("stable", epochs=20, starts=2)
    found = []
    for each in (bags, large):
        scaling = Standardize(each.feature_shape)
        fit_scaling(scaling, each)
        found.append(several_starts(each, recipe, 0, scaling).weights)
    np.testing.assert_array_equal(*found)
    assert not np.array_equal(found[1], several_starts(large, recipe, 0, PLAIN).weights)


def test_vectors_that_begin_from_starts_learn_from_all_bags_alone_or_together_and_go_on(tmp_path):
    bags = gaussian_bags(130, k=5, r=3)
    given = {"epochs": 12, "starts": 2, "random_state": 0}
    whole, again = make_classifier("mam-cc", **given), make_classifier("mam-cc", **given)
    whole.fit(bags)
    assert len(whole.history_["loss"]) == 12
    assert len(whole.history_["advantage"]) == 1
    fit_together([again], [bags])

    def stop(done, note=""):
        if done == 8:
            raise KeyboardInterrupt

    resumed = make_classifier("mam-cc", **given)
    with pytest.raises(KeyboardInterrupt):
        resumed.fit(bags, checkpoint=tmp_path / "run", report=stop)
    resumed.fit(bags, checkpoint=tmp_path / "run")
    for other in (again, resumed):
        assert other.history_["loss"] == whole.history_["loss"]
        np.testing.assert_array_equal(other.predict_proba(bags), whole.predict_proba(bags))


@pytest.mark.slow
def test_small_sets_of_vectors_keep_all_their_classes_at_any_ambiguity():
    bags = digits_vectors(r=3)
    for split in (1, 6):  # with a quarter of the bags held out in place of starts: 85 and 73%
        train, test = stratified_split(bags, split)
        assert make_classifier("sam-cn", random_state=0).fit(bags[train]).score(bags[test]) > 0.9
