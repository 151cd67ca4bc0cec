"""A confusion matrix per annotator with a hierarchical prior, estimated by EM beside class probabilities.

T_r[c, l] = P(annotator r votes l | true class c). The rows of T_r have a Dirichlet prior whose mean is the
same row of a matrix that all annotators share, and whose strength κ is chosen by the likelihood of held-out
votes: an annotator with few votes has the shared matrix. The shared matrix has a Dirichlet prior in favour of
its diagonal. A vote may name several labels, "one of these": its probability is the sum over them.

All functions have a leading dimension of e members, which estimate their matrices from different bags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLD = -1  # in the column of annotators: the true label is known, and no annotator is estimated from it
SHARED_COUNT = 4.0  # pseudo-count of each diagonal entry of the shared matrix …
OTHER_COUNT = 1.0  # … and of each other row's entries together: right in four of five votes
STRENGTHS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0)  # κ, in votes per class
CHOICE_STEPS = 10  # of EM for each κ and half of the bags
IMPOSSIBLE = -1e100  # stands for the log of 0
Sum = Callable[[Iterable[Tensor]], None]  # sums tensors in place over the processes of a training


def _no_sum(tensors: Iterable[Tensor]) -> None:
    """Sum over a single process: nothing to do."""


@dataclasses.dataclass(frozen=True, eq=False)
class VoteTable:
    """The votes of a annotators on m bags with k classes, as sparse matrices.

    A cell is a pair of annotator and label, a · k in all, and after them k cells of gold labels.
    """

    bag: Tensor  # (n,) row of the bag of each vote
    cells: (
        Tensor  # (n, a · k + k) sparse, 1 where a vote names the label: several in a vote for "one of these"
    )
    by_bag: Tensor  # (m, n) sparse, 1 where a vote is on the bag
    shape: tuple[int, int, int]  # m, a, k
    rows: NDArray[np.int64]  # (v, 3) bag, annotator, label

    @classmethod
    def of(
        cls, rows: NDArray[np.int64], bags: int, annotators: int, k: int, device: torch.device | str = "cpu"
    ) -> VoteTable:
        """Return the table of rows (v, 3): bag, annotator, label."""
        values = np.unique(np.asarray(rows, dtype=np.int64).reshape(-1, 3), axis=0)
        pairs, vote = np.unique(values[:, :2], axis=0, return_inverse=True)
        annotator = np.where(values[:, 1] == GOLD, annotators, values[:, 1])
        cell = np.stack([vote.reshape(-1), annotator * k + values[:, 2]])
        n = len(pairs)
        return cls(
            torch.tensor(pairs[:, 0], device=device),
            _ones(cell, (n, (annotators + 1) * k), device),
            _ones(np.stack([pairs[:, 0], np.arange(n)]), (bags, n), device),
            (bags, annotators, k),
            values,
        )

    def select(self, bags: NDArray[np.int64]) -> VoteTable:
        """Return the votes on some bags (b,), distinct and renumbered 0 … b − 1."""
        m, a, k = self.shape
        number = np.full(m, -1)
        number[bags] = np.arange(len(bags))
        rows = self.rows[number[self.rows[:, 0]] >= 0]
        rows = np.column_stack([number[rows[:, 0]], rows[:, 1:]])
        return VoteTable.of(rows, len(bags), a, k, self.bag.device)

    @property
    def voted(self) -> Tensor:
        """(m,) whether a bag has a vote or a gold label."""
        return torch.bincount(self.bag, minlength=self.shape[0]) > 0

    def shares(self) -> Tensor:
        """Return the proportions of the labels in the votes of each bag (m, k); uniform without a vote."""
        k = self.shape[2]
        label = torch.arange(self.cells.shape[1], device=self.bag.device) % k
        count = self.by_bag @ (self.cells @ torch.nn.functional.one_hot(label, k).double())
        total = count.sum(dim=1, keepdim=True)
        return torch.where(total > 0, count / total.clamp(min=1.0), 1.0 / k)

    def log_likelihood(self, confusion: Tensor) -> Tensor:
        """Return log P(votes of a bag | class) (e, m, k) from confusion matrices (e, a, k, k).

        A bag without votes has 0 for every class; so has one whose votes are impossible under every class,
        as contradictory ones are if matrices are the identity.
        """
        m, _, k = self.shape
        vote = (self.cells @ self._by_cell(confusion)).log()  # (n, e · k)
        # −inf · 0 in a sparse product would be NaN
        total = self.by_bag @ vote.clamp(min=IMPOSSIBLE)
        total = torch.where(total <= IMPOSSIBLE, -torch.inf, total).view(m, -1, k).transpose(0, 1)
        return total.masked_fill((total == -torch.inf).all(dim=2, keepdim=True), 0.0)

    def counts(self, posterior: Tensor, confusion: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return expected votes (e, a, k, k) by true class and label.

        Args:
            posterior: (e, m, k) probabilities of the true class.
            confusion: (e, a, k, k), which divide a vote for several labels among them.
            seen: (e, m) weight of each bag; 1 if None.
        """
        m, a, k = self.shape
        weight = posterior if seen is None else posterior * seen[..., None]
        cell = self._by_cell(confusion)  # (a · k + k, e · k)
        whole = (self.cells @ cell).clamp(min=torch.finfo(cell.dtype).tiny)  # (n, e · k)
        share = weight.transpose(0, 1).reshape(m, -1)[self.bag] / whole
        mine = (cell * (self.cells.t() @ share))[: a * k]
        return mine.view(a, k, -1, k).permute(2, 0, 3, 1)  # by member, annotator, class and label

    def _by_cell(self, confusion: Tensor) -> Tensor:
        """Return P(label of a cell | class) (a · k + k, e · k); a gold label is 1 for its class alone."""
        e, a, k, _ = confusion.shape
        gold = torch.eye(k, dtype=confusion.dtype, device=confusion.device).repeat(1, e)
        return torch.cat([confusion.permute(1, 3, 0, 2).reshape(a * k, e * k), gold])


