"""Model selection without true labels: agreement of predictions with held-out candidate sets.

Covering rate and approximated accuracy are those of Wang, Wu, Wang, Niu, Zhang, Sugiyama: Realistic
Evaluation of Deep Partial-Label Learning Algorithms, ICLR 2025. Neither estimates the accuracy: both compare
models on the same bags. The scorers at the end are for scikit-learn's searches over bags,
``GridSearchCV(model, grid, scoring=covering_rate_scorer).fit(bags)``; with ``refit=first_within_one_error``
a search prefers the first settings of its grid unless others are better by more than one standard error.
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
    """Fraction of the m bags whose most probable label is in their candidate set.

    Of equal probabilities the lowest column is predicted. If the sets contain the true label, the covering
    rate is at least the accuracy. If, in addition, every wrong label is a candidate with the same probability
    ρ < 1 for every bag (r false positives drawn uniformly: ρ = r/(k − 1)), its expectation is
    ρ + (1 − ρ) · accuracy, so it ranks models as the accuracy does. If false candidates resemble the true
    class, it ignores the typical errors of models and may rank them differently.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        candidates: 0/1 matrix (m, k) with at least one 1 per row.
    """
    p, inside = _checked(probabilities, candidates)
    return float(inside[np.arange(len(p)), p.argmax(axis=1)].mean())


def approximated_accuracy(probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> float:
    """Mean over the bags of p̃ of the predicted label: p_ŷ / Σ_S p where ŷ is a candidate, 0 where not.

    Shapes and ties as in :func:`covering_rate`, which it never exceeds. If the sets contain the true label
    and a set is equally probable under each of its labels (as with false positives drawn uniformly), p̃ of the
    true class probabilities is the posterior of each candidate, and the expectation is the accuracy. With
    the probabilities of models it ranks them as the accuracy does if they are equally calibrated: for a model
    that is always confident it equals the covering rate.
    """
    p, inside = _checked(probabilities, candidates)
    rows, top = np.arange(len(p)), p.argmax(axis=1)
    covered = inside[rows, top]
    # Σ_S p > 0 where it includes the largest probability
    ratio = p[rows, top] / np.where(covered, (p * inside).sum(axis=1), 1.0)
    return float((ratio * covered).mean())


def set_log_likelihood(log_probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> float:
    """Mean over the bags of log Σ_S p, from log-probabilities (m, k) and 0/1 candidates (m, k).

    If the sets contain the true label and a set is equally probable under each of its labels, this is, up to
    a constant, the log-likelihood of the sets. Its expectation is maximal for the true probabilities, so it
    measures both calibration and accuracy. If false candidates resemble the true class, it does not penalise
    over-confidence.
    """
    return float(set_log_likelihoods(log_probabilities, candidates).mean())


def set_log_likelihoods(log_probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> Floats:
    """Return log Σ_S p of each bag (m,), the terms of :func:`set_log_likelihood`."""
    log_p = np.asarray(log_probabilities, dtype=np.float64)
    _, inside = _checked(np.exp(log_p), candidates)
    return np.asarray(np.logaddexp.reduce(np.where(inside, log_p, -np.inf), axis=1))


def first_within_one_error(cv_results: Mapping[str, Any]) -> int:
    """Return the index of the first settings of a grid within one standard error of the best score.

    For ``GridSearchCV(…, refit=first_within_one_error)``. The standard error is that of the mean difference
    to the best over the same folds. Put the default settings first in the grid.
    """
    folds = [value for name, value in cv_results.items() if re.fullmatch(r"split\d+_test_score", name)]
    return first_near_best(np.stack(folds, axis=1))  # (settings, folds)


def first_near_best(scores: npt.ArrayLike) -> int:
    """Return the first row of scores (settings, n) whose mean is within one standard error of the best.

    Column i has the scores on the same fold or bag, so the standard error is that of paired differences.
    """
    table = np.asarray(scores, dtype=np.float64)
    deficit = table[table.mean(axis=1).argmax()] - table  # (settings, n)
    error = deficit.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int((deficit.mean(axis=1) <= error).argmax())


def covering_rate_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`covering_rate` of a fitted classifier on bags with candidate sets; ``y`` is ignored."""
    return covering_rate(estimator.predict_proba(bags), _sets(estimator, bags))


def approximated_accuracy_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`approximated_accuracy` of a fitted classifier on bags with candidate sets; ``y`` is ignored."""
    return approximated_accuracy(estimator.predict_proba(bags), _sets(estimator, bags))


def set_log_likelihood_scorer(estimator: Any, bags: Any, y: Any = None) -> float:
    """:func:`set_log_likelihood` of a fitted classifier on bags with candidate sets; ``y`` is ignored."""
    return set_log_likelihood(estimator.predict_log_proba(bags), _sets(estimator, bags))


def _sets(estimator: Any, bags: Any) -> Bools:
    """Return the candidate sets (m, k) with the columns in the order of the classifier's classes."""
    candidates = getattr(bags, "candidates", None)
    if candidates is None:
        raise DataError("The bags have no candidate sets to score against: pass bags that have them.")
    known, given = np.asarray(estimator.classes_).tolist(), list(bags.classes)
    if set(known) != set(given):
        raise DataError(f"The model has the classes {known}, but the bags have {given}.")
    return np.asarray(candidates)[:, [given.index(name) for name in known]]


def _checked(probabilities: npt.ArrayLike, candidates: npt.ArrayLike) -> tuple[Floats, Bools]:
    """Validate probabilities (m, k) and candidates (m, k); errors name the row."""
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
