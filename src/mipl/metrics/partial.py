"""Choosing a model without true labels: how predictions agree with held-out candidate sets.

Covering rate and approximated accuracy are those of Wang, Wu, Wang, Niu, Zhang, Sugiyama: Realistic
Evaluation of Deep Partial-Label Learning Algorithms, ICLR 2025. Neither is an estimate of the accuracy: both
serve to compare models on the same bags. The scorers at the end are for scikit-learn's searches over bags,
``GridSearchCV(model, grid, scoring=covering_rate_scorer).fit(bags)``; with ``refit=first_within_one_error``
a search leaves the first settings of its grid only for what is better beyond chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError
from mipl.metrics._inputs import Floats, checked_probabilities

Bools = npt.NDArray[np.bool_]


def covering_rate(probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> float:
    """Share of the m bags whose most probable label is in their candidate set.

    ``probabilities`` is (m, k) with rows that sum to 1, ``candidates`` (m, k) is 0/1 with at least one 1 a
    row. Of equal probabilities the lowest column is predicted. Where sets hold the true label, the covering
    rate is never under the accuracy. Where, besides, every wrong label is a candidate with the same chance
    ρ < 1 whatever the bag (r false positives drawn uniformly: ρ = r/(k − 1)), its expectation is
    ρ + (1 − ρ) · accuracy: it ranks models as the accuracy does. Where false candidates look like the truth,
    it forgives just the mistakes that models make, and may rank them otherwise.
    """
    p, inside = _checked(probabilities, candidates)
    return float(inside[np.arange(len(p)), p.argmax(axis=1)].mean())


def approximated_accuracy(probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> float:
    """Mean over the bags of p̃ of the predicted label: p_ŷ / Σ_S p where ŷ is a candidate, 0 where not.

    Shapes and ties as in :func:`covering_rate`, which it never exceeds. Where sets hold the true label
    and a set is equally probable under each of its labels (as with false positives drawn uniformly), the true
    p̃ is the chance of each candidate to be the truth: with the true class probabilities its expectation is
    the accuracy. With a model's own it ranks models as the accuracy does as far as they are equally
    calibrated: one that is sure of everything is credited with its whole covering rate.
    """
    p, inside = _checked(probabilities, candidates)
    rows, top = np.arange(len(p)), p.argmax(axis=1)
    covered = inside[rows, top]
    # Σ_S p is not 0 where the largest probability is in it.
    share = p[rows, top] / np.where(covered, (p * inside).sum(axis=1), 1.0)
    return float((share * covered).mean())


def set_log_likelihood(log_probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> float:
    """Mean over the bags of log Σ_S p, from log-probabilities (m, k) and 0/1 candidates (m, k).

    Where sets hold the true label and a set is equally probable under each of its labels, this is, up to a
    constant, the log-likelihood of the sets: in expectation the true probabilities have the highest, so that
    it counts calibration as well as accuracy. Where false candidates look like the truth it has no objection
    to too much certainty.
    """
    return float(set_log_likelihoods(log_probabilities, candidates).mean())


def set_log_likelihoods(log_probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> Floats:
    """Return log Σ_S p of every bag (m,), as :func:`set_log_likelihood` takes the mean of."""
    log_p = np.asarray(log_probabilities, dtype=np.float64)
    _, inside = _checked(np.exp(log_p), candidates)
    return np.asarray(np.logaddexp.reduce(np.where(inside, log_p, -np.inf), axis=1))


def first_within_one_error(cv_results: Mapping[str, Any]) -> int:
    """Return the first settings of a grid whose score is within one standard error of the best.

    For ``GridSearchCV(…, refit=first_within_one_error)``. The standard error is that of the mean difference
    to the best over the same folds. List first what you would take without a search.
    """
    folds = [value for name, value in cv_results.items() if re.fullmatch(r"split\d+_test_score", name)]
    return first_near_best(np.stack(folds, axis=1))  # (settings, folds)


def first_near_best(scores: npt.ArrayLike) -> int:
    """Return the first row of scores (settings, n) whose mean is within one standard error of the best.

    Column i has the scores of all settings on the same fold or bag: the error is that of the differences.
    """
    table = np.asarray(scores, dtype=np.float64)
    short = table[table.mean(axis=1).argmax()] - table  # (settings, n)
    error = short.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int((short.mean(axis=1) <= error).argmax())


def covering_rate_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`covering_rate` of a fitted classifier on bags that carry candidate sets; ``y`` is not read."""
    return covering_rate(estimator.predict_proba(bags), _sets(estimator, bags))


def approximated_accuracy_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`approximated_accuracy` of a fitted classifier on bags with candidate sets; ``y`` is not read."""
    return approximated_accuracy(estimator.predict_proba(bags), _sets(estimator, bags))


def set_log_likelihood_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`set_log_likelihood` of a fitted classifier on bags with candidate sets; ``y`` is not read."""
    return set_log_likelihood(estimator.predict_log_proba(bags), _sets(estimator, bags))


def _sets(estimator: Any, bags: Any) -> Bools:
    """Return the bags' candidate sets (m, k), columns in the order of the classifier's classes."""
    candidates = getattr(bags, "candidates", None)
    if candidates is None:
        raise DataError("The bags have no candidate sets to score against: pass bags that carry them.")
    known, given = np.asarray(estimator.classes_).tolist(), list(bags.classes)
    if set(known) != set(given):
        raise DataError(f"The model knows the classes {known}, but the bags have {given}.")
    return np.asarray(candidates)[:, [given.index(name) for name in known]]


def _checked(probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> tuple[Floats, Bools]:
    """Return probabilities (m, k) in float64 and candidates (m, k), or say which row is wrong."""
    try:
        given, sets = np.asarray(probabilities, dtype=np.float64), np.asarray(candidates)
    except (TypeError, ValueError) as error:
        raise DataError(
            "Probabilities or candidates are ragged or not numbers; give two m×k tables."
        ) from error
    if sets.shape != given.shape or not np.isin(sets, (0, 1)).all():
        raise DataError(
            f"The candidates are of type {sets.dtype} and shape {sets.shape}; give 0 or 1 for each of the "
            f"probabilities, which have shape {given.shape}."
        )
    p = checked_probabilities(given)
    inside = sets.astype(np.bool_)
    if not inside.any(axis=1).all():
        row = int((~inside.any(axis=1)).argmax())
        raise DataError(f"The candidate set of row {row} is empty: every bag needs a candidate.")
    return p, inside
