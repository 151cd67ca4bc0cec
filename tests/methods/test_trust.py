"""Bags that may leave their candidate sets: the posterior, its estimate, and every way of training."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl import load, make_classifier
from mipl.data.benchmarks import gaussian_bags
from mipl.data.noise import remove_true_label
from mipl.errors import SettingError
from mipl.losses import cdl_loss
from mipl.methods import METHODS
from mipl.pseudo_labels import EM_STEPS, INITIAL_TRUST, PRIOR_COUNT, PseudoLabels
from mipl.registry import parse_setting
from mipl.training.crossfit import train_stacked
from mipl.training.distributed import ProcessGroup
from mipl.training.recipe import make_recipe
from mipl.training.trainer import Training

properties = settings(max_examples=30, deadline=None)
TRUSTING = [name for name in METHODS if hasattr(METHODS[name].cls, "trust")]


@st.composite
def tables(draw):
    """Random logits (m, k) and candidate sets, the first of one label and the last of all."""
    m, k = draw(st.integers(2, 8)), draw(st.integers(2, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    S = rng.random((m, k)) < 0.5
    S[np.arange(m), rng.integers(0, k, m)] = True
    S[0] = np.arange(k) == rng.integers(k)
    S[-1] = True
    votes = (rng.random((m, k)) + 0.1) * S
    return 3 * rng.standard_normal((m, k)), S, votes / votes.sum(axis=1, keepdims=True)


def posterior(logits, S, trust, inside=None):
    """p_c a_c / Σ p a by a loop: a = t/|S| (or t w⁰) on the set, (1 − t)/(k − |S|) outside."""
    rows = []
    for i, row in enumerate(S):
        s, k, p = row.sum(), len(row), np.exp(logits[i])
        a = [
            trust * (1 / s if inside is None else inside[i, c]) if row[c] else (1 - trust) / (k - s)
            for c in range(k)
        ]
        rows.append(p * a / (p * a).sum())
    return np.array(rows)


@given(data=tables(), trust=st.floats(0.05, 1.0) | st.just(0.99999), voted=st.booleans())
@properties
def test_weights_are_the_posterior_over_all_classes(data, trust, voted):
    logits, S, votes = data
    table = PseudoLabels(torch.tensor(S), torch.tensor(votes) if voted else None, trust)
    index = torch.arange(len(S))
    np.testing.assert_allclose(
        table.weights, posterior(0 * logits, S, trust, votes if voted else None), atol=1e-5
    )
    weights = table.update(index, torch.tensor(logits), 0.0)
    np.testing.assert_allclose(weights, posterior(logits, S, trust, votes if voted else None), atol=1e-5)
    table.release()
    weights = table.update(index, torch.tensor(logits), 0.0)  # after the warm-up the votes are in w alone
    np.testing.assert_allclose(weights, posterior(logits, S, trust), atol=1e-5)


@given(data=tables(), alpha=st.sampled_from([0.0, 0.4]))
@properties
def test_full_trust_is_the_plain_table_bit_for_bit(data, alpha):
    logits, S, votes = data
    for initial in (None, torch.tensor(votes)):
        plain, full = PseudoLabels(torch.tensor(S), initial), PseudoLabels(torch.tensor(S), initial, 1.0)
        for table in (plain, full):
            table.update(torch.arange(len(S)), torch.tensor(logits), alpha)
        assert torch.equal(plain.weights, full.weights)
        assert not full.memory
        assert full.estimate_trust(lambda tensors: None, warmup=True) == []


@given(data=tables(), seen=st.integers(0, 8))
@properties
def test_the_estimate_is_em_over_sets_of_a_size(data, seen):
    logits, S, _ = data
    both = np.concatenate([S, S])  # two networks trained as one: the second has seen every bag
    table = PseudoLabels(torch.tensor(both), trust="estimate", members=2)
    index = np.concatenate([np.arange(len(S))[:seen], len(S) + np.arange(len(S))])
    table.update(torch.tensor(index), torch.tensor(np.concatenate([logits, logits])[index]), 0.0)
    found = table.estimate_trust(lambda tensors: None, warmup=True)
    sizes = S.sum(axis=1)
    for member, bags in ((0, np.arange(len(S))[:seen]), (1, np.arange(len(S)))):
        for size in set(sizes[bags]):
            own, expected = bags[sizes[bags] == size], INITIAL_TRUST
            for _ in range(EM_STEPS):
                kept = (posterior(logits[own], S[own], expected) * S[own]).sum()
                expected = (kept + PRIOR_COUNT) / (len(own) + PRIOR_COUNT)
            assert found[member][f"trust_{size}"] == pytest.approx(expected, abs=1e-5)
    if not seen:
        assert table.memory["trust"][0].tolist() == pytest.approx([INITIAL_TRUST] * (S.shape[1] + 1))
    before = table.memory["trust"].clone()
    table.estimate_trust(lambda tensors: None, warmup=True)  # nothing was seen since
    assert torch.equal(table.memory["trust"], before)
    table.update(torch.arange(len(both)), 99.0 * torch.tensor(both), 0.0)  # known by heart
    table.estimate_trust(lambda tensors: None, warmup=False)
    assert torch.equal(table.memory["trust"], before)


@given(data=tables(), seen=st.integers(1, 8))
@properties
def test_processes_that_add_their_sums_estimate_as_one_that_has_all_bags(data, seen):
    """Two processes with the same bags, each of which has seen some of them, and one with all of them."""
    logits, S, _ = data
    m, index = len(S), np.arange(len(S))[:seen]
    half, whole = (PseudoLabels(torch.tensor(sets), trust="estimate") for sets in (S, np.concatenate([S, S])))
    half.update(torch.tensor(index), torch.tensor(logits[index]), 0.0)
    twice = np.concatenate([index, m + index])
    whole.update(torch.tensor(twice), torch.tensor(np.concatenate([logits, logits])[twice]), 0.0)

    def add(tensors):
        for tensor in tensors:
            tensor.mul_(2)  # what the other process has is the same

    (found,) = half.estimate_trust(add, warmup=True)
    (expected,) = whole.estimate_trust(lambda tensors: None, warmup=True)
    assert found == pytest.approx(expected, abs=1e-6)


def test_bags_that_were_not_seen_do_not_count():
    S = torch.tensor([[True, True, False, False]] * 6)
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.0]] * 6)
    some, alone = PseudoLabels(S, trust="estimate"), PseudoLabels(S[:2], trust="estimate")
    for table in (some, alone):
        table.update(torch.arange(2), logits[:2], 0.0)
    (found,), (expected,) = (
        table.estimate_trust(lambda tensors: None, warmup=True) for table in (some, alone)
    )
    assert found["trust_2"] == pytest.approx(expected["trust_2"], abs=1e-6)


def test_members_of_one_bag_each_have_a_trust_of_their_own():
    S = torch.tensor([[True, False, False]] * 2)
    logits = torch.tensor([[9.0, 0.0, 0.0], [-9.0, 0.0, 0.0]])
    table = PseudoLabels(S, trust="estimate", members=2)
    table.update(torch.arange(2), logits, 0.0)
    for row, found in zip(logits, table.estimate_trust(lambda tensors: None, warmup=True), strict=True):
        alone = PseudoLabels(S[:1], trust="estimate")
        alone.update(torch.arange(1), row[None], 0.0)
        assert [found] == alone.estimate_trust(lambda tensors: None, warmup=True)


def test_a_trust_that_single_precision_takes_for_1_still_lets_bags_go():
    S, logits = np.array([[True, False, False]]), np.array([[0.0, 20.0, 0.0]])
    table = PseudoLabels(torch.tensor(S), trust=1 - 1e-9)
    found = table.update(torch.arange(1), torch.tensor(logits, dtype=torch.float32), 0.0)
    np.testing.assert_allclose(found, posterior(logits, S, 1 - 1e-9), rtol=1e-4)
    assert found[0, 1] > 0.1


def test_a_network_without_opinion_does_not_move_the_estimate():
    """Equal probabilities say nothing of sets: what moves the trust is evidence alone."""
    S = torch.eye(5, dtype=torch.bool).repeat(4000, 1)
    table = PseudoLabels(S, trust="estimate")
    table.update(torch.arange(20000), torch.zeros(20000, 5), 0.0)
    (found,) = table.estimate_trust(lambda tensors: None, warmup=True)
    assert found["trust_1"] == pytest.approx(INITIAL_TRUST, abs=1e-3)


def test_the_margin_is_that_of_the_side_a_bag_is_on():
    method = METHODS["sam-cn"].make(trust=0.5)
    candidates = torch.tensor([[True, True, False, False], [True, False, False, False]])
    weights = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.2, 0.1]])
    batch = type("Batch", (), {"candidates": candidates})()
    margin_classes = method.margin_classes(batch, weights)
    assert margin_classes.tolist() == [[True, True, False, False], [False, True, True, True]]
    logits, everything = torch.randn(2, 4), torch.ones(2, 4, dtype=torch.bool)
    for competitor in ("cc", "cn"):
        values = cdl_loss(logits, everything, weights, competitor, 2.0, margin_classes)
        for i in range(2):
            p = logits[i].softmax(dim=0)
            own, other = p[margin_classes[i]].sort(descending=True).values, p[~margin_classes[i]].max()
            lead = own[0] - (own[1] if competitor == "cc" else other)
            expected = (1 - lead) ** 2 * -(weights[i] * p.log()).sum()
            assert float(values[i]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_training_with_an_estimated_trust_resumes_bit_for_bit(ensemble, tmp_path):
    noisy = remove_true_label(gaussian_bags(bags=40, k=5, seed=1), 0.3)
    given_ = {"epochs": 8, "trust": "estimate", "ensemble": ensemble}
    model = make_classifier("sam-cn", **given_).fit(noisy)

    class StopHereError(Exception):
        pass

    for epoch in (2, 5):  # within the warm-up, and in the first epoch after it

        def stop(done, note="", epoch=epoch):
            if done == epoch:
                raise StopHereError

        with pytest.raises(StopHereError):
            make_classifier("sam-cn", **given_).fit(noisy, checkpoint=tmp_path / str(epoch), report=stop)
        resumed = make_classifier("sam-cn", **given_).fit(noisy, checkpoint=tmp_path / str(epoch))
        np.testing.assert_array_equal(resumed.predict_proba(noisy), model.predict_proba(noisy))
        assert resumed.history_["loss"] == model.history_["loss"]
        assert resumed.history_["trust_1"] == model.history_["trust_1"]


def test_a_member_estimates_the_trust_of_a_network_trained_alone():
    noisy = remove_true_label(gaussian_bags(bags=40, k=5, seed=1), 0.3)
    method = METHODS["sam-cn"].make(dropout=0.0, trust="estimate")
    training = Training(method, make_recipe("stable", epochs=8), 0, ProcessGroup())
    torch.manual_seed(0)
    nets = [method.build(noisy.feature_shape, noisy.k) for _ in range(2)]
    alone = method.build(noisy.feature_shape, noisy.k)
    alone.load_state_dict(nets[1].state_dict())
    histories, _ = train_stacked(training, nets, noisy, torch.ones(2, len(noisy)), 8)
    (history,) = training.run([alone], noisy, training.table(noisy), 1, 8)
    np.testing.assert_allclose(histories[1]["trust_1"], history["trust_1"], atol=1e-3)
    np.testing.assert_allclose(histories[1]["loss"], history["loss"], rtol=2e-3)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_the_proportion_of_lost_true_labels_is_estimated_and_saved(ensemble, tmp_path):
    noisy = remove_true_label(gaussian_bags(bags=120, k=5, seed=1), 0.3)
    model = make_classifier("sam-cn", ensemble=ensemble, epochs=30, trust="estimate").fit(noisy)
    assert model.history_["trust_1"][-1] < 0.4  # every bag that lost its truth has one candidate left
    assert model.history_["trust_2"][-1] > 0.9
    assert model.history_["trust"][-1] == pytest.approx(0.7, abs=0.1)
    assert model.score(noisy) > 0.95
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").history_["trust_1"] == model.history_["trust_1"]


def test_sound_sets_are_found_sound():
    bags = gaussian_bags(bags=80, k=5, seed=1)
    model = make_classifier("sam-cn", ensemble=3, epochs=20, trust="estimate").fit(bags)
    assert model.history_["trust"][-1] > 0.97


@pytest.mark.parametrize("name", TRUSTING)
@pytest.mark.filterwarnings("ignore:Every bag has one candidate", "ignore:The model has learned nothing")
def test_odd_sets_train_to_finite_probabilities(name):
    whole = gaussian_bags(bags=24, k=3, r=2, seed=5)  # every label a candidate: nothing outside
    single = dataclasses.replace(whole, candidates=np.eye(3, dtype=bool)[whole.labels])
    for bags, update in ((whole, "before"), (single, "after")):
        model = make_classifier(name, ensemble=3, epochs=2, trust="estimate", update=update).fit(bags)
        assert np.isfinite(model.predict_proba(bags)).all()


def test_the_command_line_takes_a_number_or_the_word():
    assert parse_setting(METHODS["sam-cn"].cls, "trust", "0.7") == 0.7
    assert parse_setting(METHODS["sam-mdl"].cls, "trust", "estimate") == "estimate"


@pytest.mark.parametrize("trust", [0.0, -1.0, 1.5, float("nan"), "estimated"])
def test_a_trust_that_is_none_is_refused(trust):
    with pytest.raises(SettingError, match=r"trust = .* must be a number in \(0, 1\] or 'estimate'"):
        METHODS["sam-cn"].make(trust=trust)
    with pytest.raises(SettingError, match="elimipl has no setting 'trust'"):
        make_classifier("elimipl", trust=trust)
