"""The momentum-based disambiguation loss: CDL without the margin factor."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import CDL_PAPER, METHODS, StepContext
from mipl.methods.noisy_candidates import NoisyCandidatesMethod
from mipl.nn.attention import ATTENTIONS
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import PseudoLabels


@dataclasses.dataclass(frozen=True)
class MDL(NoisyCandidatesMethod):
    """Cross-entropy against the pseudo-label weights."""

    logits_alone = True
    summary = (
        "Momentum-based disambiguation loss (Eq. 22) without a margin factor: the uncalibrated reference. "
        "With head=sigmoid it has the confidence ceiling of the earlier methods."
    )
    citation = CDL_PAPER
    advice = "As an ablation: the effect of the margin factor of CDL."
    cost = "The same as CDL."

    def loss(
        self,
        net: AttentionNetwork,
        output: Output,
        batch: BagBatch,
        table: PseudoLabels,
        context: StepContext,
    ) -> Tensor:
        """Return the MDL of each bag (b,): Eq. 22, after the update of Eq. 15."""
        return mdl_loss(*self.disambiguate(output, batch, table, context))


for _attention in ATTENTIONS:
    METHODS.register(f"{_attention}-mdl", MDL, attention=_attention)