def _ones(index: NDArray[np.int64], shape: tuple[int, int], device: torch.device | str) -> Tensor:
    """Return a sparse matrix with ones at the positions (2, n)."""
    values = torch.ones(index.shape[1], dtype=torch.float64)
    return (
        torch.sparse_coo_tensor(torch.tensor(index), values, shape, check_invariants=True)
        .coalesce()
        .to(device)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Confusion matrices and what they were computed from."""

    confusion: Tensor  # (e, a, k, k) posterior means
    shared: Tensor  # (e, k, k)
    strength: Tensor  # (e,) κ
    counts: Tensor  # (e, a, k, k) expected votes


@dataclasses.dataclass(frozen=True, eq=False)
class AnnotatorModel:
    """The hierarchical model of the votes in a table; a member e learns from bags with ``seen`` (e, m)."""

    votes: VoteTable
    members: int = 1
    seen: Tensor | None = None
    add: Sum = _no_sum

    def from_votes(self, steps: int = 50) -> Estimate:
        """Return the estimate from the votes alone, by EM from the proportions of votes."""
        return self._from_votes(self.choose_strength(), steps)

    def _from_votes(self, strength: Tensor, steps: int) -> Estimate:
        posterior = self.votes.shares().expand(self.members, -1, -1)
        found = self.maximise(posterior, self.start(), strength)
        for _ in range(steps):
            log_class = self._class_proportions(posterior).log()
            posterior = (log_class[:, None] + self.votes.log_likelihood(found.confusion)).softmax(dim=2)
            found = self.maximise(posterior, found.confusion, strength)
        return found

    def choose_strength(self) -> Tensor:
        """Return the κ (e,) of ``STRENGTHS`` with the highest likelihood of held-out votes.

        Matrices from the votes on every other bag predict the votes on the rest, and the reverse. The
        likelihood of the expected votes of EM would not do: posteriors under the shared matrix make all
        annotators look alike, and κ grows without limit.
        """
        m = self.votes.shape[0]
        mine = self.votes.shares().new_ones(self.members, m) if self.seen is None else self.seen.double()
        mine = mine * self.votes.voted
        even = torch.arange(m, device=mine.device) % 2 == 0
        scores = mine.new_zeros(len(STRENGTHS), self.members)
        for number, value in enumerate(STRENGTHS):
            strength = mine.new_full((self.members,), value)
            for half in (even, ~even):
                model = dataclasses.replace(self, seen=mine * half)
                found = model._from_votes(strength, CHOICE_STEPS)
                log_class = model._class_proportions(model.votes_posterior(found)).log()
                joint = log_class[:, None] + self.votes.log_likelihood(found.confusion)
                scores[number] += (joint.logsumexp(dim=2) * mine * ~half).sum(dim=1)
        self.add([scores])
        return mine.new_tensor(STRENGTHS)[scores.argmax(dim=0)]

    def votes_posterior(self, found: Estimate) -> Tensor:
        """Return the posterior (e, m, k) of the classes from the votes, without features."""
        likelihood = self.votes.log_likelihood(found.confusion)
        posterior = likelihood.softmax(dim=2)
        for _ in range(10):  # the class proportions are those of their own posterior
            posterior = (self._class_proportions(posterior).log()[:, None] + likelihood).softmax(dim=2)
        return posterior

    def start(self) -> Tensor:
        """Return the mean of the prior (e, a, k, k), the same for all annotators."""
        _, a, k = self.votes.shape
        prior = shared_prior(k, self.votes.bag.device)
        return (prior / prior.sum(dim=1, keepdim=True)).expand(self.members, a, k, k)

    def fit(self, log_p: Tensor, confusion: Tensor, strength: Tensor, steps: int) -> Estimate:
        """Re-estimate the matrices by EM with class probabilities fixed.

        Args:
            log_p: (e, m, k) log-probabilities of the classes, without the votes.
            confusion: (e, a, k, k) to begin with.
            strength: (e,) κ.
            steps: number of E and M steps, at least 1.
        """
        for _ in range(steps):
            posterior = (log_p + self.votes.log_likelihood(confusion)).softmax(dim=2)
            found = self.maximise(posterior, confusion, strength)
            confusion = found.confusion
        return found

    def maximise(self, posterior: Tensor, confusion: Tensor, strength: Tensor) -> Estimate:
        """M step: the shared matrix and those of the annotators from posteriors (e, m, k), with κ (e,)."""
        counts = self.votes.counts(posterior, confusion, self.seen)
        self.add([counts])
        prior = shared_prior(counts.shape[-1], counts.device)
        pooled = counts.sum(dim=1) + prior  # (e, k, k)
        shared = pooled / pooled.sum(dim=2, keepdim=True)
        own = counts + strength[:, None, None, None] * shared[:, None]
        return Estimate(own / own.sum(dim=3, keepdim=True), shared, strength, counts)

    def _class_proportions(self, posterior: Tensor) -> Tensor:
        """Return smoothed class proportions (e, k) of the bags that a member learns from."""
        weight = self.votes.voted.to(posterior).expand(self.members, -1)
        weight = weight if self.seen is None else weight * self.seen
        total = (posterior * weight[..., None]).sum(dim=1)
        self.add([total])
        return (total + 1.0) / (total + 1.0).sum(dim=1, keepdim=True)


def shared_prior(k: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the pseudo-counts (k, k) of the shared matrix: most votes are right, errors are spread
    evenly."""
    prior = torch.full((k, k), OTHER_COUNT / max(k - 1, 1), dtype=torch.float64, device=device)
    return prior.fill_diagonal_(SHARED_COUNT)
