"""What the partial-label methods share: one vector a bag, and weights that follow the network."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import candidate_log_softmax
from mipl.methods.base import Clock, Method, paper_width
from mipl.nn.encoders import Standardize, make_encoder, output_width
from mipl.nn.heads import make_head
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class PartialLabelMethod(Method):
    """A method for one vector with a candidate set; bags are pooled, and bags of one instance are used as is.

    Images are flattened before pooling. An ``encoder`` of the user's own gets the pooled vector (b, d), or
    (b, 2d) for maxmin.
    """

    cost = "The cheapest methods here: the network sees one vector a bag, and again after the step."

    pooling: Literal["mean", "maxmin"] = setting("mean", "a bag's vector: mean (d), or max and min (2d)")
    width: int = setting(
        128, "L, the width of the encoded vector (the paper: 128; 512 on the CRC sets)", within="[1, inf)"
    )
    dropout: float = setting(0.5, "dropout in the encoder", within="[0, 1)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the paper's width, all that it gives for these methods. A pooled bag has no background."""
        return {"width": paper_width(dataset)} if recipe == "paper" else {"background": 0.0}

    def build(
        self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None
    ) -> PooledNetwork:
        """Return scaling, pooling, encoder and linear head as one network."""
        pooled = (math.prod(feature_shape) * (2 if self.pooling == "maxmin" else 1),)
        body = encoder if encoder is not None else make_encoder(pooled, self.width, self.dropout)
        width = output_width(body, pooled) if encoder is not None else self.width
        scaling = Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity()
        return PooledNetwork(scaling, self.pooling, *pooled, body, make_head("linear", width, k))

    def prepare(self, net: PooledNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Find the scale of maxima and minima."""
        if isinstance(net.pooled_scaling, Standardize):
            with torch.no_grad():
                vectors = torch.cat([net.pooled(batch.instances, batch.sizes) for batch in loader.in_order()])
            deviation = vectors.std(dim=0, unbiased=False)
            net.pooled_scaling.mean.copy_(vectors.mean(dim=0))
            net.pooled_scaling.std.copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def log_proba(self, net: PooledNetwork, batch: BagBatch) -> Tensor:
        """Return log softmax of the logits (b, k)."""
        logits: Tensor = net(batch.instances, batch.sizes)
        return logits.log_softmax(dim=1)

    def after_step(self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, clock: Clock) -> None:
        """Derive the next epoch's weights from the output after the step, without dropout."""
        net.eval()
        with torch.no_grad():
            self.reweigh(net(batch.instances, batch.sizes), batch, table)
        net.train()

    def reweigh(self, logits: Tensor, batch: BagBatch, table: PseudoLabels) -> None:
        """Set w to the prediction normalised over the candidates: Eq. 15 with α = 0."""
        weights = candidate_log_softmax(logits, self.candidates(batch, table)).exp()
        table.weights[batch.index] = weights.to(table.weights)

    def candidates(self, batch: BagBatch, table: PseudoLabels) -> Tensor:
        """Return the candidate sets in force (b, k)."""
        return table.candidates[batch.index]
