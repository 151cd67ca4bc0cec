"""Bags in the authors' ``.mat`` files: a cell array ``data`` with one row per bag.

Its columns are the features (n, d), the 1-based candidate labels, the 1-based true label and, in some files,
one label per instance.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.annotations import refuse_votes
from mipl.data.bags import Bags
from mipl.data.candidates import MOST_CLASSES, BoolArray, Classes, IntArray, check_classes
from mipl.data.features import names_in
from mipl.data.formats.matlab5 import Array, Value, describe, read_variables
from mipl.data.validation import check_alike
from mipl.errors import DataError, SettingError, StorageError
from mipl.files import atomic_file

FORMAT = "mipl-mat-1"
LARGEST = 2**32 - 2**26  # bytes of features: lengths have 32 bits, and tags and labels need some of them
REMOVE = " Remove that variable to read 'data' alone."
VARIABLES = ("data", "mipl", "weights", "coordinates")
Metadata = dict[str, Any]  # the variable 'mipl' of files written by write_mat


def read_mat(path: Path, *, shape: tuple[int, ...] | None = None) -> Bags:
    """Read bags from a ``.mat`` file (MATLAB 5 to 7) with the authors' cell array ``data``.

    Such a file has names of neither bags nor classes: ids are the row numbers 1 … m, as in the authors' index
    files, and classes are 0 … k−1 for the labels 1 … k, where k is the largest candidate or true label. In
    the fourth column, 0 or a label above k is none of the classes. Features stay double, single or uint8
    (which represents value/255); other integers become floats. Bags written by :func:`write_mat` are restored
    completely.

    Args:
        path: the file.
        shape: shape of images that are stored as vectors row by row, for example (28, 28).

    Raises:
        StorageError: the file is missing, damaged or of another format.
        DataError: its content is not bags.
        SettingError: the vectors cannot have this shape.
    """
    variables = read_variables(path, VARIABLES)
    try:
        return _bags(variables, shape)
    except (DataError, SettingError, StorageError) as error:
        raise type(error)(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if "mipl" not in variables:
            raise
        raise StorageError(
            f"{path}: the variable 'mipl' is not as write_mat writes it "
            f"({type(error).__name__}: {error}).{REMOVE}"
        ) from error


def write_mat(bags: Bags, path: Path) -> None:
    """Write bags in the authors' format, uncompressed; :func:`read_mat` restores the same bags.

    Images become vectors, unknown labels empty cells, instance labels −1 become 0. Everything else is stored
    in the further variables ``mipl`` (JSON text), ``weights`` and ``coordinates``.
    """
    refuse_votes(bags, path)
    from scipy.io import savemat

    if path.suffix != ".mat":
        raise StorageError(f"{path} should end in .mat.")
    if int(bags.sizes.sum()) * math.prod(bags.feature_shape) * max(bags.source.dtype.itemsize, 4) > LARGEST:
        raise DataError(f"The bags are larger than the 4 GB limit of {path}: write an .npz file.")
    further: dict[str, Array] = {}
    if bags.weights is not None:
        further["weights"] = bags.weights
    if bags.coordinates is not None:
        further["coordinates"] = bags.coordinates[bags.rows()]
    try:
        # ASCII: MATLAB's versions differ in how they store other characters
        text = json.dumps(_metadata(bags, further))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The provenance cannot be written to {path}: {error}; use text, numbers, lists and dictionaries."
        ) from error
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        savemat(file, {"data": _cells(bags), **further, "mipl": np.array(text)})


def _metadata(bags: Bags, further: dict[str, Array]) -> Metadata:
    return {
        "format": FORMAT,
        "ids": bags.ids.tolist(),
        "classes": list(bags.classes),
        "groups": None if bags.groups is None else bags.groups.tolist(),
        "feature_shape": bags.feature_shape,
        "candidates": bags.candidates is not None,
        "labels": bags.labels is not None,
        "missing_truth": bags.missing_truth,
        "provenance": dict(bags.provenance),
        "feature_names": None if bags.feature_names is None else list(bags.feature_names),
        "dtypes": {"data": str(bags.source.dtype)} | {name: str(a.dtype) for name, a in further.items()},
    }


def _cells(bags: Bags) -> Array:
    """Return the cell array ``data`` (m, 3 or 4)."""
    cells = np.empty((len(bags), 3 if bags.instance_labels is None else 4), dtype=object)
    label_type = np.uint8 if bags.k < 256 else np.uint16
    for i, bag in enumerate(bags):
        vectors = bag.instances.reshape(len(bag), -1)
        cells[i, 0] = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
        candidates = () if bag.candidates is None else np.flatnonzero(bag.candidates) + 1
        cells[i, 1] = np.array([candidates], dtype=label_type)
        cells[i, 2] = np.array([[] if bag.label is None else [bag.label + 1]], dtype=label_type)
        if bag.instance_labels is not None:
            cells[i, 3] = (bag.instance_labels[:, None] + 1).astype(label_type)
    return cells


def _bags(variables: dict[str, Value], shape: tuple[int, ...] | None) -> Bags:
    data = _check_data(variables.get("data"))
    meta = _read_metadata(variables.get("mipl"), len(data))
    if meta is None and not len(data):
        raise DataError("'data' has no rows: there is no bag.")
    ids: list[str] = [str(i) for i in range(1, len(data) + 1)] if meta is None else meta["ids"]
    parts = [_features(cell, bag) for cell, bag in zip(data[:, 0], ids, strict=True)]
    check_alike(parts, ids)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    sets = None
    if meta is None or meta["candidates"]:
        sets = [_labels(cell, bag, "candidate label") for cell, bag in zip(data[:, 1], ids, strict=True)]
    labels = None
    if meta["labels"] if meta is not None else any(np.size(cell) for cell in data[:, 2]):
        one = [_labels(cell, bag, "true label", 1) for cell, bag in zip(data[:, 2], ids, strict=True)]
        labels = np.array(one, dtype=np.int64).reshape(-1) - 1
    classes = _classes(sets, labels, meta)
    return Bags(
        source=_source(parts, shape, meta),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        classes=classes,
        ids=np.array(ids, dtype=np.str_),
        candidates=None if sets is None else _candidates(sets, len(classes)),
        labels=labels,
        instance_labels=_instance_labels(data, ids, sizes, len(classes)) if data.shape[1] == 4 else None,
        **({} if meta is None else _further_fields(meta, variables)),
    )


def _check_data(data: Value | None) -> Array:
    if data is None:
        raise DataError("there is no variable 'data', a cell array with one row per bag.")
    if isinstance(data, str) or data.dtype != object or data.ndim != 2 or data.shape[1] not in (3, 4):
        raise DataError(
            f"'data' is {describe(data)}: it should be cells, one row per bag, in three or four columns "
            "(features, candidate labels, true label, instance labels)."
        )
    return data


def _read_metadata(value: Value | None, rows: int) -> Metadata | None:
    """Return the metadata of a file written by :func:`write_mat`, or None."""
    if value is None:
        return None
    meta: Metadata = json.loads(str(value))
    if meta["format"] != FORMAT:
        raise StorageError(f"its format is {meta['format']!r}; this version reads {FORMAT!r}.")
    if len(meta["ids"]) != rows:
        raise DataError(f"'mipl' names {len(meta['ids'])} bags, but 'data' has {rows} rows.{REMOVE}")
    return meta


def _classes(sets: list[IntArray] | None, labels: IntArray | None, meta: Metadata | None) -> Classes:
    largest = max((int(chosen.max()) for chosen in sets or ()), default=0)
    largest = max(largest, 0 if labels is None else int(labels.max(initial=-1)) + 1)
    classes = check_classes(range(largest) if meta is None else meta["classes"])
    if largest > len(classes):
        raise DataError(f"there is a label {largest}, but the variable 'mipl' names {len(classes)} classes.")
    return classes


def _candidates(sets: list[IntArray], k: int) -> BoolArray:
    matrix = np.zeros((len(sets), k), dtype=np.bool_)
    for row, chosen in zip(matrix, sets, strict=True):
        row[chosen - 1] = True
    return matrix


def _instance_labels(data: Array, ids: list[str], sizes: IntArray, k: int) -> IntArray:
    cells = zip(data[:, 3], ids, sizes.tolist(), strict=True)
    parts = [_labels(cell, bag, "instance label", size, smallest=0) for cell, bag, size in cells]
    stored = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return np.where(stored > k, 0, stored) - 1


def _further_fields(meta: Metadata, variables: dict[str, Value]) -> dict[str, Any]:
    """Return the fields of `Bags` that only files of :func:`write_mat` contain."""
    return {
        "groups": None if meta["groups"] is None else np.array(meta["groups"], dtype=np.str_),
        "missing_truth": bool(meta["missing_truth"]),
        "provenance": dict(meta["provenance"]),
        "feature_names": names_in(meta),
        **{
            name: np.ascontiguousarray(variables[name], dtype=meta["dtypes"][name])
            for name in ("weights", "coordinates")
            if name in meta["dtypes"]
        },
    }


def _features(cell: Value, bag: str) -> Array:
    """Return the features of one bag (n, d) as double, single or uint8."""
    if isinstance(cell, str) or cell.dtype.kind not in "fiub" or cell.ndim != 2:
        raise DataError(f"Bag '{bag}' has as features {describe(cell)}: they should be a matrix of numbers.")
    if not cell.size:
        raise DataError(f"Bag '{bag}' is empty: every bag needs at least one instance.")
    return cell if cell.dtype.str[1:] in ("f8", "f4", "u1") else cell.astype(np.result_type(cell, np.float32))


def _labels(cell: Value, bag: str, what: str, count: int | None = None, smallest: int = 1) -> IntArray:
    """Return the labels of a cell as stored: ``count`` integers, or at least one if ``count`` is None."""
    if isinstance(cell, str) or cell.dtype.kind not in "fiu":
        raise DataError(f"Bag '{bag}' has as {what} {describe(cell)}: it should be a number.")
    values = cell.ravel()
    if count is None and not len(values):
        raise DataError(f"Bag '{bag}' has no {what}: give at least one, or leave the bag out.")
    if count is not None and len(values) != count:
        raise DataError(f"Bag '{bag}' has {len(values)} numbers as {what}: there should be {count}.")
    for value in values.tolist():  # faster than array operations on a few numbers; NaN fails too
        if not smallest <= value <= MOST_CLASSES or value % 1:
            raise DataError(
                f"Bag '{bag}' has the {what} {value:g}: labels are integers of at least {smallest}."
            )
    return values.astype(np.int64)


def _source(parts: list[Array], shape: tuple[int, ...] | None, meta: Metadata | None) -> Array:
    """Return all features (rows, *shape) in C order."""
    if parts:
        dtype = np.result_type(*{part.dtype for part in parts})
        # allocated in advance: MATLAB's arrays are in Fortran order, and so would be their concatenation
        source = np.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=dtype)
        np.concatenate(parts, out=source)
    else:
        source = np.zeros((0, math.prod(meta["feature_shape"]) if meta else 0), dtype=np.float32)
    wanted = shape or (source.shape[1:] if meta is None else tuple(meta["feature_shape"]))
    if math.prod(wanted) != source.shape[1] or min(wanted) < 1:
        error = DataError if shape is None else SettingError
        raise error(f"{source.shape[1]} features cannot be given the shape {wanted}.")
    source = source.reshape(len(source), *wanted)
    return source if meta is None else source.astype(meta["dtypes"]["data"], copy=False)
