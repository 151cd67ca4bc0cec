"""Temperature and vector scaling of log-probabilities, by maximum likelihood.

The same loss is used for both kinds of supervision: −log Σ_S p, where S is the candidate set of a bag, or {y}
where the true label y is known. If false candidates are drawn uniformly, the probability of S given the bag
is proportional to Σ_S p, and candidate sets lead to the same optimum as true labels, with more bags. If false
candidates are the classes that the model confuses with the true one, Σ_S p is large however the mass is
divided within S, and the optimum is over-confident.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar

from mipl.errors import DataError, SettingError, suggest

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Evidence = Bools | Floats  # (m, k): sets, or log P(what annotators said of a bag | class)
KINDS = ("temperature", "vector")
FLOOR = -700.0  # a probability of 0 has no logarithm; below this exp is 0 in any case
ENSEMBLE_RANGE = (0.25, 16.0)  # of T: beyond it, the members themselves are wrong
LIMIT = 100.0  # 1/T is between 1/100 and 100: beyond, probabilities hardly change


@dataclasses.dataclass(frozen=True)
class Scaling:
    """log p → log softmax(weight · log p + bias); with a temperature T every weight is 1/T, every bias 0."""

    kind: str
    weight: tuple[float, ...]  # k
    bias: tuple[float, ...]  # k

    @property
    def temperature(self) -> float | None:
        """T of temperature scaling: above 1 the model was over-confident, below 1 under-confident."""
        return 1.0 / self.weight[0] if self.kind == "temperature" else None

    @property
    def at_limit(self) -> bool:
        """Whether the likelihood of the bags rises up to the highest confidence allowed."""
        return self.kind == "temperature" and self.weight[0] > 0.999 * LIMIT

    def apply(self, log_p: Floats) -> Floats:
        """Return the scaled log-probabilities (m, k), rows normalised."""
        scores = np.maximum(log_p, FLOOR) * np.array(self.weight) + np.array(self.bias)
        return np.asarray(scores - log_sum(scores)[:, None])

    @classmethod
    def from_dict(cls, content: dict[str, Any], k: int) -> Scaling:
        """Return what ``dataclasses.asdict`` made, for k classes."""
        made = cls(
            str(content["kind"]),
            tuple(float(w) for w in content["weight"]),
            tuple(float(b) for b in content["bias"]),
        )
        if made.kind not in KINDS or len(made.weight) != k or len(made.bias) != k:
            raise ValueError("the scaling does not fit the classes")
        return made


def log_sum(scores: Floats) -> Floats:
    """Return log Σ exp of each row (m, k); ten times faster than SciPy's."""
    top = scores.max(axis=1)
    return np.asarray(top + np.log(np.exp(scores - top[:, None]).sum(axis=1)))


def set_loss(scores: Floats, sets: Evidence) -> Floats:
    """Return −log Σ_S p (m,), where p is the softmax of the scores (m, k) and S a row of sets (m, k).

    With log-likelihoods in place of sets it is −log Σ_c p_c P(evidence | c).
    """
    return log_sum(scores) - log_sum(with_evidence(scores, sets))


def with_evidence(scores: Floats, sets: Evidence) -> Floats:
    """Return the log of p_c [c ∈ S], or of p_c P(evidence | c), (m, k) up to a constant per row."""
    return np.where(sets, scores, -np.inf) if sets.dtype == np.bool_ else scores + sets


def fit_scaling(log_p: Floats, sets: Evidence, kind: str = "temperature") -> Scaling:
    """Fit the scaling that maximises the likelihood of sets (m, k) given log-probabilities (m, k).

    For temperature scaling, the sets may be log-likelihoods log P(S | class) instead.

    A bag with a true label has the set that contains only this label. Vector scaling has 2k parameters, too
    many for a few bags: it is shrunk towards temperature scaling by the penalty
    ½ Σ (weight·T − 1)² + ½ Σ bias² beside the sum over the bags, which many bags outweigh.
    """
    if kind not in KINDS:
        raise SettingError(f"There is no kind of scaling '{kind}'.{suggest(kind, KINDS)}")
    possible = sets if sets.dtype == np.bool_ else sets > -np.inf
    if log_p.shape != sets.shape or not len(log_p) or not possible.any(axis=1).all():
        raise DataError("Scaling needs at least one bag, and a candidate for each bag.")
    if sets.dtype == np.bool_ and sets.all():
        raise DataError("Every class is a candidate of every bag: such sets say nothing about a model.")
    z = np.maximum(log_p, FLOOR)
    k = z.shape[1]
    sharpness = _sharpness(z, sets)
    if kind == "temperature":
        return Scaling(kind, (sharpness,) * k, (0.0,) * k)
    start = np.concatenate([np.full(k, sharpness), np.zeros(k)])
    done = minimize(
        _vector_loss,
        start,
        args=(z, sets, sharpness),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-8},
    )
    return Scaling(kind, tuple(done.x[:k].tolist()), tuple(done.x[k:].tolist()))


