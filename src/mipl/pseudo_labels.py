"""The table of pseudo-label weights w, its momentum rule (Eq. 15), and how far candidate sets are trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mipl.losses import candidate_log_softmax

START = 0.9  # trust before anything is known: an estimate moves from here
SOUND = 10.0  # sound sets of every size, as if seen before: a few bags discredit none
STEPS = 10  # of EM after an epoch: with one only, networks learn wrong sets before the estimate is there
FADED = 0.05  # what a step adds to the mean of the weights, and takes off what it was
HIGHEST = 1.0 - 1e-6  # of estimates, so that later evidence still counts


class PseudoLabels:
    """w (m, k): one row a training bag, uniform on its candidates at the start; owned by nobody else.

    ``trust`` t is the probability that the true label is in the candidate set, a number or ``"estimate"``.
    Below 1 a bag may leave its set: p̃ is then the posterior p_c a_c / Σ p a over all classes, with
    a = t/|S| on S and (1 − t)/(k − |S|) elsewhere, the probability of the set given the class where sets of
    one size are equally probable. The estimate is one for every size of set (and each of the ``members``, the
    networks trained as one, whose rows follow each other): an annotator who names one label and one who names
    four are not equally often right.
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
        self.memory: dict[str, Tensor] = {}  # what a method remembers of the bags; kept in checkpoints
        self._trust, self._members, self.estimated = trust, members, trust == "estimate"
        if trust != 1.0:
            m, k = candidates.shape
            size = candidates.sum(dim=1)  # (m,)
            self._size = size
            member = torch.arange(m, device=size.device) // max(1, m // members)
            self._cell = member * (k + 1) + size  # (m,) the place of a bag's trust
            self._evidence = self.weights.new_full((m,), torch.nan)  # log P(S | truth in S) / P(S | not)
            start = START if self.estimated else float(trust)
            # by member and |S|; in double precision, since 1 − trust matters where it is small
            self.memory["trust"] = self.weights.new_full((members, k + 1), start, dtype=torch.float64)
            outside = ~candidates / (k - size).clamp(min=1)[:, None]
            self.weights = start * self.weights + (1.0 - start) * outside
            self.weights /= self.weights.sum(dim=1, keepdim=True)  # S = Y has nothing outside

    def update(self, index: Tensor, logits: Tensor, alpha: float) -> Tensor:
        """Set w ← α w + (1 − α) p̃ (Eq. 15) for the bags at ``index`` (b,) and return it (b, k), detached.

        Until :meth:`let_go`, p̃ leans as :meth:`even_out` has it and is in proportion to the initial weights,
        where such were given (for example from votes): with α = 0 the loss is then the likelihood of the set,
        Σ_S w⁰ p, so weighted.
        """
        weights = self.weights[index]
        if alpha < 1.0:
            with torch.no_grad():
                logits = logits.detach()
                if "lean" in self.memory:
                    lean = self.memory["lean"]
                    logits = logits + lean[index // (len(self.weights) // len(lean))]
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
        """Return the table of one member of an ensemble for the bags at ``rows`` (b,), as it stands now."""
        index = member * (len(self.weights) // self._members) + rows
        own = PseudoLabels(self.candidates[index], trust=self._trust)
        own.weights = self.weights[index].clone()
        own.log_prior = None if self.log_prior is None else self.log_prior[index].clone()
        own.memory |= {name: value[member : member + 1].clone() for name, value in self.memory.items()}
        return own

    def even_out(self, shares: Tensor, prior: Tensor, strength: Tensor) -> None:
        """Lean, from here on, towards the classes that get less of the weights than they should.

        ``shares`` (members, k): of the weights in a step; ``prior`` (members, k): those to be had;
        ``strength`` (members, 1). With the mean of some twenty steps, p̃ is in proportion to
        p (prior / mean)^strength.
        """
        mean = self.memory.get("mean", prior)
        self.memory["mean"] = mean = mean + FADED * (shares - mean)
        self.memory["lean"] = strength * (prior.clamp(min=1e-6) / mean.clamp(min=1e-6)).log()

    def let_go(self) -> None:
        """Take predictions as they are, from here on."""
        self.log_prior = None
        self.memory.pop("lean", None)
        self.memory.pop("mean", None)

    def _posterior(self, index: Tensor, scores: Tensor, logits: Tensor) -> Tensor:
        """Return p a / Σ p a (b, k), ``scores`` counting inside the sets and ``logits`` outside.

        Up to a factor, a is 1 inside (with votes w⁰, which scores have) and ``odds`` outside.
        """
        inside, size = self.candidates[index], self._size[index]
        trust = self.memory["trust"].flatten()[self._cell[index]]
        spread = size if self.log_prior is None else torch.ones_like(size)
        odds = (spread / (self.candidates.shape[1] - size).clamp(min=1)).log().to(scores)
        within = scores.masked_fill(~inside, -torch.inf).logsumexp(dim=1)
        beyond = logits.masked_fill(inside, -torch.inf).logsumexp(dim=1) + odds  # −inf where S = Y
        self._evidence[index] = (within - beyond).to(self._evidence)
        odds = odds + (torch.log1p(-trust) - trust.log()).to(odds)
        return torch.where(inside, scores, logits + odds[:, None]).softmax(dim=1)

    def settle(self, add: Callable[[Iterable[Tensor]], None], *, warming: bool) -> list[dict[str, float]]:
        """Estimate the trust anew after an epoch, and return for each member what there is to report.

        By EM: the mean posterior mass inside sets of a size. In the warm-up (``warming``) it goes either way.
        Afterwards bags are known by heart, which looks like trust: it may fall, and no more rise. ``add``
        sums over the processes of a training.
        """
        if not self.estimated:
            return []
        trust, seen = self.memory["trust"], ~self._evidence.isnan()
        bags, sets = self._sums(seen), self._sums(torch.ones_like(seen))
        add([bags, sets])
        found = trust
        for _ in range(STEPS):
            kept = torch.sigmoid(found.flatten()[self._cell].logit() + self._evidence)
            inside = self._sums(kept.masked_fill(~seen, 0.0))
            add([inside])
            found = ((inside + SOUND) / (bags + SOUND)).clamp(max=HIGHEST)
        self._evidence.fill_(torch.nan)
        trust.copy_(torch.where(bags > 0, found if warming else torch.minimum(found, trust), trust))
        sizes = sets.sum(dim=0).nonzero().flatten().tolist()
        mean = ((trust * sets).sum(dim=1) / sets.sum(dim=1)).tolist()
        return [
            {"trust": overall, **{f"trust_{size}": float(own[size]) for size in sizes}}
            for overall, own in zip(mean, trust, strict=True)
        ]

    def _sums(self, values: Tensor) -> Tensor:
        """Return the sums of one value a bag (m,), by member and size of set."""
        trust = self.memory["trust"]
        return torch.bincount(self._cell, values.to(trust), trust.numel()).view_as(trust)
