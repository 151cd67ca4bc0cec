"""PRODEN: progressive identification of the true label, on pooled bags."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, StepContext
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels


@dataclasses.dataclass(frozen=True)
class PRODEN(PartialLabelMethod):
    """Cross-entropy with the network's previous prediction, normalised over the candidates, as target."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). The loss is the cross-entropy with weights "
        "on the candidates; after every step the weights of a bag are set to the network's prediction, "
        "normalised over the candidates, for the next epoch."
    )
    citation = (
        "Jiaqi Lv, Miao Xu, Lei Feng, Gang Niu, Xin Geng, Masashi Sugiyama: "
        "Progressive Identification of True Labels for Partial-Label Learning. ICML 2020."
    )
    advice = (
        "For partial-label data (one instance per bag), and as a baseline without attention over instances."
    )

    def objective(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return Σ_S −w log p of each bag (b,)."""
        logits = net(batch.instances, batch.sizes)
        return mdl_loss(logits, self.candidates(batch, table), table.weights[batch.index])


METHODS.register("proden", PRODEN)
