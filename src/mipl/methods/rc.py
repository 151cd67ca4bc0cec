"""RC: risk-consistent partial-label learning, on pooled bags."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, StepContext
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels

PROVABLY_CONSISTENT = (
    "Lei Feng, Jiaqi Lv, Bo Han, Miao Xu, Gang Niu, Xin Geng, Bo An, Masashi Sugiyama: "
    "Provably Consistent Partial-Label Learning. NeurIPS 2020."
)


@dataclasses.dataclass(frozen=True)
class RC(PartialLabelMethod):
    """Half the cross-entropy, weighted by the posterior of each candidate under uniform candidate sets."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). If every candidate set that contains the "
        "true label is equally probable, the risk is half the expected cross-entropy with the weights "
        "p_c / Σ_S p; they are updated after every step. The loss is PRODEN's times one half, so that only "
        "the clipping of gradients tells the two apart."
    )
    citation = PROVABLY_CONSISTENT
    advice = "As a baseline for false candidates that are drawn uniformly; expect the results of proden."

    def objective(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return ½ Σ_S −w log p of each bag (b,), the risk-consistent estimator."""
        logits = net(batch.instances, batch.sizes)
        return 0.5 * mdl_loss(logits, self.candidates(batch, table), table.weights[batch.index])


METHODS.register("rc", RC)