def softest_scaling(log_p: Floats, sets: Evidence) -> Scaling:
    """Return the highest temperature that the sets (m, k) do not reject, two standard errors above the best.

    For a model that has not learned anything: a few bags with large sets hardly determine the temperature.
    """
    z = np.maximum(log_p, FLOOR)
    best = np.log(_sharpness(z, sets))
    least = float(set_loss(np.exp(best) * z, sets).sum()) + 2.0  # of a normal log-likelihood
    softer = np.linspace(-np.log(LIMIT), best, 200)
    bears = [float(set_loss(np.exp(x) * z, sets).sum()) <= least for x in softer]
    return Scaling(
        "temperature", (float(np.exp(softer[int(np.argmax(bears))])),) * z.shape[1], (0.0,) * z.shape[1]
    )


def ensemble_scaling(log_p: Floats, left_out: Bools, sets: Evidence) -> Scaling:
    """Return the temperature of the mean of an ensemble, from its out-of-fold predictions.

    A mean of members is less confident and more often right than a member, and the mean of all of them more
    so than that of the few that left out a bag. T is fitted to single members and to the mean of those that
    left a bag out; log T is extrapolated to the number of members e, linearly in 1/√e, as the best T on
    new bags was observed to decrease. The prior log T ~ N(0, log 2), which a few dozen bags outweigh, keeps
    it near 1; it is clipped to ``ENSEMBLE_RANGE``.

    Args:
        log_p: (e, m, k) log-probabilities of e members.
        left_out: (e, m) whether a member did not learn from a bag; as many members for every bag.
        sets: (m, k) candidate sets, or log-likelihoods of the votes.
    """
    e, _, k = log_p.shape
    each = int(left_out[:, 0].sum())
    rows = [np.flatnonzero(column) for column in left_out.T]
    unseen = log_p[np.array(rows).T, np.arange(log_p.shape[1])]  # (each, m, k)
    repeated = sets[np.tile(np.arange(len(sets)), each)]
    alone = _log_temperature(unseen.reshape(-1, k), repeated, 1.0 / each)
    mean = _log_temperature(np.logaddexp.reduce(unseen, axis=0) - np.log(each), sets, 1.0)
    slope = (alone - mean) / (1.0 - each**-0.5) if each > 1 else 0.0
    log_t = np.clip(mean + slope * (e**-0.5 - each**-0.5), *np.log(ENSEMBLE_RANGE))
    return Scaling("temperature", (float(np.exp(-log_t)),) * k, (0.0,) * k)


def _log_temperature(log_p: Floats, sets: Evidence, weight: float) -> float:
    """Return log T of the maximum posterior, with ``weight`` on the likelihood of every bag (m, k)."""
    z = np.maximum(log_p, FLOOR)

    def loss(log_t: float) -> float:
        fit = weight * float(set_loss(z * np.exp(-log_t), sets).sum())
        return fit + 0.5 * (log_t / math.log(2.0)) ** 2

    grid = np.linspace(math.log(ENSEMBLE_RANGE[0]), math.log(ENSEMBLE_RANGE[1]), 41)
    best = int(np.argmin([loss(t) for t in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)


def _sharpness(z: Floats, sets: Evidence) -> float:
    """Return 1/T of the maximum likelihood.

    With labels the loss is convex in 1/T; with sets it is a difference of convex functions and may have
    several minima: hence a grid first, then the minimum between the neighbours of its best point.
    """

    def loss(log_sharpness: float) -> float:
        return float(set_loss(np.exp(log_sharpness) * z, sets).mean())

    grid = np.linspace(-np.log(LIMIT), np.log(LIMIT), 93)  # 1 is among them
    losses = np.array([loss(x) for x in grid])
    best = int(losses.argmin())
    if losses[-1] <= losses[best] + 1e-12:  # flat up to the limit, where a loss of 0 is as low as one can be
        return LIMIT
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    finer = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(np.exp(finer.x if finer.fun < losses[best] else grid[best]))


def _vector_loss(values: Floats, z: Floats, sets: Bools, sharpness: float) -> tuple[float, Floats]:
    """Return the penalised loss and its gradient (2k,); the gradient of a bag's scores is p − p̃."""
    weight, bias = np.split(values, 2)
    scores = weight * z + bias
    away = (weight - sharpness) / sharpness
    value = set_loss(scores, sets).sum()
    value += 0.5 * (away**2).sum() + 0.5 * (bias**2).sum()
    inside = np.where(sets, scores, -np.inf)
    slope = np.exp(scores - log_sum(scores)[:, None]) - np.exp(inside - log_sum(inside)[:, None])  # (m, k)
    gradient = np.concatenate([(slope * z).sum(axis=0) + away / sharpness, slope.sum(axis=0) + bias])
    return float(value), gradient
