"""Whether candidate sets have anything to do with the bags, tested on out-of-fold predictions.

A model that has learned puts more probability on a new bag's own candidate set than on the sets of other
bags. One that has not puts as much on either, however confident it is and however well it fits its own bags.
No true label is read.
"""

from __future__ import annotations

import math

from torch import Tensor

# Standard errors above chance. Without a signal, scores were found to vary by up to 1.5: members share bags.
ENOUGH = 3.0


def signal_score(p: Tensor, candidates: Tensor) -> float:
    """Return the probability of the bags' own candidate sets as a standard score of a permutation test.

    Σ_S p, summed over the bags, is compared with its mean over all permutations of the sets among the bags,
    in standard deviations over these permutations. It is about 0 ± 1 for a model that has learned nothing;
    sets that are all alike, and predictions that are all alike, give 0.

    Args:
        p: (m, k) out-of-fold probabilities.
        candidates: (m, k) candidate sets.
    """
    p, sets = p.double(), candidates.double()
    p, sets = p - p.mean(dim=0), sets - sets.mean(dim=0)
    variance = float(((p.T @ p) * (sets.T @ sets)).sum()) / max(1, len(p) - 1)
    return float((p * sets).sum()) / math.sqrt(max(variance, 1e-12))
