"""The authors' ``.mat`` files: a cell array ``data``, one row a bag.

Its columns are features (n, d), 1-based candidate labels, the 1-based true label and, in some files, a label
for each instance. The reader knows just the part of MATLAB's format that this takes, and checks every length
before it follows it: scipy's reader can bring down the interpreter over a damaged file.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import MOST_CLASSES, IntArray, check_classes
from mipl.data.features import names_in
from mipl.data.validation import check_alike
from mipl.errors import DataError, SettingError, StorageError
from mipl.files import atomic_file

Array = NDArray[Any]
Value = Array | str  # numbers, text (dtype U), cells (dtype object), or in a word what else it is

FORMAT = "mipl-mat-1"
LARGEST = 2**32 - 2**26  # bytes of features: lengths have 32 bits, and tags and labels need some room
REMOVE = " Remove that variable to read 'data' alone."
WANTED = ("data", "mipl", "weights", "coordinates")

# The format's numbers: kinds of elements, MATLAB's classes, and the flags of an array.
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
ENCODED = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16"}
NUMBERS = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), start=6))
CELL, TEXT = 1, 4
OTHERS = {2: "a struct", 3: "an object", 5: "a sparse matrix", 16: "a function", 17: "an object"}
LOGICAL, COMPLEX = 0x200, 0x800
TAG = {order: struct.Struct(order + "II") for order in "<>"}  # of an element: kind and length


class _FormatError(Exception):
    """A file that is not of this format at all."""


def read_variables(path: Path, wanted: tuple[str, ...]) -> dict[str, Value]:
    """Return those of the wanted variables that a ``.mat`` file has: arrays, or words for what else."""
    try:
        return dict(_variables(memoryview(path.read_bytes()), wanted))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except _FormatError as error:
        raise StorageError(f"{path} {error}") from error
    except (ValueError, struct.error, zlib.error) as error:
        raise StorageError(f"{path} is cut short or damaged ({error}): fetch or write it again.") from error


def read_mat(path: Path, *, shape: tuple[int, ...] | None = None) -> Bags:
    """Read bags from a ``.mat`` file (MATLAB 5 to 7) with the authors' cell array ``data``.

    Such a file names neither bags nor classes: ids are the row numbers 1 … m, as in the authors' index
    files, and classes are 0 … k−1 for the labels 1 … k, where k is the largest candidate or true label.
    In the fourth column 0, or a label above k, is none of the classes. Features stay double, single or
    uint8 (which stands for value/255); other whole numbers become floats. ``shape``, for example (28, 28),
    makes images of vectors, row by row. What :func:`write_mat` adds is read too: it gives the same bags back.
    """
    variables = read_variables(path, WANTED)
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
    """Write ``bags`` as the authors do, uncompressed; :func:`read_mat` gives the same bags back.

    Images become vectors, unknown labels empty cells, instance labels −1 become 0. What the cell array has
    no room for is in the further variables ``mipl`` (JSON text), ``weights`` and ``coordinates``.
    """
    from scipy.io import savemat

    if path.suffix != ".mat":
        raise StorageError(f"{path} should end in .mat.")
    if int(bags.sizes.sum()) * math.prod(bags.feature_shape) * max(bags.source.dtype.itemsize, 4) > LARGEST:
        raise DataError(f"The bags are larger than the 4 GB that {path} can hold: write an .npz file.")
    further: dict[str, Array] = {}
    if bags.weights is not None:
        further["weights"] = bags.weights
    if bags.coordinates is not None:
        further["coordinates"] = bags.coordinates[bags.rows()]
    meta = {
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
    try:
        further["mipl"] = np.array(json.dumps(meta))  # ASCII: MATLAB's versions differ in how they store more
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The provenance cannot be written to {path}: {error}; use text, numbers, lists and dictionaries."
        ) from error
    cells = np.empty((len(bags), 3 if bags.instance_labels is None else 4), dtype=object)
    narrow = np.uint8 if bags.k < 256 else np.uint16
    for i, bag in enumerate(bags):
        vectors = bag.instances.reshape(len(bag), -1)
        cells[i, 0] = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
        chosen = () if bag.candidates is None else np.flatnonzero(bag.candidates) + 1
        cells[i, 1] = np.array([chosen], dtype=narrow)
        cells[i, 2] = np.array([[] if bag.label is None else [bag.label + 1]], dtype=narrow)
        if bag.instance_labels is not None:
            cells[i, 3] = (bag.instance_labels[:, None] + 1).astype(narrow)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        savemat(file, {"data": cells, **further})


# ---- from variables to bags ----------------------------------------------------------------------------


def _bags(variables: dict[str, Value], shape: tuple[int, ...] | None) -> Bags:
    data = variables.get("data")
    if data is None:
        raise DataError("there is no variable 'data', a cell array with one row a bag.")
    if isinstance(data, str) or data.dtype != object or data.ndim != 2 or data.shape[1] not in (3, 4):
        raise DataError(
            f"'data' is {described(data)}: it should be cells, one row a bag, in three or four columns "
            "(features, candidate labels, true label, instance labels)."
        )
    meta = _meta(variables.get("mipl"), len(data))
    if meta is None and not len(data):
        raise DataError("'data' has no row: there is no bag.")
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
    largest = max((int(chosen.max()) for chosen in sets or ()), default=0)
    largest = max(largest, 0 if labels is None else int(labels.max(initial=-1)) + 1)
    classes = check_classes(range(largest) if meta is None else meta["classes"])
    if largest > len(classes):
        raise DataError(f"there is a label {largest}, but the variable 'mipl' names {len(classes)} classes.")
    candidates = None
    if sets is not None:
        candidates = np.zeros((len(data), len(classes)), dtype=np.bool_)
        for row, chosen in zip(candidates, sets, strict=True):
            row[chosen - 1] = True
    instance_labels = None
    if data.shape[1] == 4:
        cells = zip(data[:, 3], ids, sizes.tolist(), strict=True)
        each = [_labels(cell, bag, "instance label", size, least=0) for cell, bag, size in cells]
        instance_labels = np.concatenate([np.zeros(0, dtype=np.int64), *each])
        instance_labels = np.where(instance_labels > len(classes), 0, instance_labels) - 1
    return Bags(
        source=_source(parts, shape, meta),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        classes=classes,
        ids=np.array(ids, dtype=np.str_),
        candidates=candidates,
        labels=labels,
        instance_labels=instance_labels,
        **({} if meta is None else _further(meta, variables)),
    )


def _further(meta: dict[str, Any], variables: dict[str, Value]) -> dict[str, Any]:
    """Return what only files of :func:`write_mat` hold."""
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
    """Return one bag's features (n, d) as double, single or uint8."""
    if isinstance(cell, str) or cell.dtype.kind not in "fiub" or cell.ndim != 2:
        raise DataError(f"Bag '{bag}' has as features {described(cell)}: they should be a matrix of numbers.")
    if not cell.size:
        raise DataError(f"Bag '{bag}' is empty: every bag needs at least one instance.")
    return cell if cell.dtype.str[1:] in ("f8", "f4", "u1") else cell.astype(np.result_type(cell, np.float32))


