"""What is looked at before a training starts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mipl.data.bags import Bags
from mipl.data.features import aligned
from mipl.errors import DataError, MiplNotice, listed


def check_training(bags: Bags) -> None:
    """Refuse bags that nothing can be learned from, and warn of what may not be meant."""
    if bags.candidates is None:
        raise DataError(
            "The bags have no candidate sets: add a column 'candidates', or give --labels FILE "
            "(in Python: y=candidates)."
        )
    if bags.k < 2:
        raise DataError(
            f"There is one class only ({', '.join(map(str, bags.classes))}): a classifier needs two."
        )
    if not len(bags):
        raise DataError("There is no bag to train on.")
    unseen = [bags.classes[c] for c in np.flatnonzero(~bags.candidates.any(axis=0))]
    if unseen:
        warnings.warn(
            f"No bag has the candidate {listed(unseen)}: it cannot be learned.", MiplNotice, stacklevel=4
        )
    if (bags.candidates.sum(axis=1) == 1).all():
        warnings.warn("Every bag has one candidate: this is ordinary supervision.", MiplNotice, stacklevel=4)


def check_features(bags: Bags, shape: tuple[int, ...], names: Sequence[str] | None = None) -> Bags:
    """Return bags whose instances have the shape that a model was trained on, or say that they do not.

    (28, 28) and (1, 28, 28) are the same image. ``names``: the model's features, in whose order those of the
    bags are put.
    """
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
    assert bags.candidates is not None
    named = {} if bags.feature_names is None else {"feature_names": list(bags.feature_names)}
    return {
        "bags": len(bags),
        "instances": int(bags.sizes.sum()),
        "candidates_per_bag": round(float(np.mean(bags.candidates.sum(axis=1))), 4),
        "provenance": dict(bags.provenance),
        "digest": bags.content_digest(),
        **named,
    }
