"""CC: classifier-consistent partial-label learning, on pooled bags."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.methods.base import METHODS, StepContext
from mipl.methods.partial import PartialLabelMethod
from mipl.methods.rc import PROVABLY_CONSISTENT
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels


@dataclasses.dataclass(frozen=True)
class CC(PartialLabelMethod):
    """The negative log-likelihood of the candidate set; no pseudo-label weights."""

    summary = (
        "Each bag is pooled to one vector (mean, or max and min). If every candidate set that contains the "
        "true label is equally probable, the likelihood of a set is proportional to the sum of the "
        "probabilities of its labels: the loss is −log Σ_S p. Not the competitor cc of CDL."
    )
    citation = PROVABLY_CONSISTENT
    advice = "As a baseline for false candidates that are drawn uniformly: the simplest partial-label loss."
    cost = "The cheapest method: one forward and one backward pass over one vector per bag."

    def objective(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return −log Σ_S p of each bag (b,), the classifier-consistent estimator."""
        log_p = net(batch.instances, batch.sizes).log_softmax(dim=1)
        inside: Tensor = log_p.masked_fill(~self.candidates(batch, table), -torch.inf)
        return -inside.logsumexp(dim=1)

    def after_step(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> None:
        """Update nothing: the loss does not refer to weights."""


METHODS.register("cc", CC)
