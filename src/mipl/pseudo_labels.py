"""The table of pseudo-label weights w and its momentum rule (Eq. 15)."""

from __future__ import annotations

import torch
from torch import Tensor

from mipl.losses import candidate_log_softmax


class PseudoLabels:
    """w (m, k): one row a training bag, uniform on its candidates at the start; owned by nobody else."""

    def __init__(self, candidates: Tensor, initial: Tensor | None = None) -> None:
        self.candidates = candidates  # (m, k) bool
        uniform = candidates / candidates.sum(dim=1, keepdim=True)
        self.weights = uniform if initial is None else initial.detach().to(uniform, copy=True)  # (m, k)
        self.log_prior = None if initial is None else self.weights.log()  # (m, k)
        self.memory: dict[str, Tensor] = {}  # what a method remembers of the bags; kept in checkpoints

    def update(self, index: Tensor, logits: Tensor, alpha: float, *, prior: bool = False) -> Tensor:
        """Set w ← α w + (1 − α) p̃ (Eq. 15) for the bags at ``index`` (b,) and return it (b, k), detached.

        ``prior``: p̃ in proportion to the prediction times the initial weights, where these were given (for
        example from votes). With α = 0 the loss is then the likelihood of the set, Σ_S w⁰ p, so weighted.
        """
        weights = self.weights[index]
        if alpha < 1.0:
            with torch.no_grad():
                scores = logits.detach()
                if prior and self.log_prior is not None:
                    scores = scores + self.log_prior[index]
                predicted = candidate_log_softmax(scores, self.candidates[index]).exp()
                weights = alpha * weights + (1.0 - alpha) * predicted.to(weights)
            self.weights[index] = weights
        return weights
