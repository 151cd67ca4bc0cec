"""Confusion matrices of annotators: by loops, by crowd-kit, and what must always hold."""

import dataclasses
import functools
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from crowdkit.aggregation import DawidSkene
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.annotators import AnnotatorModel, VoteTable, dawid_skene, posterior_sets, votes_alone
from mipl.annotators.model import GOLD
from mipl.annotators.report import entropy, expected_gain, next_questions, quality
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.estimators import make_classifier
from mipl.pseudo_labels import AnnotatedLabels
from mipl.training import trainer

properties = settings(max_examples=25, deadline=None)


def crowd(seed, m=60, k=3, quality=(0.9, 0.75, 0.6, 0.4), share=0.8):
    """Return true labels (m,), votes (v, 3) and the matrices (a, k, k) that they were drawn from."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, m)
    matrices = np.array([np.where(np.eye(k, dtype=bool), q, (1 - q) / (k - 1)) for q in quality])
    rows = [
        (i, r, rng.choice(k, p=matrices[r, y[i]]))
        for i in range(m)
        for r in range(len(quality))
        if rng.random() < share
    ]
    return y, np.array(rows), matrices


def voted_bags(seed=0, m=40):
    bags = gaussian_bags(bags=m, k=3, seed=seed)
    _, rows, _ = crowd(seed, m)
    rows[:, 2] = np.where(
        np.random.default_rng(seed).random(len(rows)) < 0.8, bags.labels[rows[:, 0]], rows[:, 2]
    )
    sets = np.zeros((m, 3), dtype=bool)
    sets[rows[:, 0], rows[:, 2]] = True
    sets[~sets.any(axis=1)] = True
    names = ("ann", "bob", "cid", "dan")
    return dataclasses.replace(bags, candidates=sets, votes=rows, annotators=names, missing_truth=True)


@st.composite
def tables(draw):
    """Draw votes of several labels and gold labels among them, with matrices and posteriors of two
    members."""
    m, a, k = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = [row for row in itertools.product(range(m), range(a), range(k)) if rng.random() < 0.3]
    rows += [(0, GOLD, int(rng.integers(k)))] if rng.random() < 0.5 else []
    confusion = rng.dirichlet(np.ones(k), size=(2, a, k))
    return np.array(rows, dtype=np.int64).reshape(-1, 3), confusion, rng.dirichlet(np.ones(k), size=(2, m))


@given(data=tables())
@properties
def test_likelihood_and_counts_are_those_of_a_loop(data):
    rows, confusion, q = data
    (e, m, k), a = q.shape, confusion.shape[1]
    likelihood, counts = np.ones((e, m, k)), np.zeros((e, a, k, k))
    for member, bag, annotator in itertools.product(range(e), range(m), range(GOLD, a)):
        labels = [c for i, r, c in rows if (i, r) == (bag, annotator)]
        if labels and annotator == GOLD:
            likelihood[member, bag] *= np.isin(np.arange(k), labels)
        elif labels:
            each = confusion[member, annotator][:, labels]  # (k, named)
            likelihood[member, bag] *= each.sum(axis=1)
            counts[member, annotator][:, labels] += (
                q[member, bag][:, None] * each / each.sum(axis=1, keepdims=True)
            )
    table = VoteTable.of(rows, m, a, k)
    found = table.log_likelihood(torch.tensor(confusion)).exp().numpy()
    np.testing.assert_allclose(found, likelihood, rtol=1e-9)
    found = table.counts(torch.tensor(q), torch.tensor(confusion)).numpy()
    np.testing.assert_allclose(found, counts, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_dawid_skene_is_that_of_crowd_kit(seed):
    y, rows, _ = crowd(seed)
    table = VoteTable.of(rows, len(y), 4, 3)
    ours, _ = dawid_skene(table, 60, -torch.inf)
    frame = pd.DataFrame(rows, columns=["task", "worker", "label"])
    theirs = DawidSkene(n_iter=60, tol=-1e9).fit(frame).probas_
    theirs = theirs.reindex(columns=range(3), fill_value=0.0)
    np.testing.assert_allclose(ours.numpy()[theirs.index], theirs.to_numpy(), atol=1e-5)


@given(seed=st.integers(0, 999), order=st.permutations(range(4)), names=st.permutations(range(3)))
@properties
def test_relabelling_annotators_or_classes_permutes_the_result(seed, order, names):
    y, rows, _ = crowd(seed, m=20)
    order, names = np.array(order), np.array(names)
    other = np.stack([rows[:, 0], order[rows[:, 1]], names[rows[:, 2]]], axis=1)
    (one, p), (two, q) = (votes_alone(VoteTable.of(v, len(y), 4, 3)) for v in (rows, other))
    np.testing.assert_allclose(q[:, names], p, atol=1e-6)
    moved = two.confusion[0].numpy()[order][:, names][:, :, names]
    np.testing.assert_allclose(moved, one.confusion[0].numpy(), atol=1e-6)


def test_matrices_are_recovered_and_few_votes_give_the_shared_matrix():
    y, rows, matrices = crowd(1, m=800, quality=(0.9, 0.75, 0.6, 0.85, 0.8))
    kept = rows[(rows[:, 1] < 4) | (rows[:, 0] < 1)]  # the last annotator has one vote at most
    found, posterior = votes_alone(VoteTable.of(kept, len(y), 6, 3))
    assert np.abs(found.confusion[0, :4].numpy() - matrices[:4]).mean() < 0.04
    assert (posterior.argmax(axis=1) == y).mean() > 0.9
    torch.testing.assert_close(found.confusion[0, 5], found.shared[0])
    assert (found.confusion[0, 4] - found.shared[0]).abs().max() < 0.2


@given(seed=st.integers(0, 999))
@properties
def test_known_matrices_identity_is_supervision_and_uniform_rows_change_nothing(seed):
    rng = np.random.default_rng(seed)
    m, k = 7, 4
    label = rng.integers(0, k, m)
    votes = VoteTable.of(np.stack([np.arange(m), np.zeros(m, int), label], axis=1), m, 1, k)
    logits = torch.tensor(rng.standard_normal((m, k)), dtype=torch.float32)
    sets, index = torch.eye(k, dtype=torch.bool)[label], torch.arange(m)
    sure = AnnotatedLabels(sets, votes, confusion=torch.eye(k, dtype=torch.float64)[None, None])
    assert torch.equal(sure.update(index, logits, 0.3), sets.float())
    vague = AnnotatedLabels(sets, votes, confusion=torch.full((1, 1, k, k), 1 / k, dtype=torch.float64))
    torch.testing.assert_close(vague.update(index, logits, 0.0), logits.softmax(dim=1))
    assert sure.estimate(lambda tensors: None, warmup=True) == []


@pytest.mark.filterwarnings("ignore:Every bag has one candidate")
def test_training_with_the_identity_is_supervised_training_bit_for_bit(monkeypatch):
    bags = voted_bags()
    rows = np.stack([np.arange(len(bags)), np.zeros(len(bags), int), bags.labels], axis=1)
    sets = np.eye(3, dtype=bool)[bags.labels]
    plain = dataclasses.replace(bags, candidates=sets, votes=None, annotators=())
    voted = dataclasses.replace(plain, votes=rows, annotators=("oracle",))
    identity = functools.partial(AnnotatedLabels, confusion=torch.eye(3, dtype=torch.float64)[None, None])
    monkeypatch.setattr(trainer, "AnnotatedLabels", identity)
    models = [make_classifier("sam-cn", ensemble=1, epochs=4).fit(each) for each in (plain, voted)]
    one, two = (model.network_.state_dict() for model in models)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_member_estimates_its_matrices_from_its_own_bags():
    y, rows, _ = crowd(2)
    seen = torch.ones(2, len(y))
    seen[0, 30:] = 0
    changed = rows.copy()
    changed[changed[:, 0] >= 30, 2] = 0
    sets = torch.ones(2 * len(y), 3, dtype=torch.bool)
    found = []
    for votes in (rows, changed):
        table = AnnotatedLabels(sets, VoteTable.of(votes, len(y), 4, 3), 2, seen)
        table.update(torch.arange(2 * len(y)), torch.zeros(2 * len(y), 3), 0.0)
        assert len(table.estimate(lambda tensors: None, warmup=True)) == 2
        found.append(table.memory["confusion"])
    torch.testing.assert_close(found[0][0], found[1][0])
    assert not torch.allclose(found[0][1], found[1][1])


def test_the_table_of_a_member_has_its_votes_and_matrices():
    y, rows, _ = crowd(4)
    whole = AnnotatedLabels(torch.ones(2 * len(y), 3, dtype=torch.bool), VoteTable.of(rows, len(y), 4, 3), 2)
    whole.update(torch.arange(60, 120), torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), 0.0)
    own = torch.arange(20, 50)
    part = whole.of_member(1, own)
    assert torch.equal(part.weights, whole.weights[len(y) + own])
    torch.testing.assert_close(part.log_votes, whole.log_votes[len(y) + own])
    assert part.estimated


def test_gold_labels_are_certain_and_no_annotator():
    y, rows, _ = crowd(3)
    gold = np.stack([np.arange(10), np.full(10, GOLD), y[:10]], axis=1)
    found, posterior = votes_alone(VoteTable.of(np.concatenate([rows, gold]), len(y), 4, 3))
    np.testing.assert_allclose(posterior[:10], np.eye(3)[y[:10]], atol=1e-12)
    assert found.counts.sum() == pytest.approx(len(rows))


def test_contradictory_votes_of_perfect_annotators_say_nothing():
    votes = VoteTable.of(np.array([[0, 0, 0], [0, 1, 1]]), 2, 2, 2)
    identity = torch.eye(2, dtype=torch.float64).expand(1, 2, 2, 2)
    assert votes.log_likelihood(identity).tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


# ---- training -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The model has learned nothing")
def test_an_ensemble_resumes_saves_and_reports_annotators(tmp_path):
    bags = voted_bags()

    class StopHereError(Exception):
        pass

    def stop(done, note=""):
        if done == 2:
            raise StopHereError

    model = make_classifier("sam-cn", ensemble=3, epochs=4, weight_decay=0.01)
    with pytest.raises(StopHereError):
        model.fit(bags, checkpoint=tmp_path / "state", report=stop)
    resumed = model.fit(bags, checkpoint=tmp_path / "state").network_.state_dict()
    model = make_classifier("sam-cn", ensemble=3, epochs=4, weight_decay=0.01).fit(bags)
    assert all(torch.equal(resumed[name], value) for name, value in model.network_.state_dict().items())
    assert model.annotators_.confusion.shape == (1, 4, 3, 3)
    np.testing.assert_allclose(model.posterior_.sum(axis=1), 1.0)
    assert len(model.history_["votes_right"]) == 4


@pytest.mark.parametrize("name", ["elimipl", "miplma", "proden", "fastmipl"])
def test_methods_that_need_the_set_refuse_votes(name):
    with pytest.raises(SettingError, match="cannot use votes"):
        make_classifier(name, epochs=1).fit(voted_bags())


def test_trust_and_annotators_exclude_each_other():
    with pytest.raises(SettingError, match="leave trust out, or set votes=union"):
        make_classifier("sam-cn", trust="estimate", epochs=1).fit(voted_bags())


@pytest.mark.parametrize("way", ["union", "majority", "dawid-skene"])
def test_votes_can_be_reduced_to_sets(way):
    bags = voted_bags()
    made = make_classifier("sam-mdl", votes=way).parts()[0].training_bags(bags)
    assert made.votes is None
    if way == "union":
        assert (made.candidates == bags.candidates).all()
        return
    voted = np.isin(np.arange(len(bags)), bags.votes[:, 0])
    assert (made.candidates[voted].sum(axis=1) == 1).all()
    if way == "majority":
        count = np.zeros((len(bags), 3))
        np.add.at(count, (bags.votes[:, 0], bags.votes[:, 2]), 1)
        assert (made.candidates.argmax(axis=1) == count.argmax(axis=1))[voted].all()


# ---- what people want to know ---------------------------------------------------------------------------


@given(seed=st.integers(0, 999), mass=st.floats(0.05, 1.0))
@properties
def test_posterior_sets_are_the_smallest_of_their_mass(seed, mass):
    p = np.random.default_rng(seed).dirichlet(np.ones(4) * 0.5, size=5)
    for row, chosen in zip(p, posterior_sets(p, mass), strict=True):
        assert row[chosen].sum() >= mass - 1e-9
        for size in range(chosen.sum()):
            assert max((row[list(c)].sum() for c in itertools.combinations(range(4), size)), default=0) < mass


def test_the_expected_gain_is_that_of_a_loop_and_nobody_is_asked_twice():
    rng = np.random.default_rng(0)
    posterior, confusion = rng.dirichlet(np.ones(3), size=6), rng.dirichlet(np.ones(3), size=(4, 3))
    gain = expected_gain(posterior, confusion)
    for i, r in itertools.product(range(6), range(4)):
        after = 0.0
        for label in range(3):
            joint = posterior[i] * confusion[r, :, label]
            after += joint.sum() * entropy(joint / joint.sum())
        assert gain[i, r] == pytest.approx(entropy(posterior[i]) - after, abs=1e-12)
    rows = np.array([(0, r, 0) for r in range(4)] + [(1, int(gain[1].argmax()), 0), (2, GOLD, 0)])
    found = {q.bag: q for q in next_questions(posterior, confusion, rows)}
    assert set(found) == {1, 3, 4, 5}
    assert found[1].annotator == np.argsort(gain[1])[-2]
    assert all(found[i].annotator == gain[i].argmax() for i in (3, 4, 5))


def test_quality_tells_experts_from_guessers():
    y, rows, _ = crowd(0, m=600, quality=(0.95, 0.9, 0.8, 1 / 3))
    found, posterior = votes_alone(VoteTable.of(rows, len(y), 4, 3))
    people = quality(["a", "b", "c", "d"], found, posterior.mean(axis=0))
    for person, (share, random) in zip(
        people, [(0.95, 0.075), (0.9, 0.15), (0.8, 0.3), (1 / 3, 1)], strict=True
    ):
        low, high = person.accuracy_interval
        assert low < person.accuracy < high
        assert person.accuracy == pytest.approx(share, abs=0.06)
        assert person.random == pytest.approx(random, abs=0.15)
        assert len(person.confusions) == 2
    assert sum(person.votes for person in people) == pytest.approx(len(rows), abs=2)


def test_annotators_who_differ_have_a_weak_prior():
    alike = AnnotatorModel(VoteTable.of(crowd(0, 500, quality=(0.8,) * 6)[1], 500, 6, 3)).from_votes()
    assert float(alike.strength[0]) >= 32
    differ = AnnotatorModel(
        VoteTable.of(crowd(0, 500, quality=(0.97, 0.9, 0.35, 0.4, 0.95, 0.5))[1], 500, 6, 3)
    )
    assert float(alike.strength[0]) > 4 * float(differ.from_votes().strength[0])
