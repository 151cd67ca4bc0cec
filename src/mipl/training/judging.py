"""Whether a training has learned anything, judged without true labels by bags that it has not seen.

A network that knows nothing gives its best candidate likelihood by the class prior, the same for every bag.
One that has learned puts more on the sets of bags it has not seen; one that has learned bags by heart, or
taken one class for another, puts less there, however well it fits its own.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mipl.data.candidates import BoolArray, IntArray
from mipl.seeding import rng_for

FEWEST = 100  # bags: of fewer, those held out say nothing
ENOUGH = 2.0  # standard errors above chance: one training in forty without a signal seems to have learned


def held_out_bags(bags: int, share: float) -> IntArray:
    """Return which of a number of bags the warm-up does not see, in order."""
    if bags < FEWEST or not share:
        return np.zeros(0, dtype=np.int64)
    return np.sort(rng_for("held out", bags).permutation(bags)[: max(2, round(share * bags))])


def class_prior(candidates: BoolArray | Tensor, steps: int = 100) -> Tensor:
    """Return the class shares (k,) under which the candidate sets (m, k) are the most likely, by EM."""
    sets = (
        torch.tensor(candidates, dtype=torch.float64)
        if isinstance(candidates, np.ndarray)
        else candidates.double()
    )
    prior = torch.full((sets.shape[1],), 1.0 / sets.shape[1], dtype=torch.float64, device=sets.device)
    for _ in range(steps):
        inside = sets * prior
        prior = (inside / inside.sum(dim=1, keepdim=True)).mean(dim=0)
    return prior


def gains(log_p: Tensor, candidates: Tensor, prior: Tensor) -> Tensor:
    """Return log Σ_S p − log Σ_S prior for predictions (b, k) and sets (b, k): (b,)."""
    inside = log_p.double().masked_fill(~candidates, -torch.inf).logsumexp(dim=1)
    return inside - (candidates.double() @ prior.to(log_p.device)).log()


def advantage(number: float, total: float, squares: float) -> float:
    """Return the mean of gains in standard errors, from their number, sum and sum of squares."""
    mean = total / number
    variance = max(squares / number - mean * mean, 1e-12)
    return mean / math.sqrt(variance / number)


def failed(history: dict[str, list[float]]) -> bool:
    """Return whether a training was judged, and found to have learned nothing."""
    return "advantage" in history and history["advantage"][-1] < ENOUGH
