"""MIPLGP: Gaussian processes over instances, one for each class and one for "none of them"."""

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
from mipl.methods.base import METHODS, Clock, Method
from mipl.nn.encoders import Standardize
from mipl.nn.gp import (
    InstanceGP,
    best_inducing,
    cholesky_of_points,
    dirichlet_targets,
    exact_likelihood,
    expected_loss,
    inducing_posterior,
    whiten,
)
from mipl.nn.segments import segment_ids
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting
from mipl.seeding import rng_for, seed_for

EXACT = 500  # instances up to which auto is exact
FEWEST, MOST = 128, 512  # inducing points of auto above that, one for 64 instances
NEAR = 1000  # instances whose distances give the kernel's first length
SUBSET = 2048  # instances, about, that give the gradient of a step with inducing points


@dataclasses.dataclass(frozen=True)
class MIPLGP(Method):
    """Dirichlet targets for every instance, regressed on by Gaussian processes."""

    summary = (
        "Works on instances: each has its bag's candidates and a negative class. Weights on these become "
        "Dirichlet targets of Gaussian processes with a shared Matérn-5/2 kernel, and the posterior means "
        "give new weights, with one instance of each bag kept positive. A bag is predicted as its strongest "
        "instance, by samples of the posterior. Images are flattened."
    )
    citation = (
        "Wei Tang, Weijia Zhang, Min-Ling Zhang: Multi-Instance Partial-Label Learning: Towards Exploiting "
        "Dual Inexact Supervision. Science China Information Sciences 2024."
    )
    advice = (
        "For small data with few, meaningful features, where one instance decides the label of its bag; "
        "not for raw images."
    )
    cost = (
        "Exact: time grows with the cube of the number of instances, memory with its square. With M inducing "
        "points: time with instances × M² × candidates, memory with instances × M."
    )

    inducing: int | Literal["auto"] | None = setting(
        "auto",
        f"inducing points; none: exact; auto: exact up to {EXACT} instances, else {FEWEST} to {MOST}",
        within="[1, inf)",
    )
    kept: float = setting(
        0.5, "share of the initial weights in the new ones; 0: the posterior's alone", within="[0, 1]"
    )
    released: bool = setting(
        False,
        "weights from the prior means, and prediction from the initial targets, as in the released code",
    )

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return full batches with Adam at 0.1; under ``paper`` the released procedure, exact, 500 steps."""
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
            return {**whole, "epochs": 20}  # our choice, by time
        return {**whole, "epochs": 500, "inducing": None, "released": True}

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> InstanceGP:
        """Return processes that know no instance yet."""
        if encoder is not None:
            raise SettingError("miplgp trains no encoder: encode the instances first, and give it vectors.")
        scaling = Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity()
        return InstanceGP(scaling, math.prod(feature_shape), k)

    def prepare(self, net: InstanceGP, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Choose the points; start kernel and means by what the data look like, or (released) as gpytorch."""
        sizes = torch.tensor(loader.bags.sizes, device=loader.device)
        net.weights, _ = instance_weights(table.weights, table.candidates, sizes)
        count = self._points(len(net.weights), net.weights.shape[1], loader.device)
        if count is None:
            some = net.points = torch.cat([net.features(batch.instances) for batch in loader.in_order()])
        else:
            order = rng_for("points", seed).permutation(len(loader.bags))
            enough = int(np.searchsorted(np.cumsum(loader.bags.sizes[order]), 64 * count)) + 1
            some = net.features(loader.batch(order[:enough]).instances)
            net.points = centres(some, count, seed)
        if self.released:
            return
        near = some[
            torch.from_numpy(rng_for("distances", seed).permutation(len(some))[:NEAR]).to(some.device)
        ]
        distance = torch.nn.functional.pdist(near)
        typical = float(distance.median()) if len(distance) else 0.0
        targets, _ = dirichlet_targets(net.weights)
        net.kernel.base_kernel.lengthscale = 2 * typical if typical > 0 else 1.0
        net.kernel.outputscale = max(1.0, float(targets.var(dim=1, correction=0).mean()))
        net.likelihood.noise = 0.1
        with torch.no_grad():
            net.mean.constant.copy_(targets.mean(dim=1))

    def _points(self, instances: int, classes: int, device: torch.device) -> int | None:
        """Return the number of inducing points; None: exact."""
        count = self.inducing
        if count == "auto":
            count = None if instances <= EXACT else min(max(instances // 64, FEWEST), MOST)
        if count is not None and int(count) < instances:
            return int(count)
        needed = 5 * classes * instances**2 * 8  # covariances, their factors, and the gradients of both
        if needed > memory(device):
            raise SettingError(
                f"Exact processes over {instances} instances and {classes} classes would take about "
                f"{needed / 2**30:.0f} GiB of memory: set inducing=auto."
            )
        return None

    def objective(self, net: InstanceGP, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return minus the marginal likelihood of all instances, the same for every bag (b,).

        The weights of the next epoch follow from the posterior means before the step.
        """
        if len(batch.instances) != len(net.weights):
            raise SettingError("miplgp needs all instances in a step: batch_size none, instance_dropout 0.")
        assert batch.candidates is not None  # the trainer takes only bags with candidate sets
        initial, candidates = instance_weights(table.weights[batch.index], batch.candidates, batch.sizes)
        rows = places(batch)
        targets, noise = dirichlet_targets(net.weights[rows])  # (C, N)
        if self.released:  # there the targets move and their noise does not
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
        elif clock.epoch < clock.epochs:  # the output of processes in training is their prior mean
            output = net.means.detach().T.expand_as(initial)
            net.weights[rows] = candidate_log_softmax(output, candidates).exp()
        else:  # prediction is from the initial targets
            net.weights[rows] = initial
        return loss.expand(len(batch.sizes))

    def finish(self, net: InstanceGP, loader: BagLoader) -> None:
        """Keep what the posterior given the last weights needs."""
        if net.exact:
            return
        factor = cholesky_of_points(net)
        a = torch.cat([whiten(net, factor, batch.instances) for batch in loader.in_order()], dim=1)
        posterior = inducing_posterior(best_inducing(net, a, *dirichlet_targets(net.weights)), factor)
        net.coefficients, net.reduction = (part[:-1].contiguous() for part in posterior)
        net.weights = net.weights[:0].clone()

    def log_proba(self, net: InstanceGP, batch: BagBatch) -> Tensor:
        """Return the log-probabilities (b, k) of each bag's strongest instance."""
        bags = torch.split(net(batch.instances), batch.sizes.tolist())
        return torch.stack([bag[bag.max(dim=1).values.argmax()] for bag in bags])


def instance_weights(weights: Tensor, candidates: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights and candidates (N, k+1) of instances, from those of bags (b, k) and their sizes (b,).

    An instance has its bag's, and the negative class with the share of one of the |S| + 1 candidates.
    """
    count = candidates.sum(dim=1, keepdim=True)
    shares = torch.cat([weights.double() * count, torch.ones_like(count)], dim=1) / (count + 1)
    sets = torch.cat([candidates, torch.ones_like(candidates[:, :1])], dim=1)
    bag = segment_ids(sizes)  # (N,)
    return shares[bag], sets[bag]


def places(batch: BagBatch) -> Tensor:
    """Return for each instance of a batch of all bags its place (N,) among the instances in order."""
    sizes = torch.empty_like(batch.sizes).index_copy(0, batch.index, batch.sizes)
    first = (sizes.cumsum(0) - sizes)[batch.index]  # of each bag, in order
    shift = first - (batch.sizes.cumsum(0) - batch.sizes)
    return torch.arange(len(batch.instances), device=shift.device) + shift[segment_ids(batch.sizes)]


def disambiguate(output: Tensor, candidates: Tensor, sizes: Tensor) -> Tensor:
    """Return new weights: the softmax of ``output`` (N, k+1) over the candidates (N, k+1).

    A bag has a positive instance: the one whose best candidate leads the negative class most has no weight on
    that class. Without this the negative class, everyone's candidate, takes over: on Birdsong-MIPL accuracy
    was then that of chance.
    """
    best = output.masked_fill(~candidates, -torch.inf)[:, :-1].max(dim=1).values
    lead = best - output[:, -1]
    top = torch.segment_reduce(lead, "max", lengths=sizes)  # (b,)
    allowed = candidates.clone()
    allowed[:, -1] = lead < top[segment_ids(sizes)]
    return candidate_log_softmax(output, allowed).exp()


def inducing_likelihood(
    net: InstanceGP, instances: Tensor, targets: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return minus the bound () on the log marginal likelihood, and the posterior means of instances (N, C).

    The gradient is that of the first instances only; the trainer shuffles bags in every epoch.
    """
    with torch.no_grad():
        a = whiten(net, cholesky_of_points(net), instances)  # (M, N)
        q = best_inducing(net, a, targets, noise)
        fitted = net.means + q.mean @ a
    n = SUBSET
    a = whiten(net, cholesky_of_points(net), instances[:n])
    partial = expected_loss(net, q, a, targets[:, :n], noise[:, :n])
    return q.loss + partial - partial.detach(), fitted.T


def centres(x: Tensor, count: int, seed: int) -> Tensor:
    """Return the centres of k-means (count, d) on x (n, d); distinct instances where there are too few."""
    from sklearn.cluster import KMeans

    distinct = np.unique(x.cpu().numpy(), axis=0)
    if len(distinct) > count:
        means = KMeans(count, n_init=1, max_iter=20, random_state=seed_for("centres", seed) % 2**32)
        distinct = means.fit(distinct).cluster_centers_
    return torch.from_numpy(distinct).to(x)


def memory(device: torch.device) -> float:
    """Return the bytes of memory that the device has, or infinity where that cannot be known."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return machine.memory()


METHODS.register("miplgp", MIPLGP)
