"""What is fitted to a trained model afterwards, and stays with it."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mipl.calibration.conformal import Bools, Conformal, Floats, fit_conformal
from mipl.calibration.scaling import Scaling, fit_scaling
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
Model = TypeVar("Model")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Scaling of a model's probabilities and scores for prediction sets, each or both."""

    by: str  # labels or candidates
    digest: str  # of the bags it was fitted to
    bags: int
    scaling: Scaling | None
    conformal: Conformal | None

    def apply(self, log_p: Floats) -> Floats:
        """Return calibrated log-probabilities (m, k)."""
        return log_p if self.scaling is None else self.scaling.apply(log_p)

    def save(self, folder: Path) -> None:
        """Write ``calibration.json`` into a model's folder."""
        write_json(folder / FILE, {"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def parse(cls, text: bytes, path: Path, k: int) -> Calibration:
        """Return the calibration for k classes that :meth:`save` wrote and that was read from ``path``."""
        content = parse_json(text, path, FORMAT)
        try:
            scaling, conformal = content["scaling"], content["conformal"]
            return cls(
                str(content["by"]),
                str(content["digest"]),
                int(content["bags"]),
                None if scaling is None else Scaling.from_dict(scaling, k),
                None if conformal is None else Conformal.from_dict(conformal, k),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is damaged ({type(error).__name__}: {error}).") from error


def calibrate(
    model: Model,
    bags: Bags,
    *,
    by: str = "labels",
    kind: str = "temperature",
    set_share: float = 0.5,
    candidate: str = "worst",
    seed: int = 0,
) -> Model:
    """Return a copy of a trained classifier with calibrated probabilities and scores for prediction sets.

    ``bags`` the model was not trained on; an earlier calibration is replaced. ``by``: their true labels, or
    their candidate sets alone. ``kind``: temperature, vector or none. ``set_share``: the part of the bags,
    drawn at random, that is kept for the scores of prediction sets and not used for scaling, which would
    make these bags look better than new ones; of a group (patient) one bag is scored. ``candidate``: which
    candidate stands for the truth in those scores (worst, drawn or best; see `mipl.calibration.conformal`).
    """
    if by not in BY:
        raise SettingError(f"Calibration is by labels or candidates, not '{by}'.{suggest(by, BY)}")
    if not 0 <= set_share <= 1:
        raise SettingError(f"set_share = {set_share} is not a share between 0 and 1.")
    made: Any = copy.copy(model)
    made.calibration_ = None
    check_unseen(made, bags)
    sets = truth_of(made, bags) if by == "labels" else candidates_of(made, bags)
    nothing = np.zeros(0, dtype=np.int64)
    everything = np.arange(len(bags))
    if kind == "none":
        scored, scaled = everything, nothing
    elif set_share in (0, 1):
        scored, scaled = (nothing, everything) if set_share == 0 else (everything, nothing)
    else:
        scored, scaled = random_split(bags, set_share, "calibrate", seed)
    if not len(scaled) and kind != "none":
        raise SettingError(
            "set_share = 1 leaves no bag for the scaling: give a smaller share, or kind='none'."
        )
    log_p = made.predict_log_proba(bags)
    scaling = None if kind == "none" else fit_scaling(log_p[scaled], sets[scaled], kind)
    if scaling is not None and fit_scaling(log_p[scaled], sets[scaled]).at_limit:
        raise DataError(
            f"The {len(scaled)} bags do not determine the temperature: the surer the model, the better they "
            "fit, without end; take more bags, or true labels if these are candidates, or no scaling."
        )
    if bags.groups is not None:
        scored = scored[one_per_group(bags[scored], "calibrate", seed)]
    conformal = None
    if len(scored):
        p = np.exp(log_p if scaling is None else scaling.apply(log_p))
        way = "labels" if by == "labels" else candidate
        conformal = fit_conformal(p[scored], sets[scored], way, rng_for("conformal", seed))
    digest = aligned(bags, made.trained_on_.get("feature_names")).content_digest()
    made.calibration_ = Calibration(by, digest, len(bags), scaling, conformal)
    return made  # type: ignore[no-any-return]


def check_unseen(model: Any, bags: Bags) -> None:
    """Raise an error if these are the bags that the model was trained or calibrated on."""
    digest = aligned(bags, model.trained_on_.get("feature_names")).content_digest()
    if model.trained_on_.get("digest") == digest:
        raise DataError(
            "The model was trained on these bags, on which it looks better than it is: take others."
        )
    if model.calibration_ is not None and model.calibration_.digest == digest:
        raise DataError(
            "The model was calibrated on these bags, so they cannot vouch for its error: take others."
        )


def truth_of(model: Any, bags: Bags) -> Bools:
    """Return the true labels as sets of one (m, k), columns in the order of the model's classes."""
    if bags.labels is None:
        raise DataError("The calibration bags have no true labels: give some, or calibrate by candidates.")
    classes = tuple(model.classes_.tolist())
    labels = label_array([bags.classes[y] for y in bags.labels], classes, bags.ids.tolist())
    return np.asarray(labels[:, None] == np.arange(len(classes)))


def candidates_of(model: Any, bags: Bags) -> Bools:
    """Return the candidate sets (m, k), columns in the order of the model's classes."""
    if bags.candidates is None:
        raise DataError("The calibration bags have no candidate sets: give some, or calibrate by labels.")
    if bags.missing_truth:
        raise DataError(
            "The bags say that a true label may be missing from its candidates: calibrate by labels."
        )
    sets = [[bags.classes[j] for j in np.flatnonzero(row)] for row in bags.candidates]
    return candidate_matrix(sets, tuple(model.classes_.tolist()), bags.ids.tolist())
