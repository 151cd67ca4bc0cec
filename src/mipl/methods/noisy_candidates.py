"""Methods for noisy candidate sets, which may not contain the true label."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from mipl.annotators import VoteTable, dawid_skene
from mipl.data.bags import Bags
from mipl.data.batch import BagBatch
from mipl.errors import SettingError
from mipl.methods.base import AttentionMethod, StepContext
from mipl.nn.network import AttentionNetwork, Output
from mipl.pseudo_labels import AnnotatedLabels, PseudoLabels
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class NoisyCandidatesMethod(AttentionMethod[AttentionNetwork]):
    """Base class of attention-based methods that may assign a bag to a class outside its candidate set."""

    takes_votes: ClassVar[bool] = True

    trust: float | Literal["estimate"] = setting(
        1.0,
        "probability that the true label is a candidate, in (0, 1], or estimate",
        within="(0, 1]",
        idle=1.0,
    )
    votes: Literal["annotators", "union", "majority", "dawid-skene"] = setting(
        "annotators",
        "what votes are used for: annotators, a confusion matrix for each, learned with the network; union, "
        "the candidate sets; majority or dawid-skene, one label per bag, estimated without the features",
        idle="annotators",
    )

    def table(self, candidates: Tensor, initial: Tensor | None, members: int = 1) -> PseudoLabels:
        """Return the pseudo-label weights, over all classes if the true label may not be a candidate."""
        return PseudoLabels(candidates, initial, self.trust, members)

    def training_bags(self, bags: Bags) -> Bags:
        """Return the bags with their votes, or with the candidate sets that ``votes`` makes of them."""
        if bags.votes is None:
            return bags
        if self.votes == "annotators":
            if self.trust != 1:
                raise SettingError(
                    "trust is for candidate sets; the annotator model estimates itself how often votes are "
                    "right: leave trust out, or set votes=union."
                )
            return bags
        return without_votes(bags, self.votes)

    def disambiguate(
        self, output: Output, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the possible classes and the weights of the loss, (b, k) each."""
        logits, candidates, weights = super().disambiguate(output, batch, table, context)
        certain = self.trust == 1 and not isinstance(table, AnnotatedLabels)
        return logits, candidates if certain else torch.ones_like(candidates), weights

    def margin_classes(
        self, batch: BagBatch, weights: Tensor, table: PseudoLabels | None = None
    ) -> Tensor | None:
        """Return the classes of the margin (b, k) bool; None for the candidates of every bag.

        They are the candidates of a bag, or all other classes if most of its weight is outside its set.
        """
        assert batch.candidates is not None
        if self.trust == 1 and not isinstance(table, AnnotatedLabels):
            return None
        inside = weights.masked_fill(~batch.candidates, 0.0).sum(dim=1, keepdim=True)
        return batch.candidates ^ (2 * inside < weights.sum(dim=1, keepdim=True))


def without_votes(bags: Bags, way: str) -> Bags:
    """Return bags with candidate sets in place of their votes.

    Args:
        bags: m bags with votes.
        way: ``union``, the labels with a vote; ``majority``, the label with most votes, the first class of a
            tie; ``dawid-skene``, the label with the highest posterior. Bags without votes keep their sets.
    """
    assert bags.votes is not None
    plain = dataclasses.replace(bags, votes=None, annotators=())
    if way == "union":
        return plain
    table = VoteTable.of(bags.votes, len(bags), len(bags.annotators), bags.k)
    posterior = table.shares() if way == "majority" else dawid_skene(table)[0]
    label = np.eye(bags.k, dtype=np.bool_)[posterior.argmax(dim=1).numpy()]
    sets = np.where(table.voted.numpy()[:, None], label, bags.candidate_sets)
    return dataclasses.replace(plain, candidates=sets, weights=None, missing_truth=True)
