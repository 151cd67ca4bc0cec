"""The one training loop (Algorithm 1)."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.data.candidates import IntArray
from mipl.errors import SettingError, TrainingError
from mipl.methods.base import Clock, Method
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for
from mipl.training.checkpoint import load_checkpoint, save_checkpoint
from mipl.training.flat import FlatParameters
from mipl.training.judging import advantage, evened_prior, failed, fits, held_out_bags
from mipl.training.parallel import Alone, randomness
from mipl.training.pretraining import on_features
from mipl.training.progress import Report
from mipl.training.recipes import Recipe, ambiguity

History = dict[str, list[float]]


class Loader(Protocol):
    """Where batches come from."""

    bags: Bags

    def epoch(
        self,
        batch_size: int,
        rng: np.random.Generator,
        drop: float = 0.0,
        without: IntArray | None = None,
    ) -> Iterator[BagBatch]:
        """Yield every bag once, shuffled, but those left out."""


def training_spec(method: Method, bags: Bags, recipe: Recipe, seed: int) -> dict[str, Any]:
    """Return what a training is made of; a checkpoint goes on only with the same."""
    return {
        "method": type(method).__name__,
        "hyper-parameters": dataclasses.asdict(method),
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "data": bags.digest(),
    }


def train(
    method: Method,
    net: nn.Module,
    bags: Bags,
    recipe: Recipe,
    seed: int,
    *,
    group: Alone | None = None,
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> History:
    """Train ``net`` in place and return its history, one value an epoch for each name.

    ``weight_on_top`` is the mean of the bags' largest weights, ``class_entropy`` the entropy of their mean, 1
    where classes are even and 0 where all bags are given to one. ``advantage`` has one value, of the
    warm-up's last epoch: where it says that nothing was learned (:func:`mipl.training.judging.failed`)
    training ends there.

    Every epoch draws its randomness from a seed of its own, so that a run resumed after any epoch goes on
    exactly as if it had never stopped. ``group``: the processes and the device to train on; none: this one's
    CPU.
    """
    if bags.candidates is None:
        raise ValueError("bags without candidate sets cannot be trained on")
    group = group or Alone()
    if group.processes > 1 and not method.shared:
        raise SettingError("This method trains in one process only: leave devices at 1.")
    net.to(group.device)
    spec = training_spec(method, bags, recipe, seed) if checkpoint else {}
    with on_features(net, bags, recipe, seed, group, report) as features:
        return _train(method, net, features, recipe, seed, group, spec, checkpoint, report)


def _train(
    method: Method,
    net: nn.Module,
    bags: Bags,
    recipe: Recipe,
    seed: int,
    group: Alone,
    spec: Mapping[str, Any],
    checkpoint: Path | None,
    report: Report | None,
) -> History:
    loader = BagLoader(bags, group.device, (group.rank, group.processes))
    assert bags.candidates is not None
    table = method.table(
        loader.mine(bags.candidates), None if bags.weights is None else loader.mine(bags.weights)
    )
    parameters = FlatParameters(recipe.shares(net))
    optimizer = recipe.make_optimizer(parameters)
    with randomness(group, "prepare", seed):
        method.prepare(net, loader, table, seed)
    done, history = load_checkpoint(checkpoint, spec, net, optimizer, table, group) if checkpoint else (0, {})
    course = epochs(method, net, loader, parameters, optimizer, table, recipe, seed, group, done + 1)
    for epoch, (values,) in () if failed(history) else course:
        for name, value in values.items():
            history.setdefault(name, []).append(value)
        if checkpoint:
            save_checkpoint(checkpoint, spec, epoch, net, optimizer, table, history, group, len(bags))
        if report and group.rank == 0:
            report(epoch, f"loss {values['loss']:.3f}")
        if failed(history):
            break
    parameters.release()
    net.eval()
    with randomness(group, "finish", seed), torch.no_grad():
        method.finish(net, loader)
    return history


def epochs(
    method: Method,
    net: nn.Module,
    loader: Loader,
    parameters: FlatParameters,
    optimizer: torch.optim.Optimizer,
    table: PseudoLabels,
    recipe: Recipe,
    seed: int,
    group: Alone,
    first: int = 1,
    members: int = 1,
) -> Iterator[tuple[int, list[dict[str, float]]]]:
    """Train from epoch ``first`` on and yield after each what it gave, for every one of the net's members."""
    assert loader.bags.candidates is not None
    held = held_out_bags(loader.bags.candidates, recipe.held_out if recipe.warmup_epochs else 0.0)
    # (members, m, k): of several processes each has all bags in its loader, and its own in the table
    sets = (
        torch.tensor(loader.bags.candidates, device=group.device)[None]
        if members == 1
        else table.candidates.view(members, -1, table.candidates.shape[1])
    )
    prior = torch.stack([evened_prior(own) for own in sets]).to(table.weights)
    evening = prior.new_tensor(
        [[recipe.balance * ambiguity(own)] for own in sets]
    )  # none: nothing to even out
    for epoch in range(first, recipe.epochs + 1):
        started = time.perf_counter()
        clock = Clock(
            epoch,
            recipe.epochs,
            recipe.alpha_at(epoch),
            recipe.gamma_at(epoch),
            recipe.alpha_at(epoch, after=True),
            recipe.background,
        )
        for layers in optimizer.param_groups:
            layers["lr"] = layers["share"] * recipe.lr_at(epoch)
        # the first process draws as one alone does, the others each their own dropout
        with randomness(group, "epoch", seed, epoch, *([group.rank] if group.rank else [])):
            losses = _epoch(
                method, net, loader, parameters, optimizer, table, clock, recipe, seed, group, prior,
                evening if recipe.balance and epoch <= recipe.warmup_epochs else None,
                held if epoch <= recipe.warmup_epochs else held[:0],
            )  # fmt: skip
        trust = table.settle(group.add, warming=not recipe.warmup_epochs or epoch <= recipe.warmup_epochs)
        top = table.weights.max(dim=1).values.view(members, -1).sum(dim=1)
        shares = table.weights.view(members, -1, table.weights.shape[1]).sum(dim=1)  # (members, k)
        group.add([top, shares])
        mean = shares / shares.sum(dim=1, keepdim=True)
        even = (torch.special.entr(mean).sum(dim=1) / math.log(max(mean.shape[1], 2))).tolist()
        judged: list[dict[str, float]] = [{}] * members
        if len(held) and epoch == recipe.warmup_epochs:
            judged = [{"advantage": a} for a in _judge(method, net, loader, table, held, group, sets)]
        trained = len(loader.bags) - (len(held) if epoch <= recipe.warmup_epochs else 0)
        seconds = time.perf_counter() - started
        yield (
            epoch,
            [
                {
                    "loss": loss / trained,
                    "lr": recipe.lr_at(epoch),
                    "weight_on_top": weight / len(loader.bags),
                    "class_entropy": even[member],
                    **(trust[member] if trust else {}),
                    **judged[member],
                    "seconds": seconds / members,
                }
                for member, (loss, weight) in enumerate(zip(losses, top.tolist(), strict=True))
            ],
        )


