"""The network of the partial-label methods: each bag is pooled to one vector, which is then classified."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from mipl.nn.encoders import Standardize
from mipl.nn.segments import segment_ids, segment_sum

Pooling = Literal["mean", "maxmin"]


def pool(instances: Tensor, sizes: Tensor, pooling: Pooling) -> Tensor:
    """Pool flattened instances (N, …) to one vector per bag: mean (b, d), or maximum and minimum (b, 2d)."""
    flat, segments = instances.flatten(1), segment_ids(sizes)  # (N, d), (N,)
    if pooling == "mean":
        return segment_sum(flat, segments, len(sizes)) / sizes[:, None]
    index = segments[:, None].expand_as(flat)
    largest = flat.new_full((len(sizes), flat.shape[1]), -torch.inf).scatter_reduce(0, index, flat, "amax")
    smallest = torch.full_like(largest, torch.inf).scatter_reduce(0, index, flat, "amin")
    return torch.cat([largest, smallest], dim=1)


class PooledNetwork(nn.Module):
    """Instances (N, …) and sizes (b,) -> logits (b, k); the encoder is applied to pooled vectors.

    The mean of standardised instances needs no further scaling. Maxima are all large and minima all small, so
    the ``maxmin`` vectors are standardised again.
    """

    def __init__(
        self, scaling: nn.Module, pooling: Pooling, width: int, encoder: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.scaling = scaling
        self.pooling = pooling
        self.pooled_scaling = Standardize((width,)) if pooling == "maxmin" else nn.Identity()
        self.encoder = encoder
        self.head = head

    def forward(self, instances: Tensor, sizes: Tensor) -> Tensor:
        """Return the logits (b, k): scale, pool, encode, classify."""
        logits: Tensor = self.head(self.encoder(self.pooled_scaling(self.pooled(instances, sizes))))
        return logits

    def pooled(self, instances: Tensor, sizes: Tensor) -> Tensor:
        """Return the scaled and pooled instances, (b, d) or (b, 2d)."""
        return pool(self.scaling(instances), sizes, self.pooling)
