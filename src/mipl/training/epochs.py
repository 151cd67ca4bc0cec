"""The one training loop (Algorithm 1): what every network, alone or among others, goes through."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch
from mipl.data.candidates import IntArray
from mipl.errors import TrainingError
from mipl.methods.base import Clock, Method
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for
from mipl.training.flat import FlatParameters
from mipl.training.judging import advantage, evened_prior, fits, held_out_bags
from mipl.training.parallel import Alone, randomness
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


@dataclasses.dataclass(frozen=True)
class Loop:
    """What every epoch works with: of one network, or of several ``members`` that are trained together."""

    method: Method
    net: nn.Module
    loader: Loader
    parameters: FlatParameters
    optimizer: torch.optim.Optimizer
    table: PseudoLabels
    recipe: Recipe
    seed: int
    group: Alone
    members: int = 1

    def epochs(
        self, first: int, last: int, guided: int | None = None
    ) -> Iterator[tuple[int, list[dict[str, float]]]]:
        """Train from epoch ``first`` to ``last`` and yield after each what it gave, for each of the members.

        ``guided``: the last epoch in which classes are kept to their share of the weights, and initial ones
        count as a prior; none: the warm-up's.
        """
        recipe, table, members = self.recipe, self.table, self.members
        guided = recipe.warmup_epochs if guided is None else guided
        candidates = self.loader.bags.candidates
        assert candidates is not None
        held = held_out_bags(candidates, recipe.held_out if recipe.warmup_epochs else 0.0)
        # (members, m, k): of several processes each has all bags in its loader, and its own in the table
        sets = (
            torch.tensor(candidates, device=self.group.device)[None]
            if members == 1
            else table.candidates.view(members, -1, table.candidates.shape[1])
        )
        prior = torch.stack([evened_prior(own) for own in sets]).to(table.weights)
        evening = prior.new_tensor([[recipe.balance * ambiguity(own)] for own in sets])
        for epoch in range(first, last + 1):
            started = time.perf_counter()
            warming = epoch <= recipe.warmup_epochs
            left_out = held if warming else held[:0]
            for layers in self.optimizer.param_groups:
                layers["lr"] = layers["share"] * recipe.lr_at(epoch)
            if epoch > guided:
                table.let_go()
            # the first process draws as one alone does, the others each their own dropout
            own_draws = [self.group.rank] if self.group.rank else []
            with randomness(self.group, "epoch", self.seed, epoch, *own_draws):
                losses = self._epoch(
                    epoch, prior, evening if recipe.balance and epoch <= guided else None, left_out
                )
            trust = table.settle(self.group.add, warming=warming or not recipe.warmup_epochs)
            top = table.weights.max(dim=1).values.view(members, -1).sum(dim=1)
            shares = table.weights.view(members, -1, table.weights.shape[1]).sum(dim=1)  # (members, k)
            self.group.add([top, shares])
            mean = shares / shares.sum(dim=1, keepdim=True)
            even = (torch.special.entr(mean).sum(dim=1) / math.log(max(mean.shape[1], 2))).tolist()
            judged: list[dict[str, float]] = [{}] * members
            if len(held) and epoch == recipe.warmup_epochs:
                judged = [{"advantage": value} for value in self._judge(held, sets)]
            bags = len(self.loader.bags)
            seconds = time.perf_counter() - started
            yield (
                epoch,
                [
                    {
                        "loss": loss / (bags - len(left_out)),
                        "lr": recipe.lr_at(epoch),
                        "weight_on_top": weight / bags,
                        "class_entropy": even[member],
                        **(trust[member] if trust else {}),
                        **judged[member],
                        "seconds": seconds / members,
                    }
                    for member, (loss, weight) in enumerate(zip(losses, top.tolist(), strict=True))
                ],
            )

    def _epoch(self, epoch: int, prior: Tensor, evening: Tensor | None, without: IntArray) -> list[float]:
        """Train for an epoch on all bags but some, and return each member's sum of losses.

        ``evening`` (members, 1): how far its weights are moved towards the shares ``prior`` (members, k).
        """
        method, net, table, recipe, group = self.method, self.net, self.table, self.recipe, self.group
        clock = Clock(
            epoch,
            recipe.epochs,
            recipe.alpha_at(epoch),
            recipe.gamma_at(epoch),
            recipe.alpha_at(epoch, after=True),
            recipe.background,
        )
        members, k = prior.shape
        net.train()
        method.on_epoch_start(net, epoch)
        total = [0.0] * members
        shuffle = rng_for("shuffle", self.seed, epoch)
        size = recipe.batch_size or len(self.loader.bags)
        for batch in self.loader.epoch(size, shuffle, recipe.instance_dropout, without):
            self.parameters.zero_grad()
            loss = torch.zeros(members, device=group.device)
            if len(batch.sizes):  # of several processes one may have no bag in a batch
                with group.autocast():
                    losses = method.objective(net, batch, table, clock)  # (b,)
                torch.autograd.backward(losses.sum() / batch.step)
                loss = losses.detach().view(members, -1).sum(dim=1)
            group.add([loss, *self.parameters.gradients])
            if recipe.clip_norm is not None:
                self.parameters.clip(recipe.clip_norm)
            self.optimizer.step()
            if len(batch.sizes):
                method.after_step(net, batch, table, clock)
            if evening is not None:
                shares = table.weights[batch.index].view(members, -1, k).sum(dim=1)
                group.add([shares])
                table.even_out(shares / shares.sum(dim=1, keepdim=True), prior, evening)
            total = [before + now for before, now in zip(total, loss.tolist(), strict=True)]
            if any(value != value for value in total):
                raise TrainingError(
                    f"The loss became NaN in epoch {epoch}: lower lr, "
                    "or use recipe='stable', which clips gradients."
                )
        method.on_epoch_end(net, table, clock)
        return total

    def _judge(self, held: IntArray, sets: Tensor) -> list[float]:
        """Return each member's advantage on the bags held out, and give these the weights p̃ of others."""
        self.net.eval()
        members, _, k = sets.shape
        others = np.setdiff1d(np.arange(len(self.loader.bags)), held)
        sums = torch.zeros((members, 2), dtype=torch.float64, device=self.group.device)
        with torch.no_grad():
            for batch in self.loader.epoch(8, np.random.default_rng(0), 0.0, others):
                if not len(batch.sizes):
                    continue
                assert batch.candidates is not None
                log_p = self.method.log_proba(self.net, batch)
                self.table.update(batch.index, log_p, 0.0)
                p, own = log_p.exp().view(members, -1, k), batch.candidates.view(members, -1, k)
                sums += torch.stack([fits(*each).sum(dim=1) for each in zip(p, own, sets, strict=True)])
        self.group.add([sums])
        return [advantage(*own) for own in sums.tolist()]
