"""A training, and a second one where the first has learned nothing."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path

from torch import nn

from mipl.data.bags import Bags
from mipl.methods.base import Method
from mipl.seeding import seed_for
from mipl.training.checks import MiplNotice
from mipl.training.epochs import History
from mipl.training.judging import failed
from mipl.training.parallel import Alone
from mipl.training.progress import Report
from mipl.training.recipes import Recipe
from mipl.training.trainer import train


def train_until_learned(
    method: Method,
    build: Callable[[int], nn.Module],
    bags: Bags,
    recipe: Recipe,
    seed: int,
    *,
    group: Alone,
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> tuple[nn.Module, Recipe, History]:
    """Train what ``build`` makes of a seed; return the network, the recipe that it took, and the history.

    One that has learned nothing by the end of the warm-up, or lost it since, is trained once more, from other
    weights and with half the bags a step. If that fails too, the better of both is returned as it was then,
    with a warning.
    """
    net = build(seed)
    history = train(method, net, bags, recipe, seed, group=group, checkpoint=checkpoint, report=report)
    if not failed(history):
        return net, recipe, history
    more = dataclasses.replace(recipe, batch_size=max(1, (recipe.batch_size or len(bags)) // 2))
    other = seed_for("again", seed) % 2**32
    second = build(other)
    later = train(
        method, second, bags, more, other,
        group=group, checkpoint=None if checkpoint is None else checkpoint / "again", report=report,
    )  # fmt: skip
    both = history["advantage"] + later["advantage"]
    if both[1] > both[0]:
        net, recipe, history = second, more, later
    history = {**history, "advantage": sorted(both)}  # the last is that of the network
    if failed(history) and group.rank == 0:
        done = len(history["loss"])
        when = f"after {done} of {recipe.epochs} epochs its" if done else f"its {recipe.starts} starts'"
        warnings.warn(
            f"The model has learned nothing: {when} "
            "predictions fit the candidate sets of bags no better than those of other bags "
            f"({both[0]:.1f} and, trained again, {both[1]:.1f} standard errors above). Check that features "
            "and candidate sets belong to the same bags; then try more epochs, a lower lr or fewer bags a "
            "step.",
            MiplNotice,
            stacklevel=4,
        )
    return net, recipe, history
