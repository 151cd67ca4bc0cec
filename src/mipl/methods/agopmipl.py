"""AGOPMIPL (experimental): attention in a metric learned from the gradients of the bag classifier."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, AttentionMethod, StepContext, paper_width
from mipl.nn.attention import GatedScore
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

LLOYD = 10  # maximum number of k-means steps
EPS = 1e-3  # smallest norm that a vector is divided by: keeps the gradient finite


class MetricScore(GatedScore):
    """The gated score ξ(h), plus a score of the cosine similarities of M^½ h to the class prototypes."""

    prototypes: Tensor  # (k, L)
    metric: Tensor  # (L, L) M
    root: Tensor  # (L, L) M^½

    def __init__(self, width: int, k: int) -> None:
        super().__init__(width, k)
        self.likeness = nn.Sequential(nn.Linear(k, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("prototypes", torch.zeros(k, width))
        self.register_buffer("metric", torch.eye(width))
        self.register_buffer("root", torch.eye(width))

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores (N,) of instance features (N, L)."""
        centre = self.prototypes.mean(dim=0)  # what all classes have in common is not informative
        instances = normalize((h - centre) @ self.root, eps=EPS)  # (N, L)
        classes = normalize((self.prototypes - centre) @ self.root, eps=EPS)  # (k, L)
        scores: Tensor = super().forward(h) + self.likeness(instances @ classes.T).squeeze(1)
        return scores

    def update_metric(self, gradients: Tensor, momentum: float) -> None:
        """Set M ← μ M + (1 − μ) G, with G (L, L) scaled to trace L, and recompute M^½."""
        trace = gradients.trace()
        if not 0 < trace < torch.inf:  # a classifier without gradient defines no metric
            return
        self.metric.lerp_(gradients * (len(gradients) / trace), 1.0 - momentum)
        values, vectors = torch.linalg.eigh(self.metric)
        self.root.copy_((vectors * values.clamp(min=0).sqrt()) @ vectors.T)


class MetricNetwork(BagNetwork):
    """The attention network with a :class:`MetricScore`."""

    score: MetricScore
    head: nn.Linear


@dataclasses.dataclass(frozen=True)
class AGOPMIPL(AttentionMethod[MetricNetwork]):
    """Momentum-based disambiguation with attention in a learned metric."""

    summary = (
        "Experimental: built from a description of the method, not from its paper or code, and not compared "
        "with its results. In every round, a k-means of the bag features, in which each bag belongs to the "
        "cluster of one of its candidates, gives class prototypes, and the average gradient outer product G "
        "of the bag classifier updates a metric M. The attention score of an instance includes its cosine "
        "similarities to the prototypes, after a transformation by M^½. The loss is the momentum-based "
        "disambiguation loss."
    )
    shared = False  # the prototypes and the metric need all bags at once
    needs_attention = True
    citation = "Enhanced Multi-Instance Partial Label Learning via Average Gradient Outer Product. ICML 2026."
    advice = (
        "If key instances are hard to find; its authors report 70.6% on C-KMeans, where the best result of "
        "the CDL paper is 64.8%. Compare with sam-mdl, the same method without metric and prototypes."
    )
    cost = (
        "The attention network, L² more multiply-adds per instance, and an eigendecomposition of an L×L "
        "matrix per round; one feature vector per training bag is stored during an epoch."
    )

    momentum: float = setting(0.9, "μ, the weight of the previous M in its update by G", within="[0, 1)")
    round_epochs: int = setting(1, "epochs per round", within="[1, inf)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the widths of the CDL paper, our choice: the authors' settings are not known."""
        shared = super().recommended(recipe, dataset, r)
        return {**shared, "width": paper_width(dataset)} if recipe == "paper" else shared

    def build(
        self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None
    ) -> MetricNetwork:
        """Return the attention network with the score in the learned metric."""
        base = super().build(feature_shape, k, encoder)
        score = MetricScore(base.head.in_features, k)
        return MetricNetwork(base.scaling, base.encoder, score, base.attention, base.head)

    def prepare(self, net: MetricNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Initialise the prototypes with the bag features of the untrained network."""
        net.eval()
        with torch.no_grad():
            z = torch.cat([net(batch.instances, batch.sizes).embedding for batch in loader.in_order()])
            net.score.prototypes.copy_(class_prototypes(z, table.candidates, table.weights))

    def loss(
        self, net: MetricNetwork, output: Output, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return the MDL of each bag (b,), and store the bag features for the end of the round."""
        assert batch.candidates is not None  # the trainer accepts only bags with candidate sets
        z = output.embedding.detach()
        table.memory.setdefault("z", z.new_zeros(len(table.weights), z.shape[1]))[batch.index] = z
        return mdl_loss(
            output.logits, batch.candidates, self.update_weights(output.logits, batch, table, context)
        )

    def on_epoch_end(self, net: MetricNetwork, table: PseudoLabels, context: StepContext) -> None:
        """Update the prototypes and M at the end of a round, except after the last epoch."""
        z = table.memory.pop("z")
        if context.epoch % self.round_epochs == 0 and context.epoch < context.epochs:
            with torch.no_grad():
                net.score.prototypes.copy_(class_prototypes(z, table.candidates, table.weights))
                net.score.update_metric(gradient_outer_product(net.head, z), self.momentum)


def class_prototypes(z: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Return the centres (k, L) of a k-means of bag features z (m, L), one cluster per class.

    It starts from the means weighted by ``weights`` (m, k), and assigns each bag to the nearest cluster among
    its candidates (m, k). A class without bags keeps its centre.
    """
    centres = weights.T @ z / weights.sum(dim=0).clamp(min=1e-12)[:, None]
    before: Tensor | None = None
    for _ in range(LLOYD):
        nearest = torch.cdist(z, centres).masked_fill(~candidates, torch.inf).argmin(dim=1)  # (m,)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        members = one_hot(nearest, candidates.shape[1]).to(z)  # (m, k)
        counts = members.sum(dim=0)[:, None]
        centres = torch.where(counts > 0, members.T @ z / counts.clamp(min=1), centres)
    return centres


def gradient_outer_product(head: nn.Linear, z: Tensor) -> Tensor:
    """Return G (L, L), the mean over bags of Σ_c ∇p_c ∇p_cᵀ, with gradients at the features z (m, L).

    With logits g(Wz + b), D = diag(g′) and A = diag(p) − p pᵀ, the gradients are the rows of A D W. Therefore
    G = Wᵀ (mean of D A² D) W, without storing any gradient.
    """
    logits = head(z)
    slope = logits * (1.0 - logits) if isinstance(head, SigmoidHead) else torch.ones_like(logits)  # g′
    p = logits.softmax(dim=1)  # (m, k)
    u, v = p**2 * slope, p * slope
    cross = u.T @ v
    inner = torch.diag((v**2).sum(dim=0)) - cross - cross.T + ((p**2).sum(dim=1, keepdim=True) * v).T @ v
    G: Tensor = head.weight.T @ (inner / len(z)) @ head.weight
    return G


METHODS.register("agopmipl", AGOPMIPL)
