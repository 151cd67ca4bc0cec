"""What a method is: its hyper-parameters, its network, its objective."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from mipl.data.batch import BagBatch, BagLoader
from mipl.data.datasets import find_dataset
from mipl.errors import SettingError
from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import Standardize, make_encoder, output_width
from mipl.nn.heads import make_head
from mipl.nn.network import BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import Registry, Settings, setting


@dataclasses.dataclass(frozen=True)
class Clock:
    """Where training stands, and what the recipe's schedules say there."""

    epoch: int  # t = 1 … T
    epochs: int  # T
    alpha: float  # share of the old weights in Eq. 15, for an update before the loss
    gamma: float  # factor on the method's own γ, from 0 to 1
    alpha_after: float = 1.0  # the same for an update after the loss
    background: float = 0.0  # weight of what the background says about the class


@dataclasses.dataclass(frozen=True)
class Method(Settings, ABC):
    """A method is a frozen dataclass: the fields are its hyper-parameters, the methods what it computes."""

    summary: ClassVar[str]  # what it does
    citation: ClassVar[str]
    advice: ClassVar[str] = ""  # when to use it
    cost: ClassVar[str] = ""  # what it takes in time and memory
    shared: ClassVar[bool] = False  # whether processes that each see a share of the bags can train it
    logits_alone: ClassVar[bool] = False  # whether a bag's loss depends on its own logits and weights alone
    schedule: ClassVar[str] = "cosine"  # of the learning rate: cosine or constant

    @property
    def trains_convolutions(self) -> bool:
        """Whether convolutions that were pretrained on images are trained with the other layers."""
        return True

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return settings of method and recipe that differ from their defaults under a recipe.

        For ``paper`` these are what the authors used on a data set (with r false positives).
        """
        return {}

    @abstractmethod
    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> nn.Module:
        """Return the untrained network for instances of this shape and k classes."""

    @abstractmethod
    def objective(self, net: Any, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return one loss per bag (b,), updating the table of weights where the method does so."""

    @abstractmethod
    def log_proba(self, net: Any, batch: BagBatch) -> Tensor:
        """Return log-probabilities (b, k)."""

    def table(self, candidates: Tensor, initial: Tensor | None, members: int = 1) -> PseudoLabels:
        """Return the table of weights for training bags, those of ``members`` networks trained as one."""
        return PseudoLabels(candidates, initial, members=members)

    # What most methods need none of, in the order in which the trainer calls it.

    def prepare(self, net: Any, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Set up ``net`` and ``table`` from the training bags, once, before the first epoch."""

    def on_epoch_start(self, net: Any, epoch: int) -> None:
        """Follow the epoch (1, 2, …), for example with a temperature."""

    def after_step(self, net: Any, batch: BagBatch, table: PseudoLabels, clock: Clock) -> None:
        """Look at a batch again after the step on it."""

    def on_epoch_end(self, net: Any, table: PseudoLabels, clock: Clock) -> None:
        """Look at the table after all bags."""

    def finish(self, net: Any, loader: BagLoader) -> None:
        """Store in ``net`` what prediction needs of the training bags, once, after the last epoch."""


@dataclasses.dataclass(frozen=True)
class AttentionMethod(Method):
    """A method on the shared network: encoder, attention over instances, head."""

    shared = True

    attention: Literal["dam", "sam", "mam"] = setting("sam", "how instances are weighed: dam, sam or mam")
    head: Literal["linear", "sigmoid"] = setting(
        "linear", "linear, or sigmoid as the earlier methods have it"
    )
    width: int = setting(
        128, "L, the width of instance features (the paper: 128; 512 on the CRC sets)", within="[1, inf)"
    )
    dropout: float = setting(0.5, "dropout in the encoder", within="[0, 1)")
    tau_start: float = setting(5.0, "MAM: temperature in the first epoch", within="(0, inf)")
    tau_decay: float = setting(0.95, "MAM: factor on the temperature from epoch to epoch", within="(0, 1]")
    tau_min: float = setting(0.1, "MAM: lowest temperature", within="(0, inf)")
    mam_order: Literal["scores", "weights"] = setting(
        "scores", "MAM: z-score the scores, or (diverges) the weights"
    )
    shared_gate: bool = setting(False, "use one matrix for both gates, as in the authors' released code")
    update: Literal["before", "after"] = setting(
        "before", "move w before the loss, or after it as the earlier methods do"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_start < self.tau_min:
            raise SettingError(f"tau_start = {self.tau_start} must be at least tau_min = {self.tau_min}.")

    @property
    def trains_convolutions(self) -> bool:
        """Not under a sigmoid head: with AdamW's steps of one size it saturates, with one answer for all."""
        return self.head != "sigmoid"

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Under ``stable``, let MAM's temperature reach its floor while the learning rate is still high.

        At the paper's 0.95 that takes 77 of 100 epochs, at 0.5 six; until then a bag is close to the mean of
        its instances, and what is learned of means has to be unlearned.
        """
        return {"tau_decay": 0.5} if recipe == "stable" else {}

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> BagNetwork:
        """Return scaling, encoder, gated score, attention and head as one network."""
        vectors = len(feature_shape) == 1
        body = encoder if encoder is not None else make_encoder(feature_shape, self.width, self.dropout)
        width = output_width(body, feature_shape) if encoder is not None else self.width
        tau = {
            "start": self.tau_start,
            "decay": self.tau_decay,
            "floor": self.tau_min,
            "order": self.mam_order,
        }
        return BagNetwork(
            scaling=Standardize(feature_shape) if vectors else nn.Identity(),
            encoder=body,
            score=GatedScore(width, k, self.shared_gate),
            attention=make_attention(self.attention, width, **tau),
            head=make_head(self.head, width, k),
        )

    def log_proba(self, net: BagNetwork, batch: BagBatch) -> Tensor:
        """Return log softmax of the logits (b, k)."""
        logits: Tensor = net(batch.instances, batch.sizes).logits
        return logits.log_softmax(dim=1)

    def on_epoch_start(self, net: BagNetwork, epoch: int) -> None:
        """Set MAM's temperature (Eq. 11)."""
        net.attention.set_epoch(epoch)

    def objective(self, net: BagNetwork, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return the method's loss of each bag (b,), with the recipe's price of a background that decides."""
        output = net(batch.instances, batch.sizes)
        loss = self.loss(net, output, batch, table, clock)
        if clock.background:
            loss = loss + clock.background * net.decided(output, batch.sizes)
        return loss

    @abstractmethod
    def loss(self, net: Any, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Return one loss per bag (b,) of what the network gave, updating the table of weights."""

    def disambiguate(
        self, output: Output, batch: BagBatch, table: PseudoLabels, clock: Clock
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run Algorithm 1, steps 8–9: return logits, candidates and the weights of the loss, each (b, k)."""
        assert batch.candidates is not None  # the trainer takes only bags with candidate sets
        return output.logits, batch.candidates, self.move_weights(output.logits, batch, table, clock)

    def move_weights(self, logits: Tensor, batch: BagBatch, table: PseudoLabels, clock: Clock) -> Tensor:
        """Move the bags' weights towards ``logits`` (b, k) by Eq. 15; return those of the loss (b, k).

        These are the moved ones, or with ``update="after"`` those of the epoch before, which the loss of the
        next epoch will see moved.
        """
        if self.update == "before":
            return table.update(batch.index, logits, clock.alpha)
        weights = table.weights[batch.index]
        table.update(batch.index, logits, clock.alpha_after)
        return weights


def paper_width(dataset: str) -> int:
    """Return L as the authors have it: 512 on the CRC sets, 128 on the others."""
    record = find_dataset(dataset)
    return 128 if record is None else record.paper_width


METHODS: Registry[Method] = Registry("method")
# How DEMIPL, ELIMIPL, MIPLMA and ProMIPL were published; each runs with the other head and order too.
EARLIER = {"head": "sigmoid", "update": "after"}
CDL_PAPER = (
    "Wei Tang, Yin-Fang Yang, Weijia Zhang, Min-Ling Zhang: "
    "Calibratable Disambiguation Loss for Multi-Instance Partial-Label Learning."
)
