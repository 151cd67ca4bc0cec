"""Focal losses with the top candidate in the true label's place (Sec. 3.3), against Eqs. 3–4 in loops."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.errors import DataError, SettingError
from mipl.losses import focal_loss, inverse_focal_loss

SIGNS = {focal_loss: -1, inverse_focal_loss: 1}
BOTH = pytest.mark.parametrize("loss", SIGNS, ids=["fl", "ifl"])
GAMMAS = pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])


def loop(logits, candidates, gamma, sign):
    """Eqs. 3 (−) and 4 (+) with y = the strongest candidate."""
    values = []
    for row, inside in zip(logits.tolist(), candidates.tolist(), strict=True):
        total = math.log(sum(math.exp(s - max(row)) for s in row)) + max(row)
        y = max((c for c in range(len(row)) if inside[c]), key=lambda c: row[c])
        log_p = row[y] - total
        values.append(-((1 + sign * math.exp(log_p)) ** gamma) * log_p)
    return np.array(values)


@st.composite
def bags(draw):
    b, k = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ties = draw(st.booleans())
    logits = rng.integers(-1, 2, (b, k)).astype(float) if ties else rng.uniform(-10, 10, (b, k))
    candidates = rng.random((b, k)) < draw(st.sampled_from([0.1, 0.5, 1.0]))
    candidates[np.arange(b), rng.integers(0, k, b)] = True
    return torch.tensor(logits), torch.tensor(candidates)


@BOTH
@GAMMAS
@given(bag=bags())
@settings(max_examples=25, deadline=None)
def test_equals_the_loop_whatever_the_weights(loss, gamma, bag):
    logits, candidates = bag
    expected = loop(logits, candidates, gamma, SIGNS[loss])
    for weights in (torch.zeros_like(logits), torch.rand_like(logits)):
        values = loss(logits, candidates, weights, gamma, target="top")
        np.testing.assert_allclose(values.numpy(), expected, rtol=1e-6, atol=1e-12)


@BOTH
def test_by_hand(loss):
    p = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    S = torch.tensor([[True, True, False]])  # the strongest label of all is no candidate
    value = loss(p.log(), S, torch.zeros(1, 3), 2.0, "top").item()
    assert value == pytest.approx(-((1 + SIGNS[loss] * 0.3) ** 2) * math.log(0.3))


@BOTH
@GAMMAS
def test_gradient_against_differences(loss, gamma):
    logits = torch.tensor([[0.1, 0.9, -0.4], [2.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    S = torch.tensor([[True, False, True], [True, True, True]])
    assert torch.autograd.gradcheck(lambda s: loss(s, S, S.double(), gamma, "top"), (logits,))


@BOTH
def test_one_candidate_leaves_no_choice(loss):
    logits, S = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.eye(5).bool()[:4]
    assert torch.equal(loss(logits, S, S.float(), target="top"), loss(logits, S, S.float()))


@BOTH
def test_all_candidates_are_the_target_unless_told(loss):
    logits = torch.tensor([[1.0, 0.5, -1.0]])
    S, w = torch.tensor([[True, True, False]]), torch.tensor([[0.4, 0.6, 0.0]])
    assert torch.equal(loss(logits, S, w, 2.0), loss(logits, S, w, 2.0, "candidates"))
    assert not torch.allclose(loss(logits, S, w, 2.0), loss(logits, S, w, 2.0, "top"))


@BOTH
@pytest.mark.parametrize("gamma", [0.1, 1.0, 5.0])
def test_finite_on_the_way_to_one_hot(loss, gamma):
    lead = torch.cat([torch.linspace(-200, 200, 401), torch.tensor([-1e4, 1e4])])
    logits = torch.stack([lead, torch.zeros_like(lead), -lead], dim=1).requires_grad_()
    for inside in ([True, False, False], [True, True, False], [True, True, True]):
        S = torch.tensor(inside).expand(len(lead), 3)
        values = loss(logits, S, S.float(), gamma, "top")
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert torch.isfinite(values).all()
        assert torch.isfinite(gradient).all()


@BOTH
def test_refusals(loss):
    top = functools.partial(loss, target="top")
    L, S = torch.zeros(2, 3), torch.tensor([[True, False, True], [False, True, False]])
    with pytest.raises(SettingError, match="target = 'best' must be 'candidates' or 'top'"):
        loss(L, S, L, target="best")
    with pytest.raises(DataError, match="The candidate set of row 1 is empty"):
        top(L, torch.tensor([[True, False, True], [False, False, False]]), L)
    with pytest.raises(DataError, match="must all be bags × classes"):
        top(L, S, L[:1])
    with pytest.raises(SettingError, match="gamma = -1 must be finite"):
        top(L, S, L, -1)
