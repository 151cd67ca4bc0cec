"""Operations within bags on the flat instances (N, …) of a ragged batch, without a loop over bags."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def segment_ids(sizes: Tensor) -> Tensor:
    """Return the bag of each instance: sizes (b,) -> (N,)."""
    return torch.repeat_interleave(sizes)


def segment_sum(values: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Sum within bags: values (N, …), segments (N,) -> (bags, …)."""
    return values.new_zeros((bags, *values.shape[1:])).index_add(0, segments, values)


class _Softmax(torch.autograd.Function):
    """exp ξ / Σ exp ξ within bags, with its gradient a (g − Σ a g) in closed form (half the kernel calls)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Tensor, bags: int) -> Tensor:
        top = scores.new_full((bags,), -torch.inf).scatter_reduce_(0, segments, scores, "amax")
        weights = (scores - top[segments]).exp_()
        weights /= segment_sum(weights, segments, bags)[segments]
        ctx.save_for_backward(weights, segments)
        ctx.bags = bags
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        weights, segments = ctx.saved_tensors
        products = weights * grads[0]
        return products - weights * segment_sum(products, segments, ctx.bags)[segments], None, None


class _WeightedSum(torch.autograd.Function):
    """Σ a h within bags, with its gradients in closed form."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, h: Tensor, segments: Tensor, bags: int) -> Tensor:
        ctx.save_for_backward(weights, h, segments)
        return segment_sum(weights[:, None] * h, segments, bags)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, h, segments = ctx.saved_tensors
        grad = grads[0][segments]  # (N, L)
        return (grad * h).sum(dim=1), weights[:, None] * grad, None, None


def segment_softmax(scores: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Return the softmax within bags: scores (N,), segments (N,) -> (N,)."""
    weights: Tensor = _Softmax.apply(scores, segments, bags)  # type: ignore[no-untyped-call]
    return weights


def segment_weighted_sum(weights: Tensor, h: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Return the weighted sum within bags: weights (N,), h (N, L) -> (bags, L)."""
    z: Tensor = _WeightedSum.apply(weights, h, segments, bags)  # type: ignore[no-untyped-call]
    return z


def segment_zscore(scores: Tensor, segments: Tensor, sizes: Tensor, eps: float) -> Tensor:
    """Return the z-scores (N,) within bags: centred, divided by the standard deviation + eps.

    No gradient flows through the standard deviation (n − 1 in its denominator). The score of a bag with one
    instance becomes 0.
    """
    counts = sizes.to(scores.dtype)
    centred = scores - (segment_sum(scores, segments, len(sizes)) / counts)[segments]
    variance = segment_sum(centred.detach() ** 2, segments, len(sizes)) / (counts - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)[segments]
