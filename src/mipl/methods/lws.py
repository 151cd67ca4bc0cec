"""LWS: the leveraged weighted loss, on pooled bags."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import candidate_log_softmax
from mipl.methods.base import METHODS, Clock
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class LWS(PartialLabelMethod):
    """Candidates are pulled up and non-candidates pushed down, each by its own weight."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). A sigmoid loss pulls the scores of "
        "candidates up and pushes those of non-candidates down (β times as hard), weighted by the softmax of "
        "the scores within either set, as it was after the last step on the bag."
    )
    citation = (
        "Hongwei Wen, Jingyi Cui, Hanyuan Hang, Jiabin Liu, Yisen Wang, Zhouchen Lin: "
        "Leveraged Weighted Loss for Partial Label Learning. ICML 2021."
    )
    advice = (
        "Where non-candidates say as much as candidates do, for example with large candidate sets. The loss "
        "is bounded and not one of probabilities: calibrate before relying on them."
    )

    beta: float = setting(2.0, "β, how much non-candidates count; the authors use 2 or 1", within="[0, inf)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Under ``stable``, β = 1: with 2, no to every class is a minimum that large steps fall into."""
        shared = super().recommended(recipe, dataset, r)
        return {**shared, "beta": 1.0} if recipe == "stable" else shared

    def prepare(self, net: PooledNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Start with uniform weights on the non-candidates too; none where every label is a candidate."""
        super().prepare(net, loader, table, seed)
        others = ~table.candidates
        uniform = others / others.sum(dim=1, keepdim=True).clamp(min=1)  # (m, k)
        table.memory["outside"] = uniform.to(table.weights)

    def objective(self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return Σ_S w ℓ(s) + β Σ_{not S} w ℓ(−s) of each bag (b,), with ℓ(s) = 1/(1 + e^s)."""
        scores = net(batch.instances, batch.sizes)  # (b, k)
        inside, outside = table.weights[batch.index], table.memory["outside"][batch.index]
        return (inside * torch.sigmoid(-scores) + self.beta * outside * torch.sigmoid(scores)).sum(dim=1)

    def reweigh(self, logits: Tensor, batch: BagBatch, table: PseudoLabels) -> None:
        """Set w to the softmax of the scores within S, and within its complement."""
        super().reweigh(logits, batch, table)
        others = candidate_log_softmax(logits, ~self.candidates(batch, table)).exp()
        table.memory["outside"][batch.index] = others.nan_to_num(0.0).to(table.weights)  # none: 0


METHODS.register("lws", LWS)
