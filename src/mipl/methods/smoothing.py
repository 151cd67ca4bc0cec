"""Label smoothing for bags: the supervised remedy for over-confidence, kept within the candidates."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, AttentionMethod, Clock
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class Smoothing(AttentionMethod):
    """Cross-entropy against weights of which a share is spread over the candidates."""

    logits_alone = True
    summary = (
        "Momentum-based disambiguation against (1 − ε) w + ε/|S| on the candidates: label smoothing that "
        "never takes a non-candidate for the truth. A bag with one candidate is not smoothed."
    )
    citation = (
        "Rafael Müller, Simon Kornblith, Geoffrey Hinton: When Does Label Smoothing Help? NeurIPS 2019; "
        "over candidates: this library."
    )
    advice = "For comparison with CDL: what a known remedy for over-confidence does, all else being equal."
    cost = "One pass over the instances of a batch and their features, as every method on the shared network."

    smoothing: float = setting(
        0.1, "ε, the share of the weights spread evenly over the candidates", within="[0, 1]"
    )

    def loss(
        self, net: BagNetwork, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> Tensor:
        """Return Σ_S −((1 − ε) w + ε/|S|) log p of each bag (b,); the table keeps w as it is."""
        logits, candidates, weights = self.disambiguate(output, batch, table, clock)
        even = candidates / candidates.sum(dim=1, keepdim=True)
        return mdl_loss(logits, candidates, (1.0 - self.smoothing) * weights + self.smoothing * even)


for _attention in ("sam", "mam"):
    METHODS.register(f"{_attention}-ls", Smoothing, attention=_attention)
