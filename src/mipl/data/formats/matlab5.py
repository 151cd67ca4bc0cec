"""A parser of MATLAB 5 to 7 ``.mat`` files: from bytes to arrays.

It supports the part of the format that files of bags use, and checks every length before it is followed.
SciPy's reader can crash the interpreter on a damaged file, and is slower.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import StorageError

Array = NDArray[Any]
Value = Array | str  # numbers, text (dtype U) or cells (dtype object); for other types a description

# Constants of the format: types of elements, classes of arrays, and flags of arrays.
MATRIX, COMPRESSED = 14, 15
NUMBER_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXT_TYPES = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16"}
CELL, TEXT = 1, 4
NUMBERS = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), start=6))
OTHER_CLASSES = {2: "a struct", 3: "an object", 5: "a sparse matrix", 16: "a function", 17: "an object"}
LOGICAL, COMPLEX = 0x200, 0x800
TAG = {order: struct.Struct(order + "II") for order in "<>"}  # of an element: type and length


class _FormatError(Exception):
    """The file has another format."""


def read_variables(path: Path, wanted: tuple[str, ...]) -> dict[str, Value]:
    """Read variables of a ``.mat`` file.

    Args:
        path: the file.
        wanted: names of the variables; those that the file does not have are left out.

    Returns:
        The arrays by name; a description in place of a variable of an unsupported type.

    Raises:
        StorageError: the file is missing, damaged or of another format.
    """
    try:
        return dict(_variables(memoryview(path.read_bytes()), wanted))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except _FormatError as error:
        raise StorageError(f"{path} {error}") from error
    except (ValueError, struct.error, zlib.error) as error:
        raise StorageError(
            f"{path} is truncated or damaged ({error}): download or write it again."
        ) from error


def describe(value: Value) -> str:
    """Describe a variable in a few words, for error messages."""
    if isinstance(value, str):
        return value
    kind = {"U": "text", "O": "cells", "b": "logical"}.get(value.dtype.kind, f"numbers ({value.dtype})")
    return kind if value.dtype.kind == "U" else f"{'×'.join(map(str, value.shape))} {kind}"


def _variables(view: memoryview, wanted: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    """Yield the names and values of the wanted variables."""
    order = _byte_order(view)
    offset = 128
    while offset < len(view):
        kind, content, offset = _element(view, order, offset)
        if kind == COMPRESSED:
            kind, content, _ = _element(memoryview(zlib.decompress(content)), order, 0)
        if kind == MATRIX and len(content):
            name, value = _array(content, order, wanted)
            if name in wanted:
                yield name, value


def _byte_order(view: memoryview) -> str:
    """Check the header and return the byte order, '<' or '>'."""
    order = {b"IM": "<", b"MI": ">"}.get(bytes(view[126:128]))
    version = None if order is None else struct.unpack_from(order + "H", view, 124)[0]
    if bytes(view[:4]) == b"\x89HDF" or bytes(view[:10]) == b"MATLAB 7.3" or version == 0x200:
        raise _FormatError("is a MATLAB 7.3 file (HDF5), which is not supported: save it with '-v7'.")
    if order is None or version != 0x100:
        if len(view) < 128 and bytes(view[:6]) == b"MATLAB":
            raise ValueError("its header ends early")
        raise _FormatError("is not a .mat file of MATLAB 5 to 7.")
    return order


def _element(view: memoryview, order: str, offset: int) -> tuple[int, memoryview, int]:
    """Return type and content of the element at an offset, and the offset of the next one."""
    kind, length = TAG[order].unpack_from(view, offset)
    if kind >> 16:  # a short element: type, length and up to four bytes of content in eight bytes
        kind, length, start, end = kind & 0xFFFF, kind >> 16, offset + 4, offset + 8
        if length > 4:
            raise ValueError(f"a short element of {length} bytes")
    else:
        start = offset + 8
        end = start + length + (0 if kind == COMPRESSED else -length % 8)
    if start + length > len(view):
        raise ValueError("an element reaches beyond the end")
    return kind, view[start : start + length], end


def _array(view: memoryview, order: str, wanted: tuple[str, ...] | None = None) -> tuple[str, Value]:
    """Return name and value of a variable (of an unwanted one only the name), or of a cell."""
    if not len(view):
        return "", np.zeros((0, 0))
    _, flags, offset = _element(view, order, 0)
    (word,) = struct.unpack_from(order + "I", flags)
    _, sides, offset = _element(view, order, offset)
    shape = struct.unpack(f"{order}{len(sides) // 4}i", sides)
    _, letters, offset = _element(view, order, offset)
    name = bytes(letters).decode("latin-1")
    if wanted is not None and name not in wanted:
        return name, ""
    if min(shape, default=-1) < 0:
        raise ValueError(f"an array of shape {shape}")
    kind, count = word & 0xFF, math.prod(shape)
    if kind == CELL and wanted is not None:  # cells within cells are not supported
        return name, _cells(view, order, offset, count).reshape(shape, order="F")
    if word & COMPLEX and kind in NUMBERS:
        return name, "complex numbers"
    if kind not in NUMBERS and kind != TEXT:
        return name, "cells" if kind == CELL else OTHER_CLASSES.get(kind, "of an unknown type")
    empty = offset >= len(view) and not count
    stored, content, _ = (1, view[:0], offset) if empty else _element(view, order, offset)
    if kind == TEXT:
        return name, _text(content, stored, order)
    dtype = np.dtype(np.bool_ if word & LOGICAL else NUMBERS[kind])
    return name, _numbers(content, stored, order, shape, dtype, whole=NUMBERS[kind][0] != "f")


def _text(content: memoryview, stored: int, order: str) -> Array:
    if stored not in TEXT_TYPES:
        raise ValueError(f"text with content of type {stored}")
    encoding = TEXT_TYPES[stored] + ({"<": "-le", ">": "-be"}[order] if stored in (4, 17) else "")
    return np.array(bytes(content).decode(encoding))


def _numbers(
    content: memoryview, stored: int, order: str, shape: tuple[int, ...], dtype: np.dtype[Any], whole: bool
) -> Array:
    if stored not in NUMBER_TYPES:
        raise ValueError(f"an array with content of type {stored}")
    values = np.frombuffer(content, dtype=order + NUMBER_TYPES[stored])
    if len(values) != math.prod(shape) or (values.dtype.kind == "f" and whole):
        raise ValueError(f"{len(values)} numbers for an array of shape {shape}")
    if values.dtype != dtype:  # MATLAB stores numbers in a smaller type where they fit
        with np.errstate(over="ignore"):
            values = values.astype(dtype)
    return values.reshape(shape, order="F")


def _cells(view: memoryview, order: str, offset: int, count: int) -> Array:
    if count > len(view) // 8:
        raise ValueError(f"{count} cells in {len(view)} bytes")
    cells = np.empty(count, dtype=object)
    for i in range(count):
        kind, content, offset = _element(view, order, offset)
        if kind != MATRIX:
            raise ValueError(f"an element of type {kind} in a cell")
        cells[i] = _array(content, order)[1]
    if offset != len(view):
        raise ValueError(f"content after the last of {count} cells")
    return cells
