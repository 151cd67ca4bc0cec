"""Methods for noisy candidate sets, which may not contain the true label."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.methods.base import AttentionMethod, StepContext
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class NoisyCandidatesMethod(AttentionMethod[AttentionNetwork]):
    """Base class of attention-based methods that may assign a bag to a class outside its candidate set."""

    trust: float | Literal["estimate"] = setting(
        1.0,
        "probability that the true label is a candidate, in (0, 1], or estimate",
        within="(0, 1]",
        idle=1.0,
    )

    def table(self, candidates: Tensor, initial: Tensor | None, members: int = 1) -> PseudoLabels:
        """Return the pseudo-label weights, over all classes if the true label may not be a candidate."""
        return PseudoLabels(candidates, initial, self.trust, members)

    def disambiguate(
        self, output: Output, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the possible classes and the weights of the loss, (b, k) each."""
        logits, candidates, weights = super().disambiguate(output, batch, table, context)
        return logits, candidates if self.trust == 1 else torch.ones_like(candidates), weights

    def margin_classes(self, batch: BagBatch, weights: Tensor) -> Tensor | None:
        """Return the classes of the margin (b, k) bool; None for the candidates of every bag.

        They are the candidates of a bag, or all other classes if most of its weight is outside its set.
        """
        assert batch.candidates is not None
        if self.trust == 1:
            return None
        inside = weights.masked_fill(~batch.candidates, 0.0).sum(dim=1, keepdim=True)
        return batch.candidates ^ (2 * inside < weights.sum(dim=1, keepdim=True))
