"""IDX files (MNIST, Fashion-MNIST), plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mipl.errors import StorageError


def read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read ``folder/name`` or ``folder/name.gz`` as an array of unsigned bytes."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise StorageError(f"{folder} has neither {name} nor {name}.gz: give the folder of the IDX files.")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise StorageError(f"{path} is not an IDX file of bytes: its first bytes are {content[:4].hex()}.")
    header = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise StorageError(f"{path} is truncated or too long: {len(content)} bytes for the shape {shape}.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
