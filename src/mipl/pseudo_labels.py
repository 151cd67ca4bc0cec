"""The table of pseudo-label weights w, its momentum rule (Eq. 15), and the trust in candidate sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mipl.annotators import AnnotatorModel, VoteTable
from mipl.losses import candidate_log_softmax

INITIAL_TRUST = 0.9  # starting point of the estimate
PRIOR_COUNT = 10.0  # pseudo-count of correct sets of each size, so that a few bags do not discredit a size
EM_STEPS = 10  # per epoch: with a single step, networks overfit wrong sets before the estimate has converged
VOTE_STEPS = 3  # of EM for confusion matrices per epoch
DECAY = 0.05  # rate of the moving average of the class proportions
MAX_TRUST = 1.0 - 1e-6  # upper limit of the estimate, so that later evidence can still change it


class PseudoLabels:
    """Pseudo-label weights w (m, k): one row per training bag, initially uniform on its candidates.

    ``trust`` t is the probability that the true label is in the candidate set. If t < 1, a bag may belong to
    a class outside its set: p̃ is then the posterior p_c a_c / Σ p a over all classes, with a = t/|S| on S and
    (1 − t)/(k − |S|) elsewhere, the probability of the set given the class if all sets of one size are
    equally probable. The trust is estimated separately for each size of set and each ensemble member, because
    an annotator who names one label and one who names four are not equally often right.

    Args:
        candidates: (m, k) bool candidate sets. With several members, the rows of one follow those of another.
        initial: (m, k) initial weights, for example from votes; uniform on the candidates if None.
        trust: the probability t, or ``"estimate"``.
        members: the number of networks that are trained together.
    """

    def __init__(
        self,
        candidates: Tensor,
        initial: Tensor | None = None,
        trust: float | str = 1.0,
        members: int = 1,
    ) -> None:
        self.candidates = candidates  # (m, k) bool
        uniform = candidates / candidates.sum(dim=1, keepdim=True)
        self.weights = uniform if initial is None else initial.detach().to(uniform, copy=True)  # (m, k)
        self.log_prior = None if initial is None else self.weights.log()  # (m, k)
        self.importance: Tensor | None = None  # (m,) weight of each bag in the loss; none: all alike
        self.memory: dict[str, Tensor] = {}  # further state per bag or member; saved in checkpoints
        self._trust, self._members, self.estimated = trust, members, trust == "estimate"
        if trust != 1.0:
            self._init_trust(INITIAL_TRUST if self.estimated else float(trust))

    def _init_trust(self, start: float) -> None:
        """Set all trust values to ``start`` and give the classes outside the sets their weight."""
        m, k = self.candidates.shape
        size = self.candidates.sum(dim=1)  # (m,)
        self._size = size
        member = torch.arange(m, device=size.device) // max(1, m // self._members)
        self._trust_index = member * (k + 1) + size  # (m,) position in the flattened memory["trust"]
        self._log_odds = self.weights.new_full((m,), torch.nan)  # log P(S | truth in S)/P(S | not in S)
        # by member and |S|; in double precision, because 1 − trust matters when it is small
        self.memory["trust"] = self.weights.new_full((self._members, k + 1), start, dtype=torch.float64)
        outside = ~self.candidates / (k - size).clamp(min=1)[:, None]
        self.weights = start * self.weights + (1.0 - start) * outside
        self.weights /= self.weights.sum(dim=1, keepdim=True)  # if S = Y, there is no class outside

    def update(self, index: Tensor, logits: Tensor, alpha: float) -> Tensor:
        """Set w ← α w + (1 − α) p̃ (Eq. 15) for some bags.

        Until :meth:`release`, p̃ includes the class balancing of :meth:`balance_classes` and is proportional
        to the initial weights, if there are any. With α = 0 the loss is then the weighted likelihood of the
        set, Σ_S w⁰ p.

        Args:
            index: (b,) rows of the bags.
            logits: (b, k) predictions.
            alpha: α, the weight of the previous w.

        Returns:
            The new weights (b, k), detached.
        """
        weights = self.weights[index]
        if alpha < 1.0:
            with torch.no_grad():
                logits = logits.detach()
                if "lean" in self.memory:
                    adjustment = self.memory["lean"]
                    logits = logits + adjustment[index // (len(self.weights) // len(adjustment))]
                scores = logits
                if self.log_prior is not None:
                    scores = scores + self.log_prior[index]
                if "trust" in self.memory:
                    predicted = self._posterior(index, scores, logits)
                else:
                    predicted = candidate_log_softmax(scores, self.candidates[index]).exp()
                weights = alpha * weights + (1.0 - alpha) * predicted.to(weights)
            self.weights[index] = weights
        return weights

    def of_member(self, member: int, rows: Tensor) -> PseudoLabels:
        """Return a copy of one ensemble member's table for the bags at ``rows`` (b,)."""
        index = member * (len(self.weights) // self._members) + rows
        own = PseudoLabels(self.candidates[index], trust=self._trust)
        own.weights = self.weights[index].clone()
        own.log_prior = None if self.log_prior is None else self.log_prior[index].clone()
        own.importance = None if self.importance is None else self.importance[index]
        own.memory |= {name: value[member : member + 1].clone() for name, value in self.memory.items()}
        return own

    def balance_classes(self, proportions: Tensor, prior: Tensor, strength: Tensor) -> None:
        """Adjust later updates in favour of the classes whose weights are below their prior proportion.

        From here on, p̃ is proportional to p (prior / mean)^strength, where the mean is a moving average of
        the proportions over about twenty steps.

        Args:
            proportions: (members, k) class proportions of the weights in a step.
            prior: (members, k) class proportions to aim at.
            strength: (members, 1) exponent; 0 does not balance.
        """
        mean = self.memory.get("mean", prior)
        self.memory["mean"] = mean = mean + DECAY * (proportions - mean)
        self.memory["lean"] = strength * (prior.clamp(min=1e-6) / mean.clamp(min=1e-6)).log()

    def release(self) -> None:
        """End class balancing and the influence of the initial weights on later updates."""
        self.log_prior = None
        self.memory.pop("lean", None)
        self.memory.pop("mean", None)

    def _posterior(self, index: Tensor, scores: Tensor, logits: Tensor) -> Tensor:
        """Return p a / Σ p a (b, k), with p from ``scores`` inside the sets and from ``logits`` outside.

        Up to a constant factor, a is 1 inside (``scores`` include initial weights) and exp(``odds``) outside.
        """
        candidates, size = self.candidates[index], self._size[index]
        trust = self.memory["trust"].flatten()[self._trust_index[index]]
        count = size if self.log_prior is None else torch.ones_like(size)
        odds = (count / (self.candidates.shape[1] - size).clamp(min=1)).log().to(scores)
        inside = scores.masked_fill(~candidates, -torch.inf).logsumexp(dim=1)
        outside = logits.masked_fill(candidates, -torch.inf).logsumexp(dim=1) + odds  # −inf if S = Y
        self._log_odds[index] = (inside - outside).to(self._log_odds)
        odds = odds + (torch.log1p(-trust) - trust.log()).to(odds)
        return torch.where(candidates, scores, logits + odds[:, None]).softmax(dim=1)

    def estimate_trust(
        self, add: Callable[[Iterable[Tensor]], None], *, warmup: bool
    ) -> list[dict[str, float]]:
        """Re-estimate the trust after an epoch, by EM: the mean posterior mass inside the sets of each size.

        Args:
            add: sums tensors in place over the processes of a distributed training.
            warmup: whether the estimate may rise. After the warm-up it may only fall, because memorised bags
                look like correct candidate sets.

        Returns:
            For each member the values to report, ``trust`` and ``trust_SIZE``; [] if the trust is fixed.
        """
        if not self.estimated:
            return []
        trust, seen = self.memory["trust"], ~self._log_odds.isnan()
        bags, sets = self._sums(seen), self._sums(torch.ones_like(seen))
        add([bags, sets])
        estimate = trust
        for _ in range(EM_STEPS):
            posterior = torch.sigmoid(estimate.flatten()[self._trust_index].logit() + self._log_odds)
            inside = self._sums(posterior.masked_fill(~seen, 0.0))
            add([inside])
            estimate = ((inside + PRIOR_COUNT) / (bags + PRIOR_COUNT)).clamp(max=MAX_TRUST)
        self._log_odds.fill_(torch.nan)
        trust.copy_(torch.where(bags > 0, estimate if warmup else torch.minimum(estimate, trust), trust))
        sizes = sets.sum(dim=0).nonzero().flatten().tolist()
        mean = ((trust * sets).sum(dim=1) / sets.sum(dim=1)).tolist()
        return [
            {"trust": overall, **{f"trust_{size}": float(own[size]) for size in sizes}}
            for overall, own in zip(mean, trust, strict=True)
        ]

    def estimate(self, add: Callable[[Iterable[Tensor]], None], *, warmup: bool) -> list[dict[str, float]]:
        """Re-estimate the observation model after an epoch; return for each member the values to report."""
        return self.estimate_trust(add, warmup=warmup)

    def _sums(self, values: Tensor) -> Tensor:
        """Return the sums (members, k + 1) of one value per bag (m,), by member and size of set."""
        trust = self.memory["trust"]
        return torch.bincount(self._trust_index, values.to(trust), trust.numel()).view_as(trust)


class AnnotatedLabels(PseudoLabels):
    """Pseudo-label weights of bags with votes: p̃ ∝ p_c P(votes | c), over all classes.

    P(votes | c) is the product of an annotator's probabilities of the labels they gave, from confusion
    matrices that each member estimates from the bags it learns from. For a bag without votes it is the
    indicator of the candidate set. Class balancing is not used: votes determine the class proportions.

    Args:
        candidates: (members · m, k) bool: the union of a bag's votes, or the set of a bag without votes.
        votes: the votes on the m bags.
        members: the number of networks that are trained together.
        seen: (members, m) 1 where a member learns from a bag; all of them if None.
        confusion: (members, a, k, k) matrices that are known and stay fixed; estimated if None.
        add: sums tensors in place over the processes of a distributed training.
    """

    def __init__(
        self,
        candidates: Tensor,
        votes: VoteTable,
        members: int = 1,
        seen: Tensor | None = None,
        confusion: Tensor | None = None,
        add: Callable[[Iterable[Tensor]], None] = lambda tensors: None,
    ) -> None:
        super().__init__(candidates, members=members)
        self.model = AnnotatorModel(votes, members, seen, add)
        self.estimated = confusion is None
        if confusion is None:
            start = self.model.from_votes()
            confusion, self.strength = start.confusion, start.strength  # κ stays
        self._set_confusion(confusion)
        self.weights = self.log_votes.softmax(dim=1).to(self.weights)
        self._log_p = torch.full_like(self.weights, torch.nan)  # predictions of the last epoch

    @property
    def log_votes(self) -> Tensor:
        """log P(votes | class) (members · m, k)."""
        if self._computed_from is not self.memory["confusion"]:  # resumed from a checkpoint
            self._set_confusion(self.memory["confusion"])
        return self._log_votes

    def _set_confusion(self, confusion: Tensor) -> None:
        self.memory["confusion"] = self._computed_from = confusion
        unvoted = ~self.model.votes.voted.repeat(self._members)[:, None]
        log_votes = self.model.votes.log_likelihood(confusion).flatten(0, 1)
        log_votes = log_votes.masked_fill(unvoted & ~self.candidates, -torch.inf)
        self._log_votes = log_votes.to(self.weights)

    def update(self, index: Tensor, logits: Tensor, alpha: float) -> Tensor:
        """Set w ← α w + (1 − α) p̃ (Eq. 15) for the bags at ``index`` (b,) with predictions (b, k)."""
        with torch.no_grad():
            logits = logits.detach()
            self._log_p[index] = logits.log_softmax(dim=1).to(self._log_p)
            predicted = (logits + self.log_votes[index]).softmax(dim=1)
            weights = alpha * self.weights[index] + (1.0 - alpha) * predicted.to(self.weights)
            self.weights[index] = weights
        return weights

    def of_member(self, member: int, rows: Tensor) -> PseudoLabels:
        """Return a copy of one ensemble member's table for the bags at ``rows`` (b,)."""
        index = member * (len(self.weights) // self._members) + rows
        own = AnnotatedLabels(
            self.candidates[index],
            self.model.votes.select(rows.cpu().numpy()),
            confusion=self.memory["confusion"][member : member + 1].clone(),
        )
        own.weights, own.estimated = self.weights[index].clone(), self.estimated
        if self.estimated:
            own.strength = self.strength[member : member + 1]
        return own

    def balance_classes(self, proportions: Tensor, prior: Tensor, strength: Tensor) -> None:
        """Do nothing: votes determine the class proportions."""

    def estimate(self, add: Callable[[Iterable[Tensor]], None], *, warmup: bool) -> list[dict[str, float]]:
        """Re-estimate the confusion matrices by EM from the predictions of the epoch."""
        if not self.estimated:
            return []
        log_p = self._log_p.view(self._members, -1, self._log_p.shape[1])
        log_p = log_p.double().nan_to_num(nan=0.0)  # a bag that has not been seen: no prediction
        found = self.model.fit(log_p, self.memory["confusion"], self.strength, VOTE_STEPS)
        self._set_confusion(found.confusion)
        right = found.counts.diagonal(dim1=2, dim2=3).sum(dim=(1, 2))
        share = right / found.counts.sum(dim=(1, 2, 3)).clamp(min=1e-12)
        return [{"votes_right": float(each)} for each in share]
