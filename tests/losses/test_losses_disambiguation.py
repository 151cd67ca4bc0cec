"""The paper's losses against loops over bags and classes in float64, written from the equations."""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.errors import DataError, SettingError
from mipl.losses import (
    candidate_log_softmax,
    cdl_loss,
    focal_loss,
    inverse_focal_loss,
    margin,
    mdl_loss,
)

GAMMAS = [0.0, 0.5, 1.0, 2.0, 5.0]
SCALED = {  # every loss that has a γ
    "cc": functools.partial(cdl_loss, competitor="cc"),
    "cn": functools.partial(cdl_loss, competitor="cn"),
    "fl": focal_loss,
    "ifl": inverse_focal_loss,
}
LOSSES = [
    ("mdl", None, mdl_loss),
    *(
        (name, gamma, functools.partial(loss, gamma=gamma))
        for name, loss in SCALED.items()
        for gamma in GAMMAS
    ),
]
EVERY_LOSS = pytest.mark.parametrize(
    ("name", "gamma", "loss"), LOSSES, ids=["mdl", *(f"{name}-{gamma:g}" for name, gamma, _ in LOSSES[1:])]
)
EVERY_SCALED = pytest.mark.parametrize("name", SCALED)
COMPETITORS = pytest.mark.parametrize("competitor", ["cc", "cn"])

properties = settings(max_examples=25, deadline=None)


# --- the equations, one bag at a time ---


def softmax_row(logits):
    exponentials = [math.exp(s - max(logits)) for s in logits]
    return [e / sum(exponentials) for e in exponentials]


def log_softmax_row(logits):
    """Without underflow: log p = s − max − log Σ exp(s − max)."""
    top = max(logits)
    return [s - top - math.log(sum(math.exp(other - top) for other in logits)) for s in logits]


def competitor_of(p, S, competitor):
    """The top candidate u and its competitor v, or None, as sets of class indices are searched in order."""
    u = max(S, key=lambda c: p[c])
    rivals = [c for c in S if c != u] if competitor == "cc" else [c for c in range(len(p)) if c not in S]
    return u, max(rivals, key=lambda c: p[c]) if rivals else None


def margin_row(p, S, competitor):
    u, v = competitor_of(p, S, competitor)
    return p[u] - (p[v] if v is not None else 0.0)  # Eq. 21


def loss_row(name, gamma, logits, candidates, weights):
    p, log_p = softmax_row(logits), log_softmax_row(logits)
    S = [c for c, inside in enumerate(candidates) if inside]
    if name == "mdl":
        return sum(-weights[c] * log_p[c] for c in S)  # Eq. 22
    if name == "fl":
        return sum(-weights[c] * (1 - p[c]) ** gamma * log_p[c] for c in S)  # Eq. 5
    if name == "ifl":
        return sum(-weights[c] * (1 + p[c]) ** gamma * log_p[c] for c in S)  # Eq. 6
    scale = (1 - margin_row(p, S, name)) ** gamma
    return sum(-weights[c] * scale * log_p[c] for c in S)  # Eqs. 14, 16, 17


def loop(name, gamma, logits, candidates, weights):
    rows = zip(logits.tolist(), candidates.tolist(), weights.tolist(), strict=True)
    return np.array([loss_row(name, gamma, *row) for row in rows])


# --- bags ---


class Batch(NamedTuple):
    logits: torch.Tensor
    candidates: torch.Tensor
    weights: torch.Tensor


def random_weights(rng, candidates):
    """Weights on the candidates that sum to 1, some of them zero."""
    raw = rng.random(candidates.shape) * (rng.random(candidates.shape) < 0.8) * candidates
    raw = np.where(raw.sum(axis=1, keepdims=True) > 0, raw, candidates)
    return raw / raw.sum(axis=1, keepdims=True)


