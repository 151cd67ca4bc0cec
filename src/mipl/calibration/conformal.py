"""Conformal prediction sets, from true labels or from candidate sets alone.

The score of a label is s = 1 − p. A label is in the prediction set of a new bag when its conformal p-value,
the fraction of calibration scores (its own included) that are not below its own, is greater than
α = 1 − coverage. Calibration bags and new bags must be exchangeable, and the model must not have seen the
calibration bags.

With true labels, the true label is in the set with probability at least 1 − α (marginal) and, if scores are
compared within each label, also among the bags of every single class (class-conditional, Mondrian). The
probability is over calibration and new bags together; for a given calibration set it varies around it.

Marginal coverage does not hold among the bags that are sent to review: these are the doubtful ones, and their
sets contain the true label less often. Given a threshold on the confidence that was chosen without the
calibration bags, scores are therefore compared within each decision (Mondrian): with those of the reported
bags for a reported bag, with those of the reviewed ones for a reviewed bag. Within a decision the bags are
exchangeable, so both groups have a coverage of at least 1 − α. A group with fewer than ⌈1/α⌉ − 1 calibration
bags rules out no class, and gets all of them.

With candidate sets, one score per bag replaces that of the unknown true label y ∈ S. Let C be the
prediction set.

- ``worst``, max_S s. It is never below the score of the true label, so every p-value is at least as large as
  with labels, and C contains the set that labels would give: P(y ∈ C) ≥ 1 − α, and even P(S ⊆ C) ≥ 1 − α.
  The cost: false candidates are rarely plausible, and C must be large enough to contain them too.
  Class-conditional: the scores of class c are those of all bags with c ∈ S. The guarantee holds if a bag with
  the false candidate c does not tend to look more like c than a bag of c does (its score for c is
  stochastically not smaller): replacing such scores by those of bags of c could then only lower a p-value,
  and after the replacement the bag and the calibration bags are exchangeable.
- ``drawn``: a candidate drawn with probabilities p̃ = p / Σ_S p. If p̃ is the distribution of the true label
  given bag and set, (bag, drawn) is distributed as (bag, true), and the guarantee is the one with labels. If
  not, the coverage is below 1 − α by at most the mean total variation distance between the two
  distributions (class-conditional: no such bound).
- ``best``, min_S s. Exchangeable with the score of the best candidate of a new bag: P(S ∩ C ≠ ∅) ≥ 1 − α,
  that is, some candidate is in the set. For the true label it only gives 1 − α − β, where β is the
  probability that the best candidate is not the true label: y ∉ C implies that the best candidate is outside
  C too, or is not y.

All three need the true label among the candidates, and equal the labelled case for sets of one candidate.
Conformal prediction with set-valued data is treated by Javanmardi, Sale, Hofman and Hüllermeier (COPA 2023).
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError, SettingError, suggest

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
GUARANTEES = {  # what holds with probability 1 − α, by the way candidates are scored
    "labels": "the true label is in the set",
    "worst": "the true label is in the set, if it was among the candidates (sets larger than needed)",
    "drawn": "the true label is in the set, if the model's probabilities of the candidates are correct",
    "best": "some candidate is in the set; there is no guarantee for the true label",
}


@dataclasses.dataclass(frozen=True)
class Conformal:
    """The conformity scores of calibration bags: of all bags, and per class."""

    way: str  # one of GUARANTEES
    scores: tuple[float, ...]  # n, ascending
    class_scores: tuple[tuple[float, ...], ...]  # of each of the k classes, ascending
    confidences: tuple[float, ...] | None = None  # n, in the order of scores; none of an earlier version

    def sets(
        self,
        probabilities: Floats,
        coverage: float = 0.9,
        *,
        class_conditional: bool = False,
        threshold: float | None = None,
    ) -> Bools:
        """Return prediction sets.

        Args:
            probabilities: (m, k) class probabilities.
            coverage: Probability that a set contains the true label, 1 − α.
            class_conditional: Reach the coverage within every class. A class with fewer than 1/α − 1 scores
                is then in every set, because it cannot be excluded.
            threshold: Reach the coverage among the bags with at least this confidence, and among the others.
                It must not depend on the calibration bags. Not together with ``class_conditional``.

        Returns:
            (m, k) membership of the classes.
        """
        check_coverage(coverage)
        if threshold is not None:
            if class_conditional:
                raise SettingError("Prediction sets hold within every class or every decision, not both.")
            return self._by_decision(probabilities, coverage, threshold)
        classifier = _conformal_classifier()
        scores = 1.0 - probabilities  # (m, k)
        if class_conditional:
            sizes = [len(own) for own in self.class_scores]
            classes = np.arange(len(sizes))
            classifier.fit(
                np.concatenate([np.array(own) for own in self.class_scores]), np.repeat(classes, sizes)
            )
            columns = [
                classifier.predict_p(scores[:, j], np.full(len(scores), j), smoothing=False) for j in classes
            ]
            p_values = np.stack(columns, axis=1)
        else:
            classifier.fit(np.array(self.scores))
            p_values = classifier.predict_p(scores, smoothing=False)
        # rounded: 1 − 0.9 is slightly below 0.1, and a p-value of 1/10 must not count as greater than α
        return np.asarray(p_values > round(1.0 - coverage, 12))

    def _by_decision(self, probabilities: Floats, coverage: float, threshold: float) -> Bools:
        """Return prediction sets (m, k) from the scores of bags on the same side of a threshold."""
        if self.confidences is None:
            raise SettingError("The calibration has no confidences: calibrate the model again.")
        own, scores = np.array(self.confidences) >= threshold, np.array(self.scores)
        new = probabilities.max(axis=1) >= threshold
        sets = np.ones(probabilities.shape, dtype=np.bool_)
        for side in (True, False):
            if (own == side).any() and (new == side).any():
                part = dataclasses.replace(self, scores=tuple(scores[own == side].tolist()), confidences=None)
                sets[new == side] = part.sets(probabilities[new == side], coverage)
        return sets

    @classmethod
    def from_dict(cls, content: dict[str, Any], k: int) -> Conformal:
        """Return the scores of k classes from the result of ``dataclasses.asdict``."""
        confidences = content.get("confidences")
        conformal = cls(
            str(content["way"]),
            tuple(float(s) for s in content["scores"]),
            tuple(tuple(float(s) for s in own) for own in content["class_scores"]),
            None if confidences is None else tuple(float(c) for c in confidences),
        )
        if confidences is not None and len(confidences) != len(conformal.scores):
            raise ValueError("there are not as many confidences as scores")
        if conformal.way not in GUARANTEES or len(conformal.class_scores) != k or not conformal.scores:
            raise ValueError("the conformal scores do not fit the classes")
        return conformal


def fit_conformal(
    probabilities: Floats,
    sets: Bools,
    way: str = "labels",
    rng: np.random.Generator | None = None,
    odds: Floats | None = None,
) -> Conformal:
    """Compute the conformity scores of calibration bags.

    Args:
        probabilities: (n, k) class probabilities.
        sets: (n, k) candidate sets, or sets of the true label alone.
        way: Which candidate is scored in place of the true label: a key of ``GUARANTEES``.
        rng: Random generator, needed for ``drawn`` only.
        odds: (n, k) P(S | y) up to a factor per bag, for ``drawn`` where sets are not equally probable under
        each
            of their labels.
    """
    if way not in GUARANTEES:
        raise SettingError(f"There is no way '{way}' to score candidates.{suggest(way, GUARANTEES)}")
    if probabilities.shape != sets.shape or not len(sets) or not sets.any(axis=1).all():
        raise DataError("Prediction sets need at least one calibration bag, and a candidate for each bag.")
    if way == "labels" and (sets.sum(axis=1) > 1).any():
        raise DataError("Prediction sets by labels need one true label for each bag.")
    s = 1.0 - probabilities
    k = s.shape[1]
    if way == "worst":
        score = np.where(sets, s, -np.inf).max(axis=1)
        by_class = [s[sets[:, j], j] for j in range(k)]
    else:
        label = np.where(sets, s, np.inf).argmin(axis=1)  # the most probable candidate
        if way == "drawn":
            likely = probabilities if odds is None else probabilities * odds
            label = _draw_candidates(likely, sets, label, rng)
        score = s[np.arange(len(s)), label]
        by_class = [score[label == j] for j in range(k)]
    order = np.argsort(score, kind="stable")
    return Conformal(
        way,
        tuple(score[order].tolist()),
        tuple(tuple(np.sort(values).tolist()) for values in by_class),
        tuple(probabilities.max(axis=1)[order].tolist()),
    )


def _draw_candidates(
    probabilities: Floats, sets: Bools, best: npt.NDArray[np.intp], rng: np.random.Generator | None
) -> npt.NDArray[np.intp]:
    """Draw a candidate per bag with probabilities p / Σ_S p; rounding errors give the best candidate (n,)."""
    if rng is None:
        raise SettingError("The way 'drawn' is random: give it a generator.")
    n, k = sets.shape
    p = np.where(sets, np.maximum(probabilities, np.finfo(np.float64).tiny), 0.0)
    cumulative = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)  # ends at 1, up to rounding
    drawn = np.minimum((rng.random((n, 1)) >= cumulative).sum(axis=1), k - 1)
    return np.where(sets[np.arange(n), drawn], drawn, best)


def check_coverage(coverage: float) -> None:
    """Raise an error unless the coverage of prediction sets is between 0 and 1."""
    if not 0 < coverage < 1:
        raise SettingError(f"The coverage of prediction sets is {coverage}: give a fraction between 0 and 1.")


def _conformal_classifier() -> Any:
    try:
        with warnings.catch_warnings():  # crepes changes the warning filters of the whole process
            from crepes import ConformalClassifier
    except ImportError as error:
        raise SettingError("Prediction sets need crepes: pip install 'mipl[trust]'.") from error
    return ConformalClassifier()
