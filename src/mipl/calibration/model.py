"""Calibration of a trained model, saved with it: scaling of its probabilities and prediction sets."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mipl.calibration.candidate_model import by_chance, estimate_candidates
from mipl.calibration.conformal import Bools, Conformal, Floats, fit_conformal
from mipl.calibration.reference import Reference
from mipl.calibration.scaling import Evidence, Scaling, fit_scaling
from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix, label_array
from mipl.data.features import aligned
from mipl.data.splits import one_per_group, random_split
from mipl.errors import DataError, SettingError, StorageError, suggest
from mipl.files import parse_json, write_json
from mipl.seeding import rng_for

FORMAT = "mipl-calibration-1"
FILE = "calibration.json"
BY = ("labels", "candidates")
WAYS = ("chance", "estimate")
Model = TypeVar("Model")
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Scaling of a model's probabilities, scores for prediction sets, or both."""

    by: str  # labels or candidates
    digest: str  # of the calibration bags
    bags: int
    scaling: Scaling | None
    conformal: Conformal | None
    reference: Reference | None = None  # scores to compare new bags with; none of an ensemble's own

    def apply(self, log_p: Floats) -> Floats:
        """Return calibrated log-probabilities (m, k)."""
        return log_p if self.scaling is None else self.scaling.apply(log_p)

    def save(self, folder: Path) -> None:
        """Write ``calibration.json`` into a model's folder."""
        write_json(folder / FILE, {"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def parse(cls, text: bytes, path: Path, k: int) -> Calibration:
        """Return the calibration of k classes from the content of ``path``, as written by :meth:`save`."""
        content = parse_json(text, path, FORMAT)
        try:
            scaling, conformal = content["scaling"], content["conformal"]
            reference = content.get("reference")  # none in earlier versions
            return cls(
                str(content["by"]),
                str(content["digest"]),
                int(content["bags"]),
                None if scaling is None else Scaling.from_dict(scaling, k),
                None if conformal is None else Conformal.from_dict(conformal, k),
                None if reference is None else Reference.from_dict(reference),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is damaged ({type(error).__name__}: {error}).") from error


def calibrate(
    model: Model,
    bags: Bags,
    *,
    by: str = "labels",
    kind: str = "temperature",
    set_share: float = 0.5,
    candidate: str = "worst",
    false_candidates: str = "chance",
    seed: int = 0,
) -> Model:
    """Return a copy of a trained classifier with calibrated probabilities and prediction sets.

    Args:
        model: A trained classifier; an earlier calibration is replaced.
        bags: Bags that the model was not trained on.
        by: Calibrate by the true ``labels``, or by the ``candidates`` alone.
        kind: ``temperature``, ``smoothed``, ``vector``, ``structured`` or ``none``.
        set_share: Fraction of the bags, drawn at random, that is reserved for prediction sets. Bags used for
            the scaling would look better than new ones. One bag per group (patient) is scored.
        candidate: Which candidate replaces the true label in the scores (worst, drawn or best); see
            `mipl.calibration.conformal`.
        false_candidates: ``chance``, or ``estimate``: by candidates, where a test rejects that false
        candidates
            come by chance, the temperature and the way ``drawn`` use P(S | y) with a rate per pair of
            classes. Both are then approximate.
        seed: Seed of the random choices.
    """
    if by not in BY:
        raise SettingError(f"Calibrate by labels or candidates, not by '{by}'.{suggest(by, BY)}")
    if false_candidates not in WAYS or (
        false_candidates == "estimate" and (by, kind) == ("candidates", "vector")
    ):
        raise SettingError(
            f"false_candidates (--false-candidates) is {false_candidates}: give chance, or estimate for "
            "candidates with the kind 'temperature'."
        )
    if not 0 <= set_share <= 1:
        raise SettingError(f"set_share (--set-share) is {set_share}: give a fraction between 0 and 1.")
    calibrated: Any = copy.copy(model)
    calibrated.calibration_ = None
    check_unseen(calibrated, bags)
    sets = truth_of(calibrated, bags) if by == "labels" else candidates_of(calibrated, bags)
    scored, scaled = _divide(bags, kind, set_share, seed)
    log_p = calibrated.predict_log_proba(bags)
    evidence: Evidence = sets
    if by == "candidates" and false_candidates == "estimate":
        evidence = _estimated(log_p, sets, scaled if len(scaled) else scored)
    scaling = None if kind == "none" else fit_scaling(log_p[scaled], evidence[scaled], kind)
    if scaling is not None and fit_scaling(log_p[scaled], evidence[scaled]).at_limit:
        raise DataError(
            f"The {len(scaled)} bags do not determine the temperature, because the likelihood grows with the "
            "confidence without limit: use more bags, or true labels in place of candidates, or no scaling."
        )
    conformal = None
    if len(scored):
        p = np.exp(log_p if scaling is None else scaling.apply(log_p))
        way = "labels" if by == "labels" else candidate
        rng = rng_for("conformal", seed)
        odds = None if evidence is sets else np.exp(evidence - evidence.max(axis=1, keepdims=True))[scored]
        conformal = fit_conformal(p[scored], sets[scored], way, rng, odds)
    digest = aligned(bags, calibrated.trained_on_.get("feature_names")).content_digest()
    reference = Reference.of(calibrated, bags)
    calibrated.calibration_ = Calibration(by, digest, len(bags), scaling, conformal, reference)
    return calibrated  # type: ignore[no-any-return]


def _estimated(log_p: Floats, sets: Bools, rows: Ints) -> Evidence:
    """Return log P(S | y) (m, k) with rates estimated on some rows, or the sets where chance is not
    rejected."""
    if by_chance(sets):
        return sets
    chance = fit_scaling(log_p[rows], sets[rows])
    return estimate_candidates(chance.apply(log_p[rows]), sets[rows]).log_likelihood(sets)


def _divide(bags: Bags, kind: str, set_share: float, seed: int) -> tuple[Ints, Ints]:
    """Return the indices of the bags for prediction sets, one per group, and of those for the scaling."""
    none, every = np.zeros(0, dtype=np.int64), np.arange(len(bags))
    if kind == "none" or set_share == 1:
        scored, scaled = every, none
    elif set_share == 0:
        scored, scaled = none, every
    else:
        scored, scaled = random_split(bags, set_share, "calibrate", seed)
    if not len(scaled) and kind != "none":
        raise SettingError(
            "set_share (--set-share) is 1, which leaves no bags for the scaling: give a smaller fraction, or "
            "the kind 'none'."
        )
    if bags.groups is not None:
        scored = scored[one_per_group(bags[scored], "calibrate", seed)]
    return scored, scaled


def check_unseen(model: Any, bags: Bags) -> None:
    """Raise an error if these are the bags that the model was trained or calibrated on."""
    digest = aligned(bags, model.trained_on_.get("feature_names")).content_digest()
    if model.trained_on_.get("digest") == digest:
        raise DataError(
            "The model was trained on these bags, so its error on them is optimistic: use other bags."
        )
    if model.calibration_ is not None and model.calibration_.digest == digest:
        raise DataError(
            "The model was calibrated on these bags, so its error on them is optimistic: use other bags."
        )


def truth_of(model: Any, bags: Bags) -> Bools:
    """Return the true labels one-hot (m, k), with columns in the order of the model's classes."""
    if bags.labels is None:
        raise DataError("The bags have no true labels: give bags that have, or calibrate by candidates.")
    classes = tuple(model.classes_.tolist())
    labels = label_array([bags.classes[y] for y in bags.labels], classes, bags.ids.tolist())
    return np.asarray(labels[:, None] == np.arange(len(classes)))


def candidates_of(model: Any, bags: Bags) -> Bools:
    """Return the candidate sets (m, k), with columns in the order of the model's classes."""
    if bags.candidates is None:
        raise DataError("The bags have no candidate sets: give bags that have, or calibrate by labels.")
    if bags.missing_truth:
        raise DataError(
            "A true label may be missing from its candidate set (missing_truth): calibrate by labels."
        )
    sets = [[bags.classes[j] for j in np.flatnonzero(row)] for row in bags.candidates]
    return candidate_matrix(sets, tuple(model.classes_.tolist()), bags.ids.tolist())
