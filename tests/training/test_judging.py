"""Whether anything was learned: judged by candidate sets alone, said, tried again."""

import dataclasses
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from mipl import make_classifier
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import gaussian_bags
from mipl.estimators import fit_together
from mipl.training.checks import MiplNotice
from mipl.training.epochs import Loop
from mipl.training.judging import (
    CLEAR,
    ENOUGH,
    FEWEST,
    MOST,
    advantage,
    class_prior,
    evened_prior,
    failed,
    fits,
    held_out_bags,
)


@given(st.integers(0, 500), st.floats(0, 0.9), st.floats(0, 1), st.integers(2, 8), st.integers(0, 99))
@settings(deadline=None)
def test_bags_held_out_are_enough_to_judge_by(m, share, named, k, seed):
    rng = np.random.default_rng(seed)
    sets = rng.random((m, k)) < named
    sets[np.arange(m), rng.integers(k, size=m)] = True
    held = held_out_bags(sets, share)
    assert len(set(held.tolist())) == len(held)
    assert (held == held_out_bags(sets, share)).all()
    if m < FEWEST or not share:
        assert len(held) == 0
        return
    assert 2 <= len(held) < m
    assert held.min() >= 0
    assert held.max() < m
    assert len(held) >= max(2, round(share * m))
    if len(held) > max(2, round(share * m)):  # more than asked for: sets that say little, a quarter at most
        assert len(held) <= MOST * m + 1
        chance = sets.mean()
        assert len(held) <= (CLEAR * ENOUGH) ** 2 * chance / (1 - chance) + 1 if chance < 1 else True


def test_larger_sets_need_more_bags_to_judge_by():
    rng = np.random.default_rng(0)
    sizes = []
    for r in (0, 1, 2, 3):
        sets = np.array([rng.permutation(5) <= r for _ in range(350)])
        sizes.append(len(held_out_bags(sets, 0.1)))
    assert sizes == [35, 35, 38, 88]


def sets_of(labels, k, named, rng):
    """Return candidate sets with the label and every other class with chance ``named``."""
    sets = rng.random((len(labels), k)) < named
    sets[np.arange(len(labels)), labels] = True
    return sets


def test_the_prior_is_that_of_the_greatest_likelihood():
    rng = np.random.default_rng(0)
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    sets = sets_of(rng.choice(4, size=4000, p=shares), 4, 0.4, rng)
    prior = class_prior(torch.tensor(sets))
    np.testing.assert_allclose(prior.numpy(), shares, atol=0.04)

    def likelihood(q):
        return float(np.log(sets @ q).mean())

    for _ in range(50):
        other = np.maximum(prior.numpy() + rng.normal(0, 0.02, 4), 1e-6)
        assert likelihood(other / other.sum()) <= likelihood(prior.numpy()) + 1e-6


@given(st.integers(0, 2**16), st.integers(2, 8), st.integers(20, 300), st.floats(0.05, 0.8))
@settings(deadline=None, max_examples=30)
def test_the_prior_is_as_even_as_the_sets_allow(seed, k, m, named):
    rng = np.random.default_rng(seed)
    sets = sets_of(rng.choice(k, size=m, p=rng.dirichlet(np.ones(k))), k, named, rng)
    prior, likeliest = evened_prior(torch.tensor(sets)).numpy(), class_prior(torch.tensor(sets)).numpy()
    assert prior.sum() == pytest.approx(1)
    assert (prior >= 0).all()
    loss = np.log(sets @ likeliest).sum() - np.log(sets @ prior).sum()
    rejected = chi2.ppf(0.95, k - 1) / 2
    assert loss <= rejected
    if np.ptp(prior) > 1e-9:  # not even: the sets reject anything more so
        more = 0.99 * prior + 0.01 / k
        assert np.log(sets @ likeliest).sum() - np.log(sets @ more).sum() > rejected


