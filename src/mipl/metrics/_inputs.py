"""Validation of the inputs of metrics: probabilities (m, k) and labels (m,)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TOLERANCE = 1e-3  # the softmax of a float32 model does not sum to 1 exactly


def checked(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Ints]:
    """Validate probabilities (m, k) and labels (m,); errors name the row."""
    p = checked_probabilities(probabilities)
    m, k = p.shape
    try:
        y = np.asarray(labels)  # (m,)
    except (TypeError, ValueError) as error:
        raise DataError("Labels are ragged or not numbers; give m column indices.") from error
    if y.shape != (m,):
        raise DataError(f"Labels have shape {y.shape} for {m} rows of probabilities; give one label per row.")
    if y.dtype.kind not in "iu":
        raise DataError(f"Labels are of type {y.dtype}; give integers, the column index of each class.")
    if (unknown := (y < 0) | (y >= k)).any():
        row = unknown.argmax()
        raise DataError(
            f"Label {y[row]} in row {row} is not a column from 0 to {k - 1}; number classes by their column."
        )
    return p, y.astype(np.int64)


def checked_probabilities(probabilities: npt.ArrayLike) -> Floats:
    """Validate probabilities (m, k) and return a copy in float64; errors name the row."""
    try:
        p = np.asarray(probabilities, dtype=np.float64)  # (m, k)
    except (TypeError, ValueError) as error:
        raise DataError("Probabilities are ragged or not numbers; give an m×k table.") from error
    if p.ndim != 2 or p.size == 0:
        raise DataError(
            f"Probabilities have shape {p.shape}; give an m×k table with one row per example (m ≥ 1)."
        )
    # Negated, so that NaN is out of range too.
    outside = ~((p >= 0) & (p <= 1 + TOLERANCE))
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise DataError(
            f"Probability {p[row, column]:g} in row {row}, column {column} is not between 0 and 1; "
            "pass the softmax of a model's scores, not the scores."
        )
    sums = p.sum(axis=1)  # (m,)
    if (off := np.abs(sums - 1) > TOLERANCE).any():
        row = off.argmax()
        raise DataError(
            f"Row {row} of the probabilities sums to {sums[row]:.6g}, not to 1; divide each row by its sum."
        )
    return np.minimum(p, 1.0)  # rounding may give slightly more than 1


def top_label(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the confidence p̂ (m,) of the predicted label, and 1 or 0 (m,) for correct or incorrect.

    Of equal probabilities the lowest column is predicted.
    """
    p, y = checked(probabilities, labels)
    return p.max(axis=1), (p.argmax(axis=1) == y).astype(np.float64)
