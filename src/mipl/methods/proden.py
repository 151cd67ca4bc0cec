"""PRODEN: progressive identification of the true label, on pooled bags."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, Clock
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels


@dataclasses.dataclass(frozen=True)
class PRODEN(PartialLabelMethod):
    """Cross-entropy against weights that are the network's own last word on the candidates."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). Cross-entropy against weights on the "
        "candidates; after every step a bag's weights become the network's prediction, normalised over the "
        "candidates, for use in the next epoch."
    )
    citation = (
        "Jiaqi Lv, Miao Xu, Lei Feng, Gang Niu, Xin Geng, Masashi Sugiyama: "
        "Progressive Identification of True Labels for Partial-Label Learning. ICML 2020."
    )
    advice = (
        "For data that are partial-label to begin with (one instance a bag), and as the reference that shows "
        "what attention over instances is worth."
    )

    def objective(self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return Σ_S −w log p of each bag (b,)."""
        logits = net(batch.instances, batch.sizes)
        return mdl_loss(logits, self.candidates(batch, table), table.weights[batch.index])


METHODS.register("proden", PRODEN)
