"""Class proportions that candidate sets support, for class balancing during the warm-up."""

from __future__ import annotations

import torch
from scipy.stats import chi2
from torch import Tensor


def ambiguity(candidates: Tensor) -> float:
    """Return the mean proportion of the k − 1 other classes that are candidates too, in sets (m, k)."""
    m, k = candidates.shape
    return float((candidates.sum() / max(m, 1) - 1) / max(k - 1, 1))


def class_prior(candidates: Tensor, steps: int = 100) -> Tensor:
    """Return the class proportions (k,) that maximise the likelihood of candidate sets (m, k), by EM."""
    sets = candidates.double()
    prior = torch.full((sets.shape[1],), 1.0 / sets.shape[1], dtype=torch.float64, device=sets.device)
    for _ in range(steps):
        inside = sets * prior
        prior = (inside / inside.sum(dim=1, keepdim=True)).mean(dim=0)
    return prior


def balanced_prior(candidates: Tensor) -> Tensor:
    """Return the most uniform class proportions (k,) that the candidate sets (m, k) do not reject.

    The maximum-likelihood proportions are a poor estimate where sets are large: with four of five classes in
    each, hundreds of bags leave some class without any. Between them and uniform ones, the most uniform are
    taken that a likelihood-ratio test at 5% does not reject.
    """
    rejected = float(chi2.ppf(0.95, candidates.shape[1] - 1)) / 2
    sets, likeliest = candidates.double(), class_prior(candidates)
    uniform = torch.full_like(likeliest, 1.0 / len(likeliest))

    def mixed(proportion: float) -> Tensor:
        return (1.0 - proportion) * likeliest + proportion * uniform

    def rejects(proportion: float) -> bool:
        return bool(((sets @ likeliest).log() - (sets @ mixed(proportion)).log()).sum() > rejected)

    if not rejects(1.0):
        return uniform
    low, high = 0.0, 1.0  # the likelihood is concave: rejected from one proportion on
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return mixed(low)
