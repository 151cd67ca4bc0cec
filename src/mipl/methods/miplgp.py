"""MIPLGP: Gaussian processes over instances, one per class and one for a negative class."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mipl import machine
from mipl.data.batch import BagBatch, BagLoader
from mipl.errors import SettingError
from mipl.losses import candidate_log_softmax
from mipl.methods.base import METHODS, Method, StepContext
from mipl.nn.encoders import Standardize
from mipl.nn.gp import (
    InstanceGP,
    cholesky_of_points,
    dirichlet_targets,
    exact_likelihood,
    expected_loss,
    inducing_posterior,
    optimal_inducing,
    whiten,
)
from mipl.nn.segments import segment_ids
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting
from mipl.seeding import rng_for, seed_for

MAX_EXACT = 500  # number of instances up to which auto is exact
MIN_INDUCING, MAX_INDUCING = 128, 512  # inducing points of auto above that, one per 64 instances
DISTANCES = 1000  # instances whose distances define the initial length scale of the kernel
SUBSET = 2048  # instances in the gradient of a step with inducing points


@dataclasses.dataclass(frozen=True)
class MIPLGP(Method[InstanceGP]):
    """Gaussian process regression of Dirichlet targets of the instances."""

    summary = (
        "Classifies instances: the candidates of each are those of its bag and a negative class. Weights on "
        "them define Dirichlet targets of Gaussian processes with a shared Matérn-5/2 kernel, and the "
        "posterior means give new weights, with at least one positive instance per bag. A bag is predicted "
        "as its most confident instance, by samples of the posterior. Images are flattened."
    )
    citation = (
        "Wei Tang, Weijia Zhang, Min-Ling Zhang: Multi-Instance Partial-Label Learning: Towards Exploiting "
        "Dual Inexact Supervision. Science China Information Sciences 2024."
    )
    advice = (
        "For small data sets with few, meaningful features, if one instance determines the label of its bag; "
        "not for raw images."
    )
    cost = (
        "Exact: time grows with the cube of the number of instances, memory with its square. With M inducing "
        "points: time with instances × M² × candidates, memory with instances × M."
    )

    inducing: int | Literal["auto"] | None = setting(
        "auto",
        f"inducing points; none: exact; auto: exact up to {MAX_EXACT} instances, else {MIN_INDUCING} to "
        f"{MAX_INDUCING}",
        within="[1, inf)",
    )
    kept: float = setting(
        0.5, "weight of the initial weights in the new ones; 0: only the posterior's", within="[0, 1]"
    )
    released: bool = setting(
        False,
        "as in the authors' code: weights from the prior means, prediction from the initial targets",
    )

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return full batches with Adam at 0.1; under ``paper`` the authors' code, exact, 500 steps."""
        whole = {
            "pretrain": 0,  # no encoder to train
            "batch_size": None,
            "optimizer": "adamw",
            "lr": 0.1,
            "weight_decay": 0.0,
            "clip_norm": None,
            "instance_dropout": 0.0,
            "background": 0.0,
            "warmup": 0.0,
        }
        if recipe != "paper":
            return {**whole, "epochs": 20}  # our choice, limited by time
        return {**whole, "epochs": 500, "inducing": None, "released": True}

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> InstanceGP:
        """Return Gaussian processes without training instances."""
        if encoder is not None:
            raise SettingError("miplgp trains no encoder: encode the instances first, and give it vectors.")
        scaling = Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity()
        return InstanceGP(scaling, math.prod(feature_shape), k)

    def prepare(self, net: InstanceGP, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Choose the points; initialise kernel and means from the data, or (released) not at all."""
        sizes = torch.tensor(loader.bags.sizes, device=loader.device)
        net.weights, _ = instance_weights(table.weights, table.candidates, sizes)
        count = self._inducing_points(len(net.weights), net.weights.shape[1], loader.device)
        if count is None:
            sample = net.points = torch.cat([net.features(batch.instances) for batch in loader.in_order()])
        else:
            order = rng_for("points", seed).permutation(len(loader.bags))
            enough = int(np.searchsorted(np.cumsum(loader.bags.sizes[order]), 64 * count)) + 1
            sample = net.features(loader.batch(order[:enough]).instances)
            net.points = centres(sample, count, seed)
        if self.released:
            return
        self._initialise(net, sample, seed)

    def _initialise(self, net: InstanceGP, sample: Tensor, seed: int) -> None:
        """Initialise kernel, noise and means from the targets and a sample (n, d) of the instances."""
        rows = torch.from_numpy(rng_for("distances", seed).permutation(len(sample))[:DISTANCES])
        distance = torch.nn.functional.pdist(sample[rows.to(sample.device)])
        typical = float(distance.median()) if len(distance) else 0.0
        targets, _ = dirichlet_targets(net.weights)
        net.kernel.base_kernel.lengthscale = 2 * typical if typical > 0 else 1.0
        net.kernel.outputscale = max(1.0, float(targets.var(dim=1, correction=0).mean()))
        net.likelihood.noise = 0.1
        with torch.no_grad():
            net.mean.constant.copy_(targets.mean(dim=1))

    def _inducing_points(self, instances: int, classes: int, device: torch.device) -> int | None:
        """Return the number of inducing points, or None for an exact model."""
        count = self.inducing
        if count == "auto":
            count = None if instances <= MAX_EXACT else min(max(instances // 64, MIN_INDUCING), MAX_INDUCING)
        if count is not None and int(count) < instances:
            return int(count)
        needed = 5 * classes * instances**2 * 8  # covariances, Cholesky factors and their gradients
        if needed > device_memory(device):
            raise SettingError(
                f"Exact processes over {instances} instances and {classes} classes would take about "
                f"{needed / 2**30:.0f} GiB of memory: set inducing=auto."
            )
        return None

    def objective(
        self, net: InstanceGP, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return the negative log marginal likelihood of all instances, the same for every bag (b,).

        The weights of the next epoch are computed from the posterior means before the step.
        """
        if len(batch.instances) != len(net.weights):
            raise SettingError("miplgp needs all instances in a step: batch_size none, instance_dropout 0.")
        assert batch.candidates is not None  # the trainer accepts only bags with candidate sets
        initial, candidates = instance_weights(table.weights[batch.index], batch.candidates, batch.sizes)
        rows = positions(batch)
        targets, noise = dirichlet_targets(net.weights[rows])  # (C, N)
        if self.released:  # the authors' code updates the targets but not their noise
            _, noise = dirichlet_targets(initial)
        if net.exact:
            order = rows.argsort()
            loss, fitted = exact_likelihood(net, targets[:, order], noise[:, order])
            fitted = fitted[rows]
        else:
            loss, fitted = inducing_likelihood(net, batch.instances, targets, noise)
        if not self.released:
            new = disambiguate(fitted, candidates, batch.sizes)
            net.weights[rows] = self.kept * initial + (1.0 - self.kept) * new
        elif context.epoch < context.epochs:  # in training mode, gpytorch returns the prior mean
            output = net.means.detach().T.expand_as(initial)
            net.weights[rows] = candidate_log_softmax(output, candidates).exp()
        else:  # prediction uses the initial targets
            net.weights[rows] = initial
        return loss.expand(len(batch.sizes))

    def finish(self, net: InstanceGP, loader: BagLoader) -> None:
        """Store the posterior given the last weights; an exact model computes it from the instances."""
        if net.exact:
            return
        factor = cholesky_of_points(net)
        a = torch.cat([whiten(net, factor, batch.instances) for batch in loader.in_order()], dim=1)
        posterior = inducing_posterior(optimal_inducing(net, a, *dirichlet_targets(net.weights)), factor)
        net.coefficients, net.reduction = (part[:-1].contiguous() for part in posterior)
        net.weights = net.weights[:0].clone()

    def log_proba(self, net: InstanceGP, batch: BagBatch) -> Tensor:
        """Return the log-probabilities (b, k) of the most confident instance of each bag."""
        bags = torch.split(net(batch.instances), batch.sizes.tolist())
        return torch.stack([bag[bag.max(dim=1).values.argmax()] for bag in bags])


def instance_weights(weights: Tensor, candidates: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights and candidates (N, k+1) of instances, from those of bags (b, k) and their sizes (b,).

    An instance has the candidates of its bag and the negative class, with weight 1/(|S| + 1).
    """
    count = candidates.sum(dim=1, keepdim=True)
    of_bags = torch.cat([weights.double() * count, torch.ones_like(count)], dim=1) / (count + 1)
    sets = torch.cat([candidates, torch.ones_like(candidates[:, :1])], dim=1)
    bag = segment_ids(sizes)  # (N,)
    return of_bags[bag], sets[bag]


def positions(batch: BagBatch) -> Tensor:
    """Return the positions (N,) of the instances of a batch of all bags in the order of the data set."""
    sizes = torch.empty_like(batch.sizes).index_copy(0, batch.index, batch.sizes)
    first = (sizes.cumsum(0) - sizes)[batch.index]  # (b,) position of the first instance of each bag
    shift = first - (batch.sizes.cumsum(0) - batch.sizes)
    return torch.arange(len(batch.instances), device=shift.device) + shift[segment_ids(batch.sizes)]


def disambiguate(output: Tensor, candidates: Tensor, sizes: Tensor) -> Tensor:
    """Return new weights: the softmax of ``output`` (N, k+1) over the candidates (N, k+1).

    Each bag has a positive instance: the one with the largest margin between its top candidate and the
    negative class has no weight on that class. Otherwise the negative class, a candidate of every instance,
    takes over: accuracy on Birdsong-MIPL was at chance level.
    """
    best = output.masked_fill(~candidates, -torch.inf)[:, :-1].max(dim=1).values
    margin = best - output[:, -1]
    top = torch.segment_reduce(margin, "max", lengths=sizes)  # (b,)
    allowed = candidates.clone()
    allowed[:, -1] = margin < top[segment_ids(sizes)]
    return candidate_log_softmax(output, allowed).exp()


def inducing_likelihood(
    net: InstanceGP, instances: Tensor, targets: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the negative bound () on the log marginal likelihood, and the posterior means (N, C).

    The gradient is that of the first instances only; the trainer shuffles the bags in every epoch.
    """
    with torch.no_grad():
        a = whiten(net, cholesky_of_points(net), instances)  # (M, N)
        q = optimal_inducing(net, a, targets, noise)
        fitted = net.means + q.mean @ a
    n = SUBSET
    a = whiten(net, cholesky_of_points(net), instances[:n])
    partial = expected_loss(net, q, a, targets[:, :n], noise[:, :n])
    return q.loss + partial - partial.detach(), fitted.T


def centres(x: Tensor, count: int, seed: int) -> Tensor:
    """Return the k-means centres (count, d) of x (n, d), or all distinct rows if there are fewer."""
    from sklearn.cluster import KMeans

    distinct = np.unique(x.cpu().numpy(), axis=0)
    if len(distinct) > count:
        means = KMeans(count, n_init=1, max_iter=20, random_state=seed_for("centres", seed) % 2**32)
        distinct = means.fit(distinct).cluster_centers_
    return torch.from_numpy(distinct).to(x)


def device_memory(device: torch.device) -> float:
    """Return the memory of a device in bytes, or infinity if it is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return machine.memory()


METHODS.register("miplgp", MIPLGP)
