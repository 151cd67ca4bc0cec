"""Operations within bags, over the flat instances of a ragged batch; no loop over bags."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_ids(sizes: Tensor) -> Tensor:
    """Return for each instance the bag it belongs to: sizes (b,) -> (N,)."""
    return torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)


def segment_sum(values: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Sum within bags: values (N, …), segments (N,) -> (bags, …)."""
    return values.new_zeros((bags, *values.shape[1:])).index_add(0, segments, values)


def segment_softmax(scores: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Softmax within bags: scores (N,), segments (N,) -> (N,), summing to 1 in every bag."""
    top = scores.new_full((bags,), -torch.inf).scatter_reduce(0, segments, scores.detach(), "amax")
    exponentials = (scores - top[segments]).exp()
    return exponentials / segment_sum(exponentials, segments, bags)[segments]


def segment_zscore(scores: Tensor, segments: Tensor, sizes: Tensor, eps: float) -> Tensor:
    """Centre within bags and divide by the deviation + eps, the deviation held constant: (N,) -> (N,).

    The deviation has n − 1 in its denominator; a bag of one instance has none, and its score becomes 0.
    """
    counts = sizes.to(scores.dtype)
    centred = scores - (segment_sum(scores, segments, len(sizes)) / counts)[segments]
    variance = segment_sum(centred.detach() ** 2, segments, len(sizes)) / (counts - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)[segments]
