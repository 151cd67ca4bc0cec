"""Partial-label data in a ``.mat`` file: three matrices with one row per example.

``X`` (m, d) are the features, ``Y_P`` (m, k) the candidate sets as 0 and 1, and the optional ``Y`` (m, k) the
true labels, exactly one 1 per row. An example is BirdSong.mat of the public partial-label collection: the
4,998 labelled segments of HJA Birdsong in order, each with the species of all labelled segments of its
recording as candidates. It does not identify the recordings, so it cannot be split by them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import MOST_CLASSES, BoolArray
from mipl.data.formats.matlab5 import Array, Value, describe, read_variables
from mipl.errors import DataError

NAMES = ("X", "Y_P", "Y")


def read_partial_mat(path: Path) -> Bags:
    """Read partial-label data from a ``.mat`` file (MATLAB 5 to 7): bags of one instance each.

    Ids are the row numbers 1 … m, classes the column numbers 0 … k−1. Integers in X become floats.
    """
    variables = read_variables(path, NAMES)
    try:
        return _bags(variables)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def is_partial_mat(path: Path) -> bool:
    """Whether a file has the variables X and Y_P, which the authors' files of bags do not have."""
    return {"X", "Y_P"} <= set(read_variables(path, NAMES))


def _bags(variables: dict[str, Value]) -> Bags:
    X, candidates = _matrix(variables, "X"), _binary(variables, "Y_P")
    if candidates.shape[1] > MOST_CLASSES:
        raise DataError(f"'Y_P' has {candidates.shape[1]} columns: it should have one per class.")
    if len(candidates) != len(X):
        raise DataError(f"'Y_P' has {len(candidates)} rows, but 'X' has {len(X)}: give one row per example.")
    labels = None
    if "Y" in variables:
        truth = _binary(variables, "Y")
        if truth.shape != candidates.shape:
            raise DataError(f"'Y' has the shape {truth.shape}, but 'Y_P' {candidates.shape}.")
        if (wrong := truth.sum(axis=1) != 1).any():
            row = int(wrong.argmax())
            raise DataError(
                f"'Y' has {int(truth[row].sum())} true labels in row {row + 1}: there should be exactly one."
            )
        labels = truth.argmax(axis=1)
    return Bags(
        source=np.ascontiguousarray(X, dtype=X.dtype if X.dtype.kind == "f" else np.float32),
        starts=np.arange(len(X)),
        sizes=np.ones(len(X), dtype=np.int64),
        classes=tuple(range(candidates.shape[1])),
        ids=np.arange(1, len(X) + 1).astype(np.str_),
        candidates=candidates,
        labels=labels,
    )


def _binary(variables: dict[str, Value], name: str) -> BoolArray:
    """Return a variable of 0 and 1 as booleans."""
    value = _matrix(variables, name)
    if (wrong := ~np.isin(value, (0, 1)).all(axis=1)).any():
        raise DataError(f"'{name}' has something other than 0 and 1 in row {int(wrong.argmax()) + 1}.")
    return value.astype(np.bool_)


def _matrix(variables: dict[str, Value], name: str) -> Array:
    """Return a variable that is a non-empty matrix of numbers."""
    value = variables.get(name)
    if value is None:
        raise DataError(f"there is no variable '{name}': X (features) and Y_P (candidate sets) are required.")
    if isinstance(value, str) or value.dtype.kind not in "fiub" or value.ndim != 2 or not value.size:
        raise DataError(f"'{name}' is {describe(value)}: it should be a matrix with one row per example.")
    return value
