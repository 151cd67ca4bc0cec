"""The paper's losses: pure functions of (logits, candidates, weights), one value per bag.

Shapes: ``logits`` (b, k), ``candidates`` (b, k) bool, ``weights`` (b, k) on the candidates. No gradient flows
through the weights.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mipl.errors import DataError, SettingError

Competitor = Literal["cc", "cn"]
Target = Literal["candidates", "top"]


def candidate_log_softmax(logits: Tensor, candidates: Tensor) -> Tensor:
    """Return log p̃ (b, k), the prediction normalised over the candidates; −inf elsewhere.

    A masked softmax: dividing probabilities by their sum would underflow.
    """
    return logits.masked_fill(~candidates, -torch.inf).log_softmax(dim=1)


def mdl_loss(logits: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Return the momentum-based disambiguation loss (b,): Σ_S −w log p (Eq. 22)."""
    _check(logits, candidates, weights)
    return _disambiguation(logits.log_softmax(dim=1), candidates, weights)


def cdl_loss(
    logits: Tensor,
    candidates: Tensor,
    weights: Tensor,
    competitor: Competitor = "cn",
    gamma: float = 1.0,
    margin_classes: Tensor | None = None,
) -> Tensor:
    """Return the calibratable disambiguation loss (b,): (1 − q + φ)^γ Σ_S −w log p (Eq. 14).

    q is the probability of the top candidate, φ that of its competitor. The gradient flows through both
    (Proposition 2). φ = 0 if there is no competitor: a single candidate (cc), or no non-candidate (cn).

    Args:
        logits: (b, k).
        candidates: (b, k) bool; the sum Σ_S is over these classes.
        weights: (b, k) pseudo-label weights.
        competitor: ``cc``, the second candidate (Eq. 16), or ``cn``, the top non-candidate (Eq. 17).
        gamma: γ, the exponent of the margin factor.
        margin_classes: (b, k) bool, the classes that replace the candidates in q and φ; None: the candidates.
    """
    _check(logits, candidates, weights, gamma)
    log_p = logits.log_softmax(dim=1)
    if gamma == 0:  # during the warm-up
        return _disambiguation(log_p, candidates, weights)
    beta = margin(log_p, candidates if margin_classes is None else margin_classes, competitor)
    return (1.0 - beta).clamp(min=1e-12) ** gamma * _disambiguation(log_p, candidates, weights)


def margin(log_p: Tensor, candidates: Tensor, competitor: Competitor = "cn") -> Tensor:
    """Return β = q − φ (b,), the margin between the top candidate and its competitor (Eq. 21)."""
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
    """Return the focal loss (b,): Σ_S −w (1 − p)^γ log p (Eq. 5).

    ``target="top"`` is the paper's first variant (Sec. 3.3): the top candidate replaces the true label of
    Eq. 3, and the weights are not used.
    """
    return _focal(logits, candidates, weights, gamma, -1.0, target)


def inverse_focal_loss(
    logits: Tensor,
    candidates: Tensor,
    weights: Tensor,
    gamma: float = 1.0,
    target: Target = "candidates",
) -> Tensor:
    """Return the inverse focal loss (b,): Σ_S −w (1 + p)^γ log p (Eq. 6); ``target="top"``: Eq. 4."""
    return _focal(logits, candidates, weights, gamma, 1.0, target)


def _focal(
    logits: Tensor, candidates: Tensor, weights: Tensor, gamma: float, sign: float, target: Target
) -> Tensor:
    """Return Σ_S −w (1 + sign · p)^γ log p (b,)."""
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
    """Return Σ_S −w log p (b,)."""
    return -(weights.detach() * log_p).masked_fill(~candidates, 0.0).sum(dim=1)


def _check(logits: Tensor, candidates: Tensor, weights: Tensor, gamma: float = 1.0) -> None:
    """Raise an error for arguments of the wrong shape, type or range."""
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
