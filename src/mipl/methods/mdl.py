"""The momentum-based disambiguation loss alone: what CDL is without its margin factor."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import CDL_PAPER, METHODS, Clock
from mipl.methods.trusting import TrustingMethod
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels


@dataclasses.dataclass(frozen=True)
class MDL(TrustingMethod):
    """Cross-entropy against the pseudo-label weights."""

    logits_alone = True
    summary = (
        "Momentum-based disambiguation loss (Eq. 22) without a margin factor: the uncalibrated reference. "
        "With head=sigmoid it has the confidence ceiling of the earlier methods."
    )
    citation = CDL_PAPER
    advice = "As a reference: how much of a result is the margin factor of CDL and how much is the rest."
    cost = "That of CDL, without the margin factor."

    def loss(
        self, net: BagNetwork, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> Tensor:
        """Return the MDL of each bag (b,): Eq. 22 with the weights of Eq. 15 updated first."""
        return mdl_loss(*self.disambiguate(output, batch, table, clock))


for _attention in ("dam", "sam", "mam"):
    METHODS.register(f"{_attention}-mdl", MDL, attention=_attention)
