"""The training loop (Algorithm 1), the same for a single network and for the members of an ensemble."""

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
from mipl.errors import TrainingError
from mipl.methods.base import Method, StepContext
from mipl.nn.members import Members
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for
from mipl.training.balancing import ambiguity, balanced_prior
from mipl.training.distributed import ProcessGroup, randomness
from mipl.training.optimizer import Optimizer
from mipl.training.recipe import Recipe


class Loader(Protocol):
    """The source of batches."""

    bags: Bags

    def epoch(
        self, batch_size: int, rng: np.random.Generator, drop: float = 0.0, most: int | None = None
    ) -> Iterator[BagBatch]:
        """Yield every bag once, shuffled."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """The state of training: one network, or the members of an ensemble as one computation."""

    method: Method
    net: nn.Module
    loader: Loader
    optimizer: Optimizer
    table: PseudoLabels
    recipe: Recipe
    seed: int
    group: ProcessGroup
    seen: Tensor | None = None  # (members, m) 1 where a member of an ensemble learns from a bag
    lr: float | None = None  # a constant learning rate in place of the schedule
    guided: bool = False  # balance classes and use initial weights as a prior after the warm-up too

    @property
    def members(self) -> int:
        """The number of networks."""
        return 1 if self.seen is None else len(self.seen)

    def epochs(self, first: int, last: int) -> Iterator[tuple[int, list[dict[str, float]]]]:
        """Train from epoch ``first`` to ``last``; yield each epoch with the values of every member."""
        recipe, table, members = self.recipe, self.table, self.members
        # the sets that each member learns from; from the loader, since the table has one process's bags only
        every = torch.tensor(self.loader.bags.candidate_sets, device=self.group.device)
        sets = [every] if self.seen is None else [every[own] for own in self.seen.bool()]
        prior = torch.stack([balanced_prior(own) for own in sets]).to(table.weights)
        strength = prior.new_tensor([[ambiguity(own)] for own in sets])
        for epoch in range(first, last + 1):
            started = time.perf_counter()
            warming = epoch <= recipe.warmup_epochs
            guided = warming or self.guided
            lr = self.lr or (recipe.lr if self.method.schedule == "constant" else recipe.lr_at(epoch))
            if not guided:
                table.release()
            # the first process draws as a single one does, the others draw dropout masks of their own
            own_draws = [self.group.rank] if self.group.rank else []
            with randomness(self.group, "epoch", self.seed, epoch, *own_draws):
                losses = self._epoch(epoch, lr, prior, strength if guided else None)
            trust = table.estimate(self.group.add, warmup=warming or not recipe.warmup_epochs)
            top = table.weights.max(dim=1).values.view(members, -1).sum(dim=1)
            totals = table.weights.view(members, -1, table.weights.shape[1]).sum(dim=1)  # (members, k)
            self.group.add([top, totals])
            mean = totals / totals.sum(dim=1, keepdim=True)
            entropy = (torch.special.entr(mean).sum(dim=1) / math.log(max(mean.shape[1], 2))).tolist()
            seconds = time.perf_counter() - started
            yield (
                epoch,
                [
                    {
                        "loss": loss / len(sets[member]),
                        "lr": lr,
                        "weight_on_top": weight / len(self.loader.bags),
                        "class_entropy": entropy[member],
                        **(trust[member] if trust else {}),
                        "seconds": seconds / members,
                    }
                    for member, (loss, weight) in enumerate(zip(losses, top.tolist(), strict=True))
                ],
            )

    def _epoch(self, epoch: int, lr: float, prior: Tensor, strength: Tensor | None) -> list[float]:
        """Train for one epoch and return each member's sum of losses.

        Args:
            epoch: t = 1 … T.
            lr: the learning rate.
            prior: (members, k) class proportions that the weights are balanced towards.
            strength: (members, 1) exponent of the balancing; none: no balancing.
        """
        method, net, optimizer, table = self.method, self.net, self.optimizer, self.table
        recipe, group = self.recipe, self.group
        context = StepContext(
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
        for batch in self.loader.epoch(size, shuffle, recipe.instance_dropout, recipe.max_instances):
            optimizer.zero_grad()
            loss = torch.zeros(members, device=group.device)
            if len(batch.sizes):  # of several processes one may have no bag in a batch
                with group.autocast():
                    losses = method.objective(net, batch, table, context)  # (b,)
                if table.importance is not None:
                    losses = losses * table.importance[batch.index]
                if batch.mask is None:
                    torch.autograd.backward(losses, torch.full_like(losses, 1 / batch.step))
                    loss = losses.detach().sum(dim=0, keepdim=True)
                else:  # of each member, the mean over the bags that it learns from
                    bags = batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
                    torch.autograd.backward(losses, (batch.mask / bags).flatten())
                    loss = (losses.detach().view(members, -1) * batch.mask).sum(dim=1)
            group.add([loss, *optimizer.gradients])
            if recipe.clip_norm is not None:
                if isinstance(net, Members):
                    net.clip(recipe.clip_norm)
                else:
                    nn.utils.clip_grad_norm_(optimizer.parameters, recipe.clip_norm, foreach=True)
            optimizer.step(lr)
            if len(batch.sizes):
                method.after_step(net, batch, table, context)
            if strength is not None:
                weights = table.weights[batch.index].view(members, -1, k)
                totals = (weights if batch.mask is None else weights * batch.mask[..., None]).sum(dim=1)
                group.add([totals])
                size_of = totals.sum(dim=1, keepdim=True)  # 0 where a member learns from none of the bags
                table.balance_classes(
                    torch.where(size_of > 0, totals / size_of.clamp(min=1e-9), prior), prior, strength
                )
            total = [before + now for before, now in zip(total, loss.tolist(), strict=True)]
            if not all(map(math.isfinite, total)):
                raise TrainingError(recipe.divergence(epoch))
        method.on_epoch_end(net, table, context)
        return total
