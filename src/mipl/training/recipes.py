"""Recipes: how a method is trained, as data. A new recipe is a new entry at the end of this file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from mipl.errors import SettingError, suggest
from mipl.nn.encoders import FeatureEncoder, Standardize
from mipl.registry import setting
from mipl.training.flat import FlatParameters

# Part of the identity of a run. A change of defaults or of the training procedure is a new version: raise it
# by one, and runs of before count as earlier. 1 stands for every run that was recorded without a version.
RECIPE_VERSION = 2

HALF = 0.5  # of a bag's images are left out of a step on them

# Factor on the learning rate in epoch t = 1 … T.
RATE: dict[str, Callable[[int, int], float]] = {
    "cosine": lambda t, T: 0.5 * (1.0 + math.cos(math.pi * (t - 1) / T)),
    "constant": lambda t, T: 1.0,
}


def ambiguity(candidates: Tensor) -> float:
    """Return a, the share of the k − 1 other classes that are candidates too, in sets (m, k)."""
    m, k = candidates.shape
    return float((candidates.sum() / max(m, 1) - 1) / max(k - 1, 1))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Optimiser, schedules and warm-up; each part is replaceable on its own."""

    epochs: int = setting(100, "T, passes over the training bags")
    batch_size: int | None = setting(8, "bags a step; none: all of them")
    optimizer: Literal["sgd", "adamw"] = setting("adamw", "adamw, or sgd (momentum 0.9, Nesterov)")
    lr: float = setting(6e-3, "learning rate at the start")
    weight_decay: float = setting(1e-2, "weight decay")
    pretrain: int = setting(
        60, "steps in which a built-in image encoder learns from images alone; 0: none", idle=0
    )
    starts: int = setting(
        10,
        "networks whose mean warm-up gives bags their weights to begin with, on images, and on vectors where "
        "a tenth of the bags is too few to judge by; 0: none",
        idle=0,
    )
    image_lr: float = setting(
        1e-3,
        "learning rate after the warm-up, of all layers on images, to the end; 0: the convolutions stay",
        idle=0.0,
    )
    image_average: float = setting(
        0.6,
        "share of the epochs on images, the last ones, that the network is the mean of; 0: it is the last",
        idle=0.0,
    )
    image_tau: float = setting(
        1.0,
        "MAM: lowest temperature on images, so that all that matter are learned from; 0: the method's",
        idle=0.0,
    )
    instance_dropout: float = setting(0.1, "share of a bag's instances left out of a step")
    fan_in: int | None = setting(
        40,
        "inputs above which a layer of an image encoder, and the score on it, slow down; none: never",
    )
    background: float = setting(
        0.3,
        "price of a class read off the instances with little attention; 0 where absence is a class",
        idle=0.0,
    )
    rate: Literal["cosine", "constant"] = setting("cosine", "course of the learning rate: cosine or constant")
    clip_norm: float | None = setting(1.0, "largest norm of a step's gradient; none: no clipping")
    held_out: float = setting(
        0.1,
        "share of 100 and more bags that the warm-up does not see, to judge it by (more, where sets say "
        "little); 0: none",
        idle=0.0,
    )
    balance: float = setting(
        1.0,
        "how far the warm-up, and on images all training, favours classes that get less than their share of "
        "the weights, times the share of other classes in the sets; 0: not at all",
        idle=0.0,
    )
    warmup: float = setting(0.5, "share of the epochs, the first ones, with w = p̃ and γ = 0: set likelihood")

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("pretrain", 0), ("starts", 0)):
            value = getattr(self, name)
            if (name, value) != ("batch_size", None) and int(value) < least:
                raise SettingError(f"{name} = {value} must be at least {least}.")
        for name in ("lr", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingError(f"{name} = {value} must be above 0.")
        for name in ("weight_decay", "background", "balance", "image_lr", "image_tau"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} = {getattr(self, name)} must be finite and at least 0.")
        for name in ("instance_dropout", "held_out"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise SettingError(f"{name} = {getattr(self, name)} must be in [0, 1).")
        if not 0.0 <= self.image_average <= 1.0:
            raise SettingError(f"image_average = {self.image_average} must be a share in [0, 1].")
        if self.fan_in is not None and self.fan_in < 1:
            raise SettingError(f"fan_in = {self.fan_in} must be at least 1, or none.")
        if not 0.0 <= self.warmup < 1.0:
            raise SettingError(f"warmup = {self.warmup} must be a share of the epochs in [0, 1).")
        for name, known in (("optimizer", ("sgd", "adamw")), ("rate", RATE)):
            if getattr(self, name) not in known:
                raise SettingError(
                    f"There is no {name} '{getattr(self, name)}'.{suggest(getattr(self, name), known)}"
                )

    def in_effect(self, *, vectors: bool = False) -> Recipe:
        """Return the recipe with what would do nothing at its idle value, which runs do not name.

        On ``vectors``, and where images are learned from without pretraining, that is all for images only;
        where the convolutions stay as they are, what is for their training; and so, with the starts, where
        there is no warm-up.
        """
        images = self.pretrain > 0 and not vectors
        if images and self.image_lr and self.warmup_epochs:
            return self
        starts = self.starts if self.warmup_epochs else 0
        fixed = dataclasses.replace(self, image_lr=0.0, image_average=0.0, starts=starts)
        return fixed if images else dataclasses.replace(fixed, pretrain=0, image_tau=0.0)

    def on_images(self) -> Recipe:
        """Return the recipe for all layers of an image encoder that has learned from images already.

        Of a bag it sees another half in each step: that takes half the time, and is not learned by heart.
        """
        return dataclasses.replace(
            self, lr=self.image_lr, rate="constant", fan_in=None, instance_dropout=HALF
        )

    def make_optimizer(self, parameters: FlatParameters) -> torch.optim.Optimizer:
        """Return the optimiser; every group of parameters has its ``share`` of the learning rate."""
        groups = parameters.groups
        if self.optimizer == "adamw":  # fused: all parameters in one call
            # eps above the default: MAM's scores have hardly any gradient while τ is high, and steps of full
            # size along its noise can leave their gates saturated for good.
            return torch.optim.AdamW(groups, lr=self.lr, weight_decay=self.weight_decay, eps=1e-6, fused=True)
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=0.9, nesterov=True, weight_decay=self.weight_decay, fused=True
        )

    def shares(self, net: nn.Module) -> list[tuple[float, list[nn.Parameter]]]:
        """Return (share of the learning rate, parameters), in the order of the network.

        An AdamW step moves every weight by about the learning rate, and so a layer's output by that times
        the number of its inputs. Encoder layers with more than ``fan_in`` of them take steps smaller by as
        much; without that, the rate that 38 features ask for leaves an image encoder where it started. The
        score goes at the pace of the encoder's slowest layer: attention that runs ahead of the features it
        judges fixes on single odd instances. Features that come as vectors, or from images, are learned
        already, and many of them no reason to be slow.
        """
        if (
            self.fan_in is None
            or isinstance(getattr(net, "scaling", None), Standardize)
            or isinstance(getattr(net, "encoder", None), FeatureEncoder)
        ):
            return [(1.0, list(net.parameters()))]
        part = {name: set(getattr(net, name, nn.Identity()).modules()) for name in ("encoder", "score")}

        def share(module: nn.Module) -> float:
            own = module.parameters(recurse=False)
            assert self.fan_in is not None
            return min(1.0, self.fan_in / max((p[0].numel() for p in own if p.ndim > 1), default=1))

        slowest = min(map(share, part["encoder"]))
        shares: dict[float, list[nn.Parameter]] = {}
        for module in net.modules():
            pace = share(module) if module in part["encoder"] else slowest if module in part["score"] else 1.0
            shares.setdefault(pace, []).extend(module.parameters(recurse=False))
        return [(share, parameters) for share, parameters in shares.items() if parameters]

    @property
    def warmup_epochs(self) -> int:
        """The number of epochs of the warm-up, in which the loss is the likelihood of the candidate sets.

        With w = p̃ (α = 0) and γ = 0 the gradient of Σ_S −w log p is that of −log Σ_S p. Uniform weights in
        its place teach a network to give false positives their share, and once it knows the truth, to learn
        them by heart; w and γ released at once lock on to what the first steps happen to prefer.
        """
        return math.floor(self.warmup * self.epochs)

    @property
    def averaged_from(self) -> int:
        """The first epoch on images whose network counts in the mean."""
        return self.epochs - math.ceil(self.image_average * (self.epochs - self.warmup_epochs)) + 1

    def alpha_at(self, epoch: int, *, after: bool = False) -> float:
        """Return α of Eq. 15; 0 (w = p̃) during the warm-up, and the course counted from its end.

        Weights that are updated before the loss keep their values in the course's first epoch (Algorithm 1).
        Those updated ``after`` it, as the earlier methods do, are seen an epoch later: there the course is
        one epoch behind, (T − t + 1)/T.
        """
        t, T = epoch - self.warmup_epochs, self.epochs - self.warmup_epochs
        if t < 1:
            return 0.0
        if t == 1 and not after:
            return 1.0
        return (T - t + after) / T

    def gamma_at(self, epoch: int) -> float:
        """Return the factor on the method's own γ: 0 during the warm-up, then 1."""
        return float(epoch > self.warmup_epochs)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate."""
        return self.lr * RATE[self.rate](epoch, self.epochs)


RECIPES: dict[str, Recipe] = {
    "stable": Recipe(),
    # As the authors ran it: one bag a step, no clipping.
    "paper": Recipe(
        batch_size=1,
        optimizer="sgd",
        lr=0.01,
        weight_decay=1e-4,
        instance_dropout=0.0,
        pretrain=0,
        fan_in=None,
        background=0.0,
        held_out=0.0,
        balance=0.0,
        clip_norm=None,
        warmup=0.0,
    ),
}


def make_recipe(name: str, **changes: object) -> Recipe:
    """Return the named recipe with some settings changed."""
    if name not in RECIPES:
        raise SettingError(f"There is no recipe '{name}'.{suggest(name, RECIPES)}")
    return dataclasses.replace(RECIPES[name], **changes)  # type: ignore[arg-type]
