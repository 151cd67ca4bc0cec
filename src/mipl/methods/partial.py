"""Base class of the partial-label methods, which see one pooled vector per bag."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import candidate_log_softmax
from mipl.methods.base import Method, StepContext, paper_width
from mipl.nn.encoders import Standardize, make_encoder, output_width
from mipl.nn.heads import make_head
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class PartialLabelMethod(Method[PooledNetwork]):
    """Base class of methods for single vectors with candidate sets: each bag is pooled to one vector.

    Images are flattened before pooling. A user-defined ``encoder`` is applied to the pooled vectors (b, d),
    or (b, 2d) with maxmin.
    """

    cost = "The cheapest methods: two forward passes and one backward pass over one vector per bag."

    pooling: Literal["mean", "maxmin"] = setting("mean", "vector of a bag: mean (d), or max and min (2d)")
    width: int = setting(
        128, "L, the width of the encoded vector (the paper: 128; 512 on the CRC sets)", within="[1, inf)"
    )
    dropout: float = setting(0.5, "dropout rate of the encoder", within="[0, 1)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the paper's width under ``paper``, else no background regulariser, which needs attention."""
        return {"width": paper_width(dataset)} if recipe == "paper" else {"background": 0.0}

    def build(
        self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None
    ) -> PooledNetwork:
        """Return a network of scaling, pooling, encoder and linear head."""
        pooled = (math.prod(feature_shape) * (2 if self.pooling == "maxmin" else 1),)
        body = encoder if encoder is not None else make_encoder(pooled, self.width, self.dropout)
        width = output_width(body, pooled) if encoder is not None else self.width
        scaling = Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity()
        return PooledNetwork(scaling, self.pooling, *pooled, body, make_head("linear", width, k))

    def prepare(self, net: PooledNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Standardise the pooled vectors, if these are maxima and minima."""
        if isinstance(net.pooled_scaling, Standardize):
            with torch.no_grad():
                vectors = torch.cat([net.pooled(batch.instances, batch.sizes) for batch in loader.in_order()])
            std = vectors.std(dim=0, unbiased=False)
            net.pooled_scaling.mean.copy_(vectors.mean(dim=0))
            net.pooled_scaling.std.copy_(torch.where(std > 1e-6, std, 1.0))

    def log_proba(self, net: PooledNetwork, batch: BagBatch) -> Tensor:
        """Return log-probabilities (b, k), the log softmax of the logits."""
        logits: Tensor = net(batch.instances, batch.sizes)
        return logits.log_softmax(dim=1)

    def after_step(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> None:
        """Update the weights for the next epoch with the predictions after the step, without dropout."""
        net.eval()
        with torch.no_grad():
            self.update_weights(net(batch.instances, batch.sizes), batch, table)
        net.train()

    def update_weights(self, logits: Tensor, batch: BagBatch, table: PseudoLabels) -> None:
        """Set w to the prediction normalised over the candidates: Eq. 15 with α = 0."""
        weights = candidate_log_softmax(logits, self.candidates(batch, table)).exp()
        table.weights[batch.index] = weights.to(table.weights)

    def candidates(self, batch: BagBatch, table: PseudoLabels) -> Tensor:
        """Return the present candidate sets (b, k)."""
        return table.candidates[batch.index]
