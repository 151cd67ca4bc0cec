"""The network all embedded-space methods share: encoder, attention, head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mipl.nn.attention import Attention, GatedScore, aggregate
from mipl.nn.segments import segment_ids, segment_sum

IGNORED = 0.1  # of a uniform share of attention: below it an instance is background


class Output(NamedTuple):
    """What one pass over a batch gives."""

    logits: Tensor  # (b, k)
    embedding: Tensor  # (b, L) z, Eq. 13
    attention: Tensor  # (N,) a
    scores: Tensor  # (N,) ξ, Eq. 7
    features: Tensor | None = None  # (N, L) h; none where they were never all in memory
    background: Tensor | None = None  # (b, k) logits of the mean background, 0 without one; none: not asked


class Stored(Protocol):
    """Instances (N, …) that are read a part at a time, any number of times."""

    def parts(self, instances: int) -> Iterator[Tensor]:
        """Yield them in order, ``instances`` a part."""


class BagNetwork(nn.Module):
    """Instances (N, …) and sizes (b,) -> logits (b, k), bag features and attention."""

    CHUNK = 4096  # instances encoded at once when no gradient is needed: bounded memory for huge bags
    STORED = 4 * CHUNK  # instances above which it is worth reading and encoding them twice

    def __init__(
        self, scaling: nn.Module, encoder: nn.Module, score: GatedScore, attention: Attention, head: nn.Module
    ) -> None:
        super().__init__()
        self.scaling = scaling
        self.encoder = encoder
        self.score = score
        self.attention = attention
        self.head = head

    def forward(self, instances: Tensor | Stored, sizes: Tensor) -> Output:
        """Encode, score, weigh, sum within bags, classify (steps 5–8 of Algorithm 1)."""
        if not isinstance(instances, Tensor):
            return self._by_parts(instances, sizes)
        h = self.encode(instances)  # (N, L)
        segments = segment_ids(sizes)  # (N,)
        scores = self.score(h)  # (N,)
        weights = self.attention(scores, segments, sizes)  # (N,)
        z = aggregate(weights, h, segments, len(sizes))  # (b, L)
        return Output(self.head(z), z, weights, scores, h)

    def decided(self, output: Output, sizes: Tensor) -> Tensor:
        """Return how far each bag's background is from undecided (b,)."""
        assert output.features is not None
        segments = segment_ids(sizes)
        rest = is_background(output.attention.detach(), sizes[segments]).to(output.features)  # (N,)
        count = segment_sum(rest, segments, len(sizes))  # (b,)
        mean = aggregate(rest / count.clamp(min=1)[segments], output.features, segments, len(sizes))
        return from_even(self.head(mean) * (count > 0)[:, None])

    def _by_parts(self, stored: Stored, sizes: Tensor) -> Output:
        """The same with one part in memory: all scores first, for the weights need all of a bag's."""
        segments = segment_ids(sizes)
        scores = torch.cat([self.score(self.encode(part)) for part in stored.parts(self.CHUNK)])
        weights = self.attention(scores, segments, sizes)
        z = torch.zeros((), device=scores.device)
        shares = zip(torch.split(weights, self.CHUNK), torch.split(segments, self.CHUNK), strict=True)
        for part, (share, bags) in zip(stored.parts(self.CHUNK), shares, strict=True):
            z = z + aggregate(share, self.encode(part), bags, len(sizes))
        return Output(self.head(z), z, weights, scores)

    def encode(self, instances: Tensor) -> Tensor:
        """(N, …) -> (N, L), in chunks when no gradient is needed."""
        if torch.is_grad_enabled() or len(instances) <= self.CHUNK:
            features: Tensor = self.encoder(self.scaling(instances))
            return features
        return torch.cat([self.encoder(self.scaling(part)) for part in torch.split(instances, self.CHUNK)])


class Ensemble(nn.Module):
    """Networks of one method whose predictions are averaged."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)


def members_of(network: nn.Module) -> list[nn.Module]:
    """Return the members of an ensemble, or a single network as the only one."""
    return list(network.members) if isinstance(network, Ensemble) else [network]


def is_background(attention: Tensor, size: Tensor) -> Tensor:
    """Return which instances the attention ignores: less than a tenth of 1/n, n the size of their bag.

    Below 1/n itself lies half of a bag whose instances all carry the class, as tissue tiles do.
    """
    return attention * size < IGNORED


def from_even(logits: Tensor) -> Tensor:
    """Return KL(even ‖ softmax) of logits (b, k)."""
    return -logits.log_softmax(dim=1).mean(dim=1) - math.log(logits.shape[1])
