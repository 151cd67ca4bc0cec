"""The naive calibration losses the paper compares with: focal and inverse focal loss for bags."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import focal_loss, inverse_focal_loss
from mipl.methods.base import CDL_PAPER, METHODS, AttentionMethod, StepContext
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

LOSSES = {"fl": focal_loss, "ifl": inverse_focal_loss}


@dataclasses.dataclass(frozen=True)
class Focal(AttentionMethod[AttentionNetwork]):
    """(1 − p)^γ or (1 + p)^γ inside the disambiguation loss."""

    logits_alone = True
    summary = (
        "Focal (fl, Eq. 5) or inverse focal (ifl, Eq. 6) loss over the candidates: the paper's naive "
        "calibration, which is under-confident (fl) or over-confident (ifl)."
    )
    citation = CDL_PAPER
    advice = "For comparison with CDL, not for use."
    cost = "The same as CDL."

    kind: Literal["fl", "ifl"] = setting("fl", "fl: focal, ifl: inverse focal")
    gamma: float = setting(1.0, "γ, the exponent of the focal factor", within="[0, inf)")
    target: Literal["candidates", "top"] = setting(
        "candidates", "all candidates by their weights (Eqs. 5–6), or only the top one (Eqs. 3–4)"
    )

    def loss(
        self,
        net: AttentionNetwork,
        output: Output,
        batch: BagBatch,
        table: PseudoLabels,
        context: StepContext,
    ) -> Tensor:
        """Return Eq. 5 or Eq. 6 of each bag (b,), after the update of Eq. 15."""
        logits, candidates, weights = self.disambiguate(output, batch, table, context)
        return LOSSES[self.kind](logits, candidates, weights, self.gamma * context.gamma, self.target)


for _attention in ("mam", "sam"):
    for _kind in LOSSES:
        METHODS.register(f"{_attention}-{_kind}", Focal, attention=_attention, kind=_kind)
