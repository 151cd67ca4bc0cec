"""ELIMIPL: disambiguation with penalties on the probabilities of candidates and non-candidates."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mipl.data.batch import BagBatch
from mipl.losses import mdl_loss
from mipl.methods.base import EARLIER, METHODS, AttentionMethod, StepContext, paper_width
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

# (data set, r) -> the authors' lr, γ, μ
PUBLISHED = {
    ("mnist-mipl", 1): (0.05, 0.1, 1.0),
    ("mnist-mipl", 2): (0.05, 0.1, 1.0),
    ("mnist-mipl", 3): (0.05, 0.1, 0.1),
    ("fmnist-mipl", 1): (0.01, 0.5, 1.0),
    ("fmnist-mipl", 2): (0.01, 0.5, 1.0),
    ("fmnist-mipl", 3): (0.05, 0.5, 1.0),
    ("sival-mipl", 3): (0.05, 10.0, 10.0),
}
# Birdsong, SIVAL with r = 1 and 2, CRC; for other data sets our choice
OTHERWISE = (0.01, 10.0, 10.0)


@dataclasses.dataclass(frozen=True)
class ELIMIPL(AttentionMethod[AttentionNetwork]):
    """Cross-entropy with the pseudo-label weights, plus a sparsity and an inhibition term."""

    logits_alone = True
    summary = (
        "Momentum-based disambiguation on SAM, plus μ times the candidates' probabilities (sparsity) and γ "
        "times −log(1 − p) of the non-candidates (inhibition). With its published sigmoid head no confidence "
        "exceeds e/(e + k − 1)."
    )
    citation = (
        "Wei Tang, Weijia Zhang, Min-Ling Zhang: Exploiting Conjugate Label Information for Multi-Instance "
        "Partial-Label Learning. IJCAI 2024."
    )
    advice = "As the baseline of sam-cc and sam-cn; if the probabilities matter, use head=linear or those."
    cost = "One forward and backward pass over the instances per step, as for every attention-based method."

    inhibition: float = setting(10.0, "γ, the weight of −log(1 − p) on the non-candidates", within="[0, inf)")
    sparsity: float = setting(10.0, "μ, the weight of p on the candidates", within="[0, inf)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the authors' γ and μ for the data set, and under ``paper`` their learning rate and width."""
        lr, inhibition, sparsity = PUBLISHED.get((dataset, r or 0), OTHERWISE)
        training = {"lr": lr, "width": paper_width(dataset)} if recipe == "paper" else {}
        shared = super().recommended(recipe, dataset, r)
        return {**shared, "inhibition": inhibition, "sparsity": sparsity, **training}

    def loss(
        self,
        net: AttentionNetwork,
        output: Output,
        batch: BagBatch,
        table: PseudoLabels,
        context: StepContext,
    ) -> Tensor:
        """Return Σ_S −w log p + μ Σ_S p + γ Σ_{not S} −log(1 − p) of each bag (b,)."""
        logits, candidates, weights = self.disambiguate(output, batch, table, context)
        log_p = logits.log_softmax(dim=1)
        sparsity = log_p.exp().masked_fill(~candidates, 0.0).sum(dim=1)
        inhibition = -log_complement(log_p).masked_fill(candidates, 0.0).sum(dim=1)
        mapping = mdl_loss(logits, candidates, weights)
        return mapping + self.sparsity * sparsity + self.inhibition * inhibition


def log_complement(log_p: Tensor) -> Tensor:
    """Return log(1 − p) of log-probabilities (b, k), finite even if p rounds to 1.

    Only the largest p of a row can exceed one half; its complement is the sum of the others.
    """
    top = log_p.argmax(dim=1, keepdim=True)  # (b, 1)
    largest = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, top, True)
    others = log_p.masked_fill(largest, -torch.inf).logsumexp(dim=1, keepdim=True)  # (b, 1)
    return torch.where(largest, others, torch.log1p(-log_p.exp().masked_fill(largest, 0.0)))


METHODS.register("elimipl", ELIMIPL, attention="sam", **EARLIER)
