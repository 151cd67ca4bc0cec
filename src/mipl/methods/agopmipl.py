"""AGOPMIPL (experimental): attention in a metric that follows the gradients of the bag classifier."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from mipl.data.batch import BagBatch, BagLoader
from mipl.losses import mdl_loss
from mipl.methods.base import METHODS, AttentionMethod, Clock, paper_width
from mipl.nn.attention import GatedScore
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

LLOYD = 10  # steps of k-means at most
EPS = 1e-3  # least length that a vector is divided by: keeps the gradient of its direction finite


class MetricScore(GatedScore):
    """The raw score ξ(h), plus one of the transformed feature: how M^½ h lies to the class prototypes."""

    prototypes: Tensor  # (k, L)
    metric: Tensor  # (L, L) M
    root: Tensor  # (L, L) M^½

    def __init__(self, width: int, k: int, shared_gate: bool = False) -> None:
        super().__init__(width, k, shared_gate)
        self.likeness = nn.Sequential(nn.Linear(k, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("prototypes", torch.zeros(k, width))
        self.register_buffer("metric", torch.eye(width))
        self.register_buffer("root", torch.eye(width))

    def forward(self, h: Tensor) -> Tensor:
        """(N, L) -> (N,)."""
        centre = self.prototypes.mean(dim=0)  # what all classes share says nothing of an instance
        instances = normalize((h - centre) @ self.root, eps=EPS)  # (N, L)
        classes = normalize((self.prototypes - centre) @ self.root, eps=EPS)  # (k, L)
        scores: Tensor = super().forward(h) + self.likeness(instances @ classes.T).squeeze(1)
        return scores

    def follow(self, gradients: Tensor, momentum: float) -> None:
        """Set M ← μ M + (1 − μ) G, with G (L, L) brought to the trace of the identity, and M^½."""
        trace = gradients.trace()
        if not 0 < trace < torch.inf:  # a classifier without gradient has no metric
            return
        self.metric.lerp_(gradients * (len(gradients) / trace), 1.0 - momentum)
        values, vectors = torch.linalg.eigh(self.metric)
        self.root.copy_((vectors * values.clamp(min=0).sqrt()) @ vectors.T)


@dataclasses.dataclass(frozen=True)
class AGOPMIPL(AttentionMethod):
    """Momentum-based disambiguation, with attention that sees where the classifier is sensitive."""

    summary = (
        "Experimental: built from a description of the method, not from its paper or code, and not compared "
        "with its results. In every round k-means over the bags' features, each bag in the cluster of one of "
        "its candidates, gives class prototypes; the average outer product G of the bag classifier's "
        "gradients moves a metric M; attention adds to the score of an instance one of its position among "
        "the prototypes after both were transformed by M^½. The loss is the momentum-based disambiguation "
        "loss."
    )
    shared = False  # its prototypes and its metric need all bags at once
    citation = "Enhanced Multi-Instance Partial Label Learning via Average Gradient Outer Product. ICML 2026."
    advice = (
        "To try where key instances are hard to find; its authors report 70.6% on C-KMeans, where the CDL "
        "paper's best is 64.8%. Compare with sam-mdl, which is the same without metric and prototypes."
    )
    cost = (
        "The shared network, L² more multiply-adds an instance, and once a round an eigendecomposition of an "
        "L×L matrix; one feature vector a training bag is kept during an epoch."
    )

    momentum: float = setting(0.9, "μ, the share of the old M when a round's G comes in", within="[0, 1)")
    round_epochs: int = setting(1, "epochs from one round to the next", within="[1, inf)")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the CDL paper's widths: our choice, the authors' settings are not known here."""
        shared = super().recommended(recipe, dataset, r)
        return {**shared, "width": paper_width(dataset)} if recipe == "paper" else shared

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> BagNetwork:
        """Return the shared network with the score in the metric."""
        net = super().build(feature_shape, k, encoder)
        net.score = MetricScore(net.score.gates.in_features, k, self.shared_gate)
        return net

    def prepare(self, net: Any, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Take the first prototypes from the untrained network's bag features."""
        net.eval()
        with torch.no_grad():
            z = torch.cat([net(batch.instances, batch.sizes).embedding for batch in loader.in_order()])
            net.score.prototypes.copy_(class_prototypes(z, table.candidates, table.weights))

    def loss(
        self, net: BagNetwork, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> Tensor:
        """Return the MDL of each bag (b,), and note the bags' features for the end of the round."""
        assert batch.candidates is not None  # the trainer takes only bags with candidate sets
        z = output.embedding.detach()
        table.memory.setdefault("z", z.new_zeros(len(table.weights), z.shape[1]))[batch.index] = z
        return mdl_loss(
            output.logits, batch.candidates, self.move_weights(output.logits, batch, table, clock)
        )

    def on_epoch_end(self, net: Any, table: PseudoLabels, clock: Clock) -> None:
        """End a round: new prototypes, and M moved by G; not after the last epoch, which nothing follows."""
        z = table.memory.pop("z")
        if clock.epoch % self.round_epochs == 0 and clock.epoch < clock.epochs:
            with torch.no_grad():
                net.score.prototypes.copy_(class_prototypes(z, table.candidates, table.weights))
                net.score.follow(gradient_outer_product(net.head, z), self.momentum)


def class_prototypes(z: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Return the centres (k, L) of a k-means over bag features z (m, L), one cluster a class.

    It starts from the means under the weights (m, k), and puts each bag in the nearest cluster of one of its
    candidates (m, k); a class without a bag keeps its centre.
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
    """Return G (L, L) = mean over the bags of Σ_c ∇p_c ∇p_cᵀ, the gradients at their features z (m, L).

    With logits g(Wz + b), D = diag(g′) and A = diag(p) − p pᵀ the gradients are the rows of A D W, so that
    G = Wᵀ (mean of D A² D) W: no gradient has to be stored.
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
