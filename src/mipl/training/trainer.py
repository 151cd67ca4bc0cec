"""Training of one network, with checkpoints that resume bit for bit."""

from __future__ import annotations

import dataclasses
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
from mipl.registry import portable_settings
from mipl.training.checkpoint import History, load_checkpoint, save_checkpoint
from mipl.training.distributed import ProcessGroup, randomness
from mipl.training.epoch import Loop
from mipl.training.flat import FlatParameters
from mipl.training.progress import Report
from mipl.training.recipe import RECIPE_VERSION, Recipe


@dataclasses.dataclass(frozen=True)
class Training:
    """What is fixed during training: method, recipe, seed, processes."""

    method: Method
    recipe: Recipe
    seed: int
    group: ProcessGroup
    checkpoint: Path | None = None  # a folder to write the state to after each epoch, and to resume from
    report: Report | None = None  # called after each epoch

    def spec(self, bags: Bags) -> dict[str, Any]:
        """Return what identifies a training; a checkpoint of another one is refused."""
        return {
            "method": type(self.method).__name__,
            "hyper-parameters": {**self.method.removed, **portable_settings(self.method)},
            "recipe": dataclasses.asdict(self.recipe),
            "recipe_version": RECIPE_VERSION,
            "seed": self.seed,
            "data": bags.digest(),
        }

    def say(self, epoch: int, note: str) -> None:
        """Report from the first process only."""
        if self.report and self.group.rank == 0:
            self.report(epoch, note)

    def loader(self, bags: Bags) -> BagLoader:
        """Return what reads this process's part of the bags."""
        return BagLoader(bags, self.group.device, (self.group.rank, self.group.processes))

    def table(self, bags: Bags) -> PseudoLabels:
        """Return the initial weights of this process's bags."""
        loader = self.loader(bags)
        initial = None if bags.weights is None else loader.local_rows(bags.weights)
        table = self.method.table(loader.local_rows(bags.candidate_sets), initial)
        if bags.sample_weight is not None:
            table.importance = loader.local_rows(bags.sample_weight).float()
        return table

    def run(
        self,
        net: nn.Module,
        bags: Bags,
        table: PseudoLabels,
        first: int,
        last: int,
        *,
        prepare: bool = True,
        lr: float | None = None,
        guided: bool = False,
        averaged_from: int | None = None,
    ) -> History:
        """Train ``net`` in place from epoch ``first`` to ``last``, or resume from the checkpoint.

        Every epoch has a seed of its own, so that a training resumed after any epoch gives the same bits as
        one that was not interrupted.

        Args:
            net: the network.
            bags: m bags with candidate sets.
            table: the weights of this process's bags.
            first: the first epoch.
            last: the last epoch.
            prepare: let the method set up network and table first; false: they were trained before.
            lr: a constant learning rate in place of the recipe's schedule.
            guided: balance classes and use initial weights as a prior after the warm-up too.
            averaged_from: the first epoch of weight averaging (SWA); none: no averaging.

        Returns:
            The history: one value per epoch for each name.
        """
        method, group, recipe = self.method, self.group, self.recipe
        if group.processes > 1 and not method.shared:
            raise SettingError("This method trains in one process only: leave devices at 1.")
        net.to(group.device)
        parameters = FlatParameters([(1.0, list(net.parameters()))] if lr else recipe.shares(net))
        optimizer = recipe.make_optimizer(parameters)
        mean = None if averaged_from is None else AveragedModel(net)
        done, history = first - 1, History()
        if prepare:
            with randomness(group, "prepare", self.seed):
                method.prepare(net, self.loader(bags), table, self.seed)
        spec = self.spec(bags) if self.checkpoint else {}
        if self.checkpoint:
            stored, histories = load_checkpoint(self.checkpoint, spec, net, optimizer, table, group, mean)
            done, history = (stored, histories[0]) if histories else (done, history)
        loop = Loop(
            method, net, self.loader(bags), parameters, optimizer, table, recipe, self.seed, group,
            lr=lr, guided=guided,
        )  # fmt: skip
        for epoch, (values,) in loop.epochs(done + 1, last):
            for name, value in values.items():
                history.setdefault(name, []).append(value)
            if mean is not None and averaged_from is not None and epoch >= averaged_from:
                mean.update_parameters(net)
            if self.checkpoint:
                save_checkpoint(
                    self.checkpoint, spec, epoch, net, optimizer, table, [history], group, len(bags), mean
                )
            self.say(epoch, f"loss {values['loss']:.3f}")
        parameters.release()
        if mean is not None:
            net.load_state_dict(mean.module.state_dict())
        net.eval()
        return history

    def finish(self, net: nn.Module, bags: Bags) -> None:
        """Store in ``net`` what prediction needs of the training bags."""
        with randomness(self.group, "finish", self.seed), torch.no_grad():
            self.method.finish(net, self.loader(bags))


def train(
    method: Method,
    net: nn.Module,
    bags: Bags,
    recipe: Recipe,
    seed: int,
    *,
    group: ProcessGroup | None = None,
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> History:
    """Train one network in place, all layers from the first epoch, and return its history."""
    training = Training(method, recipe, seed, group or ProcessGroup(), checkpoint, report)
    history = training.run(net, bags, training.table(bags), 1, recipe.epochs)
    training.finish(net, bags)
    return history
