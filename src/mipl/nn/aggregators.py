"""Aggregators that are not a weighted mean: the features of the instances of a bag -> one vector.

TransMIL and DSMIL, and any module of the user. All work on stacks of bags of one size, (g, n, L).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mipl.errors import DataError, SettingError, suggest
from mipl.nn.heads import make_head

# `attention`, the default, is not made here: it has weights, which the other aggregators have not.
AggregatorName = Literal["attention", "transmil", "dsmil"]
AGGREGATORS: tuple[AggregatorName, ...] = get_args(AggregatorName)
MakeModule = Callable[[int], nn.Module]  # L -> a module from the features of a bag (n, L) to a vector


class Aggregator(nn.Module):
    """Base class: the features of g bags of one size (g, n, L) -> one vector each (g, width)."""

    width: int  # of the vectors

    def forward(self, h: Tensor) -> Tensor:
        """Return the vectors (g, width) of features (g, n, L)."""
        raise NotImplementedError

    def padded(self, n: int) -> int:
        """Return the number of rows for n instances; the first ones are repeated to fill it."""
        return n

    def make_head(self, name: str, k: int) -> nn.Module:
        """Return the classifier of the vectors: (b, width) -> logits (b, k)."""
        return make_head(name, self.width, k)

    def of_bags(self, h: Tensor, sizes: Tensor) -> Tensor:
        """Return the vectors (b, width) of features (N, L) of bags of ``sizes`` (b,).

        Bags with the same number of rows are processed together.
        """
        starts = sizes.cumsum(dim=0) - sizes
        rows = torch.tensor([self.padded(n) for n in sizes.tolist()], device=h.device)
        places, vectors = [], []
        for count in sorted(set(rows.tolist())):
            bags = (rows == count).nonzero().squeeze(1)  # (g,)
            offsets = torch.arange(count, device=h.device) % sizes[bags][:, None]  # (g, n)
            places.append(bags)
            vectors.append(self(h[starts[bags][:, None] + offsets]))
        return torch.cat(vectors)[torch.cat(places).argsort()]


class TransMIL(Aggregator):
    """Two layers of self-attention over the instances and a class token, with a position encoding between.

    Shao et al., TransMIL (NeurIPS 2021). The instances of a bag are laid out as a square in the order in
    which they come, on which depthwise convolutions of 7×7, 5×5 and 3×3 encode positions: the only
    aggregator whose result depends on the order of the instances. Self-attention is that of Nyström with
    L/2 landmarks, and exact for bags of no more tokens than landmarks.
    """

    HEADS = 8
    KERNELS = (7, 5, 3)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.token = nn.Parameter(torch.randn(1, 1, width))
        landmarks = max(1, width // 2)
        self.first = SelfAttention(width, self.HEADS, landmarks)
        self.positions = nn.ModuleList(
            nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width) for kernel in self.KERNELS
        )
        self.second = SelfAttention(width, self.HEADS, landmarks)
        self.norm = nn.LayerNorm(width)

    def padded(self, n: int) -> int:
        """Return the smallest square of at least n."""
        return math.isqrt(n - 1) ** 2 + 2 * math.isqrt(n - 1) + 1 if n > 1 else 1

    def forward(self, h: Tensor) -> Tensor:
        """Return the class tokens (g, L) of features (g, n, L), n a square."""
        x = torch.cat([self.token.expand(len(h), -1, -1), h], dim=1)  # (g, 1 + n, L)
        x = x + self.first(x)
        token, h = x[:, :1], x[:, 1:]
        side = math.isqrt(h.shape[1])
        square = h.mT.reshape(len(h), -1, side, side)  # (g, L, side, side)
        encoded = torch.stack([square, *(convolution(square) for convolution in self.positions)]).sum(dim=0)
        x = torch.cat([token, encoded.flatten(2).mT], dim=1)
        x = x + self.second(x)
        vector: Tensor = self.norm(x[:, 0])
        return vector


class SelfAttention(nn.Module):
    """Layer normalisation and multi-head self-attention with Nyström's approximation: (g, n, L) -> (g, n, L).

    Xiong et al., Nyströmformer (AAAI 2021): softmax(QKᵀ) ≈ softmax(QK̃ᵀ) softmax(Q̃K̃ᵀ)⁺ softmax(Q̃Kᵀ), where
    landmarks Q̃ and K̃ are means of consecutive rows. With as many landmarks as rows it is exact; bags of fewer
    rows use the softmax itself.
    """

    ITERATIONS = 6  # of the pseudo-inverse

    def __init__(self, width: int, heads: int, landmarks: int) -> None:
        super().__init__()
        self.heads, self.landmarks = heads, landmarks
        self.per_head = -(-width // heads)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * self.per_head, bias=False)
        self.out = nn.Linear(heads * self.per_head, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended features (g, n, L), without the residual connection."""
        parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, self.per_head)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()  # (g, heads, n, p) each
        if x.shape[1] <= self.landmarks:
            attended = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            attended = nystrom_attention(q, k, v, self.landmarks, self.ITERATIONS)
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed


