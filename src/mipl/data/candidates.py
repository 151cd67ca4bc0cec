"""Candidate sets: parsed from user input, or drawn around known labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import DataError, listed, suggest
from mipl.seeding import rng_for

Classes = tuple[str | int, ...]  # k distinct names, or k distinct integers, by default 0 … k−1
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
MOST_CLASSES = 10_000  # as indices: a larger one is probably a year or an id taken for a class
NO_CANDIDATES = (
    "The bags have no candidate sets: add a column 'candidates', or give --labels FILE "
    "(in Python: y=candidates)."
)


def is_matrix(candidates: Any) -> bool:
    """Whether candidates are a 0/1 matrix (a two-dimensional array), not one iterable per bag."""
    return getattr(candidates, "ndim", 0) == 2


def read_sets(candidates: Any, ids: Sequence[str]) -> list[list[str | int]]:
    """Return one list of names (str) or indices (int) per bag; iterables are read once."""
    if isinstance(candidates, (str, bytes)) or not isinstance(candidates, Iterable):
        raise DataError(
            f"The candidates are {candidates!r}: give a 0/1 array, or one list of classes per bag."
        )
    sets = []
    for position, entries in enumerate(candidates):
        bag = ids[position] if position < len(ids) else str(position)
        # A single name or index is a set of one; a str is iterable, but is never a set of letters.
        single = isinstance(entries, (str, bytes)) or not isinstance(entries, Iterable)
        single = single or getattr(entries, "ndim", 1) == 0
        sets.append([_plain(entry, bag) for entry in ([entries] if single else entries)])
    if len(sets) != len(ids):
        raise DataError(f"There are {len(sets)} candidate sets for {len(ids)} bags: give one for each bag.")
    if any(len(set(entries)) < len(entries) for entries in sets) and set().union(*sets) <= {0, 1}:
        raise DataError(
            "The candidates look like a 0/1 matrix written as lists, but lists are read as class indices: "
            "pass np.array(candidates)."
        )
    return sets


def read_labels(labels: Any, ids: Sequence[str]) -> list[str | int]:
    """Return one name (str) or index (int) per bag; an iterable is read once."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise DataError(f"The labels are {labels!r}: give a list with one class per bag.")
    given = list(labels)
    if len(given) != len(ids):
        raise DataError(
            f"There are {len(given)} labels for {len(ids)} bags: give one for each bag, or none at all."
        )
    return [_plain(label, bag) for label, bag in zip(given, ids, strict=True)]


def infer_classes(candidates: Any, labels: Iterable[str | int] | None) -> Classes:
    """Return the classes that occur in parsed candidates and labels: sorted names, or ``0 … k−1``."""
    entries: set[str | int] = set(labels) if labels is not None else set()
    if candidates is not None and not is_matrix(candidates):
        entries = entries.union(*candidates)
    names = {entry for entry in entries if isinstance(entry, str)}
    if names and names != entries:
        raise DataError(
            "Class names and class indices are mixed: give all classes as names, or all as indices."
        )
    if is_matrix(candidates):
        if names:
            raise DataError(
                "The candidates are a matrix and the labels are names: pass classes=… in column order."
            )
        return tuple(range(int(np.shape(candidates)[1])))
    if names:
        return tuple(sorted(names))
    largest = max((int(entry) for entry in entries), default=-1)
    if largest >= MOST_CLASSES:
        raise DataError(
            f"The class {largest} as an index means {largest + 1} classes: give classes as names (str), "
            "or pass classes=…."
        )
    return tuple(range(largest + 1))


def check_classes(classes: Iterable[Any]) -> Classes:
    """Return ``classes`` as a tuple of distinct names, or of distinct integers."""
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Iterable):
        raise DataError(f"The classes are {classes!r}: give a list of names in column order.")
    entries = tuple(_plain(entry) for entry in classes)
    if len(set(entries)) != len(entries):
        duplicate = next(entry for entry in entries if entries.count(entry) > 1)
        raise DataError(f"The class {duplicate!r} is named twice: class names must be distinct.")
    if len({type(entry) for entry in entries}) <= 1:
        return entries
    raise DataError(f"The classes {list(entries)} are neither names nor integers: give all as one of these.")


