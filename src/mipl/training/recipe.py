"""Recipes: the settings of training. A new recipe is a new entry at the end of this file."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from torch import nn

from mipl.errors import SettingError, suggest
from mipl.nn.encoders import FeatureEncoder, Standardize
from mipl.nn.members import Members
from mipl.registry import Settings, setting
from mipl.training.optimizer import Optimizer

# Part of the identity of a run. A change of defaults or of the training procedure is a new version, and
# earlier runs are no longer current. 1 stands for every run that was recorded without a version.
RECIPE_VERSION = 5

# Weight decay, and the lowest temperature of MAM's attention: what few features need, and what a thousand do.
REGULARISATIONS = ((0.001, 0.0), (0.2, 1.0))
DECAY = 0.01  # of images and of single networks, where nothing is selected
FAN_IN = 40  # inputs above which AdamW's steps on a layer of an image encoder are made smaller
IMAGE_LR = 1e-3  # learning rate of all layers of an image encoder after the warm-up


@dataclasses.dataclass(frozen=True)
class Recipe(Settings):
    """All settings of training that do not belong to a method: 14."""

    epochs: int = setting(100, "T, passes over the training bags", within="[1, inf)", group="optimiser")
    batch_size: int | None = setting(
        8, "bags per step; none: all of them", within="[1, inf)", group="optimiser"
    )
    optimizer: Literal["sgd", "adamw"] = setting(
        "adamw", "adamw, or sgd (momentum 0.9, Nesterov)", group="optimiser"
    )
    lr: float = setting(
        6e-3, "initial learning rate of the cosine schedule", within="(0, inf)", group="optimiser"
    )
    weight_decay: float | None = setting(
        None,
        "weight decay; none: of 0.001 and 0.2 (with MAM's temperature at 1 or above) the one with the higher "
        "out-of-fold likelihood of the candidate sets; 0.01 for images and single networks",
        within="[0, inf)",
        group="optimiser",
    )
    clip_norm: float | None = setting(
        1.0, "maximum norm of a step's gradient; none: no clipping", within="(0, inf)", group="optimiser"
    )
    instance_dropout: float = setting(
        0.1, "proportion of a bag's instances left out of a step", within="[0, 1)", group="optimiser"
    )
    max_instances: int | None = setting(
        None,
        "instances of a bag that an epoch draws at random, where it has more; none: all",
        idle=None,
        within="[1, inf)",
        group="optimiser",
    )
    warmup: float = setting(
        0.5,
        "proportion of the epochs, the first ones, whose loss is the likelihood of the candidate sets, with "
        "class balancing where sets are large",
        within="[0, 1)",
        group="warm-up",
    )
    background: float = setting(
        0.3,
        "weight of the background-entropy regulariser, which keeps instances without attention uninformative",
        idle=0.0,
        within="[0, inf)",
        group="warm-up",
    )
    ensemble: int = setting(
        4,
        "networks whose mean predicts; twice as many are cross-fitted to calibrate it. 1: one network, plain",
        idle=1,
        within="[1, inf)",
        group="ensemble",
    )
    components: int = setting(
        192,
        "principal components that wider features are reduced to for training; 0: no reduction",
        idle=0,
        within="[0, inf)",
        group="ensemble",
    )
    false_candidates: Literal["chance", "estimate"] = setting(
        "chance",
        "model of the false candidates for the temperature: chance, or estimate, a rate per pair of classes "
        "where a test rejects chance (approximate)",
        idle="chance",
        group="ensemble",
    )
    pretrain: int = setting(
        60,
        "contrastive steps on images alone before a built-in image encoder is trained; 0: none",
        idle=0,
        within="[0, inf)",
        group="images",
    )

    def in_effect(self, *, vectors: bool = False) -> Recipe:
        """Return the recipe with settings that have no effect at their idle value, which runs do not name."""
        return dataclasses.replace(self, pretrain=0) if vectors else self

    def make_optimizer(self, net: nn.Module, *, even: bool = False) -> Optimizer:
        """Return the optimiser; ``even``: with the whole learning rate for every layer."""
        # eps above AdamW's default: MAM's scores have hardly any gradient while τ is high, and steps of full
        # size along its noise can leave their gates saturated for good.
        shares = [(1.0, list(net.parameters()))] if even else self.shares(net)
        return Optimizer(self.optimizer, shares, self.decay, eps=1e-6)

    def shares(self, net: nn.Module) -> list[tuple[float, list[nn.Parameter]]]:
        """Return (factor on the learning rate, parameters), in the order of the network.

        An AdamW step moves every weight by about the learning rate, and so a layer's output by that times
        the number of its inputs. Layers of an image encoder with more than ``FAN_IN`` inputs take steps
        smaller by as much: a learning rate suited to 38 features is too high for a convolution. The score
        has the rate of the encoder's slowest layer: attention that learns faster than its features focuses on
        single outliers. Feature vectors are learned already: all layers on them have the full rate.
        """
        if (
            self.optimizer != "adamw"
            or isinstance(net, Members)
            or isinstance(getattr(net, "scaling", None), Standardize)
            or isinstance(getattr(net, "encoder", None), FeatureEncoder)
        ):
            return [(1.0, list(net.parameters()))]
        part = {name: set(getattr(net, name, nn.Identity()).modules()) for name in ("encoder", "score")}

        def share(module: nn.Module) -> float:
            own = module.parameters(recurse=False)
            return min(1.0, FAN_IN / max((p[0].numel() for p in own if p.ndim > 1), default=1))

        slowest = min(map(share, part["encoder"]), default=1.0)
        shares: dict[float, list[nn.Parameter]] = {}
        for module in net.modules():
            pace = share(module) if module in part["encoder"] else slowest if module in part["score"] else 1.0
            shares.setdefault(pace, []).extend(module.parameters(recurse=False))
        return [(share, parameters) for share, parameters in shares.items() if parameters]

    @property
    def decay(self) -> float:
        """The weight decay of one training."""
        return DECAY if self.weight_decay is None else self.weight_decay

    @property
    def warmup_epochs(self) -> int:
        """The number of epochs of the warm-up, in which the loss is the likelihood of the candidate sets.

        With w = p̃ (α = 0) and γ = 0 the gradient of Σ_S −w log p is that of −log Σ_S p. Uniform weights
        instead would teach a network to predict false positives and then to memorise them; with w and γ of
        the later epochs from the start, training commits to what its first steps happen to prefer.
        """
        return math.floor(self.warmup * self.epochs + 1e-9)  # a third of three epochs is one

    def alpha_at(self, epoch: int, *, after: bool = False) -> float:
        """Return α of Eq. 15; 0 (w = p̃) during the warm-up, then the paper's schedule counted from its end.

        Weights that are updated before the loss keep their values in the schedule's first epoch
        (Algorithm 1). Those updated ``after`` it, as the earlier methods do, are seen an epoch later: there
        the schedule is one epoch behind, (T − t + 1)/T.
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

    def divergence(self, epoch: int) -> str:
        """Return what to say of a loss that is not finite: settings that help and are not in use already."""
        lower = min(self.lr / 10, Recipe().lr)
        clip = "" if self.clip_norm is not None else ", or set clip_norm to 1, which clips gradients"
        return (
            f"The loss became NaN or infinite in epoch {epoch} at lr = {self.lr:g}: "
            f"lower lr, for example to {lower:g}{clip}."
        )

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the cosine schedule."""
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * (epoch - 1) / self.epochs))


RECIPES: dict[str, Recipe] = {
    "stable": Recipe(),
    # As the authors ran it: one network, one bag per step, no clipping.
    "paper": Recipe(
        batch_size=1,
        optimizer="sgd",
        lr=0.01,
        weight_decay=1e-4,
        clip_norm=None,
        instance_dropout=0.0,
        warmup=0.0,
        background=0.0,
        ensemble=1,
        components=0,
        pretrain=0,
    ),
}


def make_recipe(name: str, **changes: object) -> Recipe:
    """Return the named recipe with some settings changed."""
    if not isinstance(name, str) or name not in RECIPES:
        raise SettingError(f"There is no recipe '{name}'.{suggest(name, RECIPES)}")
    return dataclasses.replace(RECIPES[name], **changes)  # type: ignore[arg-type]
