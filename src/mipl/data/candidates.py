"""Candidate sets: read from what users write, or drawn around known labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import DataError, suggest
from mipl.seeding import rng_for

Classes = tuple[str | int, ...]  # k distinct names, or 0 … k−1
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


def is_matrix(candidates: Any) -> bool:
    """Tell a 0/1 matrix (a two-dimensional array) from one iterable of classes per bag."""
    return getattr(candidates, "ndim", 0) == 2


def infer_classes(candidates: Any, labels: Any) -> Classes:
    """Return the classes that candidates and labels speak of: names sorted, or ``0 … k−1``."""
    entries = {entry for bag in _per_bag(candidates) for entry in bag} if not is_matrix(candidates) else set()
    entries |= {_plain(label) for label in labels} if labels is not None else set()
    names = {entry for entry in entries if isinstance(entry, str)}
    if names and names != entries:
        raise DataError(
            "Class names and class indices are mixed: write every class as a name, or every one as an index."
        )
    if is_matrix(candidates):
        if names:
            raise DataError(
                "The candidates are a matrix and the labels are names: pass classes=… in column order."
            )
        return tuple(range(int(np.shape(candidates)[1])))
    if names:
        return tuple(sorted(names))
    return tuple(range(max((int(entry) for entry in entries), default=-1) + 1))


def check_classes(classes: Iterable[Any]) -> Classes:
    """Return ``classes`` as a tuple of distinct names, or of the indices ``0 … k−1``."""
    entries = tuple(_plain(entry) for entry in classes)
    if len(set(entries)) != len(entries):
        twice = next(entry for entry in entries if entries.count(entry) > 1)
        raise DataError(f"The class {twice!r} is named twice: class names must be distinct.")
    if all(isinstance(entry, str) for entry in entries):
        return entries
    if entries == tuple(range(len(entries))):
        return entries
    raise DataError(
        f"The classes {list(entries)} are neither names nor 0 … {len(entries) - 1}: "
        "write them as strings, since a whole number means an index."
    )


def candidate_matrix(candidates: Any, classes: Classes, ids: Sequence[str]) -> BoolArray:
    """Return the candidate matrix (m, k) from a 0/1 matrix or one iterable of classes per bag."""
    m, k = len(ids), len(classes)
    if is_matrix(candidates):
        values = np.asarray(candidates)
        if values.shape != (m, k):
            raise DataError(
                f"The candidate matrix is {values.shape[0]}×{values.shape[1]}, "
                f"but there are {m} bags and {k} classes."
            )
        if values.dtype != np.bool_ and not np.isin(values, (0, 1)).all():
            row = int(np.flatnonzero(~np.isin(values, (0, 1)).all(axis=1))[0])
            raise DataError(
                f"The candidate matrix holds something other than 0 and 1 in the row of bag '{ids[row]}'."
            )
        return values.astype(np.bool_)
    sets = list(_per_bag(candidates))
    if len(sets) != m:
        raise DataError(f"There are {len(sets)} candidate sets for {m} bags: give one for each bag.")
    matrix = np.zeros((m, k), dtype=np.bool_)
    for row, entries in enumerate(sets):
        for entry in entries:
            matrix[row, class_index(entry, classes, ids[row])] = True
    return matrix


def label_array(labels: Any, classes: Classes, ids: Sequence[str]) -> IntArray:
    """Return labels (m,) as indices into ``classes`` from indices or names."""
    entries = [_plain(label) for label in labels]
    if len(entries) != len(ids):
        raise DataError(
            f"There are {len(entries)} labels for {len(ids)} bags: give one for each bag, or none at all."
        )
    return np.array(
        [class_index(entry, classes, bag) for entry, bag in zip(entries, ids, strict=True)], dtype=np.int64
    )


def class_index(entry: Any, classes: Classes, bag: str) -> int:
    """Return the column of a class given by name (str) or index (int)."""
    entry = _plain(entry)
    if isinstance(entry, str):
        if entry in classes:
            return classes.index(entry)
        raise DataError(
            f"Bag '{bag}' names the class '{entry}', which is not among the classes.{suggest(entry, classes)}"
        )
    if isinstance(entry, int) and 0 <= entry < len(classes):
        return entry
    raise DataError(f"Bag '{bag}' has the class {entry!r}: an index must be from 0 to {len(classes) - 1}.")


def add_false_positives(labels: IntArray, k: int, r: int, *seed: str | int) -> BoolArray:
    """Return candidate sets (m, k): the true label and ``r`` others drawn uniformly without repetition."""
    if not 0 <= r < k:
        raise DataError(
            f"r = {r} false positives cannot be drawn for {k} classes: r must be from 0 to {k - 1}."
        )
    draw = rng_for("candidates", r, *seed).random((len(labels), k))
    draw[np.arange(len(labels)), labels] = -1.0  # the true label always comes first
    return np.argsort(np.argsort(draw, axis=1), axis=1) <= r


def _per_bag(candidates: Any) -> Iterable[list[str | int]]:
    if candidates is None:
        return
    for entries in candidates:
        # A bare name or index is a set of one; a str is iterable, but never a set of letters.
        if isinstance(entries, str) or not isinstance(entries, Iterable):
            yield [_plain(entries)]
        else:
            yield [_plain(entry) for entry in entries]


def _plain(entry: Any) -> str | int:
    """Return a NumPy or torch scalar as the str or int it stands for."""
    if isinstance(entry, str):
        return str(entry)
    value = entry.item() if hasattr(entry, "item") else entry
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise DataError(f"A class is written as {entry!r}: use its name (str) or its index (int).")
    return value
