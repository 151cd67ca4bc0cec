"""The interface of a method: its hyper-parameters, its network and its loss."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal

from torch import Tensor, nn
from typing_extensions import TypeVar

from mipl.data.bags import Bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.data.datasets import find_dataset
from mipl.errors import SettingError
from mipl.nn.aggregators import AggregatorName, MakeModule, make_aggregator
from mipl.nn.attention import AttentionName, make_attention
from mipl.nn.encoders import Standardize, make_encoder, output_width
from mipl.nn.heads import make_head
from mipl.nn.network import AggregatedNetwork, AttentionNetwork, BagNetwork, Output
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import Registry, Settings, portable, setting

# The type of a method's network. Any by default, so that `Method` alone means a method with any network.
Net = TypeVar("Net", default=Any)
Attentive = TypeVar("Attentive", bound=AttentionNetwork, default=Any)


@dataclasses.dataclass(frozen=True)
class StepContext:
    """The epoch of a training step, and the values of the recipe's schedules in it."""

    epoch: int  # t = 1 … T
    epochs: int  # T
    alpha: float  # α of Eq. 15, the weight of the previous w, for an update before the loss
    gamma: float  # factor on the method's γ, from 0 to 1
    alpha_after: float = 1.0  # α for an update after the loss
    background: float = 0.0  # weight of the background-entropy regulariser


@dataclasses.dataclass(frozen=True)
class Method(Settings, ABC, Generic[Net]):
    """Base class of methods: a frozen dataclass whose fields are the hyper-parameters."""

    summary: ClassVar[str]  # how it works
    citation: ClassVar[str]
    advice: ClassVar[str] = ""  # when to use it
    cost: ClassVar[str] = ""  # time and memory
    shared: ClassVar[bool] = False  # whether several processes, each with a part of the bags, can train it
    logits_alone: ClassVar[bool] = False  # whether the loss of a bag depends only on its logits and weights
    takes_votes: ClassVar[bool] = False  # whether it uses who voted for what, and not candidate sets alone
    schedule: ClassVar[str] = "cosine"  # of the learning rate: cosine or constant

    @property
    def trains_convolutions(self) -> bool:
        """Whether pretrained convolutions are fine-tuned with the other layers."""
        return True

    @property
    def ensembled(self) -> bool:
        """Whether the default is an ensemble: where its members can be trained as one computation."""
        return self.logits_alone

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return the settings of method and recipe that differ from their defaults under a recipe.

        Under ``paper`` they are the authors' settings for a data set (with r false positives).
        """
        return {}

    @abstractmethod
    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> nn.Module:
        """Return the untrained network for instances of a shape and k classes."""

    @abstractmethod
    def objective(self, net: Net, batch: BagBatch, table: PseudoLabels, context: StepContext) -> Tensor:
        """Return one loss per bag (b,), and update the pseudo-label weights if the method does so."""

    @abstractmethod
    def log_proba(self, net: Net, batch: BagBatch) -> Tensor:
        """Return log-probabilities (b, k)."""

    def training_bags(self, bags: Bags) -> Bags:
        """Return the bags as the method learns from them; refuse votes that it cannot use."""
        if bags.votes is not None and not self.takes_votes:
            raise SettingError(
                "This method learns from candidate sets and cannot use votes: choose sam-cn, another CDL or "
                "an MDL method, or make candidate sets of the votes with 'mipl data votes'."
            )
        return bags

    def table(self, candidates: Tensor, initial: Tensor | None, members: int = 1) -> PseudoLabels:
        """Return the pseudo-label weights of the training bags, for ``members`` networks trained together."""
        return PseudoLabels(candidates, initial, members=members)

    # Optional hooks, in the order in which the trainer calls them.

    def prepare(self, net: Net, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Initialise ``net`` and ``table`` from the training bags, once, before the first epoch."""

    def on_epoch_start(self, net: Net, epoch: int) -> None:
        """Update schedules, such as a temperature, to the epoch (1, 2, …)."""

    def after_step(self, net: Net, batch: BagBatch, table: PseudoLabels, context: StepContext) -> None:
        """Update state after the optimiser's step on a batch."""

    def on_epoch_end(self, net: Net, table: PseudoLabels, context: StepContext) -> None:
        """Update state after all batches of an epoch."""

    def finish(self, net: Net, loader: BagLoader) -> None:
        """Store in ``net`` what prediction needs of the training bags, once, after the last epoch."""


