"""Training of one network, or of several as one, with checkpoints that resume bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mipl.annotators import VoteTable
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader, EnsembleLoader
from mipl.errors import SettingError
from mipl.methods.base import Method
from mipl.nn.members import Members, can_be_member
from mipl.nn.network import BagNetwork
from mipl.pseudo_labels import AnnotatedLabels, PseudoLabels
from mipl.registry import portable_settings
from mipl.training.checkpoint import History, load_checkpoint, save_checkpoint
from mipl.training.distributed import ProcessGroup, randomness
from mipl.training.epoch import Loop
from mipl.training.progress import Report
from mipl.training.recipe import RECIPE_VERSION, Recipe
from mipl.training.scaling import scaled_once


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
        recipe = dataclasses.asdict(self.recipe)
        if recipe["max_instances"] is None:  # checkpoints from before this setting do not name it
            del recipe["max_instances"]
        return {
            "method": type(self.method).__name__,
            "hyper-parameters": {**self.method.removed, **portable_settings(self.method)},
            "recipe": recipe,
            "recipe_version": RECIPE_VERSION,
            "seed": self.seed,
            "data": bags.digest(),
            "layout": 2,  # of the checkpoint's tensors
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
        if bags.votes is not None:
            own = bags[self.group.rank :: self.group.processes]
            votes = vote_table(own, self.group.device)
            assert votes is not None
            table: PseudoLabels = AnnotatedLabels(
                loader.local_rows(bags.candidate_sets), votes, add=self.group.add
            )
        else:
            initial = None if bags.weights is None else loader.local_rows(bags.weights)
            table = self.method.table(loader.local_rows(bags.candidate_sets), initial)
        if bags.sample_weight is not None:
            table.importance = loader.local_rows(bags.sample_weight).float()
        return table

    def can_stack(self, nets: Sequence[nn.Module]) -> bool:
        """Return whether networks can be trained as one: known layers, and a loss of logits alone."""
        return self.method.logits_alone and self.group.full_precision and all(map(can_be_member, nets))

    def run(
        self,
        nets: Sequence[nn.Module],
        bags: Bags,
        table: PseudoLabels,
        first: int,
        last: int,
        *,
        seen: Tensor | None = None,
        prepare: bool = True,
        lr: float | None = None,
        guided: bool = False,
        averaged_from: int | None = None,
    ) -> list[History]:
        """Train ``nets`` in place from epoch ``first`` to ``last``, or resume from the checkpoint.

        Every epoch has a seed of its own, so that a training resumed after any epoch gives the same bits as
        one that was not interrupted.

        Args:
            nets: the network, or e networks of one shape for which :meth:`can_stack` holds.
            bags: m bags with candidate sets.
            table: the weights of this process's bags; of several networks one after the other.
            first: the first epoch.
            last: the last epoch.
            seen: (e, m) 1 where one of several networks learns from a bag; none: one network, all bags.
            prepare: let the method set up network and table first; false: they were trained before.
            lr: a constant learning rate in place of the recipe's schedule.
            guided: balance classes and use initial weights as a prior after the warm-up too.
            averaged_from: the first epoch of weight averaging (SWA); none: no averaging.

        Returns:
            The histories of the networks: one value per epoch for each name.
        """
        method, group, recipe = self.method, self.group, self.recipe
        if group.processes > 1 and not method.shared:
            raise SettingError("This method trains in one process only: leave devices at 1.")
        for each in nets:
            each.to(group.device)
        if prepare and seen is None:
            with randomness(group, "prepare", self.seed):
                method.prepare(nets[0], self.loader(bags), table, self.seed)
        net, instances = nets[0], bags
        if self.can_stack(nets):
            net = Members(cast("Sequence[BagNetwork]", nets), recipe.background > 0)
            if (scaled := scaled_once(bags, net.scaling, group.device)) is not None:
                net.scaling, instances = nn.Identity(), scaled
        loader = self.loader(instances) if seen is None else EnsembleLoader(instances, seen, group.device)
        optimizer = recipe.make_optimizer(net, even=lr is not None)
        mean = None if averaged_from is None else AveragedModel(net)
        done, histories = first - 1, [History() for _ in nets]
        spec = self.spec(bags) | ({} if seen is None else {"members": len(nets)}) if self.checkpoint else {}
        if self.checkpoint:
            stored, found = load_checkpoint(self.checkpoint, spec, net, optimizer, table, group, mean)
            done, histories = (stored, found) if found else (done, histories)
        loop = Loop(
            method, net, loader, optimizer, table, recipe, self.seed, group,
            None if seen is None else seen.to(group.device), lr, guided,
        )  # fmt: skip
        for epoch, values in loop.epochs(done + 1, last):
            for history, of_epoch in zip(histories, values, strict=True):
                for name, value in of_epoch.items():
                    history.setdefault(name, []).append(value)
            if mean is not None and averaged_from is not None and epoch >= averaged_from:
                mean.update_parameters(net)
            if self.checkpoint:
                save_checkpoint(
                    self.checkpoint, spec, epoch, net, optimizer, table, histories, group,
                    len(nets) * len(bags), mean,
                )  # fmt: skip
            self.say(epoch, f"loss {np.mean([of_epoch['loss'] for of_epoch in values]):.3f}")
        if mean is not None:
            net.load_state_dict(mean.module.state_dict())
        if isinstance(net, Members):
            net.copy_to_networks()
        for each in nets:
            each.zero_grad()
            each.eval()
        return histories

    def finish(self, net: nn.Module, bags: Bags) -> None:
        """Store in ``net`` what prediction needs of the training bags."""
        with randomness(self.group, "finish", self.seed), torch.no_grad():
            self.method.finish(net, self.loader(bags))


def vote_table(bags: Bags, device: torch.device | str = "cpu") -> VoteTable | None:
    """Return the votes of the bags as tensors, or None."""
    if bags.votes is None:
        return None
    return VoteTable.of(bags.votes, len(bags), len(bags.annotators), bags.k, device)


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
    (history,) = training.run([net], bags, training.table(bags), 1, recipe.epochs)
    training.finish(net, bags)
    return history
