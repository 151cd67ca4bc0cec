"""Conformal prediction sets: with true labels, and from candidate sets alone.

The score of a label is s = 1 − p; a label is in the prediction set of a new bag when its conformal p-value,
the share of calibration scores not below its own (its own counted too), is above α = 1 − coverage.
Calibration bags and new bags are to be exchangeable, and the model must not have seen the calibration bags.

With true labels the true label is in the set with probability at least 1 − α (marginal), and, where scores
are compared within a label, also among the bags of every single class (class-conditional, Mondrian). The
probability is over calibration and new bags together; for one calibration set it varies around that.

From candidate sets one score per bag has to stand for that of the unknown truth y ∈ S. Let C be the set.

- ``worst``, max_S s. It is never below the true label's score, so every p-value is at least what it would be
  with labels, and C holds all that the labelled C holds: P(y ∈ C) ≥ 1 − α, and even P(S ⊆ C) ≥ 1 − α. The
  price: a false candidate is rarely plausible, and C has to be so large that it would hold it too.
  Class-conditional: the scores of class c are those of all bags with c ∈ S. It holds if a bag with the false
  candidate c does not tend to look more like c than a bag of c does (its score for c is stochastically not
  smaller): then replacing such scores by those of bags of c could only lower a p-value, and after it the
  bag and the calibration bags are exchangeable.
- ``drawn``: a candidate drawn with the chances p̃ = p / Σ_S p. If p̃ is the truth's distribution given bag and
  set, (bag, drawn) is distributed as (bag, true), and the guarantee is that with labels. If not, it is short
  of 1 − α by at most the mean total variation between p̃ and that distribution (per class: no such bound).
- ``best``, min_S s. Exchangeable with the best candidate's score of a new bag: P(S ∩ C ≠ ∅) ≥ 1 − α, some
  candidate is in the set. For the true label it gives 1 − α − β only, where β is the chance that the best
  candidate is not the truth, since y ∉ C means that the best candidate is outside too, or is not y.

All three need the truth among the candidates, and are the labelled case where a set has one candidate.
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
WAYS = {
    "labels": "the true label is in the set",
    "worst": "the true label is in the set, if it was among the candidates (sets larger than needed)",
    "drawn": "the true label is in the set, as far as the model tells the candidates apart rightly",
    "best": "some candidate is in the set; nothing is promised of the true label",
}


@dataclasses.dataclass(frozen=True)
class Conformal:
    """The scores of calibration bags: of all of them, and for each of the k classes."""

    way: str  # one of WAYS
    scores: tuple[float, ...]  # n, ascending
    class_scores: tuple[tuple[float, ...], ...]  # k times those of a class, ascending

    def sets(self, probabilities: Floats, coverage: float = 0.9, *, class_conditional: bool = False) -> Bools:
        """Return prediction sets (m, k) for probabilities (m, k).

        A class with fewer than 1/α − 1 scores is in every class-conditional set: nothing can be ruled out.
        """
        check_coverage(coverage)
        classifier = _conformal_classifier()
        alphas = 1.0 - probabilities  # (m, k)
        if class_conditional:
            sizes = [len(own) for own in self.class_scores]
            classes = np.arange(len(sizes))
            classifier.fit(
                np.concatenate([np.array(own) for own in self.class_scores]), np.repeat(classes, sizes)
            )
            columns = [
                classifier.predict_p(alphas[:, j], np.full(len(alphas), j), smoothing=False) for j in classes
            ]
            p_values = np.stack(columns, axis=1)
        else:
            classifier.fit(np.array(self.scores))
            p_values = classifier.predict_p(alphas, smoothing=False)
        # rounded: 1 − 0.9 is a hair below 0.1, where a p-value of 1/10 has to be out
        return np.asarray(p_values > round(1.0 - coverage, 12))

    @classmethod
    def from_dict(cls, content: dict[str, Any], k: int) -> Conformal:
        """Return what ``dataclasses.asdict`` made, for k classes."""
        made = cls(
            str(content["way"]),
            tuple(float(s) for s in content["scores"]),
            tuple(tuple(float(s) for s in own) for own in content["class_scores"]),
        )
        if made.way not in WAYS or len(made.class_scores) != k or not made.scores:
            raise ValueError("the conformal scores do not fit the classes")
        return made


def fit_conformal(
    probabilities: Floats, sets: Bools, way: str = "labels", rng: np.random.Generator | None = None
) -> Conformal:
    """Return the scores of calibration bags: probabilities and candidate sets (n, k), or sets of the truth.

    ``way`` says which candidate stands for the truth; only ``drawn`` needs the generator.
    """
    if way not in WAYS:
        raise SettingError(f"There is no way '{way}' to score candidates.{suggest(way, WAYS)}")
    if probabilities.shape != sets.shape or not len(sets) or not sets.any(axis=1).all():
        raise DataError("Prediction sets need at least one calibration bag, and a candidate for each bag.")
    if way == "labels" and (sets.sum(axis=1) > 1).any():
        raise DataError("Prediction sets by labels need one true label for each bag.")
    s = 1.0 - probabilities
    rows, k = np.arange(len(s)), s.shape[1]
    if way == "worst":
        score = np.where(sets, s, -np.inf).max(axis=1)
        own = [s[sets[:, j], j] for j in range(k)]
    else:
        if way == "drawn":
            if rng is None:
                raise SettingError("The way 'drawn' draws: give it a generator.")
            inside = np.where(sets, np.maximum(probabilities, np.finfo(np.float64).tiny), 0.0)
            inside = np.cumsum(inside / inside.sum(axis=1, keepdims=True), axis=1)
            # the last candidate's share ends at 1, up to rounding
            drawn = np.minimum((rng.random((len(s), 1)) >= inside).sum(axis=1), k - 1)
            label = np.where(sets[rows, drawn], drawn, np.where(sets, s, np.inf).argmin(axis=1))
        else:
            label = np.where(sets, s, np.inf).argmin(axis=1)
        score = s[rows, label]
        own = [score[label == j] for j in range(k)]
    return Conformal(
        way, tuple(np.sort(score).tolist()), tuple(tuple(np.sort(values).tolist()) for values in own)
    )


def check_coverage(coverage: float) -> None:
    """Raise an error if this is no coverage of prediction sets."""
    if not 0 < coverage < 1:
        raise SettingError(f"The coverage of prediction sets is {coverage}: give a share between 0 and 1.")


def _conformal_classifier() -> Any:
    try:
        with warnings.catch_warnings():  # the library changes what is shown of everyone's warnings
            from crepes import ConformalClassifier
    except ImportError as error:
        raise SettingError("Prediction sets need crepes: pip install 'mipl[trust]'.") from error
    return ConformalClassifier()
