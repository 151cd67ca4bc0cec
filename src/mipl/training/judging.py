"""Whether a training has learned anything, judged without true labels by bags that it has not seen.

A network that has learned puts more of its prediction on a new bag's own candidate set than on the sets of
other bags. One that has not puts as much on either, however sure it is and however well it fits its own bags.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.candidates import BoolArray, IntArray
from mipl.methods.base import Method
from mipl.seeding import rng_for
from mipl.training.recipes import Recipe

FEWEST = 100  # bags: of fewer, those held out say nothing
ENOUGH = 2.0  # standard errors above chance: one training in forty without a signal seems to have learned
CLEAR = 2.5  # times that: what perfect predictions should reach on the bags held out
MOST = 0.25  # of the bags, held out for that
LARGEST = 2**23  # numbers in all vectors, above which ten networks take too long


def needed(candidates: BoolArray) -> float:
    """Return how many bags with sets as these (m, k) must be held out to judge by.

    A set that has each class with chance n is worth (1 − n)/n to a perfect prediction, its squared distance
    from chance in standard errors.
    """
    chance = float(candidates.mean())
    return (CLEAR * ENOUGH) ** 2 * chance / max(1.0 - chance, 1e-9)


def held_out_bags(candidates: BoolArray, share: float) -> IntArray:
    """Return which of the bags with these sets (m, k) the warm-up does not see, in order.

    Where sets are large, those are more than ``share`` of them.
    """
    m = len(candidates)
    if m < FEWEST or not share:
        return np.zeros(0, dtype=np.int64)
    number = max(2, round(share * m), round(min(needed(candidates), MOST * m)))
    return np.sort(rng_for("held out", m).permutation(m)[:number])


def worth_starts(bags: Bags, recipe: Recipe) -> bool:
    """Return whether training on these vectors begins from several starts.

    It does where it would have to hold out more than its share of the bags: they can spare none, and a single
    network on the others loses classes. (Bags of images always begin so, on their features.)
    """
    assert bags.candidates is not None
    return (
        recipe.starts > 0
        and recipe.warmup_epochs > 0
        and len(bags.feature_shape) == 1
        and len(bags) >= FEWEST
        and 0 < recipe.held_out * len(bags) < needed(bags.candidates)
        and int(bags.sizes.sum()) * bags.feature_shape[0] <= LARGEST
    )


def class_prior(candidates: Tensor, steps: int = 100) -> Tensor:
    """Return the class shares (k,) under which the candidate sets (m, k) are the most likely, by EM."""
    sets = candidates.double()
    prior = torch.full((sets.shape[1],), 1.0 / sets.shape[1], dtype=torch.float64, device=sets.device)
    for _ in range(steps):
        inside = sets * prior
        prior = (inside / inside.sum(dim=1, keepdim=True)).mean(dim=0)
    return prior


def evened_prior(candidates: Tensor) -> Tensor:
    """Return the most even class shares (k,) that the candidate sets (m, k) do not object to.

    The likeliest shares are a poor estimate where sets are large: with four of five classes in each, hundreds
    of bags leave some class without any. Between them and even ones, the most even are taken that a
    likelihood-ratio test at 5% does not reject.
    """
    rejected = float(chi2.ppf(0.95, candidates.shape[1] - 1)) / 2
    sets, likeliest = candidates.double(), class_prior(candidates)
    even = torch.full_like(likeliest, 1.0 / len(likeliest))

    def mixed(share: float) -> Tensor:
        return (1.0 - share) * likeliest + share * even

    def rejects(share: float) -> bool:
        return bool(((sets @ likeliest).log() - (sets @ mixed(share)).log()).sum() > rejected)

    if not rejects(1.0):
        return even
    low, high = 0.0, 1.0  # the likelihood is concave: rejected from one share on
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return mixed(low)


def fits(p: Tensor, candidates: Tensor, all_sets: Tensor) -> Tensor:
    """Return how far predictions (b, k) fit their sets (b, k) better than any of ``all_sets`` (m, k).

    Two rows (2, b): Σ_S p minus its mean over all sets, and its variance over them.
    """
    p, sets = p.double(), all_sets.double()
    chance = sets.mean(dim=0)  # (k,)
    spread = sets.T @ sets / len(sets) - chance[:, None] * chance  # (k, k)
    return torch.stack([(p * (candidates.double() - chance)).sum(dim=1), ((p @ spread) * p).sum(dim=1)])


def advantage(total: float, variance: float) -> float:
    """Return a sum of fits in standard errors: those of predictions that have nothing to do with the sets."""
    return total / math.sqrt(max(variance, 1e-12))


def failed(history: dict[str, list[float]]) -> bool:
    """Return whether a training was judged, and found to have learned nothing."""
    return "advantage" in history and history["advantage"][-1] < ENOUGH


def predictions(method: Method, net: nn.Module, bags: Bags, device: torch.device) -> Tensor:
    """Return probabilities (m, k) of all bags, on the CPU."""
    net.eval()
    with torch.no_grad():
        batches = BagLoader(bags, device).in_order()
        return torch.cat([method.log_proba(net, batch) for batch in batches]).exp().cpu()


def judge_again(
    history: dict[str, list[float]], method: Method, net: nn.Module, bags: Bags, device: torch.device
) -> None:
    """Lower the advantage in ``history`` to that on the bags trained on, if this is smaller.

    It never is, unless the network has lost after the warm-up what it had learned: one answer for all bags,
    the end of a sigmoid head that is saturated, has none.
    """
    if "advantage" in history and not failed(history):
        sets = torch.tensor(bags.candidates)
        own = fits(predictions(method, net, bags, device), sets, sets)
        history["advantage"] = [min(*history["advantage"], advantage(*own.sum(dim=1).tolist()))]