@st.composite
def batches(draw):
    """Bags with ties, single candidates and full candidate sets among them, logits from −10 to 10."""
    b, k = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ties = draw(st.booleans())
    logits = rng.integers(-2, 3, (b, k)).astype(float) if ties else rng.uniform(-10, 10, (b, k))
    candidates = np.zeros((b, k), dtype=bool)
    for row in candidates:
        size = {"one": 1, "all": k, "some": int(rng.integers(1, k + 1))}[
            draw(st.sampled_from(["one", "all", "some"]))
        ]
        row[rng.choice(k, size, replace=False)] = True
    weights = random_weights(rng, candidates)
    return Batch(torch.tensor(logits), torch.tensor(candidates), torch.tensor(weights))


def separated(b, k, seed):
    """Bags whose logits are at least 0.2 apart, so that no maximum is near a tie."""
    rng = np.random.default_rng(seed)
    steps = np.stack([rng.permutation(k) for _ in range(b)])
    logits = 0.5 * steps + rng.uniform(0, 0.3, (b, k))
    candidates = rng.random((b, k)) < 0.5
    candidates[np.arange(b), rng.integers(0, k, b)] = True
    return Batch(
        torch.tensor(logits), torch.tensor(candidates), torch.tensor(random_weights(rng, candidates))
    )


def extreme_batch(k, dtype):
    """Every pattern of logits ±1e4 with every candidate set and uniform weights."""
    patterns = list(itertools.product([-1e4, 1e4], repeat=k))
    sets = [s for s in itertools.product([False, True], repeat=k) if any(s)]
    logits, candidates = zip(*itertools.product(patterns, sets), strict=True)
    S = torch.tensor(candidates)
    return Batch(torch.tensor(logits, dtype=dtype), S, (S / S.sum(dim=1, keepdim=True)).to(dtype))


def value_and_gradient(loss, batch):
    logits = batch.logits.clone().requires_grad_()
    values = loss(logits, batch.candidates, batch.weights)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    return values.detach(), gradient


# --- values ---


@EVERY_LOSS
@given(batch=batches())
@properties
def test_loss_equals_the_loop(name, gamma, loss, batch):
    values = loss(*batch)
    assert values.shape == (len(batch.logits),)
    np.testing.assert_allclose(values.numpy(), loop(name, gamma, *batch), rtol=1e-6, atol=1e-12)


@EVERY_LOSS
def test_loss_of_float32_equals_the_loop(name, gamma, loss):
    batch = separated(40, 5, seed=1)
    values = loss(batch.logits.float(), batch.candidates, batch.weights.float())
    assert values.dtype is torch.float32
    np.testing.assert_allclose(values.numpy(), loop(name, gamma, *batch), rtol=1e-4, atol=1e-6)


@COMPETITORS
@given(batch=batches())
@properties
def test_margin_equals_the_loop(competitor, batch):
    log_p = batch.logits.log_softmax(dim=1)
    expected = [
        margin_row(softmax_row(row), [c for c, inside in enumerate(S) if inside], competitor)
        for row, S in zip(batch.logits.tolist(), batch.candidates.tolist(), strict=True)
    ]
    np.testing.assert_allclose(margin(log_p, batch.candidates, competitor).numpy(), expected, atol=1e-12)


def test_a_bag_worked_out_by_hand():
    p = torch.tensor([[0.5, 0.2, 0.3]])
    S = torch.tensor([[True, True, False]])
    w = torch.tensor([[0.75, 0.25, 0.0]])
    mdl = -(0.75 * math.log(0.5) + 0.25 * math.log(0.2))
    assert mdl_loss(p.log(), S, w).item() == pytest.approx(mdl, rel=1e-6)
    assert margin(p.log(), S, "cc").item() == pytest.approx(0.3, rel=1e-6)
    assert margin(p.log(), S, "cn").item() == pytest.approx(0.2, rel=1e-6)
    assert cdl_loss(p.log(), S, w, "cc", 2.0).item() == pytest.approx(0.7**2 * mdl, rel=1e-6)
    assert cdl_loss(p.log(), S, w, "cn", 2.0).item() == pytest.approx(0.8**2 * mdl, rel=1e-6)
    fl = -(0.75 * 0.5**2 * math.log(0.5) + 0.25 * 0.8**2 * math.log(0.2))
    assert focal_loss(p.log(), S, w, 2.0).item() == pytest.approx(fl, rel=1e-6)
    ifl = -(0.75 * 1.5**2 * math.log(0.5) + 0.25 * 1.2**2 * math.log(0.2))
    assert inverse_focal_loss(p.log(), S, w, 2.0).item() == pytest.approx(ifl, rel=1e-6)