@dataclasses.dataclass(frozen=True)
class AttentionMethod(Method[Attentive]):
    """Base class of methods on the attention network: encoder, attention over instances, head."""

    shared = True
    removed: ClassVar[dict[str, Any]] = {"shared_gate": False}  # one matrix for both gates
    needs_attention: ClassVar[bool] = False  # whether the loss or network refers to attention weights

    attention: AttentionName = setting("sam", "attention over instances: dam, sam, mam, abmil or abmil-gated")
    aggregator: AggregatorName | MakeModule = setting(
        "attention",
        "features of a bag -> one vector: attention, transmil or dsmil; in Python also a class or function "
        "that makes a module from L",
        idle="attention",
    )
    head: Literal["linear", "sigmoid"] = setting(
        "linear", "classifier of bag features: linear, or sigmoid as in the methods before CDL"
    )
    width: int = setting(
        128, "L, the width of instance features (the paper: 128; 512 on the CRC sets)", within="[1, inf)"
    )
    dropout: float = setting(0.5, "dropout rate of the encoder", within="[0, 1)")
    tau_start: float = setting(5.0, "MAM: temperature in the first epoch", within="(0, inf)")
    tau_decay: float = setting(0.95, "MAM: factor on the temperature per epoch", within="(0, 1]")
    tau_min: float = setting(0.1, "MAM: lowest temperature", within="(0, inf)")
    mam_order: Literal["scores", "weights"] = setting(
        "scores", "MAM: z-score the scores, or the weights (diverges)"
    )
    update: Literal["before", "after"] = setting(
        "before", "update w before the loss, or after it as in the methods before CDL"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_start < self.tau_min:
            raise SettingError(f"tau_start = {self.tau_start} must be at least tau_min = {self.tau_min}.")
        if self.needs_attention and self.aggregator != "attention":
            raise SettingError(
                f"aggregator = {portable(self.aggregator)!r} must be 'attention': {type(self).__name__} "
                "refers to the attention of instances."
            )

    @property
    def ensembled(self) -> bool:
        """Whether `nn.members` has the attention, so that members are trained as one computation."""
        return self.logits_alone and self.aggregator == "attention" and not self.attention.startswith("abmil")

    @property
    def trains_convolutions(self) -> bool:
        """Whether the head is linear; a sigmoid head saturates under AdamW and predicts one class."""
        return self.head != "sigmoid"

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return, under ``stable``, a faster decay of MAM's temperature.

        With the paper's 0.95 it reaches its minimum after 77 of 100 epochs, with 0.5 after six, while the
        learning rate is still high. Until then attention is almost uniform, and a network that has fitted the
        means of bags has to be trained again.
        """
        return {"tau_decay": 0.5} if recipe == "stable" else {}

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> Any:
        """Return a network of scaling, encoder, score, attention and head, or with another aggregator."""
        vectors, width = len(feature_shape) == 1, self.width
        if encoder is None:
            encoder = make_encoder(feature_shape, width, self.dropout)
        else:
            width = output_width(encoder, feature_shape)
        scaling = Standardize(feature_shape) if vectors else nn.Identity()
        if self.aggregator != "attention":
            aggregator = make_aggregator(self.aggregator, width, k)
            return AggregatedNetwork(scaling, encoder, aggregator, aggregator.make_head(self.head, k))
        tau = {
            "start": self.tau_start,
            "decay": self.tau_decay,
            "floor": self.tau_min,
            "order": self.mam_order,
        }
        attention = make_attention(self.attention, width, **tau)
        return BagNetwork(
            scaling=scaling,
            encoder=encoder,
            score=attention.make_score(width, k),
            attention=attention,
            head=make_head(self.head, width, k),
        )

    def log_proba(self, net: Attentive, batch: BagBatch) -> Tensor:
        """Return log-probabilities (b, k), the log softmax of the logits."""
        return net(batch.instances, batch.sizes).logits.log_softmax(dim=1)

    def on_epoch_start(self, net: Attentive, epoch: int) -> None:
        """Set MAM's temperature (Eq. 11)."""
        net.attention.set_epoch(epoch)

    def objective(self, net: Attentive, batch: BagBatch, table: PseudoLabels, context: StepContext) -> Tensor:
        """Return the loss of each bag (b,), including the background-entropy regulariser of the recipe."""
        output = net(batch.instances, batch.sizes)
        loss = self.loss(net, output, batch, table, context)
        if context.background:
            loss = loss + context.background * net.background_kl(output, batch.sizes)
        return loss

    @abstractmethod
    def loss(
        self, net: Attentive, output: Output, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return one loss per bag (b,) for an output of the network, and update the pseudo-label weights."""

    def disambiguate(
        self, output: Output, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run steps 8–9 of Algorithm 1; return logits, candidates and weights of the loss, (b, k) each."""
        assert batch.candidates is not None  # the trainer accepts only bags with candidate sets
        return output.logits, batch.candidates, self.update_weights(output.logits, batch, table, context)

    def update_weights(
        self, logits: Tensor, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Update the weights of the bags with ``logits`` (b, k) by Eq. 15; return those of the loss (b, k).

        These are the updated weights, or with ``update="after"`` the weights of the previous epoch.
        """
        if self.update == "before":
            return table.update(batch.index, logits, context.alpha)
        weights = table.weights[batch.index]
        table.update(batch.index, logits, context.alpha_after)
        return weights


def paper_width(dataset: str) -> int:
    """Return L as the authors have it: 512 on the CRC sets, 128 on the others."""
    record = find_dataset(dataset)
    return 128 if record is None else record.paper_width


METHODS: Registry[Method] = Registry("method")
# The published settings of DEMIPL, ELIMIPL, MIPLMA and ProMIPL; the linear head and the other order work too.
EARLIER = {"head": "sigmoid", "update": "after"}
CDL_PAPER = (
    "Wei Tang, Yin-Fang Yang, Weijia Zhang, Min-Ling Zhang: "
    "Calibratable Disambiguation Loss for Multi-Instance Partial-Label Learning."
)
