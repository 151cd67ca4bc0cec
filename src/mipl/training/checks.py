"""Checks of bags and parameters before training and prediction."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from torch import nn

from mipl.data.bags import Bags, as_bags
from mipl.data.candidates import is_matrix, observed_classes, read_sets
from mipl.data.features import aligned
from mipl.data.formats.origin import check_same_features
from mipl.errors import DataError, MiplNotice, listed
from mipl.registry import Settings

RandomState = int | np.random.RandomState | np.random.Generator | None


@dataclasses.dataclass(frozen=True)
class Parameters(Settings):
    """What a classifier takes besides the method, the recipe and their settings."""

    random_state: int | None = 0  # seed of training; none: another one each time
    scale: Literal["auto", "none"] = "auto"  # standardise features that come as vectors, or do not
    encoder: nn.Module | None = None  # the user's own encoder of instances
    device: str = "auto"  # auto, cpu or cuda
    verbose: bool | int = False  # show the progress of training


def drawn_seed(random_state: RandomState, stored: int | None = None) -> int | None:
    """Return a seed as it is; of a NumPy generator ``stored``, or if there is none the next draw."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1)) if stored is None else stored
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1)) if stored is None else stored
    return random_state


def with_targets(bags: Any, y: Any) -> Bags:
    """Return bags with the candidate sets ``y``, unless they carry sets of their own.

    As in scikit-learn, the classes are those that occur: integers keep their values.
    """
    given = as_bags(bags)
    if y is None or (isinstance(bags, Bags) and bags.candidates is not None):
        return given
    if is_matrix(y):
        return given.with_candidates(y)
    sets = read_sets(y, given.ids.tolist())
    return given.with_candidates(sets, classes=None if given.classes else observed_classes(sets))


def with_sample_weight(bags: Bags, sample_weight: Any) -> Bags:
    """Return bags with weights in the loss (m,), scaled to a mean of 1."""
    if sample_weight is None:
        return bags
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (len(bags),):
        raise DataError(
            f"sample_weight has the shape {weights.shape}: give one number per bag, ({len(bags)},)."
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise DataError("sample_weight must be finite and not negative, and not 0 for every bag.")
    return dataclasses.replace(bags, sample_weight=weights / weights.mean())


def check_training(bags: Bags) -> None:
    """Refuse bags that cannot be trained on, and warn of what is probably a mistake."""
    sets = bags.candidate_sets
    if bags.k < 2:
        raise DataError(
            f"There is one class only ({', '.join(map(str, bags.classes))}): a classifier needs two."
        )
    if not len(bags):
        raise DataError("There is no bag to train on.")
    unseen = [bags.classes[c] for c in np.flatnonzero(~sets.any(axis=0))]
    if unseen:
        warnings.warn(
            f"No bag has the candidate {listed(unseen)}: it cannot be learned.", MiplNotice, stacklevel=4
        )
    if (sets.sum(axis=1) == 1).all():
        warnings.warn("Every bag has one candidate: this is ordinary supervision.", MiplNotice, stacklevel=4)


def check_features(bags: Bags, shape: tuple[int, ...], trained_on: Mapping[str, Any]) -> Bags:
    """Return bags whose instances are like those that a model was trained on, or say that they are not.

    (28, 28) and (1, 28, 28) are the same image. Named features are put in the model's order.

    Args:
        bags: the bags.
        shape: shape of an instance of the model.
        trained_on: the summary of the model's training bags; older models know less of them.
    """
    names = trained_on.get("feature_names")
    check_same_features(trained_on.get("provenance", {}).get("features"), bags.provenance.get("features"))
    bags = aligned(bags, names)
    found = bags.feature_shape
    if found == shape:
        return bags
    same_image = len(shape) > 1 and found in {(1, *shape), shape[1:]} and 1 in (found[0], shape[0])
    if same_image and isinstance(bags.source, np.ndarray):
        return dataclasses.replace(bags, source=bags.source.reshape(-1, *shape))
    raise DataError(
        f"The bags have instances of shape {found}, but the model was trained on {shape}: "
        "use the features that it was trained on."
    )


def training_summary(bags: Bags) -> dict[str, Any]:
    """Return what a model stores of the bags that it was trained on: counts, origin, digest, names."""
    named = {} if bags.feature_names is None else {"feature_names": list(bags.feature_names)}
    return {
        "bags": len(bags),
        "instances": int(bags.sizes.sum()),
        "candidates_per_bag": round(float(np.mean(bags.candidate_sets.sum(axis=1))), 4),
        "provenance": dict(bags.provenance),
        "digest": bags.content_digest(),
        **named,
    }
