"""Parse request bodies from untrusted clients into `Bags`, within limits.

Nothing is unpickled, no path is opened, and no array is allocated before its size is known from its header.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from mipl.data.bags import Bags
from mipl.data.formats.h5 import FEATURES
from mipl.data.formats.origin import Features, features_in
from mipl.errors import DataError, MiplError, SettingError

Array = NDArray[Any]
JSON, NPY, HDF5 = "application/json", "application/x-npy", "application/x-hdf5"
TYPES = {JSON: JSON, NPY: NPY, HDF5: HDF5, "application/npy": NPY, "application/hdf5": HDF5}
# Shuffle and checksum. Compression is refused: HDF5 decompresses a chunk to any size, whatever its header
# says, and searches for unknown filters among plugins on disk.
ALLOWED_FILTERS = {2, 3}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    bytes: int = 16 * 2**20  # of the body, and of the arrays in it
    bags: int = 1000
    instances: int = 100_000
    seconds: float = 30.0  # to receive the body, and again to compute the answer

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not value > 0 or not math.isfinite(value):
                raise SettingError(f"The limit of {name} is {value}: give a positive number.")


class RequestError(MiplError):
    """A request that is refused.

    Args:
        status: HTTP status code.
        detail: One sentence for the client.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: If the body has more than ``max_bytes`` bytes or takes longer than ``seconds``.
    """
    too_large = RequestError(413, f"The body is larger than the limit of {max_bytes} bytes: send less.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError as error:
        raise RequestError(408, f"The body did not arrive within {seconds:g} s.") from error
    except ClientDisconnect as error:
        raise RequestError(400, "The client disconnected before the body had arrived.") from error
    return b"".join(chunks)


def read_bags(body: bytes, content_type: str, feature_shape: tuple[int, ...], limits: Limits) -> Bags:
    """Return the bags in a body; without ids in JSON, they are numbered from 0."""
    media_type = TYPES.get(content_type.partition(";")[0].strip().lower())
    if media_type is None:
        raise RequestError(
            415, f"The content type {content_type[:80]!r} is not supported: send {JSON}, {NPY} or {HDF5}."
        )
    if not body:
        raise RequestError(400, "The body is empty: send at least one bag.")
    origin: Features = {}
    if media_type == JSON:
        arrays, ids, names = _read_json(body)
    else:
        array, origin = (_read_npy(body), {}) if media_type == NPY else _read_h5(body, limits)
        # one bag (n, …), or the bags of an array (m, n, …) with one more dimension
        arrays, ids, names = [array], None, None
        if array.ndim == len(feature_shape) + 2:
            arrays = list(array)
    check_counts(arrays, limits)
    provenance = {"features": origin} if origin else None
    return Bags.from_list(arrays, ids=ids, feature_names=names, provenance=provenance)


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"The body is not valid JSON: {reason}.") from error
    if not isinstance(content, dict):
        raise RequestError(422, f"The body is a JSON {type(content).__name__}, not an object.")
    return content


def check_counts(arrays: list[Any], limits: Limits) -> None:
    """Raise an error if there are too many bags or instances."""
    if len(arrays) > limits.bags:
        raise RequestError(
            413, f"There are {len(arrays)} bags, more than the limit of {limits.bags}: send fewer."
        )
    count = sum(len(array) for array in arrays if isinstance(array, list) or array.ndim)
    if count > limits.instances:
        raise RequestError(
            413, f"There are {count} instances, more than the limit of {limits.instances}: send fewer bags."
        )


def _read_json(body: bytes) -> tuple[list[Any], list[str] | None, list[str] | None]:
    content = parse_json(body)
    bags = content.get("bags")
    if unknown := content.keys() - {"bags", "ids", "feature_names"}:
        raise RequestError(
            422,
            f"Unknown field {min(unknown)[:80]!r}: send 'bags' and optionally 'ids' and 'feature_names'.",
        )
    if not isinstance(bags, list) or not all(isinstance(bag, list) for bag in bags):
        raise RequestError(422, "The field 'bags' must be a list of bags, each a list of instances.")
    return (
        bags,
        _optional_strings(content, "ids", "bag"),
        _optional_strings(content, "feature_names", "feature"),
    )


def _optional_strings(content: dict[str, Any], field: str, unit: str) -> list[str] | None:
    strings = content.get(field)
    if strings is None:
        return None
    if not isinstance(strings, list) or not all(isinstance(text, str) and text for text in strings):
        raise RequestError(422, f"The field '{field}' must be a list of non-empty strings, one per {unit}.")
    return strings


def _read_npy(body: bytes) -> Array:
    if body.startswith(b"PK"):
        raise RequestError(415, "The body is a zip archive (.npz): send one array as .npy.")
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = readers[version](file)
    except Exception as error:  # the header is parsed as Python literals, which fail in many ways
        raise RequestError(400, "The body is not an .npy array of format 1 or 2.") from error
    if dtype.kind not in "fiub":  # object arrays are pickles
        raise RequestError(422, f"The array is of type {str(dtype)[:80]}: send numbers, not Python objects.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(body) - file.tell():
        raise RequestError(
            400,
            f"The array's header says {str(shape)[:80]} of {dtype}, which is not the size of the body.",
        )
    file.seek(0)
    array: Array = np.load(file, allow_pickle=False)
    return array


def _read_h5(body: bytes, limits: Limits) -> tuple[Array, Features]:
    import h5py

    try:
        with h5py.File(io.BytesIO(body), "r") as file:
            # as in mipl.data.lazy: links, external and virtual arrays point outside this body
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
                    f"it contains {', '.join(names)[:200] or 'no array of its own'}."
                )
            return _read_dataset(file[key], limits), features_in(file, key)
    except MiplError:
        raise
    except Exception as error:  # HDF5 raises many kinds of errors for a damaged file
        raise RequestError(400, "The body is not a valid HDF5 file: write it again.") from error


def _read_dataset(stored: Any, limits: Limits) -> Array:
    if stored.dtype.kind not in "fiub":
        raise RequestError(422, f"The array is of type {str(stored.dtype)[:80]}: send numbers.")
    for shape in (stored.shape or (), stored.chunks or ()):  # a chunk is read as a whole
        size = math.prod(shape) * stored.dtype.itemsize
        if size > limits.bytes:
            raise RequestError(413, f"The array has {size} bytes, more than the limit of {limits.bytes}.")
    plist = stored.id.get_create_plist()
    if not {plist.get_filter(i)[0] for i in range(plist.get_nfilters())} <= ALLOWED_FILTERS:
        raise RequestError(422, "Compressed arrays are not supported: write the array without compression.")
    return np.asarray(stored[()])
