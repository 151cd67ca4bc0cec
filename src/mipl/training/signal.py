"""Whether candidate sets have anything to do with the bags, tested on out-of-fold predictions.

A model that has learned puts more probability on a new bag's own candidate set than on the sets of other
bags. One that has not puts as much on either, however confident it is and however well it fits its own bags.
No true label is read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Standard errors above chance. Without a signal, scores were found to vary by up to 1.5: members share bags.
ENOUGH = 3.0


def set_fit(p: Tensor, candidates: Tensor, all_sets: Tensor) -> Tensor:
    """Return how much better predictions fit their own candidate sets than those of other bags.

    Args:
        p: (b, k) probabilities.
        candidates: (b, k) the bags' own sets.
        all_sets: (m, k) the sets to compare with.

    Returns:
        (2, b): Σ_S p minus its mean over all sets, and its variance over all sets.
    """
    p, sets = p.double(), all_sets.double()
    chance = sets.mean(dim=0)  # (k,)
    spread = sets.T @ sets / len(sets) - chance[:, None] * chance  # (k, k)
    return torch.stack([(p * (candidates.double() - chance)).sum(dim=1), ((p @ spread) * p).sum(dim=1)])


def signal_score(p: Tensor, candidates: Tensor) -> float:
    """Return the sum of :func:`set_fit` in standard errors of predictions unrelated to the sets.

    It is about 0 ± 1 for a model that has learned nothing. Sets that are all alike give 0.

    Args:
        p: (m, k) out-of-fold probabilities.
        candidates: (m, k) candidate sets.
    """
    total, variance = set_fit(p, candidates, candidates).sum(dim=1).tolist()
    return float(total / math.sqrt(max(variance, 1e-12)))
