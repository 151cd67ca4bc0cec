"""The bodies of requests, from strangers: what is sent becomes `Bags`, or is refused with one sentence.

Nothing is unpickled, no path is opened, and no array is made before its header has said how large it is.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.formats.h5 import FEATURES
from mipl.errors import DataError, MiplError, SettingError

Array = NDArray[Any]
JSON, NPY, HDF5 = "application/json", "application/x-npy", "application/x-hdf5"
TYPES = {JSON: JSON, NPY: NPY, HDF5: HDF5, "application/npy": NPY, "application/hdf5": HDF5}
# shuffle and checksum: HDF5 unpacks a compressed chunk to whatever comes out, though its header says less,
# and looks for filters that it does not know among plugins on disk
FILTERS = {2, 3}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    bytes: int = 16 * 2**20  # of a body, and of the arrays that it unpacks to
    bags: int = 1000
    instances: int = 100_000
    seconds: float = 30.0  # to send the body, and again to answer it

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not value > 0 or not math.isfinite(value):
                raise SettingError(f"The limit of {name} is {value}: give a number above 0.")


class RefusedError(MiplError):
    """A request that is refused, and the HTTP status that says so."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def read_bags(body: bytes, kind: str, feature_shape: tuple[int, ...], limits: Limits) -> Bags:
    """Return the bags in a body of content type ``kind``; of ids there are those of JSON, or 0, 1, …"""
    known = TYPES.get(kind.partition(";")[0].strip().lower())
    if known is None:
        raise RefusedError(
            415, f"The content type {kind[:80]!r} is not known here: send {JSON}, {NPY} or {HDF5}."
        )
    if not body:
        raise RefusedError(400, "The body is empty: send at least one bag.")
    if known == JSON:
        arrays, ids, names = _read_json(body)
    else:
        arrays, ids, names = _read_array(body, known, feature_shape, limits), None, None
    check_counts(arrays, limits)
    return Bags.from_list(arrays, ids=ids, feature_names=names)


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RefusedError(400, f"The body is not valid JSON: {reason}.") from error
    if not isinstance(content, dict):
        raise RefusedError(422, f"The body is a JSON {type(content).__name__}, not an object.")
    return content


def check_counts(arrays: list[Any], limits: Limits) -> None:
    """Raise an error if there are too many bags or instances."""
    if len(arrays) > limits.bags:
        raise RefusedError(
            413, f"There are {len(arrays)} bags, above the limit of {limits.bags}: send fewer."
        )
    count = sum(len(array) for array in arrays if isinstance(array, list) or array.ndim)
    if count > limits.instances:
        raise RefusedError(
            413, f"There are {count} instances, above the limit of {limits.instances}: send fewer bags."
        )


def _read_json(body: bytes) -> tuple[list[Any], list[str] | None, list[str] | None]:
    content = parse_json(body)
    bags = content.get("bags")
    if unknown := content.keys() - {"bags", "ids", "feature_names"}:
        raise RefusedError(
            422,
            f"The field {min(unknown)[:80]!r} is not known: send 'bags' and perhaps 'ids' and "
            "'feature_names'.",
        )
    if not isinstance(bags, list) or not all(isinstance(bag, list) for bag in bags):
        raise RefusedError(422, "The field 'bags' must be a list of bags, each a list of instances.")
    return bags, _texts(content, "ids", "bag"), _texts(content, "feature_names", "feature")


def _texts(content: dict[str, Any], field: str, each: str) -> list[str] | None:
    """Return a list of texts that an object may have, or None."""
    texts = content.get(field)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RefusedError(
            422, f"The field '{field}' must be a list of texts that are not empty, one for each {each}."
        )
    return texts


def _read_array(body: bytes, kind: str, feature_shape: tuple[int, ...], limits: Limits) -> list[Any]:
    """Return one bag (n, …), or the bags of an array (m, n, …) with one more dimension."""
    array = _read_npy(body) if kind == NPY else _read_h5(body, limits)
    many = array.ndim == len(feature_shape) + 2
    return list(array) if many else [array]


def _read_npy(body: bytes) -> Array:
    if body.startswith(b"PK"):
        raise RefusedError(415, "The body is a zip archive (.npz): send one array as .npy.")
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = readers[version](file)
    except Exception as error:  # the header is Python text, and what is wrong with it comes in many kinds
        raise RefusedError(400, "The body is not an .npy array of format 1 or 2.") from error
    if dtype.kind not in "fiub":  # object arrays are pickles
        raise RefusedError(422, f"The array is of type {str(dtype)[:80]}: send numbers, no Python objects.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(body) - file.tell():
        raise RefusedError(
            400,
            f"The array's header says {str(shape)[:80]} of {dtype}, which is not the size of what follows.",
        )
    file.seek(0)
    array: Array = np.load(file, allow_pickle=False)
    return array


def _read_h5(body: bytes, limits: Limits) -> Array:
    import h5py

    try:
        with h5py.File(io.BytesIO(body), "r") as file:
            # as in mipl.data.lazy: what a link, an external or a virtual array names is outside this body
            names = [
                name
                for name in file
                if isinstance(file.get(name, getlink=True), h5py.HardLink)
                and isinstance(file[name], h5py.Dataset)
                and not file[name].external
                and not file[name].is_virtual
            ]
            key = next((name for name in FEATURES if name in names), names[0] if len(names) == 1 else None)
            if key is None:
                raise DataError(
                    f"The body has none of the arrays {', '.join(FEATURES)}: "
                    f"it holds {', '.join(names)[:200] or 'none of its own'}."
                )
            return _read_dataset(file[key], limits)
    except MiplError:
        raise
    except Exception as error:  # the reader of a damaged file raises whatever it stumbles on
        raise RefusedError(400, "The body cannot be read as an HDF5 file: write it again.") from error


def _read_dataset(stored: Any, limits: Limits) -> Array:
    if stored.dtype.kind not in "fiub":
        raise RefusedError(422, f"The array is of type {str(stored.dtype)[:80]}: send numbers.")
    for sides in (stored.shape or (), stored.chunks or ()):  # a chunk is unpacked whole
        size = math.prod(sides) * stored.dtype.itemsize
        if size > limits.bytes:
            raise RefusedError(413, f"The array unpacks to {size} bytes, above the limit of {limits.bytes}.")
    plist = stored.id.get_create_plist()
    if not {plist.get_filter(i)[0] for i in range(plist.get_nfilters())} <= FILTERS:
        raise RefusedError(
            422, "The array is compressed, which is not read here: write it without compression."
        )
    return np.asarray(stored[()])