def observed_classes(sets: Iterable[Iterable[str | int]]) -> Classes | None:
    """Return the sorted integers that occur in parsed candidate sets, or None where classes are names."""
    entries = set().union(*sets)
    if not all(isinstance(entry, int) for entry in entries):
        return None
    return tuple(sorted(entries))


def candidate_matrix(candidates: Any, classes: Classes, ids: Sequence[str]) -> BoolArray:
    """Return the candidate matrix (m, k) of a 0/1 matrix or of one iterable of classes per bag."""
    m, k = len(ids), len(classes)
    if is_matrix(candidates):
        values = np.asarray(candidates)
        if np.ma.isMaskedArray(candidates) and np.ma.getmaskarray(candidates).any():
            row = int(np.flatnonzero(np.ma.getmaskarray(candidates).any(axis=1))[0])
            raise DataError(
                f"The candidate matrix has a masked value in row {row}: fill it (array.filled(0))."
            )
        if values.shape != (m, k):
            raise DataError(
                f"The candidate matrix is {'×'.join(str(side) for side in values.shape)}, "
                f"but there are {m} bags and {k} classes."
            )
        if values.dtype != np.bool_ and not np.isin(values, (0, 1)).all():
            row = int(np.flatnonzero(~np.isin(values, (0, 1)).all(axis=1))[0])
            raise DataError(
                f"The candidate matrix has something other than 0 and 1 in the row of bag '{ids[row]}'."
            )
        return values.astype(np.bool_)
    matrix = np.zeros((m, k), dtype=np.bool_)
    for row, entries in enumerate(read_sets(candidates, ids)):
        for entry in entries:
            matrix[row, class_index(entry, classes, ids[row])] = True
    return matrix


def label_array(labels: Any, classes: Classes, ids: Sequence[str]) -> IntArray:
    """Return labels (m,), given as indices or names, as indices into ``classes``."""
    entries = zip(read_labels(labels, ids), ids, strict=True)
    return np.array([class_index(entry, classes, bag) for entry, bag in entries], dtype=np.int64)


def class_index(entry: Any, classes: Classes, bag: str) -> int:
    """Return the column of a class, given by name (str) or index (int); of integer classes, by its value."""
    given = _plain(entry, bag)
    if isinstance(given, str):
        if given in classes:
            return classes.index(given)
        raise DataError(
            f"Bag '{bag}' names the class '{given}', which is not among the classes.{suggest(given, classes)}"
        )
    if 0 <= given < len(classes) and classes[given] == given:
        return given
    if classes and isinstance(classes[0], int) and classes != tuple(range(len(classes))):
        if given in classes:
            return classes.index(given)
        raise DataError(f"Bag '{bag}' has the class {given}, which is not among {listed(classes)}.")
    if 0 <= given < len(classes):
        return given
    raise DataError(f"Bag '{bag}' has the class {given!r}: an index must be from 0 to {len(classes) - 1}.")


def add_false_positives(labels: IntArray, k: int, r: int, *seed: str | int) -> BoolArray:
    """Return candidate sets (m, k): the true label and ``r`` others, drawn uniformly without replacement."""
    if not 0 <= r < k:
        raise DataError(
            f"r = {r} false positives cannot be drawn for {k} classes: r must be from 0 to {k - 1}."
        )
    draw = rng_for("candidates", r, *seed).random((len(labels), k))
    draw[np.arange(len(labels)), labels] = -1.0  # the true label always ranks first
    return np.argsort(np.argsort(draw, axis=1), axis=1) <= r


def add_confusable(labels: IntArray, confusion: NDArray[np.float64], *seed: str | int) -> BoolArray:
    """Return candidate sets (m, k): the true y, and each other label j with probability confusion[y, j]."""
    draw = rng_for("confusable", *seed).random((len(labels), len(confusion)))
    candidates: BoolArray = draw < confusion[labels]
    candidates[np.arange(len(labels)), labels] = True
    return candidates


def _plain(entry: Any, bag: str | None = None) -> str | int:
    """Return a NumPy or torch scalar as a str or int."""
    if isinstance(entry, str):
        return str(entry)
    value = entry.item() if getattr(entry, "shape", None) == () else entry
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    where = "A class" if bag is None else f"A class of bag '{bag}'"
    raise DataError(f"{where} is written as {entry!r}: use its name (str) or its index (int).")
