"""The table of pseudo-label weights and its momentum rule (Eq. 15)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl import theory
from mipl.pseudo_labels import PseudoLabels

SEEDS = st.integers(0, 2**32 - 1)

properties = settings(max_examples=30, deadline=None)


def candidate_sets(m, k, rng):
    """Random sets with a single candidate in the first row and every label in the last."""
    S = rng.random((m, k)) < 0.5
    S[np.arange(m), rng.integers(0, k, m)] = True
    S[0] = False
    S[0, rng.integers(0, k)] = True
    S[-1] = True
    return S


def predicted(logits, S):
    """p̃ (b, k) in float64: the softmax, then divided by its sum over the candidates."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True) * S
    return p / p.sum(axis=1, keepdims=True)


def table_of(S, initial=None):
    return PseudoLabels(torch.tensor(S), None if initial is None else torch.tensor(initial))


# --- the start ---


@given(m=st.integers(2, 8), k=st.integers(2, 7), seed=SEEDS)
@properties
def test_starts_uniform_on_the_candidates(m, k, seed):
    S = candidate_sets(m, k, np.random.default_rng(seed))
    table = table_of(S)
    expected = [[1 / sum(row) if inside else 0.0 for inside in row] for row in S.tolist()]
    assert table.weights.dtype is torch.float32
    np.testing.assert_allclose(table.weights.numpy(), expected, rtol=1e-6, atol=0)
    assert (table.weights.numpy()[~S] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_starts_from_given_weights_and_leaves_them_alone(dtype):
    S = np.array([[True, True, False], [False, True, True]])
    initial = torch.tensor(np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]], dtype=dtype))
    kept = initial.clone()
    table = PseudoLabels(torch.tensor(S), initial)
    assert table.weights.dtype is torch.float32
    assert table.weights.tolist() == kept.tolist()
    table.update(torch.tensor([0, 1]), torch.randn(2, 3), alpha=0.5)
    assert table.weights.tolist() != kept.tolist()
    assert torch.equal(initial, kept)


def test_given_weights_with_a_history_are_cut_off_from_it():
    S = torch.tensor([[True, True, False]])
    initial = torch.tensor([[0.3, 0.7, 0.0]], requires_grad=True)
    table = PseudoLabels(S, initial * 1.0)
    assert not table.weights.requires_grad
    assert not table.update(torch.tensor([0]), torch.randn(1, 3), alpha=1.0).requires_grad


@given(m=st.integers(2, 8), k=st.integers(2, 7), alpha=st.sampled_from([0.0, 0.3]), seed=SEEDS)
@properties
def test_with_a_prior_the_prediction_is_weighed_by_the_initial_weights(m, k, alpha, seed):
    rng = np.random.default_rng(seed)
    S = candidate_sets(m, k, rng)
    initial = (rng.random((m, k)) + 0.01) * S
    initial = (initial / initial.sum(axis=1, keepdims=True)).astype(np.float32)
    logits = 2 * rng.standard_normal((m, k))
    table = table_of(S, initial)
    table.update(torch.arange(m), torch.tensor(logits), alpha)
    for i in range(m):
        p = initial[i].astype(float) * np.exp(logits[i])
        expected = alpha * initial[i] + (1 - alpha) * p / p.sum()
        np.testing.assert_allclose(table.weights[i], expected, atol=1e-5)
    table.release()
    for without in (table, table_of(S)):
        without.update(torch.arange(m), torch.tensor(logits), 0.0)
        np.testing.assert_allclose(without.weights, predicted(logits, S), atol=1e-5)


@given(members=st.integers(1, 3), k=st.integers(2, 6), steps=st.integers(1, 40), seed=SEEDS)
@properties
def test_the_weights_lean_to_classes_below_their_share_until_told_not_to(members, k, steps, seed):
    rng = np.random.default_rng(seed)
    S = np.concatenate([candidate_sets(4, k, rng) for _ in range(members)])
    prior = rng.dirichlet(np.full(k, 5.0), size=members)
    strength = rng.random((members, 1))
    table, mean = table_of(S), prior.copy()
    for _ in range(steps):
        shares = rng.dirichlet(np.full(k, 2.0), size=members)
        mean = 0.95 * mean + 0.05 * shares
        table.balance_classes(torch.tensor(shares), torch.tensor(prior), torch.tensor(strength))
    logits = rng.standard_normal((4 * members, k))
    leaning = logits + np.repeat(strength * np.log(prior / mean), 4, axis=0)
    table.update(torch.arange(4 * members), torch.tensor(logits), 0.0)
    np.testing.assert_allclose(table.weights, predicted(leaning, S), atol=1e-5)
    table.update(torch.arange(4 * members), torch.tensor(-logits), 0.0)
    np.testing.assert_allclose(table.weights, predicted(leaning - 2 * logits, S), atol=1e-5)
    table.release()
    table.update(torch.arange(4 * members), torch.tensor(logits), 0.0)
    np.testing.assert_allclose(table.weights, predicted(logits, S), atol=1e-5)


