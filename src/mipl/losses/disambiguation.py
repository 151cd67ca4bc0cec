"""The paper's losses: pure functions of (logits, candidates, weights), one value per bag.

``logits`` (b, k), ``candidates`` (b, k) bool, ``weights`` (b, k) on the candidates, constant in the gradient.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mipl.errors import DataError, SettingError

Competitor = Literal["cc", "cn"]
Target = Literal["candidates", "top"]


def candidate_log_softmax(logits: Tensor, candidates: Tensor) -> Tensor:
    """log p̃ (b, k): the prediction normalised over the candidates; −inf elsewhere.

    A softmax with the non-candidates masked; dividing probabilities by their sum would underflow.
    """
    return logits.masked_fill(~candidates, -torch.inf).log_softmax(dim=1)


def mdl_loss(logits: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Momentum-based disambiguation loss (b,): Σ_S −w log p (Eq. 22)."""
    _check(logits, candidates, weights)
    return _disambiguation(logits.log_softmax(dim=1), candidates, weights)


def cdl_loss(
    logits: Tensor,
    candidates: Tensor,
    weights: Tensor,
    competitor: Competitor = "cn",
    gamma: float = 1.0,
    favoured: Tensor | None = None,
) -> Tensor:
    """Calibratable disambiguation loss (b,): (1 − q + φ)^γ Σ_S −w log p (Eq. 14).

    q is the strongest candidate's probability, φ the second candidate's (``cc``, Eq. 16) or the strongest
    non-candidate's (``cn``, Eq. 17). The gradient flows through both (Proposition 2). φ = 0 where there is
    no competitor: one candidate only (cc), or every label a candidate (cn). ``favoured`` (b, k) bool: the
    classes that take the candidates' place in q and φ, where weights go beyond what is favoured.
    """
    _check(logits, candidates, weights, gamma)
    log_p = logits.log_softmax(dim=1)
    ahead = margin(log_p, candidates if favoured is None else favoured, competitor)
    return (1.0 - ahead).clamp(min=1e-12) ** gamma * _disambiguation(log_p, candidates, weights)


def margin(log_p: Tensor, candidates: Tensor, competitor: Competitor = "cn") -> Tensor:
    """β = q − φ (b,), the top candidate's lead over its competitor (Eq. 21)."""
    inside = log_p.masked_fill(~candidates, -torch.inf)
    if competitor == "cc":
        top, second = inside.topk(2, dim=1).values.unbind(dim=1)
        return top.exp() - second.exp()
    if competitor == "cn":
        outside = log_p.masked_fill(candidates, -torch.inf)
        return inside.max(dim=1).values.exp() - outside.max(dim=1).values.exp()
    raise SettingError(f"competitor = {competitor!r} must be 'cc' or 'cn'.")


def focal_loss(
    logits: Tensor,
    candidates: Tensor,
    weights: Tensor,
    gamma: float = 1.0,
    target: Target = "candidates",
) -> Tensor:
    """Focal loss for bags (b,): Σ_S −w (1 − p)^γ log p (Eq. 5).

    ``target="top"`` is the paper's first attempt (Sec. 3.3): the strongest candidate stands for the true
    label of Eq. 3, and the weights count for nothing.
    """
    return _focal(logits, candidates, weights, gamma, -1.0, target)


def inverse_focal_loss(
    logits: Tensor,
    candidates: Tensor,
    weights: Tensor,
    gamma: float = 1.0,
    target: Target = "candidates",
) -> Tensor:
    """Inverse focal loss for bags (b,): Σ_S −w (1 + p)^γ log p (Eq. 6); ``target="top"``: Eq. 4."""
    return _focal(logits, candidates, weights, gamma, 1.0, target)


def _focal(
    logits: Tensor, candidates: Tensor, weights: Tensor, gamma: float, sign: float, target: Target
) -> Tensor:
    _check(logits, candidates, weights, gamma)
    log_p = logits.log_softmax(dim=1)
    if target == "top":
        top = log_p.masked_fill(~candidates, -torch.inf).argmax(dim=1, keepdim=True)
        weights = torch.zeros_like(log_p).scatter(1, top, 1.0)
    elif target != "candidates":
        raise SettingError(f"target = {target!r} must be 'candidates' or 'top'.")
    factor = (1.0 + sign * log_p.exp()).clamp(min=1e-12) ** gamma
    return _disambiguation(log_p * factor, candidates, weights)


def _disambiguation(log_p: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    return -(weights.detach() * log_p).masked_fill(~candidates, 0.0).sum(dim=1)


def _check(logits: Tensor, candidates: Tensor, weights: Tensor, gamma: float = 1.0) -> None:
    if logits.ndim != 2 or candidates.shape != logits.shape or weights.shape != logits.shape:
        raise DataError(
            f"logits {tuple(logits.shape)}, candidates {tuple(candidates.shape)} and weights "
            f"{tuple(weights.shape)} must all be bags × classes."
        )
    if candidates.dtype != torch.bool:
        raise DataError(f"candidates must be boolean, not {candidates.dtype}: write candidates.bool().")
    if not candidates.any(dim=1).all():
        row = int((~candidates.any(dim=1)).nonzero()[0])
        raise DataError(f"The candidate set of row {row} is empty: every bag needs a candidate.")
    if not 0 <= gamma < torch.inf:
        raise SettingError(f"gamma = {gamma} must be finite and at least 0.")