def _labels(cell: Value, bag: str, what: str, count: int | None = None, least: int = 1) -> IntArray:
    """Return labels as they are stored: whole numbers, ``count`` of them or else at least one."""
    if isinstance(cell, str) or cell.dtype.kind not in "fiu":
        raise DataError(f"Bag '{bag}' has as {what} {described(cell)}: it should be a number.")
    values = cell.ravel()
    if count is None and not len(values):
        raise DataError(f"Bag '{bag}' has no {what}: give at least one, or leave the bag out.")
    if count is not None and len(values) != count:
        raise DataError(f"Bag '{bag}' has {len(values)} numbers as {what}: there should be {count}.")
    for value in values.tolist():  # of a few numbers, faster than array operations; NaN is wrong too
        if not least <= value <= MOST_CLASSES or value % 1:
            raise DataError(
                f"Bag '{bag}' has the {what} {value:g}: labels are whole numbers from {least} on."
            )
    return values.astype(np.int64)


def _source(parts: list[Array], shape: tuple[int, ...] | None, meta: dict[str, Any] | None) -> Array:
    """Return all features (rows, *shape), each instance in one piece."""
    if parts:
        dtype = np.result_type(*{part.dtype for part in parts})
        # made beforehand: MATLAB's arrays lie column by column, and joined they would do so too
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


def _meta(value: Value | None, rows: int) -> dict[str, Any] | None:
    """Return what :func:`write_mat` says of the bags besides the authors' ``data``, if it wrote the file."""
    if value is None:
        return None
    meta: dict[str, Any] = json.loads(str(value))
    if meta["format"] != FORMAT:
        raise StorageError(f"its format is {meta['format']!r}; this version reads {FORMAT!r}.")
    if len(meta["ids"]) != rows:
        raise DataError(f"'mipl' names {len(meta['ids'])} bags, but 'data' has {rows} rows.{REMOVE}")
    return meta