def test_competitor_is_cn_and_gamma_1_unless_told():
    batch = separated(10, 5, seed=2)
    assert torch.equal(cdl_loss(*batch), cdl_loss(*batch, competitor="cn", gamma=1.0))
    assert torch.equal(focal_loss(*batch), focal_loss(*batch, gamma=1.0))
    assert torch.equal(inverse_focal_loss(*batch), inverse_focal_loss(*batch, gamma=1.0))
    log_p = batch.logits.log_softmax(dim=1)
    assert torch.equal(margin(log_p, batch.candidates), margin(log_p, batch.candidates, "cn"))


@pytest.mark.parametrize(
    ("competitor", "candidates"), [("cc", [False, True, False]), ("cn", [True, True, True])]
)
def test_without_a_competitor_phi_is_zero(competitor, candidates):
    logits = torch.tensor([[1.0, 0.5, -1.0]], dtype=torch.float64)
    S = torch.tensor([candidates])
    w = S / S.sum()
    p = logits.softmax(dim=1)
    q = (p * S).max()
    assert margin(p.log(), S, competitor).item() == pytest.approx(q.item(), abs=1e-12)
    values, gradient = value_and_gradient(
        functools.partial(cdl_loss, competitor=competitor, gamma=2.0), Batch(logits, S, w)
    )
    assert values.item() == pytest.approx(((1 - q) ** 2 * mdl_loss(logits, S, w)).item(), rel=1e-9)
    assert torch.isfinite(gradient).all()


@EVERY_SCALED
@given(batch=batches())
@properties
def test_gamma_0_is_mdl(name, batch):
    values, gradient = value_and_gradient(functools.partial(SCALED[name], gamma=0.0), batch)
    expected_values, expected_gradient = value_and_gradient(mdl_loss, batch)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


# --- extremes ---


@EVERY_LOSS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_near_one_hot_predictions_give_finite_values_and_gradients(name, gamma, loss, dtype):
    batch = extreme_batch(4, dtype)
    values, gradient = value_and_gradient(loss, batch)
    assert torch.isfinite(values).all()
    assert torch.isfinite(gradient).all()
    assert (values >= 0).all()
    # a factor that should be 0 is rounded to about 1e-7 and more under the root, at losses up to 2e4
    np.testing.assert_allclose(values.numpy(), loop(name, gamma, *batch), rtol=1e-4, atol=0.02)


@EVERY_SCALED
@pytest.mark.parametrize("gamma", [0.01, 0.1, 0.5, 1.0, 5.0])
def test_gradients_stay_finite_on_the_way_to_one_hot(name, gamma):
    """1 − p passes through every size that float32 knows before it is 0, where x^(γ−1) would be infinite."""
    lead = torch.cat([torch.linspace(0, 200, 801), torch.tensor([1e3, 1e4])])
    logits = torch.stack([lead, torch.zeros_like(lead), -lead], dim=1)
    for candidates in ([True, False, False], [True, True, False], [True, True, True]):
        S = torch.tensor(candidates).expand(len(lead), 3)
        batch = Batch(logits, S, S / S.sum(dim=1, keepdim=True))
        values, gradient = value_and_gradient(functools.partial(SCALED[name], gamma=gamma), batch)
        assert torch.isfinite(values).all()
        assert torch.isfinite(gradient).all()


# --- gradients ---


@EVERY_LOSS
@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_against_differences(name, gamma, loss, seed):
    batch = separated(4, 5, seed)
    logits = batch.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, batch.candidates, batch.weights), (logits,))


