"""Cross-fitting: networks that each leave out some folds of the bags, trained as one computation.

Every bag is left out by two members. Their out-of-fold predictions show, without a true label, whether
anything can be learned, which settings predict best, and how confident networks like them may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.methods.base import METHODS, Method
from mipl.nn.encoders import FeatureEncoder, Standardize
from mipl.nn.members import can_be_member, for_prediction
from mipl.nn.network import BagNetwork
from mipl.pseudo_labels import AnnotatedLabels, PseudoLabels
from mipl.seeding import rng_for, seed_for
from mipl.training.balancing import ambiguity
from mipl.training.checkpoint import History
from mipl.training.distributed import ProcessGroup
from mipl.training.trainer import Training, vote_table

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


def folds_of(bags: Bags, ensemble: int) -> int:
    """Return in how many folds the bags are divided to cross-fit an ensemble; 1: there is nothing to divide.

    Twice the number of networks that will predict, so that the temperature of their mean can be extrapolated
    from the two that leave out a bag; fewer where there are fewer bags or patients: no fold may be empty.
    """
    groups = len(bags) if bags.groups is None else len(np.unique(bags.groups))
    return min(2 * ensemble, groups) if ensemble > 1 and groups > LEFT_OUT else 1


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
    if len(nets) > 1 and training.group.processes == 1 and training.can_stack(nets):
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
        histories += alone.run([net], own, tables[-1], 1, last)
    return histories, tables


def needs_first_stage(training: Training, bags: Bags, like: nn.Module) -> bool:
    """Return whether networks as ``like`` begin with weights of a first stage: where sets are large."""
    if bags.votes is not None:  # which say more than a large set does
        return False
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
    every = torch.arange(len(bags))
    log_p = member_log_proba(method, nets, bags, training.group.device).to(mean)
    for number, own in enumerate(log_p):
        mean[number // each] += table.update(every, own, 0.0)
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
    members, device = len(nets), training.group.device
    if initial is None and bags.weights is not None:
        initial = torch.tensor(bags.weights).expand(members, -1, -1)
    candidates = torch.tensor(bags.candidate_sets, device=device).repeat(members, 1)
    if (votes := vote_table(bags, device)) is not None:
        table: PseudoLabels = AnnotatedLabels(candidates, votes, members, seen.to(device))
    else:
        flat = None if initial is None else initial.to(device).flatten(0, 1)
        table = training.method.table(candidates, flat, members)
    if bags.sample_weight is not None:
        table.importance = torch.tensor(bags.sample_weight, device=device).float().repeat(members)
    return training.run(nets, bags, table, 1, last, seen=seen), table


def predictor(method: Method, nets: Sequence[nn.Module]) -> Callable[[BagBatch], Tensor]:
    """Return what computes log-probabilities (e, b, k) of a batch by e networks, as one where possible."""
    together = for_prediction(nets)
    if together is None:
        return lambda batch: torch.stack([method.log_proba(net, batch) for net in nets])
    return lambda batch: method.log_proba(together, batch).view(len(nets), len(batch.sizes), -1)


def member_log_proba(method: Method, nets: Sequence[nn.Module], bags: Bags, device: torch.device) -> Tensor:
    """Return log-probabilities (members, m, k) in double precision, bags read once, on the CPU."""
    for net in nets:
        net.eval()
    with torch.no_grad():
        predict = predictor(method, nets)
        parts = [predict(batch).double().cpu() for batch in BagLoader(bags, device).in_order()]
    return torch.cat(parts, dim=1)


def mean_log_proba(log_p: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the log of the mean probability: log_p (members, m, k), weights (members, m) -> (m, k)."""
    if weights is None:
        weights = torch.ones(log_p.shape[:2], dtype=log_p.dtype)
    return (log_p + (weights / weights.sum(dim=0)).log()[..., None]).logsumexp(dim=0)
