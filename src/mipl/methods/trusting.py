"""Methods whose bags may leave their candidate sets."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.methods.base import AttentionMethod, Clock
from mipl.nn.network import Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class TrustingMethod(AttentionMethod):
    """A method on the shared network whose loss asks nothing of the candidates but their weights."""

    trust: float | Literal["estimate"] = setting(
        1.0,
        "chance that the truth is a candidate, in (0, 1], or estimate; below 1 a bag may leave its set",
        within="(0, 1]",
        idle=1.0,
    )

    def table(self, candidates: Tensor, initial: Tensor | None, members: int = 1) -> PseudoLabels:
        """Return the table of weights, over all classes where the truth may be no candidate."""
        return PseudoLabels(candidates, initial, self.trust, members)

    def disambiguate(
        self, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the classes that a bag may have, and the weights of the loss, each (b, k)."""
        logits, candidates, weights = super().disambiguate(output, batch, table, clock)
        return logits, candidates if self.trust == 1 else torch.ones_like(candidates), weights

    def favoured(self, batch: BagBatch, weights: Tensor) -> Tensor | None:
        """Return the candidates (b, k), or all others where most of a bag's weight has left its set.

        None: no bag can leave its set, and there is nothing to look at in every step.
        """
        assert batch.candidates is not None
        if self.trust == 1:
            return None
        inside = weights.masked_fill(~batch.candidates, 0.0).sum(dim=1, keepdim=True)
        return batch.candidates ^ (2 * inside < weights.sum(dim=1, keepdim=True))
