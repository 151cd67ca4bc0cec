"""A cross-fitted ensemble: members that each leave out some folds, trained as one computation.

Every bag is left out by two members. Their out-of-fold predictions show, without a true label, whether
anything was learned, which settings predict best, and how confident the mean may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.methods.base import METHODS, Method
from mipl.nn.encoders import FeatureEncoder, Standardize
from mipl.nn.members import Members, can_be_member, layer_parameters
from mipl.nn.network import BagNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for, seed_for
from mipl.training.balancing import ambiguity
from mipl.training.checkpoint import History, load_checkpoint, save_checkpoint
from mipl.training.distributed import ProcessGroup
from mipl.training.epoch import Loop
from mipl.training.flat import FlatParameters
from mipl.training.trainer import Training

LEFT_OUT = 2  # members that do not learn from a bag
LARGE = 0.5  # of the other classes in the mean candidate set: beyond, initial weights come from a first stage
FIRST_STAGE = 10  # networks in all, at the least, that give bags their initial weights
PER_MEMBER = 3  # of them for each member, at the least


def learns_from(bags: Bags, members: int, seed: int) -> Tensor:
    """Return (members, m), 1 where a member learns from a bag.

    Bags are divided into as many folds as there are members; member e leaves out the folds e and e + 1. Bags
    of one group (patient) are in one fold. A single member learns from all bags. True labels are not read.
    """
    if members == 1:
        return torch.ones(1, len(bags))
    _, group = np.unique(np.arange(len(bags)) if bags.groups is None else bags.groups, return_inverse=True)
    sizes = np.bincount(group)
    held = np.zeros(members, dtype=np.int64)  # bags in each fold
    fold = np.zeros(len(sizes), dtype=np.int64)
    order = rng_for("folds", seed).permutation(len(sizes))
    for each in order[
        np.argsort(-sizes[order], kind="stable")
    ]:  # large groups first, so that folds have similar sizes
        fold[each] = held.argmin()
        held[fold[each]] += sizes[each]
    ahead = (fold[group] - np.arange(members)[:, None]) % members  # (members, m)
    return torch.from_numpy((ahead >= LEFT_OUT).astype(np.float32))


def possible_members(bags: Bags, members: int) -> int:
    """Return how many members the bags allow, 1 where they are too few: no fold may be empty."""
    groups = len(bags) if bags.groups is None else len(np.unique(bags.groups))
    return min(members, groups) if groups > LEFT_OUT else 1


def train_members(
    training: Training,
    nets: Sequence[nn.Module],
    bags: Bags,
    seen: Tensor,
    last: int,
    initial: Tensor | None = None,
) -> tuple[list[History], list[PseudoLabels]]:
    """Train networks in place to epoch ``last``, each on the bags it learns from, as one where possible.

    Args:
        training: method, recipe, seed, device, checkpoint and report.
        nets: e networks of one shape.
        bags: m bags with candidate sets.
        seen: (e, m) 1 where a network learns from a bag.
        last: the last epoch.
        initial: (e, m, k) initial pseudo-label weights; none: those of the bags, or uniform ones.

    Returns:
        The histories of the networks, and the weights of the bags that each learns from.
    """
    if len(nets) > 1 and can_be_stacked(training, nets):
        histories, table = train_stacked(training, nets, bags, seen, last, initial)
        rows = [torch.from_numpy(np.flatnonzero(own)).to(training.group.device) for own in seen.numpy()]
        return histories, [table.of_member(e, own) for e, own in enumerate(rows)]
    histories, tables = [], []
    for e, net in enumerate(nets):
        rows_of = np.flatnonzero(seen[e].numpy())
        own = bags if len(rows_of) == len(bags) else bags[rows_of]
        weighted = own
        if initial is not None:
            weighted = dataclasses.replace(own, weights=initial[e].numpy()[rows_of])
        alone = of_member(training, e, len(nets))
        tables.append(alone.table(weighted))
        histories.append(alone.run(net, own, tables[-1], 1, last))
    return histories, tables


def needs_first_stage(training: Training, bags: Bags, like: nn.Module) -> bool:
    """Return whether networks as ``like`` begin with weights of a first stage: where sets are large."""
    large = ambiguity(torch.tensor(bags.candidate_sets)) > LARGE
    return large and training.recipe.warmup_epochs > 0 and can_be_member(like)


def initial_weights(training: Training, bags: Bags, seen: Tensor, like: nn.Module) -> Tensor:
    """Return initial pseudo-label weights (e, m, k) for each member, from networks on its own bags alone.

    Where sets are large, which of two look-alikes a network takes for which differs from initialisation to
    initialisation; the mean of several is right more often than any of them, and confident where they agree.
    They have seen the same bags, so that their errors are correlated: the weights are the square root of
    their mean. The networks of a member do not see what it leaves out either, so that its predictions stay
    out of fold.

    Args:
        training: the training that the weights are for.
        bags: m bags of feature vectors with candidate sets.
        seen: (e, m) 1 where a member learns from a bag.
        like: a network of the same bags, whose scaling is used.
    """
    each = max(PER_MEMBER, -(-FIRST_STAGE // len(seen)))
    method = METHODS["sam-cn"].make()
    nets = []
    for number in range(each * len(seen)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("start", training.seed, number))
            net = cast(BagNetwork, method.build(bags.feature_shape, bags.k))
            scaling, encoder = getattr(like, "scaling", None), getattr(like, "encoder", None)
            if isinstance(scaling, Standardize) and isinstance(encoder, FeatureEncoder):
                layer, width = net.encoder[0], encoder[0].in_features  # type: ignore[index]
                if width != layer.in_features:  # on principal components
                    net.encoder = FeatureEncoder(width, layer.out_features, net.encoder[2].p)  # type: ignore[index,arg-type]
                net.scaling = scaling
        nets.append(net)

    def say(done: int, note: str = "") -> None:
        training.say(0, f"{len(nets)} networks for initial weights, epoch {done}")

    first = Training(
        method,
        dataclasses.replace(training.recipe, weight_decay=None, optimizer="adamw"),
        seed_for("starts", training.seed) % 2**32,
        ProcessGroup(training.group.device),
        report=say,
    )
    train_stacked(first, nets, bags, seen.repeat_interleave(each, dim=0), first.recipe.warmup_epochs)
    carried = None if bags.weights is None else torch.tensor(bags.weights)
    table = method.table(torch.tensor(bags.candidate_sets), carried)
    mean = torch.zeros(len(seen), *table.weights.shape)
    with torch.no_grad():
        for batch in BagLoader(bags, training.group.device).in_order():
            where = batch.index.cpu()
            for number, net in enumerate(nets):
                log_p = method.log_proba(net, batch).cpu()
                mean[number // each][where] += table.update(where, log_p, 0.0)
    root = mean.sqrt()
    return root / root.sum(dim=2, keepdim=True)


def of_member(training: Training, member: int, members: int) -> Training:
    """Return the training of one of several members: with a seed and a checkpoint of its own."""
    if members == 1:
        return training
    folder = None if training.checkpoint is None else training.checkpoint / f"member-{member}"
    return dataclasses.replace(
        training, seed=seed_for("member", training.seed, member) % 2**32, checkpoint=folder
    )


def can_be_stacked(training: Training, nets: Sequence[nn.Module]) -> bool:
    """Return whether networks can be trained as one computation: known layers, a loss of logits alone."""
    group = training.group
    return (
        training.method.logits_alone
        and group.processes == 1
        and group.full_precision
        and all(map(can_be_member, nets))
    )


class EnsembleLoader:
    """Batches of bags that all members see, each learning from those that are not left out for it."""

    def __init__(self, bags: Bags, seen: Tensor, device: torch.device | str = "cpu") -> None:
        self.bags = bags
        self._seen = seen.to(device)
        self._loader = BagLoader(bags, device)
        self._starts = torch.arange(len(seen), device=device)[:, None] * len(bags)  # (members, 1)

    def epoch(self, batch_size: int, rng: np.random.Generator, drop: float = 0.0) -> Iterator[BagBatch]:
        """Yield every bag once, read once for all: index and candidates (members · b), mask (members, b)."""
        for batch in self._loader.epoch(batch_size, rng, drop):
            yield dataclasses.replace(
                batch,
                index=(batch.index + self._starts).flatten(),
                candidates=batch.candidate_sets.repeat(len(self._seen), 1),
                mask=self._seen[:, batch.index],
            )


def train_stacked(
    training: Training,
    nets: Sequence[nn.Module],
    bags: Bags,
    seen: Tensor,
    last: int,
    initial: Tensor | None = None,
) -> tuple[list[History], PseudoLabels]:
    """Train networks as one computation, in place; arguments as of :func:`train_members`.

    Returns:
        The histories of the networks, and the weights of all bags, one member after the other.
    """
    method, recipe, group, checkpoint = training.method, training.recipe, training.group, training.checkpoint
    members, device = len(nets), group.device
    for each in nets:
        each.to(device)
    own = cast("Sequence[BagNetwork]", nets)
    net = Members(own, recipe.background > 0)
    if initial is None and bags.weights is not None:
        initial = torch.tensor(bags.weights).expand(members, -1, -1)
    table = method.table(
        torch.tensor(bags.candidate_sets, device=device).repeat(members, 1),
        None if initial is None else initial.to(device).flatten(0, 1),
        members,
    )
    if bags.sample_weight is not None:
        table.importance = torch.tensor(bags.sample_weight, device=device).float().repeat(members)
    share_of = {id(p): share for share, parameters in recipe.shares(nets[0]) for p in parameters}
    stacked = zip(layer_parameters(own[0]), net.stacked, strict=True)
    parameters = FlatParameters([(share_of[id(p)], [rows]) for p, rows in stacked], members=members)
    optimizer = recipe.make_optimizer(parameters)
    spec = {**training.spec(bags), "members": members} if checkpoint else {}
    done, histories = 0, list[History]()
    if checkpoint:
        done, histories = load_checkpoint(checkpoint, spec, net, optimizer, table, group)
    histories = histories or [History() for _ in nets]
    loader = EnsembleLoader(bags, seen, device)
    loop = Loop(
        method, net, loader, parameters, optimizer, table, recipe, training.seed, group, seen=seen.to(device)
    )
    for epoch, values in loop.epochs(done + 1, last):
        for history, found in zip(histories, values, strict=True):
            for name, value in found.items():
                history.setdefault(name, []).append(value)
        if checkpoint:
            save_checkpoint(
                checkpoint, spec, epoch, net, optimizer, table, histories, group, members * len(bags)
            )
        training.say(epoch, f"loss {np.mean([found['loss'] for found in values]):.3f}")
    net.copy_to_networks()
    for each in nets:
        each.eval()
    return histories, table


def member_log_proba(method: Method, nets: Sequence[nn.Module], bags: Bags, device: torch.device) -> Tensor:
    """Return log-probabilities (members, m, k) in double precision, bags read once, on the CPU."""
    for net in nets:
        net.eval()
    with torch.no_grad():
        parts = [
            torch.stack([method.log_proba(net, batch) for net in nets]).double().cpu()
            for batch in BagLoader(bags, device).in_order()
        ]
    return torch.cat(parts, dim=1)


def mean_log_proba(log_p: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the log of the mean probability: log_p (members, m, k), weights (members, m) -> (m, k)."""
    if weights is None:
        weights = torch.ones(log_p.shape[:2], dtype=log_p.dtype)
    return (log_p + (weights / weights.sum(dim=0)).log()[..., None]).logsumexp(dim=0)
