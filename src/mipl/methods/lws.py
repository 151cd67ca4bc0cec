"""LWS: the leveraged weighted loss, on pooled bags."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import candidate_log_softmax
from mipl.methods.base import METHODS, StepContext
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class LWS(PartialLabelMethod):
    """Weighted sigmoid losses that raise the scores of candidates and lower those of non-candidates."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). A sigmoid loss raises the scores of "
        "candidates and, with weight β, lowers those of non-candidates. Within either set the terms are "
        "weighted by the softmax of the scores after the previous step on the bag."
    )
    citation = (
        "Hongwei Wen, Jingyi Cui, Hanyuan Hang, Jiabin Liu, Yisen Wang, Zhouchen Lin: "
        "Leveraged Weighted Loss for Partial Label Learning. ICML 2021."
    )
    advice = (
        "If non-candidates are as informative as candidates, for example with large candidate sets. The loss "
        "is bounded and is not a proper scoring rule: calibrate before relying on the probabilities."
    )

    beta: float = setting(
        2.0, "β, the weight of the non-candidates; the authors use 2 or 1", within="[0, inf)"
    )

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return β = 1 under ``stable``: with 2, large steps end in a minimum that rejects every class."""
        shared = super().recommended(recipe, dataset, r)
        return {**shared, "beta": 1.0} if recipe == "stable" else shared

    def prepare(self, net: PooledNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Initialise uniform weights on the non-candidates; 0 if every class is a candidate."""
        super().prepare(net, loader, table, seed)
        outside = ~table.candidates
        uniform = outside / outside.sum(dim=1, keepdim=True).clamp(min=1)  # (m, k)
        table.memory["outside"] = uniform.to(table.weights)

    def objective(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return Σ_S w ℓ(s) + β Σ_{not S} w ℓ(−s) of each bag (b,), with ℓ(s) = 1/(1 + e^s)."""
        scores = net(batch.instances, batch.sizes)  # (b, k)
        inside, outside = table.weights[batch.index], table.memory["outside"][batch.index]
        return (inside * torch.sigmoid(-scores) + self.beta * outside * torch.sigmoid(scores)).sum(dim=1)

    def update_weights(self, logits: Tensor, batch: BagBatch, table: PseudoLabels) -> None:
        """Set w to the softmax of the scores within S, and within its complement."""
        super().update_weights(logits, batch, table)
        others = candidate_log_softmax(logits, ~self.candidates(batch, table)).exp()
        table.memory["outside"][batch.index] = others.nan_to_num(0.0).to(table.weights)  # 0 if there are none


METHODS.register("lws", LWS)
