"""Instance scores ξ and attention: the paper's DAM, SAM and MAM, and that of ABMIL."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mipl.errors import SettingError, suggest
from mipl.nn.segments import segment_softmax, segment_weighted_sum, segment_zscore


class GatedScore(nn.Module):
    """ξ(h) of Eq. 7: the product of a tanh and a sigmoid gate, L→k each, then k→128→1."""

    def __init__(self, width: int, k: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width, 2 * k)  # tanh gate first; one matrix product for both
        self.score = nn.Sequential(nn.Linear(k, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores (N,) of instance features (N, L)."""
        first, second = self.gates(h).chunk(2, dim=1)  # (N, k) each
        gated = first.tanh() * second.sigmoid()  # (N, k)
        scores: Tensor = self.score(gated).squeeze(1)
        return scores


class Attention(nn.Module):
    """Base class: scores ξ (N,) -> attention weights a (N,) that sum to 1 within each bag."""

    def forward(self, scores: Tensor, segments: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention weights (N,) from scores (N,), bag indices (N,) and bag sizes (b,)."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Update schedules to the epoch (1, 2, …); only MAM has one."""

    def make_score(self, width: int, k: int) -> nn.Module:
        """Return the module of the scores: instance features (N, L) -> (N,)."""
        return GatedScore(width, k)


class DAM(Attention):
    """Eq. 8: sigmoid(ξ) divided by its sum over the bag."""

    def forward(self, scores: Tensor, segments: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention weights (N,)."""
        # softmax of log sigmoid: the same values, and no 0/0 when every score is very negative
        return segment_softmax(nn.functional.logsigmoid(scores), segments, len(sizes))


class SAM(Attention):
    """Eq. 9: softmax of ξ/√L."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(width)

    def forward(self, scores: Tensor, segments: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention weights (N,)."""
        return segment_softmax(scores * self.scale, segments, len(sizes))


class MAM(Attention):
    """Eqs. 10–12, with a temperature τ that decays during training; prediction uses its last value.

    ``order="scores"`` (default) trains stably: z-score the scores within the bag (no gradient through the
    standard deviation), divide by √L, softmax at temperature τ. ``order="weights"`` follows the paper's text:
    softmax at τ, then z-score the weights, which then sum to zero; training diverges (NaN in the second epoch
    on MNIST-MIPL).

    Args:
        width: L, the width of the instance features.
        start: τ in the first epoch.
        decay: factor on τ per epoch.
        floor: the lowest τ.
        order: what is z-scored.
    """

    EPS = 1e-3  # with 1e-8, gradients explode if the scores of a bag are nearly equal
    tau: Tensor

    def __init__(
        self,
        width: int,
        start: float = 5.0,
        decay: float = 0.95,
        floor: float = 0.1,
        order: Literal["scores", "weights"] = "scores",
    ) -> None:
        super().__init__()
        if order not in ("scores", "weights"):
            raise SettingError(f"order = {order!r} must be 'scores' or 'weights'.")
        self.scale = 1.0 / math.sqrt(width)
        self.start, self.decay, self.floor, self.order = start, decay, floor, order
        self.register_buffer("tau", torch.tensor(float(start)))

    def set_epoch(self, epoch: int) -> None:
        """Set τ to max(floor, start · decay^(epoch − 1)) (Eq. 11)."""
        self.tau.fill_(max(self.floor, self.start * self.decay ** (epoch - 1)))

    def keep_above(self, lowest: float) -> None:
        """Raise the floor of τ to ``lowest``, or to the initial τ if that is lower."""
        self.floor = max(self.floor, min(lowest, self.start))

    def forward(self, scores: Tensor, segments: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention weights (N,)."""
        if self.order == "scores":
            z = segment_zscore(scores, segments, sizes, self.EPS)
            return segment_softmax(z * self.scale / self.tau, segments, len(sizes))
        weights = segment_softmax(scores / self.tau, segments, len(sizes))  # Eq. 10
        lone = (sizes == 1)[segments]  # a bag with one instance has no standard deviation: weight 1
        return torch.where(lone, weights, segment_zscore(weights, segments, sizes, self.EPS))  # Eq. 12


class ABMIL(Attention):
    """Softmax of wᵀ tanh(V h), or gated, of wᵀ (tanh(V h) ⊙ sigmoid(U h)).

    Ilse et al., Attention-based Deep Multiple Instance Learning (ICML 2018), Eqs. 8 and 9.
    """

    HIDDEN = 128  # rows of V and U, as in the paper

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated

    def make_score(self, width: int, k: int) -> nn.Module:
        """Return the module of the scores, which does not depend on the number of classes."""
        if self.gated:
            return nn.Sequential(TanhGate(width, self.HIDDEN), nn.Linear(self.HIDDEN, 1), nn.Flatten(0))
        return nn.Sequential(
            nn.Linear(width, self.HIDDEN), nn.Tanh(), nn.Linear(self.HIDDEN, 1), nn.Flatten(0)
        )

    def forward(self, scores: Tensor, segments: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention weights (N,)."""
        return segment_softmax(scores, segments, len(sizes))


class TanhGate(nn.Module):
    """tanh(V h) ⊙ sigmoid(U h): (N, L) -> (N, hidden)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width, 2 * hidden)  # V first; one matrix product for both

    def forward(self, h: Tensor) -> Tensor:
        """Return the gated features (N, hidden)."""
        first, second = self.gates(h).chunk(2, dim=1)
        gated: Tensor = first.tanh() * second.sigmoid()
        return gated


AttentionName = Literal[
    "dam", "sam", "mam", "abmil", "abmil-gated"
]  # methods and estimators take their choices from here
ATTENTIONS: tuple[AttentionName, ...] = get_args(AttentionName)


def make_attention(name: str, width: int, **tau: float | str) -> Attention:
    """Return the attention of a name of ``ATTENTIONS`` for features of width L."""
    if name == "dam":
        return DAM()
    if name == "sam":
        return SAM(width)
    if name == "mam":
        return MAM(width, **tau)  # type: ignore[arg-type]
    if name in ("abmil", "abmil-gated"):
        return ABMIL(gated=name == "abmil-gated")
    raise SettingError(f"There is no attention '{name}'.{suggest(name, ATTENTIONS)}")


def aggregate(weights: Tensor, h: Tensor, segments: Tensor, bags: int) -> Tensor:
    """Return z = Σ a h within bags (Eq. 13): weights (N,), h (N, L) -> (bags, L)."""
    return segment_weighted_sum(weights, h, segments, bags)
