"""The one training loop (Algorithm 1)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.errors import TrainingError
from mipl.methods.base import Clock, Method
from mipl.nn.encoders import PixelDropout
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for, seed_for
from mipl.training.checkpoint import load_checkpoint, save_checkpoint
from mipl.training.flat import FlatParameters
from mipl.training.progress import Report
from mipl.training.recipes import Recipe

History = dict[str, list[float]]


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
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> History:
    """Train ``net`` in place and return its history, one value an epoch for each name.

    Every epoch draws its randomness from a seed of its own, so that a run resumed after any epoch goes on
    exactly as if it had never stopped.
    """
    if bags.candidates is None:
        raise ValueError("bags without candidate sets cannot be trained on")
    net.to(device)
    loader = BagLoader(bags, device)
    table = PseudoLabels(
        torch.tensor(bags.candidates, device=device),
        None if bags.weights is None else torch.tensor(bags.weights, device=device),
    )
    own = method.fit(net, loader, table, seed, recipe.epochs, checkpoint, report)
    if own is not None:
        net.eval()
        return own
    for module in net.modules():
        if isinstance(module, PixelDropout):
            module.p = recipe.pixel_dropout
    parameters = FlatParameters(recipe.shares(net))
    optimizer = recipe.make_optimizer(parameters)
    spec: Mapping[str, Any] = training_spec(method, bags, recipe, seed) if checkpoint else {}
    with _randomness(device, "prepare", seed):
        method.prepare(net, loader, table, seed)
    done, history = load_checkpoint(checkpoint, spec, net, optimizer, table) if checkpoint else (0, {})
    for epoch in range(done + 1, recipe.epochs + 1):
        started = time.perf_counter()
        clock = Clock(
            epoch,
            recipe.epochs,
            recipe.alpha_at(epoch),
            recipe.gamma_at(epoch),
            recipe.alpha_at(epoch, after=True),
        )
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * recipe.lr_at(epoch)
        with _randomness(device, "epoch", seed, epoch):
            loss = _epoch(method, net, loader, parameters, optimizer, table, clock, recipe, seed)
        values = {
            "loss": loss,
            "lr": recipe.lr_at(epoch),
            "weight_on_top": float(table.weights.max(dim=1).values.mean()),
            "seconds": time.perf_counter() - started,
        }
        for name, value in values.items():
            history.setdefault(name, []).append(value)
        if checkpoint:
            save_checkpoint(checkpoint, spec, epoch, net, optimizer, table, history)
        if report:
            report(epoch, f"loss {loss:.3f}")
    parameters.release()
    net.eval()
    with _randomness(device, "finish", seed), torch.no_grad():
        method.finish(net, loader)
    return history


@contextlib.contextmanager
def _randomness(device: torch.device | str, *names: str | int) -> Iterator[None]:
    """Draw from a seed of these names inside the block, and leave torch's own generator as it was."""
    with torch.random.fork_rng(devices=[] if torch.device(device).type == "cpu" else None):
        torch.manual_seed(seed_for(*names))
        yield


def _epoch(
    method: Method,
    net: nn.Module,
    loader: BagLoader,
    parameters: FlatParameters,
    optimizer: torch.optim.Optimizer,
    table: PseudoLabels,
    clock: Clock,
    recipe: Recipe,
    seed: int,
) -> float:
    net.train()
    method.on_epoch_start(net, clock.epoch)
    total = 0.0
    shuffle = rng_for("shuffle", seed, clock.epoch)
    for batch in loader.epoch(recipe.batch_size or len(loader.bags), shuffle, recipe.instance_dropout):
        losses = method.objective(net, batch, table, clock)  # (b,)
        parameters.zero_grad()
        torch.autograd.backward(losses.mean())
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters.vectors, recipe.clip_norm, foreach=True)
        optimizer.step()
        method.after_step(net, batch, table, clock)
        total += float(losses.detach().sum())
        if total != total:
            raise TrainingError(
                f"The loss became NaN in epoch {clock.epoch}: lower lr, "
                "or use recipe='stable', which clips gradients."
            )
    method.on_epoch_end(net, table, clock)
    return total / len(loader.bags)
