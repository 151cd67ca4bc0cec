"""The networks of all attention-based methods: encoder, attention or another aggregator, head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mipl.nn.aggregators import Aggregator
from mipl.nn.attention import Attention, aggregate
from mipl.nn.segments import segment_ids, segment_sum

BACKGROUND_LEVEL = 0.1  # relative to uniform attention: an instance below it is background


class Output(NamedTuple):
    """The output of a forward pass over b bags with N instances."""

    logits: Tensor  # (b, k)
    embedding: Tensor  # (b, L) z, Eq. 13
    attention: Tensor  # (N,) a; (0,) of an aggregator that is not attention
    scores: Tensor  # (N,) ξ, Eq. 7; likewise
    features: Tensor | None = None  # (N, L) h; None if they were not all in memory
    background: Tensor | None = None  # (b, k) logits of the mean background, 0 without one


class ChunkedInstances(Protocol):
    """Instances (N, …) on disk that can be read in chunks, repeatedly."""

    def parts(self, instances: int) -> Iterator[Tensor]:
        """Yield the instances in order, in chunks of ``instances``."""


class AttentionNetwork(Protocol):
    """What the training of an attention-based method needs: one network, or several that are stacked."""

    attention: Attention

    def __call__(self, instances: Tensor, sizes: Tensor) -> Output:
        """Return the output for instances (N, …) of bags of ``sizes`` (b,)."""

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return the background-entropy regulariser of each bag (b,)."""


class InstanceNetwork(nn.Module):
    """Base class of networks that encode every instance before a bag is aggregated."""

    CHUNK = 4096  # instances encoded at once without gradients: bounds the memory for huge bags

    def __init__(self, scaling: nn.Module, encoder: nn.Module) -> None:
        super().__init__()
        self.scaling = scaling
        self.encoder = encoder

    @property
    def width(self) -> int:
        """The width of the bag features z."""
        raise NotImplementedError

    def encode(self, instances: Tensor) -> Tensor:
        """Return instance features (N, L) of instances (N, …); in chunks if no gradient is needed."""
        if torch.is_grad_enabled() or len(instances) <= self.CHUNK:
            features: Tensor = self.encoder(self.scaling(instances))
            return features
        return torch.cat([self.encoder(self.scaling(part)) for part in torch.split(instances, self.CHUNK)])


class AggregatedNetwork(InstanceNetwork):
    """Instances (N, …) and sizes (b,) -> logits (b, k) and bag features, without attention weights."""

    def __init__(
        self, scaling: nn.Module, encoder: nn.Module, aggregator: Aggregator, head: nn.Module
    ) -> None:
        super().__init__(scaling, encoder)
        self.aggregator = aggregator
        self.attention = Attention()  # has no schedule
        self.head = head

    @property
    def width(self) -> int:
        """The width of the bag features z."""
        return self.aggregator.width

    def forward(self, instances: Tensor, sizes: Tensor) -> Output:
        """Encode, aggregate, classify."""
        h = self.encode(instances)  # (N, L)
        z = self.aggregator.of_bags(h, sizes)  # (b, width of the aggregator)
        nothing = h.new_zeros(0)
        return Output(self.head(z), z, nothing, nothing, h)

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return zeros (b,): without attention no instance is background."""
        return output.logits.new_zeros(len(sizes))


class BagNetwork(InstanceNetwork):
    """Instances (N, …) and sizes (b,) -> logits (b, k), bag features and attention."""

    # number of instances above which they are read in chunks, and encoded twice
    STORED = 4 * InstanceNetwork.CHUNK

    def __init__(
        self, scaling: nn.Module, encoder: nn.Module, score: nn.Module, attention: Attention, head: nn.Module
    ) -> None:
        super().__init__(scaling, encoder)
        self.score = score
        self.attention = attention
        self.head = head

    @property
    def width(self) -> int:
        """The width of the bag features z."""
        return int(self.get_parameter("head.weight").shape[1])

    def forward(self, instances: Tensor | ChunkedInstances, sizes: Tensor) -> Output:
        """Encode, score, attend, sum within bags, classify (steps 5–8 of Algorithm 1)."""
        if not isinstance(instances, Tensor):
            return self._forward_chunked(instances, sizes)
        h = self.encode(instances)  # (N, L)
        segments = segment_ids(sizes)  # (N,)
        scores = self.score(h)  # (N,)
        weights = self.attention(scores, segments, sizes)  # (N,)
        z = aggregate(weights, h, segments, len(sizes))  # (b, L)
        return Output(self.head(z), z, weights, scores, h)

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return KL(uniform ‖ prediction) (b,) for the mean feature of each bag's background instances."""
        assert output.features is not None
        segments = segment_ids(sizes)
        background = is_background(output.attention.detach(), sizes[segments]).to(output.features)  # (N,)
        count = segment_sum(background, segments, len(sizes))  # (b,)
        weights = background / count.clamp(min=1)[segments]  # (N,)
        mean = aggregate(weights, output.features, segments, len(sizes))  # (b, L)
        return kl_from_uniform(self.head(mean) * (count > 0)[:, None])

    def evidence(self, instances: Tensor | ChunkedInstances, sizes: Tensor) -> Tensor:
        """Return the evidence of each instance for each class (N, k).

        The scores of the classes are linear in z = Σ a h, and so a sum over instances: of instance i, a_i
        times the scores of h_i, here relative to their mean over the classes. The sum over a bag is the bag's
        own scores relative to their mean.
        """
        weights = self(instances, sizes).attention  # (N,)
        chunks = [instances] if isinstance(instances, Tensor) else instances.parts(self.CHUNK)
        head = cast(nn.Linear, self.head)
        scores = torch.cat([functional.linear(self.encode(part), head.weight, head.bias) for part in chunks])
        evidence: Tensor = weights[:, None] * (scores - scores.mean(dim=1, keepdim=True))
        return evidence

    def _forward_chunked(self, instances: ChunkedInstances, sizes: Tensor) -> Output:
        """Compute the same with one chunk in memory: first all scores, which the softmax of a bag needs."""
        segments = segment_ids(sizes)
        scores = torch.cat([self.score(self.encode(chunk)) for chunk in instances.parts(self.CHUNK)])
        weights = self.attention(scores, segments, sizes)
        z = torch.zeros((), device=scores.device)
        parts = zip(torch.split(weights, self.CHUNK), torch.split(segments, self.CHUNK), strict=True)
        for chunk, (part, bags) in zip(instances.parts(self.CHUNK), parts, strict=True):
            z = z + aggregate(part, self.encode(chunk), bags, len(sizes))
        return Output(self.head(z), z, weights, scores)


class Ensemble(nn.Module):
    """Networks of one method whose predictions are averaged: the ensemble members."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)


def members_of(network: nn.Module) -> list[nn.Module]:
    """Return the members of an ensemble, or a single network as a list."""
    return list(network.members) if isinstance(network, Ensemble) else [network]


def is_background(attention: Tensor, size: Tensor) -> Tensor:
    """Return which instances have less than a tenth of the uniform attention 1/n, n the size of their bag.

    1/n itself would be too high: half of a bag in which all instances show the class, as in tissue tiles, has
    less attention than that.
    """
    return attention * size < BACKGROUND_LEVEL


def kl_from_uniform(logits: Tensor) -> Tensor:
    """Return KL(uniform ‖ softmax(logits)) (b,) of logits (b, k)."""
    return -logits.log_softmax(dim=1).mean(dim=1) - math.log(logits.shape[1])
