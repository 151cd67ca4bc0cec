"""A training from the first epoch to the last: on vectors, or on features of images and then on images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.errors import SettingError
from mipl.methods.base import Method
from mipl.pseudo_labels import PseudoLabels
from mipl.training.checkpoint import last_epoch, load_checkpoint, save_checkpoint
from mipl.training.epochs import History, Loop
from mipl.training.flat import FlatParameters
from mipl.training.images import has_images, on_features, soften
from mipl.training.judging import ENOUGH, failed, judge_again, predictions, worth_starts
from mipl.training.parallel import Alone, randomness
from mipl.training.progress import Report
from mipl.training.recipes import Recipe
from mipl.training.starts import several_starts


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
    where classes are even and 0 where all bags are given to one. ``advantage`` has one value, that of the
    warm-up's last epoch or, if smaller, of the end: where it says that nothing was learned
    (:func:`mipl.training.judging.failed`) training ends there.

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
    training = Training(method, net, recipe, seed, group, spec, checkpoint, report)
    images = recipe.pretrain > 0 and has_images(net)
    released = images and recipe.in_effect().image_lr > 0
    last = recipe.warmup_epochs if released else recipe.epochs
    history: History = {}
    if images:
        soften(net, recipe.image_tau)
        if not released or checkpoint is None or last_epoch(checkpoint) <= last:
            with on_features(net, bags, recipe, seed, group, report) as features:
                starts = recipe.starts > 0 and recipe.warmup_epochs > 0
                history, table = training.begin(features, last, starts)
        else:  # its weights are in the checkpoint
            table = training.table(bags)
    else:
        history, table = training.begin(bags, last, worth_starts(bags, recipe))
    if released and not failed(history):
        history = training.run(bags, table, last + 1, recipe.epochs, history)
    judge_again(history, method, net, bags, group.device)
    with randomness(group, "finish", seed), torch.no_grad():
        method.finish(net, training.loader(bags))
    return history


@dataclasses.dataclass(frozen=True)
class Training:
    """What stays the same from the first epoch to the last."""

    method: Method
    net: nn.Module
    recipe: Recipe
    seed: int
    group: Alone
    spec: Mapping[str, Any]
    checkpoint: Path | None
    report: Report | None

    def loader(self, bags: Bags) -> BagLoader:
        """Return what reads this process's share of the bags."""
        return BagLoader(bags, self.group.device, (self.group.rank, self.group.processes))

    def table(self, bags: Bags) -> PseudoLabels:
        """Return the weights of this process's bags, before the first epoch."""
        loader = self.loader(bags)
        assert bags.candidates is not None
        initial = None if bags.weights is None else loader.mine(bags.weights)
        return self.method.table(loader.mine(bags.candidates), initial)

    def begin(self, bags: Bags, last: int, from_starts: bool) -> tuple[History, PseudoLabels]:
        """Train to epoch ``last``, perhaps from several starts; return history and weights.

        The starts judge, so that the method can learn from all bags. If they have learned nothing there is
        nothing to begin from, and the network stays as it was built. Otherwise the advantage is theirs or, if
        that is smaller, the method's agreement with them.
        """
        recipe = self.recipe
        if not from_starts:
            table = self.table(bags)
            return self.run(bags, table, 1, last), table
        report = self.report if self.group.rank == 0 else None
        scaling = getattr(self.net, "scaling", nn.Identity())
        starts = several_starts(bags, recipe, self.seed, scaling, report)
        table = self.table(dataclasses.replace(bags, weights=starts.weights))
        judged = len(starts.bags) > 0
        if judged and starts.advantage < ENOUGH:
            return {"loss": [], "seconds": [], "advantage": [starts.advantage]}, table
        unjudged = dataclasses.replace(self, recipe=dataclasses.replace(recipe, held_out=0.0))
        history = unjudged.run(bags, table, 1, last)
        if judged:
            p = predictions(self.method, self.net, bags, self.group.device)
            history["advantage"] = [min(starts.advantage, starts.agreement(p))]
        return history, table

    def run(
        self, bags: Bags, table: PseudoLabels, first: int, last: int, before: History | None = None
    ) -> History:
        """Train from epoch ``first`` to ``last``, or from where the checkpoint is; return the history.

        From a later epoch than 1 on, the bags are images, and the network is in the end the mean of what it
        was after the last of its epochs.
        """
        method, net, group, seed, checkpoint = self.method, self.net, self.group, self.seed, self.checkpoint
        recipe = self.recipe if first == 1 else self.recipe.on_images()
        loader = self.loader(bags)
        parameters = FlatParameters(recipe.shares(net))
        optimizer = recipe.make_optimizer(parameters)
        mean = AveragedModel(net) if first > 1 and recipe.image_average else None
        if first == 1:
            with randomness(group, "prepare", seed):
                method.prepare(net, loader, table, seed)
        done, history = first - 1, before or {}
        if checkpoint and (first == 1 or last_epoch(checkpoint) >= first):
            done, history = load_checkpoint(checkpoint, self.spec, net, optimizer, table, group, mean)
        loop = Loop(method, net, loader, parameters, optimizer, table, recipe, seed, group)
        course = loop.epochs(done + 1, last, guided=None if first == 1 else last)
        for epoch, (values,) in () if failed(history) else course:
            for name, value in values.items():
                history.setdefault(name, []).append(value)
            if mean is not None and epoch >= recipe.averaged_from:
                mean.update_parameters(net)
            if checkpoint:
                save_checkpoint(
                    checkpoint, self.spec, epoch, net, optimizer, table, history, group, len(bags), mean
                )
            if self.report and group.rank == 0:
                self.report(epoch, f"loss {values['loss']:.3f}")
            if failed(history):
                break
        parameters.release()
        if mean is not None:
            net.load_state_dict(mean.module.state_dict())
        net.eval()
        return history