def test_release_ends_balancing_and_the_initial_weights():
    candidates = torch.tensor([[True, True, False], [True, False, True]])
    shares, prior = torch.tensor([[0.8, 0.1, 0.1]]), torch.full((1, 3), 1 / 3)
    table, fresh = PseudoLabels(candidates), PseudoLabels(candidates)
    for _ in range(5):
        table.balance_classes(shares, prior, torch.ones(1, 1))
    table.release()
    assert not table.memory
    for each in (table, fresh):
        each.balance_classes(prior.roll(1), prior, torch.ones(1, 1))
    assert torch.equal(table.memory["lean"], fresh.memory["lean"])


def test_a_class_that_took_all_loses_what_it_has_too_much():
    """From a network that gives every bag with both candidates to one class, half of them come back."""
    table = table_of(np.ones((40, 2), dtype=bool))
    logits, index = torch.tensor([[3.0, 0.0]]).expand(40, 2), torch.arange(40)
    table.update(index, logits, 0.0)
    assert table.weights[:, 0].mean() > 0.9
    for _ in range(200):
        table.update(index, logits, 0.0)
        shares = table.weights.mean(dim=0, keepdim=True)
        table.balance_classes(shares, torch.tensor([[0.5, 0.5]]), torch.tensor([[0.75]]))
    # w/(1 − w) = e³ ((1 − w)/w)^0.75 where it rests
    odds = float(table.weights[0, 0] / table.weights[0, 1])
    assert odds == pytest.approx(np.exp(3 / 1.75), rel=1e-2)


@pytest.mark.parametrize("trust", [1.0, 0.8, "estimate"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_table_of_a_member_goes_on_as_its_rows_would(trust, weighted):
    """Against the whole table: the same weights after the same updates, and no memory in common."""
    rng = np.random.default_rng(0)
    m, k, members, member = 6, 4, 3, 1
    S = np.tile(candidate_sets(m, k, rng), (members, 1))
    initial = (rng.random(S.shape) + 0.1) * S
    initial = torch.tensor(initial / initial.sum(axis=1, keepdims=True)) if weighted else None
    whole = PseudoLabels(torch.tensor(S), initial, trust, members)
    index = torch.arange(len(S))
    proportions, prior = (torch.tensor(rng.dirichlet(np.ones(k), size=members)) for _ in range(2))

    def logits():
        return torch.tensor(rng.standard_normal((len(S), k)))

    whole.balance_classes(proportions, prior, torch.full((members, 1), 0.5))
    whole.update(index, logits(), 0.0)
    whole.estimate_trust(lambda tensors: None, warmup=True)
    rows = torch.tensor([0, 2, 5])
    place = member * m + rows
    own = whole.of_member(member, rows)
    assert torch.equal(own.candidates, whole.candidates[place])
    assert torch.equal(own.weights, whole.weights[place])
    for alpha in (0.0, 0.4):
        given_logits = logits()
        before = whole.weights.clone()
        updated = own.update(torch.arange(3), given_logits[place], alpha)
        assert torch.equal(whole.weights, before)
        torch.testing.assert_close(updated, whole.update(place, given_logits[place], alpha))
    own.release()
    assert weighted == (whole.log_prior is not None)
    assert "lean" in whole.memory
    (found,) = own.estimate_trust(lambda tensors: None, warmup=True) or [{}]
    assert ("trust" in found) == (trust == "estimate")


# --- Eq. 15 ---


@given(m=st.integers(2, 8), k=st.integers(2, 7), alpha=st.sampled_from([0.0, 0.3, 0.99]), seed=SEEDS)
@properties
def test_update_equals_equation_15_and_spares_the_other_bags(m, k, alpha, seed):
    rng = np.random.default_rng(seed)
    S = candidate_sets(m, k, rng)
    initial = (rng.random((m, k)) + 0.1) * S
    initial /= initial.sum(axis=1, keepdims=True)
    table = table_of(S, initial)
    table.release()
    before = table.weights.clone()
    index = rng.permutation(m)[: rng.integers(1, m + 1)]
    logits = 3 * rng.standard_normal((len(index), k))
    returned = table.update(torch.tensor(index), torch.tensor(logits, dtype=torch.float32), alpha)
    expected = alpha * initial[index] + (1 - alpha) * predicted(logits, S[index])
    np.testing.assert_allclose(returned.numpy(), expected, rtol=0, atol=1e-6)
    assert torch.equal(table.weights[torch.tensor(index)], returned)
    others = np.setdiff1d(np.arange(m), index)
    assert torch.equal(table.weights[torch.tensor(others)], before[torch.tensor(others)])


def test_alpha_1_leaves_the_table_untouched():
    rng = np.random.default_rng(0)
    S = candidate_sets(6, 5, rng)
    table = table_of(S)
    before = table.weights.clone()
    index = torch.tensor([4, 1, 3])
    returned = table.update(index, torch.full((3, 5), torch.nan), alpha=1.0)  # the logits are not even read
    assert torch.equal(table.weights, before)
    assert torch.equal(returned, before[index])
    returned.fill_(9.0)  # what is returned is the caller's
    assert torch.equal(table.weights, before)


def test_what_is_returned_is_not_a_view_of_the_table():
    table = table_of(np.ones((2, 3), dtype=bool))
    returned = table.update(torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0]]), alpha=0.5)
    kept = table.weights.clone()
    returned.zero_()
    assert torch.equal(table.weights, kept)


