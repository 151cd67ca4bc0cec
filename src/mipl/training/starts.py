"""Several starts where bags say little: what they make of candidate sets, and whether it is anything."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.candidates import IntArray
from mipl.methods.base import METHODS
from mipl.nn.encoders import Standardize
from mipl.nn.network import BagNetwork
from mipl.seeding import rng_for, seed_for
from mipl.training.judging import FEWEST, advantage, fits
from mipl.training.progress import Report
from mipl.training.recipes import Recipe
from mipl.training.together import train_together


@dataclasses.dataclass(frozen=True)
class Starts:
    """What the starts found."""

    weights: NDArray[np.float32]  # (m, k) to begin with
    bags: IntArray  # (n,) those that one of them has not seen; none where there is no judging
    predictions: Tensor  # (n, k) that one's for each
    advantage: float  # of these predictions, on the bags' own sets

    def agreement(self, p: Tensor) -> float:
        """Return how far predictions (m, k) for all bags fit those of the starts better than other bags'.

        In standard errors, as :func:`mipl.training.judging.advantage`; a network that gives every bag to the
        same class has none, and what was never seen says so even of a network that has seen all bags.
        """
        return advantage(*fits(p[self.bags], self.predictions, self.predictions).sum(dim=1).tolist())


def several_starts(
    bags: Bags, recipe: Recipe, seed: int, scaling: nn.Module, report: Report | None = None
) -> Starts:
    """Take ``recipe.starts`` networks through the warm-up of SAM, each from weights and batches of its own.

    Where sets are large, which of two look-alikes a network takes for which differs from start to start; the
    mean of several is right more often than any of them, and sure where they agree. They have seen nearly the
    same bags and are no independent witnesses: the weights to begin with are the root of their mean.

    Each leaves out other bags, ``recipe.held_out`` of them all or an equal part, and is judged by these: so
    nearly all bags judge, and each still teaches nearly all starts. All scale vectors as ``scaling`` does.
    """
    m = len(bags)
    number = min(round(recipe.held_out * m), m // recipe.starts) if m >= FEWEST else 0
    parts = rng_for("left out", seed).permutation(m)[: number * recipe.starts].reshape(recipe.starts, number)
    method = METHODS["sam-cn"].make()
    nets = []
    for start in range(recipe.starts):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("start", seed, start))
            nets.append(cast(BagNetwork, method.build(bags.feature_shape, bags.k)))
        if isinstance(scaling, Standardize):
            nets[-1].scaling.load_state_dict(scaling.state_dict())

    def say(done: int, note: str = "") -> None:
        if report:
            report(0, f"{recipe.starts} starts, epoch {done} of {recipe.warmup_epochs}")

    train_together(
        method,
        nets,
        [bags[np.setdiff1d(np.arange(m), part)] for part in parts],
        dataclasses.replace(recipe, held_out=0.0),
        seed_for("starts", seed) % 2**32,
        say,
        last=recipe.warmup_epochs,
        alike=False,
    )
    table = method.table(
        torch.tensor(bags.candidates), None if bags.weights is None else torch.tensor(bags.weights)
    )
    mean, unseen = torch.zeros_like(table.weights), torch.zeros_like(table.weights)
    with torch.no_grad():
        for batch in BagLoader(bags).in_order():
            for net, part in zip(nets, parts, strict=True):
                log_p = method.log_proba(net, batch)
                mean[batch.index] += table.update(batch.index, log_p, 0.0)
                left_out = torch.isin(batch.index, torch.from_numpy(part))
                unseen[batch.index[left_out]] = log_p[left_out].exp()
    root = mean.sqrt()
    judges = parts.flatten()
    predictions = unseen[judges]
    total, variance = fits(predictions, table.candidates[judges], table.candidates).sum(dim=1).tolist()
    return Starts(
        np.asarray((root / root.sum(dim=1, keepdim=True)).numpy()),
        judges,
        predictions,
        advantage(total, variance),
    )
