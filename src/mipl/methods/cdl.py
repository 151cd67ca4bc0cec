"""The paper's six methods: {DAM, SAM, MAM} × {CC, CN} with the calibratable disambiguation loss."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import cdl_loss
from mipl.methods.base import CDL_PAPER, METHODS, Clock
from mipl.methods.trusting import TrustingMethod
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class CDL(TrustingMethod):
    """MDL times a power of (1 − margin): ambiguous bags keep their full signal, separated ones less."""

    logits_alone = True
    summary = (
        "Disambiguation loss scaled by the margin between the top candidate and its competitor: the second "
        "candidate (cc) or the strongest non-candidate (cn). The network encodes instances, weighs them by "
        "an attention (dam, sam or mam) and classifies their sum; a table of weights over each bag's "
        "candidates moves with its predictions."
    )
    citation = CDL_PAPER
    advice = (
        "The default. cn for accuracy and where false candidates are random; cc for the lowest calibration "
        "error and where candidates look alike. dam for simple features such as colour statistics, sam and "
        "mam for deep ones."
    )
    cost = "One pass over the instances a step; by the paper 12.5–19.5% more time than its baselines."

    competitor: Literal["cc", "cn"] = setting("cn", "cc: second candidate; cn: strongest non-candidate")
    gamma: float = setting(1.0, "γ, the power of the margin factor; the paper uses 1", within="[0, inf)")

    def loss(
        self, net: BagNetwork, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> Tensor:
        """Return the CDL of each bag (b,): Eq. 14 with the weights of Eq. 15 updated first (Algorithm 1)."""
        logits, candidates, weights = self.disambiguate(output, batch, table, clock)
        favoured = self.favoured(batch, weights)
        return cdl_loss(logits, candidates, weights, self.competitor, self.gamma * clock.gamma, favoured)


for _attention in ("dam", "sam", "mam"):
    for _competitor in ("cc", "cn"):
        METHODS.register(f"{_attention}-{_competitor}", CDL, attention=_attention, competitor=_competitor)