def test_alpha_0_takes_the_prediction_alone():
    S = np.array([[True, True, False]])
    table = table_of(S, np.array([[1.0, 0.0, 0.0]]))
    table.release()
    logits = np.array([[0.0, 2.0, 50.0]])
    returned = table.update(torch.tensor([0]), torch.tensor(logits), alpha=0.0)
    np.testing.assert_allclose(returned.numpy(), predicted(logits, S), atol=1e-6)


def test_update_is_cut_off_from_the_gradient():
    table = table_of(np.ones((3, 4), dtype=bool))
    logits = torch.randn(2, 4, requires_grad=True)
    returned = table.update(torch.tensor([2, 0]), logits, alpha=0.5)
    assert not returned.requires_grad
    assert returned.grad_fn is None
    assert not table.weights.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_logits_of_another_precision_are_taken(dtype):
    S = np.array([[True, True, False], [True, False, True]])
    table = table_of(S)
    logits = torch.tensor([[1.0, 0.0, 2.0], [0.0, 5.0, 1.0]], dtype=dtype)
    returned = table.update(torch.tensor([0, 1]), logits, alpha=0.5)
    assert returned.dtype is table.weights.dtype is torch.float32
    expected = 0.5 * S / 2 + 0.5 * predicted(logits.double().numpy(), S)
    np.testing.assert_allclose(returned.numpy(), expected, atol=1e-6 if dtype is torch.float64 else 1e-2)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_rows_stay_distributions_on_their_candidates(scale):
    rng = np.random.default_rng(int(scale))
    m, k, epochs = 12, 6, 100
    S = candidate_sets(m, k, rng)
    table = table_of(S)
    for epoch in range(1, epochs + 1):
        alpha = (epochs - epoch) / epochs
        for index in np.array_split(rng.permutation(m), 4):
            logits = torch.tensor(scale * rng.standard_normal((len(index), k)), dtype=torch.float32)
            table.update(torch.tensor(index), logits, alpha)
        weights = table.weights.double().numpy()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
        assert (weights >= 0).all()
        assert (weights[~S] == 0).all()


def test_rows_do_not_drift_when_hardly_anything_is_taken():
    rng = np.random.default_rng(0)
    S = candidate_sets(5, 7, rng)
    table, index = table_of(S), torch.arange(5)
    for _ in range(3000):
        table.update(index, torch.tensor(rng.standard_normal((5, 7)), dtype=torch.float32), alpha=0.999)
    np.testing.assert_allclose(table.weights.double().sum(dim=1).numpy(), 1.0, atol=1e-4)


def test_a_prediction_far_from_every_candidate_gives_no_nan():
    table = table_of(np.array([[True, True, False]]))
    returned = table.update(torch.tensor([0]), torch.tensor([[-1e4, -1e4 - 1.0, 1e4]]), alpha=0.0)
    e = np.e
    np.testing.assert_allclose(returned.numpy(), [[e / (1 + e), 1 / (1 + e), 0.0]], rtol=1e-6)


# --- Lemma 1 ---


@given(epochs=st.integers(2, 30), seed=SEEDS)
@properties
def test_margins_between_candidates_follow_lemma_1(epochs, seed):
    """After any number of epochs, w_u − w_v is the closed form of the margins predicted on the way."""
    rng = np.random.default_rng(seed)
    m, k = 3, 5
    S = np.ones((m, k), dtype=bool)
    S[1, 4] = S[2, 2] = S[2, 4] = False
    initial = (rng.random((m, k)) + 0.1) * S
    initial /= initial.sum(axis=1, keepdims=True)
    table = table_of(S, initial)
    table.release()
    history, alphas = [], []
    for t in range(2, epochs + 1):
        logits = 3 * rng.standard_normal((m, k))
        alphas.append((epochs - t) / epochs if t < epochs else 0.05)
        table.update(torch.arange(m), torch.tensor(logits, dtype=torch.float32), alphas[-1])
        history.append(logits)
    for bag, u, v in ((0, 4, 2), (1, 0, 2), (2, 3, 1)):
        deltas, by_hand = [], (initial[bag, u] - initial[bag, v]) * np.prod(alphas)
        for s, logits in enumerate(history):
            p = np.exp(logits[bag]) / np.exp(logits[bag]).sum()
            deltas.append((p[u] - p[v]) / p[S[bag]].sum())  # Eq. 53
            by_hand += (1 - alphas[s]) * np.prod(alphas[s + 1 :]) * deltas[-1]  # Eq. 52
        result = float(table.weights[bag, u] - table.weights[bag, v])
        assert result == pytest.approx(by_hand, abs=1e-5)
        closed = theory.pseudo_label_margin(initial[bag, u] - initial[bag, v], deltas, alphas)
        assert result == pytest.approx(closed, abs=1e-5)
