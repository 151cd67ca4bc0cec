"""What people want to know about annotators and bags: quality with intervals, open bags, whom to ask next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mipl.annotators.model import GOLD, AnnotatorModel, Estimate, VoteTable
from mipl.seeding import rng_for

Floats = NDArray[np.float64]
DRAWS = 1000  # from the posterior of an annotator's matrix, for intervals
INTERVAL = (2.5, 97.5)
ASKED = 1000  # bags, the most uncertain ones, for which the best annotator is computed


@dataclasses.dataclass(frozen=True)
class Quality:
    """One annotator; pairs are 95% intervals."""

    annotator: str
    votes: int
    accuracy: float  # probability of a right label, over the class proportions of the data
    accuracy_interval: tuple[float, float]
    random: float  # share of the votes that does not depend on the true class
    random_interval: tuple[float, float]
    confusions: tuple[
        tuple[int, int, float, tuple[float, float]], ...
    ]  # class, label, rate and interval: two


@dataclasses.dataclass(frozen=True)
class Question:
    """A bag to ask about, whom, and by how many nats the entropy of its label is expected to fall."""

    bag: int
    annotator: int
    gain: float


def votes_alone(votes: VoteTable) -> tuple[Estimate, Floats]:
    """Return the matrices and the posterior (m, k) of the classes from votes without features."""
    model = AnnotatorModel(votes)
    found = model.from_votes()
    posterior = model.votes_posterior(found)[0]
    return found, np.asarray(posterior.numpy())


def quality(names: Sequence[str], found: Estimate, proportions: Floats) -> list[Quality]:
    """Return the quality of each annotator, in the order of ``names``.

    Intervals are quantiles over draws of an annotator's matrix from its posterior, a Dirichlet distribution
    per class with the expected votes and the prior of strength κ as parameters. The share of random votes is
    Σ_l min_c T[c, l]: what all rows of the matrix have in common is independent of the true class.

    Args:
        names: of the a annotators.
        found: the estimate, of one member.
        proportions: (k,) class proportions.
    """
    counts, shared = found.counts[0].numpy(), found.shared[0].numpy()
    rows = []
    for r, name in enumerate(names):
        alpha = counts[r] + float(found.strength[0]) * shared  # (k, k)
        gamma = rng_for("annotator quality", r).standard_gamma(alpha, (DRAWS, *alpha.shape))
        drawn = gamma / gamma.sum(axis=2, keepdims=True)  # (draws, k, k)
        mean = alpha / alpha.sum(axis=1, keepdims=True)
        right = np.einsum("c,ncc->n", proportions, drawn)
        common = 1.0 - _mean_distance(drawn)
        wrong = mean - np.diag(np.diag(mean))
        worst = [np.unravel_index(i, wrong.shape) for i in np.argsort(-wrong, axis=None, kind="stable")[:2]]
        rows.append(
            Quality(
                name,
                round(float(counts[r].sum())),
                float(right.mean()),
                _interval(right),
                float(common.mean()),
                _interval(common),
                tuple((int(c), int(j), float(mean[c, j]), _interval(drawn[:, c, j])) for c, j in worst),
            )
        )
    return rows


def _mean_distance(matrices: Floats) -> Floats:
    """Return the mean total variation distance between two rows of each matrix (n, k, k)."""
    k = matrices.shape[1]
    total = sum(
        0.5 * np.abs(matrices[:, c] - matrices[:, other]).sum(axis=1) for c in range(k) for other in range(c)
    )
    return np.asarray(total / (k * (k - 1) / 2))


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


def posterior_sets(posterior: Floats, mass: float) -> NDArray[np.bool_]:
    """Return the smallest sets (m, k) of classes whose probabilities (m, k) sum to ``mass`` or more."""
    order = np.argsort(-posterior, axis=1, kind="stable")
    ordered = np.take_along_axis(posterior, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    chosen = before < mass - 1e-12
    sets = np.zeros(posterior.shape, dtype=np.bool_)
    np.put_along_axis(sets, order, chosen, axis=1)
    return sets


def entropy(p: Floats) -> Floats:
    """Return the entropy in nats over the last axis."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1))


def expected_gain(posterior: Floats, confusion: Floats) -> Floats:
    """Return the mutual information (m, a) of a bag's class and the next vote of each annotator, in nats.

    Args:
        posterior: (m, k) probabilities of the classes.
        confusion: (a, k, k) matrices.
    """
    vote = np.einsum("mc,acl->mal", posterior, confusion)
    within = np.einsum("mc,ac->ma", posterior, entropy(confusion))
    return np.asarray(np.maximum(entropy(vote) - within, 0.0))


def next_questions(
    posterior: Floats, confusion: Floats, rows: NDArray[np.int64], count: int = ASKED
) -> list[Question]:
    """Return which bag to ask about next and whom, the largest expected gain first.

    Each bag occurs once, with its best annotator among those who have not voted on it; bags with a gold label
    do not. Of large data only the ``count`` bags with the highest entropy are considered.

    Args:
        posterior: (m, k) probabilities of the classes.
        confusion: (a, k, k) matrices.
        rows: (v, 3) the votes so far: bag, annotator, label.
        count: number of bags.
    """
    if not len(confusion):
        return []
    bags = np.argsort(-entropy(posterior), kind="stable")[:count]
    gain = expected_gain(posterior[bags], confusion)
    asked = np.zeros((len(posterior), len(confusion)), dtype=np.bool_)
    asked[rows[rows[:, 1] != GOLD, 0], rows[rows[:, 1] != GOLD, 1]] = True
    asked[rows[rows[:, 1] == GOLD, 0]] = True
    gain[asked[bags]] = -1.0
    best = gain.argmax(axis=1)
    value = gain[np.arange(len(bags)), best]
    order = np.argsort(-value, kind="stable")
    return [Question(int(bags[i]), int(best[i]), float(value[i])) for i in order if value[i] >= 0]