def described(value: Value) -> str:
    """Return in a few words what a variable is."""
    if isinstance(value, str):
        return value
    kind = {"U": "text", "O": "cells", "b": "logical"}.get(value.dtype.kind, f"numbers ({value.dtype})")
    return kind if value.dtype.kind == "U" else f"{'×'.join(map(str, value.shape))} {kind}"


# ---- from bytes to variables ---------------------------------------------------------------------------


def _variables(view: memoryview, wanted: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    """Yield the wanted variables of a file by name; lengths that lead astray raise an error."""
    order = {b"IM": "<", b"MI": ">"}.get(bytes(view[126:128]))
    version = None if order is None else struct.unpack_from(order + "H", view, 124)[0]
    if bytes(view[:4]) == b"\x89HDF" or bytes(view[:10]) == b"MATLAB 7.3" or version == 0x200:
        raise _FormatError("is of MATLAB's version 7.3 (HDF5), which is not read: save it with '-v7'.")
    if order is None or version != 0x100:
        if len(view) < 128 and bytes(view[:6]) == b"MATLAB":
            raise ValueError("its header ends early")
        raise _FormatError("is not a .mat file of MATLAB 5 to 7.")
    at = 128
    while at < len(view):
        kind, content, at = _element(view, order, at)
        if kind == COMPRESSED:
            kind, content, _ = _element(memoryview(zlib.decompress(content)), order, 0)
        if kind == MATRIX and len(content):
            name, value = _array(content, order, wanted)
            if name in wanted:
                yield name, value


def _element(view: memoryview, order: str, at: int) -> tuple[int, memoryview, int]:
    """Return the kind and the content of the element at a place, and the place of the next one."""
    kind, length = TAG[order].unpack_from(view, at)
    if kind >> 16:  # short: kind, length and up to four bytes within eight
        kind, length, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if length > 4:
            raise ValueError(f"a short element of {length} bytes")
    else:
        start = at + 8
        end = start + length + (0 if kind == COMPRESSED else -length % 8)
    if start + length > len(view):
        raise ValueError("an element reaches beyond the end")
    return kind, view[start : start + length], end


def _array(view: memoryview, order: str, wanted: tuple[str, ...] | None = None) -> tuple[str, Value]:
    """Return name and value of a variable (of one that is not wanted, the name only) or of a cell."""
    if not len(view):
        return "", np.zeros((0, 0))
    _, flags, at = _element(view, order, 0)
    (word,) = struct.unpack_from(order + "I", flags)
    _, sides, at = _element(view, order, at)
    shape = struct.unpack(f"{order}{len(sides) // 4}i", sides)
    _, letters, at = _element(view, order, at)
    name = bytes(letters).decode("latin-1")
    if wanted is not None and name not in wanted:
        return name, ""
    if min(shape, default=-1) < 0:
        raise ValueError(f"an array of shape {shape}")
    kind, count = word & 0xFF, math.prod(shape)
    if kind == CELL and wanted is not None:  # cells within cells are of no use here
        return name, _cells(view, order, at, count).reshape(shape, order="F")
    if word & COMPLEX and kind in NUMBERS:
        return name, "complex numbers"
    if kind not in NUMBERS and kind != TEXT:
        return name, "cells" if kind == CELL else OTHERS.get(kind, "of an unknown kind")
    stored, content, _ = _element(view, order, at) if at < len(view) or count else (1, view[:0], at)
    if stored not in (ENCODED if kind == TEXT else STORED):
        raise ValueError(f"an array with content of kind {stored}")
    if kind == TEXT:
        encoding = ENCODED[stored] + ({"<": "-le", ">": "-be"}[order] if stored in (4, 17) else "")
        return name, np.array(bytes(content).decode(encoding))
    values = np.frombuffer(content, dtype=order + STORED[stored])
    if len(values) != count or (values.dtype.kind == "f" and NUMBERS[kind][0] != "f"):
        raise ValueError(f"{len(values)} numbers for an array of shape {shape}")
    dtype = np.dtype(np.bool_ if word & LOGICAL else NUMBERS[kind])
    if values.dtype != dtype:  # numbers are stored in a smaller type where they fit
        with np.errstate(over="ignore"):
            values = values.astype(dtype)
    return name, values.reshape(shape, order="F")


def _cells(view: memoryview, order: str, at: int, count: int) -> Array:
    if count > len(view) // 8:
        raise ValueError(f"{count} cells where there is no room for them")
    cells = np.empty(count, dtype=object)
    for i in range(count):
        kind, content, at = _element(view, order, at)
        if kind != MATRIX:
            raise ValueError(f"an element of kind {kind} in a cell")
        cells[i] = _array(content, order)[1]
    if at != len(view):
        raise ValueError(f"more than the {count} cells that there should be")
    return cells
