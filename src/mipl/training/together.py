"""Train several networks at once, those of ten splits or ten starts on one: the work of each step in one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.data.candidates import IntArray
from mipl.methods.base import Method
from mipl.nn.members import Members, can_be_member, layer_parameters
from mipl.nn.network import BagNetwork
from mipl.training.epochs import History, Loop
from mipl.training.flat import FlatParameters
from mipl.training.judging import judge_again, worth_starts
from mipl.training.parallel import Alone
from mipl.training.progress import Report
from mipl.training.recipes import Recipe


def can_train_together(
    method: Method, nets: Sequence[nn.Module], bags: Sequence[Bags], recipe: Recipe
) -> bool:
    """Return whether the networks have known parts, as many bags each, and a loss of their logits alone.

    And whether none is to begin from several starts, which are trained together themselves.
    """
    return (
        method.logits_alone
        and all(map(can_be_member, nets))
        and len({len(each) for each in bags}) == 1
        and len({each.weights is None for each in bags}) == 1
        and not any(worth_starts(each, recipe) for each in bags)
    )


def train_together(
    method: Method,
    nets: Sequence[BagNetwork],
    bags: Sequence[Bags],
    recipe: Recipe,
    seed: int,
    report: Report | None = None,
    *,
    last: int | None = None,
    alike: bool = True,
) -> list[History]:
    """Train every network on its own bags, in place, to epoch ``last``, and return their histories.

    Each sees the batches that it would see alone, or if they are not to be ``alike`` those of an order of its
    own; dropout is drawn for all at once. So the models are as good as single ones, and not the same.
    """
    net, loader = Members(nets, recipe.background > 0), MemberLoader(bags, alike=alike)
    table = method.table(
        torch.cat([torch.tensor(each.candidates) for each in bags]),
        None if bags[0].weights is None else torch.cat([torch.tensor(each.weights) for each in bags]),
        len(nets),
    )
    share_of = {id(p): share for share, own in recipe.shares(nets[0]) for p in own}
    stacked = zip(layer_parameters(nets[0]), net.stacked, strict=True)
    parameters = FlatParameters([(share_of[id(p)], [rows]) for p, rows in stacked], members=len(nets))
    optimizer = recipe.make_optimizer(parameters)
    histories: list[History] = [{} for _ in nets]
    loop = Loop(method, net, loader, parameters, optimizer, table, recipe, seed, Alone(), members=len(nets))
    with warnings.catch_warnings():
        # a parameter's rows lie apart, between those of others: that is meant
        warnings.filterwarnings("ignore", "grad and param do not obey the gradient layout contract")
        for epoch, values in loop.epochs(1, last or recipe.epochs):
            for history, own in zip(histories, values, strict=True):
                for name, value in own.items():
                    history.setdefault(name, []).append(value)
            if report:
                report(epoch, f"loss {np.mean([own['loss'] for own in values]):.3f}")
    net.hand_back()
    for history, each, trained in zip(histories, nets, bags, strict=True):
        each.eval()
        judge_again(history, method, each, trained, torch.device("cpu"))
    return histories


class MemberLoader:
    """The loaders of several sets of as many bags, with a leading dimension for the sets."""

    def __init__(self, bags: Sequence[Bags], *, alike: bool = True) -> None:
        self.bags = bags[0]
        self._alike = alike  # whether all take their bags in the same order
        self._loaders = [BagLoader(each) for each in bags]

    def epoch(
        self,
        batch_size: int,
        rng: np.random.Generator,
        drop: float = 0.0,
        without: IntArray | None = None,
    ) -> Iterator[BagBatch]:
        """Yield the batches of all: instances (e, n, d) padded with zeros, sizes (e, b), the rest flat."""
        count = len(self._loaders)
        draws = [copy.deepcopy(rng) for _ in range(count)] if self._alike else rng.spawn(count)
        each = [
            loader.epoch(batch_size, own, drop, without)
            for loader, own in zip(self._loaders, draws, strict=True)
        ]
        starts = [i * len(self.bags) for i in range(len(each))]
        for batches in zip(*each, strict=True):
            yield BagBatch(
                instances=nn.utils.rnn.pad_sequence([batch.instances for batch in batches], batch_first=True),
                sizes=torch.stack([batch.sizes for batch in batches]),
                index=torch.cat([batch.index + start for batch, start in zip(batches, starts, strict=True)]),
                candidates=torch.cat([_candidates(batch) for batch in batches]),
                step=batches[0].step,
            )


def _candidates(batch: BagBatch) -> Tensor:
    assert batch.candidates is not None
    return batch.candidates