def nystrom_attention(q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int = 6) -> Tensor:
    """Return Nyström's approximation of softmax(q kᵀ/√p) v, all (…, n, p), for n ≥ ``landmarks``."""
    scale = 1.0 / math.sqrt(q.shape[-1])
    q_mean, k_mean = (_landmarks(rows, landmarks) for rows in (q, k))  # (…, m, p)
    left = (scale * q @ k_mean.mT).softmax(dim=-1)  # (…, n, m)
    middle = (scale * q_mean @ k_mean.mT).softmax(dim=-1)  # (…, m, m)
    right = (scale * q_mean @ k.mT).softmax(dim=-1)  # (…, m, n)
    return left @ (pseudo_inverse(middle, iterations) @ (right @ v))


def pseudo_inverse(matrix: Tensor, iterations: int = 6) -> Tensor:
    """Return the Moore–Penrose inverse of matrices (…, m, m) by the iteration of Razavi et al. (2014)."""
    one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    norms = matrix.abs().sum(dim=-1).amax(dim=-1) * matrix.abs().sum(dim=-2).amax(dim=-1)
    inverse = matrix.mT / norms[..., None, None]
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product)))
    return inverse


def _landmarks(rows: Tensor, count: int) -> Tensor:
    """Return the means of ``count`` runs of consecutive rows: (…, n, p) -> (…, count, p)."""
    flat = rows.flatten(0, -3).mT  # (·, p, n)
    means: Tensor = nn.functional.adaptive_avg_pool1d(flat, count)
    return means.mT.reshape(*rows.shape[:-2], count, rows.shape[-1])


class DSMIL(Aggregator):
    """Two streams: the best score of any instance, and attention to that instance, for each class.

    Li et al., Dual-stream Multiple Instance Learning Network (CVPR 2021). The first stream scores instances
    and takes the largest score of each class, of its critical instance m. The second weighs the values of the
    instances by the softmax of ⟨q, q_m⟩/√128. The logits are the mean of both streams'.
    """

    HIDDEN = 128  # width of the queries

    def __init__(self, width: int, k: int) -> None:
        super().__init__()
        self.width = k + k * width
        self.scores = nn.Linear(width, k)
        self.query = nn.Linear(width, self.HIDDEN)
        self.value = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores of the critical instances and the weighted values, (g, k + k·L), of (g, n, L)."""
        top, critical = self.scores(h).max(dim=1)  # (g, k) each
        queries = self.query(h)  # (g, n, 128)
        chosen = queries.gather(1, critical[..., None].expand(-1, -1, self.HIDDEN))  # (g, k, 128)
        weights = (chosen @ queries.mT / math.sqrt(self.HIDDEN)).softmax(dim=2)  # (g, k, n)
        return torch.cat([top, (weights @ self.value(h)).flatten(1)], dim=1)

    def make_head(self, name: str, k: int) -> nn.Module:
        """Return the mean of the first stream's scores and a classifier of the second stream's vectors."""
        return DualStreamHead(k, make_head(name, self.width - k, k))


class DualStreamHead(nn.Module):
    """Scores of the first stream and vectors of the second (b, k + k·L) -> logits (b, k)."""

    def __init__(self, k: int, second: nn.Module) -> None:
        super().__init__()
        self.k = k
        self.second = second

    def forward(self, z: Tensor) -> Tensor:
        """Return the mean of both streams' scores (b, k)."""
        mean: Tensor = 0.5 * (z[:, : self.k] + self.second(z[:, self.k :]))
        return mean


class OwnAggregator(Aggregator):
    """A module of the user, from the features of one bag (n, L) to a vector."""

    def __init__(self, make: MakeModule, width: int) -> None:
        super().__init__()
        self.module = make(width)
        if not isinstance(self.module, nn.Module):
            raise SettingError(
                f"aggregator({width}) returned a {type(self.module).__name__}: it must return a "
                "torch.nn.Module from the features of a bag (n, L) to a vector."
            )
        self.width = _vector_width(self.module, width)

    def forward(self, h: Tensor) -> Tensor:
        """Return the vectors (g, width) of features (g, n, L), bag by bag."""
        return torch.stack([self.module(bag) for bag in h])


def _vector_width(module: nn.Module, width: int) -> int:
    """Return the width of a user's vectors, by aggregating bags of one and of two instances of zeros."""
    training = module.training
    try:
        with torch.no_grad():
            module.eval()
            vectors = [module(torch.zeros(n, width)) for n in (1, 2)]
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # what torch's own layers raise
        raise DataError(
            f"The aggregator does not take the features of a bag (n, {width}): {error}."
        ) from error
    finally:
        module.train(training)
    if not all(isinstance(v, Tensor) and v.ndim == 1 and len(v) == len(vectors[0]) for v in vectors):
        raise SettingError("The aggregator must map the features of a bag (n, L) to one vector.")
    return len(vectors[0])


def make_aggregator(aggregator: str | MakeModule, width: int, k: int) -> Aggregator:
    """Return the aggregator of a name, or that of the user, for features of width L and k classes."""
    if isinstance(aggregator, nn.Module):
        raise SettingError(
            f"aggregator is a {type(aggregator).__name__}: pass its class, or a function, that makes a new "
            "one from the width L of instance features."
        )
    if callable(aggregator):
        return OwnAggregator(aggregator, width)
    if aggregator == "transmil":
        return TransMIL(width)
    if aggregator == "dsmil":
        return DSMIL(width, k)
    raise SettingError(f"There is no aggregator '{aggregator}'.{suggest(aggregator, AGGREGATORS)}")
