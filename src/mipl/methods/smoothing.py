"""Label smoothing within the candidate sets."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, AttentionMethod, StepContext
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class Smoothing(AttentionMethod[AttentionNetwork]):
    """Cross-entropy with a mixture of the pseudo-label weights and the uniform distribution on the set."""

    logits_alone = True
    summary = (
        "Momentum-based disambiguation with the targets (1 − ε) w + ε/|S| on the candidates: label smoothing "
        "that gives non-candidates no weight. A bag with one candidate is not smoothed."
    )
    citation = (
        "Rafael Müller, Simon Kornblith, Geoffrey Hinton: When Does Label Smoothing Help? NeurIPS 2019; "
        "over candidates: this library."
    )
    advice = "For comparison with CDL: a standard remedy for over-confidence in the same setting."
    cost = "One forward and backward pass over the instances per step, as for every attention-based method."

    smoothing: float = setting(
        0.1, "ε, the weight of the uniform distribution on the candidates", within="[0, 1]"
    )

    def loss(
        self,
        net: AttentionNetwork,
        output: Output,
        batch: BagBatch,
        table: PseudoLabels,
        context: StepContext,
    ) -> Tensor:
        """Return Σ_S −((1 − ε) w + ε/|S|) log p of each bag (b,); w itself is not smoothed."""
        logits, candidates, weights = self.disambiguate(output, batch, table, context)
        uniform = candidates / candidates.sum(dim=1, keepdim=True)
        return mdl_loss(logits, candidates, (1.0 - self.smoothing) * weights + self.smoothing * uniform)


for _attention in ("sam", "mam"):
    METHODS.register(f"{_attention}-ls", Smoothing, attention=_attention)