@COMPETITORS
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_the_sum_of_fitting_and_shaping(competitor, gamma, seed):
    """Proposition 2: λ ∇MDL − γ (1 − β)^(γ−1) MDL ∇β, with the Jacobian of the softmax written out."""
    batch = separated(8, 6, seed)
    _, gradient = value_and_gradient(functools.partial(cdl_loss, competitor=competitor, gamma=gamma), batch)
    shaped = 0
    for i, (logits, candidates, w) in enumerate(zip(*(part.numpy() for part in batch), strict=True)):
        p = np.array(softmax_row(logits.tolist()))
        jacobian = np.diag(p) - np.outer(p, p)  # ∂p/∂s
        S = np.flatnonzero(candidates).tolist()
        mdl = -(w[S] * np.log(p[S])).sum()
        by_p = np.zeros(len(p))
        by_p[S] = -w[S] / p[S]
        mdl_gradient = jacobian @ by_p
        u, v = competitor_of(p, S, competitor)
        direction = np.zeros(len(p))
        direction[u] += 1.0
        if v is not None:
            direction[v] -= 1.0
        beta_gradient = jacobian @ direction
        beta = direction @ p
        fitting = (1 - beta) ** gamma * mdl_gradient
        shaping = -gamma * (1 - beta) ** (gamma - 1) * mdl * beta_gradient
        np.testing.assert_allclose(gradient[i].numpy(), fitting + shaping, rtol=1e-9, atol=1e-12)
        shaped += np.abs(shaping).max() > 1e-3
    assert shaped >= 6 or gamma == 0.0  # the term that makes the loss more than a reweighted MDL


@EVERY_LOSS
def test_no_gradient_flows_into_the_weights(name, gamma, loss):
    batch = separated(4, 5, seed=3)
    logits, weights = batch.logits.clone().requires_grad_(), batch.weights.clone().requires_grad_()
    torch.autograd.backward(loss(logits, batch.candidates, weights).sum())
    assert weights.grad is None
    assert logits.grad.abs().sum() > 0


@EVERY_LOSS
def test_weights_off_the_candidates_count_for_nothing(name, gamma, loss):
    batch = separated(20, 5, seed=4)
    values, gradient = value_and_gradient(loss, batch)
    stray = batch._replace(weights=batch.weights + 7.0 * ~batch.candidates)
    stray_values, stray_gradient = value_and_gradient(loss, stray)
    assert torch.equal(stray_values, values)
    assert torch.equal(stray_gradient, gradient)


# --- symmetry ---


@EVERY_LOSS
@given(batch=batches(), shift=st.floats(-50, 50))
@properties
def test_a_shift_of_the_logits_changes_nothing(name, gamma, loss, batch, shift):
    shifted = batch._replace(logits=batch.logits + shift * torch.arange(1, len(batch.logits) + 1)[:, None])
    torch.testing.assert_close(loss(*shifted), loss(*batch), rtol=1e-5, atol=1e-9)


@EVERY_LOSS
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
@properties
def test_the_order_of_the_classes_is_of_no_account(name, gamma, loss, batch, seed):
    order = torch.tensor(np.random.default_rng(seed).permutation(batch.logits.shape[1]))
    permuted = Batch(*(part[:, order] for part in batch))
    torch.testing.assert_close(loss(*permuted), loss(*batch), rtol=1e-6, atol=1e-12)


@EVERY_LOSS
def test_gradients_follow_the_order_of_the_classes(name, gamma, loss):
    batch, order = separated(10, 6, seed=5), torch.tensor([3, 5, 0, 1, 4, 2])
    _, gradient = value_and_gradient(loss, batch)
    _, permuted = value_and_gradient(loss, Batch(*(part[:, order] for part in batch)))
    torch.testing.assert_close(permuted, gradient[:, order], rtol=1e-9, atol=1e-12)


@EVERY_LOSS
@given(batch=batches())
@properties
def test_a_bag_does_not_see_the_others(name, gamma, loss, batch):
    values, gradient = value_and_gradient(loss, batch)
    for i in range(len(values)):
        alone, alone_gradient = value_and_gradient(loss, Batch(*(part[i : i + 1] for part in batch)))
        torch.testing.assert_close(alone[0], values[i], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(alone_gradient[0], gradient[i], rtol=1e-9, atol=1e-10)


@EVERY_LOSS
def test_an_empty_batch_has_no_values(name, gamma, loss):
    assert loss(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool), torch.zeros(0, 3)).shape == (0,)