def test_ambiguous_sets_of_even_classes_have_an_even_prior_and_clear_ones_of_skewed_a_skewed_one():
    rng = np.random.default_rng(0)
    even = np.array([rng.permutation(5) <= 3 for _ in range(175)])
    np.testing.assert_allclose(evened_prior(torch.tensor(even)), 0.2)
    skewed = np.array([0.6, 0.3, 0.1])
    sets = sets_of(rng.choice(3, size=2000, p=skewed), 3, 0.1, rng)
    np.testing.assert_allclose(evened_prior(torch.tensor(sets)), skewed, atol=0.05)


@given(st.integers(0, 2**16), st.integers(2, 6), st.integers(2, 20))
@settings(deadline=None)
def test_fits_by_hand(seed, k, m):
    """Against the mean and the variance over every bag's set, counted one by one."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(k), size=m)
    sets = sets_of(rng.integers(k, size=m), k, 0.5, rng)
    total, variance = fits(torch.tensor(p), torch.tensor(sets), torch.tensor(sets)).numpy()
    for i in range(m):
        on_each = [p[i][other].sum() for other in sets]
        assert total[i] == pytest.approx(p[i][sets[i]].sum() - np.mean(on_each), abs=1e-9)
        assert variance[i] == pytest.approx(np.var(on_each), abs=1e-9)


def test_the_advantage_is_a_standard_score_where_nothing_is_known_however_sure():
    """Predictions without a relation to the sets: mean 0, deviation 1. Right ones: what CLEAR promises."""
    rng = np.random.default_rng(0)
    sets = np.array([rng.permutation(5) <= 3 for _ in range(350)])
    scores = []
    for sharp in (0.1, 10.0) * 200:
        p = torch.tensor(rng.dirichlet(np.full(5, sharp), size=80))
        chosen = torch.tensor(sets[rng.permutation(350)[:80]])
        scores.append(advantage(*fits(p, chosen, torch.tensor(sets)).sum(dim=1).tolist()))
    assert abs(np.mean(scores)) < 0.2
    assert 0.85 < np.std(scores) < 1.15
    labels = np.array([rng.choice(np.flatnonzero(row)) for row in sets])
    right = fits(torch.eye(5)[labels], torch.tensor(sets), torch.tensor(sets))[:, held_out_bags(sets, 0.1)]
    assert advantage(*right.sum(dim=1).tolist()) > 2 * ENOUGH


@given(st.integers(1, 30), st.sets(st.integers(0, 29)), st.integers(1, 7))
@settings(deadline=None, max_examples=40)
def test_an_epoch_leaves_out_what_it_is_told_to(m, without, size):
    bags = gaussian_bags(bags=30, k=4)[np.arange(m)]
    seen = [
        int(i)
        for batch in BagLoader(bags).epoch(
            size, np.random.default_rng(0), 0.1, np.array(sorted(without), int)
        )
        for i in batch.index
    ]
    assert sorted(seen) == [i for i in range(m) if i not in without]


def noise_bags(bags=150):
    """Bags whose candidate sets are those of other bags."""
    made = gaussian_bags(bags=bags, k=4)
    assert made.candidates is not None
    rng = np.random.default_rng(1)
    return dataclasses.replace(made, candidates=rng.permutation(made.candidates), missing_truth=True)


def test_what_has_learned_says_so_and_is_not_warned_of():
    bags = gaussian_bags(bags=150, k=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_classifier("sam-cn", starts=0, epochs=20).fit(bags)
    assert len(model.history_["advantage"]) == 1
    assert model.history_["advantage"][0] > ENOUGH
    assert len(model.history_["loss"]) == 20
    assert model.calibration_ is None
    assert model.recipe_.batch_size == 8


def test_noise_is_found_out_tried_again_and_not_believed():
    train, test = noise_bags(), gaussian_bags(bags=60, k=4, seed=5)
    with pytest.warns(MiplNotice, match=r"has learned nothing: after 10 of 20 epochs"):
        model = make_classifier("sam-cn", starts=0, epochs=20).fit(train)
    assert len(model.history_["advantage"]) == 2
    assert failed(model.history_)
    assert len(model.history_["loss"]) == 10
    confidence = model.predict_proba(test).max(axis=1)
    assert confidence.mean() < 1 / 4 + 0.1


def test_a_second_attempt_that_learns_is_taken(monkeypatch):
    """The first one is judged as if it had learned nothing; the second is the training of its own seed."""
    judged = []

    def judge(*given):
        judged.append(1)
        return [0.0] if len(judged) == 1 else [9.0]

    monkeypatch.setattr(Loop, "_judge", judge)
    bags = gaussian_bags(bags=150, k=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_classifier("sam-cn", starts=0, epochs=10).fit(bags)
    assert model.history_["advantage"] == [0.0, 9.0]
    assert model.recipe_.batch_size == 4
    assert len(model.history_["loss"]) == 10


def test_an_interrupted_second_attempt_goes_on(tmp_path):
    bags, wanted = noise_bags(), None
    with pytest.warns(MiplNotice):
        wanted = make_classifier("sam-cn", starts=0, epochs=8).fit(bags)

    class StopError(Exception):
        pass

    steps = []

    def stop_at(count):
        def report(epoch, note=""):
            steps.append(epoch)
            if len(steps) == count:
                raise StopError

        return report

    for count in (3, 7):  # in the first attempt (four epochs), in the second
        with pytest.raises(StopError):
            make_classifier("sam-cn", starts=0, epochs=8).fit(
                bags, checkpoint=tmp_path, report=stop_at(count)
            )
    with pytest.warns(MiplNotice):
        model = make_classifier("sam-cn", starts=0, epochs=8).fit(bags, checkpoint=tmp_path)
    assert model.history_["advantage"] == wanted.history_["advantage"]
    np.testing.assert_array_equal(model.predict_proba(bags), wanted.predict_proba(bags))


def test_of_those_trained_together_only_the_failed_are_trained_again():
    bags = [gaussian_bags(bags=150, k=4), noise_bags()]
    models = [make_classifier("sam-cn", starts=0, epochs=12) for _ in bags]
    with pytest.warns(MiplNotice, match="has learned nothing"):
        fit_together(models, bags)
    assert [len(model.history_["advantage"]) for model in models] == [1, 2]
    assert not failed(models[0].history_)
    assert failed(models[1].history_)


@pytest.mark.parametrize("together", [False, True])
def test_what_was_learned_and_lost_again_is_found_out(monkeypatch, together):
    """At the end of training, long after the warm-up was found good, the head comes to one answer for all."""
    bags = gaussian_bags(bags=150, k=4)
    epochs = Loop.epochs

    def ending_in_one_answer(self, *given, **named):
        for epoch, values in epochs(self, *given, **named):
            if epoch == 10:
                for parameter in self.net.stacked if self.members > 1 else self.net.head.parameters():
                    parameter.data.zero_()
            yield epoch, values

    monkeypatch.setattr(Loop, "epochs", ending_in_one_answer)
    models = [make_classifier("sam-cn", starts=0, epochs=10) for _ in range(1 + together)]
    fit = partial(fit_together, models, [bags, bags]) if together else partial(models[0].fit, bags)
    with pytest.warns(MiplNotice, match="has learned nothing: after 10 of 10 epochs"):
        fit()
    for model in models:
        assert model.history_["advantage"] == pytest.approx([0.0, 0.0], abs=1e-6)
        assert len(model.history_["loss"]) == 10
        assert model.predict_proba(bags).max() == pytest.approx(1 / 4, abs=1e-3)


def test_few_bags_and_the_paper_are_not_judged():
    for bags, settings_ in ((80, {}), (150, {"recipe": "paper"}), (150, {"held_out": 0.0})):
        model = make_classifier("sam-cn", epochs=4, **settings_).fit(gaussian_bags(bags=bags, k=4))
        assert "advantage" not in model.history_


def test_the_history_says_how_even_the_classes_are():
    bags = gaussian_bags(bags=60, k=4)
    model = make_classifier("sam-cn", epochs=4).fit(bags)
    assert all(0 < value <= 1 + 1e-6 for value in model.history_["class_entropy"])
    one = dataclasses.replace(bags, candidates=np.eye(4, dtype=bool)[np.zeros(60, int)], labels=None)
    same = make_classifier("sam-cn", epochs=2).fit(one)
    assert max(same.history_["class_entropy"]) < 1e-6