def _epoch(
    method: Method,
    net: nn.Module,
    loader: Loader,
    parameters: FlatParameters,
    optimizer: torch.optim.Optimizer,
    table: PseudoLabels,
    clock: Clock,
    recipe: Recipe,
    seed: int,
    group: Alone,
    prior: Tensor,
    evening: Tensor | None,
    without: IntArray,
) -> list[float]:
    members, k = prior.shape
    net.train()
    method.on_epoch_start(net, clock.epoch)
    total = [0.0] * members
    shuffle = rng_for("shuffle", seed, clock.epoch)
    size = recipe.batch_size or len(loader.bags)
    for batch in loader.epoch(size, shuffle, recipe.instance_dropout, without):
        parameters.zero_grad()
        loss = torch.zeros(members, device=group.device)
        if len(batch.sizes):  # of several processes one may have no bag in a batch
            with group.autocast():
                losses = method.objective(net, batch, table, clock)  # (b,)
            torch.autograd.backward(losses.sum() / batch.step)
            loss = losses.detach().view(members, -1).sum(dim=1)
        group.add([loss, *parameters.gradients])
        if recipe.clip_norm is not None:
            parameters.clip(recipe.clip_norm)
        optimizer.step()
        if len(batch.sizes):
            method.after_step(net, batch, table, clock)
        if evening is not None:
            shares = table.weights[batch.index].view(members, -1, k).sum(dim=1)
            group.add([shares])
            table.even_out(shares / shares.sum(dim=1, keepdim=True), prior, evening)
        total = [before + now for before, now in zip(total, loss.tolist(), strict=True)]
        if any(value != value for value in total):
            raise TrainingError(
                f"The loss became NaN in epoch {clock.epoch}: lower lr, "
                "or use recipe='stable', which clips gradients."
            )
    method.on_epoch_end(net, table, clock)
    return total


def _judge(
    method: Method,
    net: nn.Module,
    loader: Loader,
    table: PseudoLabels,
    held: IntArray,
    group: Alone,
    sets: Tensor,
) -> list[float]:
    """Return each member's advantage on the bags held out, and give these the weights p̃ that others have."""
    net.eval()
    members, _, k = sets.shape
    others = np.setdiff1d(np.arange(len(loader.bags)), held)
    sums = torch.zeros((members, 2), dtype=torch.float64, device=group.device)
    with torch.no_grad():
        for batch in loader.epoch(8, np.random.default_rng(0), 0.0, others):
            if not len(batch.sizes):
                continue
            assert batch.candidates is not None
            log_p = method.log_proba(net, batch)
            table.update(batch.index, log_p, 0.0, prior=True)
            p, own = log_p.exp().view(members, -1, k), batch.candidates.view(members, -1, k)
            sums += torch.stack([fits(*each).sum(dim=1) for each in zip(p, own, sets, strict=True)])
    group.add([sums])
    return [advantage(*own) for own in sums.tolist()]