# --- refusals ---

L, S, W = torch.zeros(2, 3), torch.tensor([[True, False, True], [False, True, False]]), torch.zeros(2, 3)


@EVERY_LOSS
@pytest.mark.parametrize(
    ("logits", "candidates", "weights", "sentence"),
    [
        (
            L[:, :2],
            S,
            W,
            "logits (2, 2), candidates (2, 3) and weights (2, 3) must all be bags × classes.",
        ),
        (
            L,
            S[:1],
            W,
            "logits (2, 3), candidates (1, 3) and weights (2, 3) must all be bags × classes.",
        ),
        (
            L,
            S,
            W[:, :1],
            "logits (2, 3), candidates (2, 3) and weights (2, 1) must all be bags × classes.",
        ),
        (L[0], S[0], W[0], "logits (3,), candidates (3,) and weights (3,) must all be bags × classes."),
        (L, S.long(), W, "candidates must be boolean, not torch.int64: write candidates.bool()."),
        (L, S.float(), W, "candidates must be boolean, not torch.float32: write candidates.bool()."),
        (
            L,
            torch.tensor([[True, True, True], [False, False, False]]),
            W,
            "The candidate set of row 1 is empty: every bag needs a candidate.",
        ),
    ],
    ids=["logits", "candidates", "weights", "one-bag", "integers", "floats", "empty"],
)
def test_bad_arrays_are_refused(name, gamma, loss, logits, candidates, weights, sentence):
    with pytest.raises(DataError) as caught:
        loss(logits, candidates, weights)
    assert str(caught.value) == sentence


@EVERY_SCALED
@pytest.mark.parametrize("gamma", [-1.0, -1e-9, math.nan, math.inf])
def test_bad_gammas_are_refused(name, gamma):
    with pytest.raises(SettingError) as caught:
        SCALED[name](L, S, W, gamma=gamma)
    assert str(caught.value) == f"gamma = {gamma} must be finite and at least 0."


@pytest.mark.parametrize("competitor", ["CC", "nc", None])
def test_unknown_competitors_are_refused(competitor):
    sentence = f"competitor = {competitor!r} must be 'cc' or 'cn'."
    with pytest.raises(SettingError) as caught:
        cdl_loss(L, S, W, competitor=competitor)
    assert str(caught.value) == sentence
    with pytest.raises(SettingError) as caught:
        margin(L, S, competitor)
    assert str(caught.value) == sentence


# --- the candidate-normalised prediction ---


@given(batch=batches())
@properties
def test_candidate_log_softmax_is_p_over_its_sum(batch):
    result = candidate_log_softmax(batch.logits, batch.candidates).numpy()
    for log_row, logits, inside in zip(result, batch.logits.tolist(), batch.candidates.numpy(), strict=True):
        p = np.array(softmax_row(logits)) * inside
        np.testing.assert_allclose(np.exp(log_row), p / p.sum(), rtol=1e-10, atol=0)
        assert np.isneginf(log_row[~inside]).all()
        assert np.isfinite(log_row[inside]).all()


@pytest.mark.parametrize("lead", [200.0, 1e3, 1e4])
def test_candidates_far_behind_are_normalised_all_the_same(lead):
    logits = torch.tensor([[lead, 0.0, -5.0, -lead]])
    candidates = torch.tensor([[False, True, True, False]])
    p = logits.softmax(dim=1) * candidates
    assert (p / p.sum(dim=1, keepdim=True)).isnan().any()  # what dividing would give
    logits.requires_grad_()
    result = candidate_log_softmax(logits, candidates)
    expected = [-math.log1p(math.exp(-5)), -5 - math.log1p(math.exp(-5))]
    np.testing.assert_allclose(result.detach().numpy()[0, 1:3], expected, rtol=1e-6)
    assert result.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    (gradient,) = torch.autograd.grad(result[candidates].sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[0, [0, 3]].tolist() == [0.0, 0.0]
