"""Instances that stay in files, one file per bag, and are read when a batch needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import struct
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import DataError, StorageError

Array = NDArray[Any]
SUFFIXES = (".h5", ".hdf5", ".pt", ".npy", ".npz")
GAP = 32  # unneeded rows up to which one read is faster than two


@dataclasses.dataclass(frozen=True)
class Part:
    """One array in one file: (n, d), (1, n, d) with a batch dimension, or (d,) for a single vector."""

    path: Path
    key: str  # name of the array in an .h5 or .npz file; unused for .pt and .npy
    shape: tuple[int, ...]  # as stored
    dtype: np.dtype[Any]

    @property
    def rows(self) -> int:
        """The number of rows n."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def width(self) -> int:
        """The number of columns d."""
        return self.shape[-1]

    def read(self, rows: slice) -> Array:
        """Read some rows (n', d) of the array, and only these where the format allows."""
        with open_array(self.path, self.key) as stored:
            if tuple(stored.shape) != self.shape:
                raise StorageError(
                    f"{self.path} has changed since it was opened: its shape was {self.shape}, "
                    f"and now is {tuple(stored.shape)}; open the data again."
                )
            if len(self.shape) == 1:
                return np.asarray(stored)[None][rows]
            return np.asarray(stored[(0, rows) if len(self.shape) == 3 else rows])


class FileArray:
    """The rows of many files as one array (rows, d), read on every access without caching.

    Values are checked when they are read; the error for a NaN names the file.
    """

    ndim = 2

    def __init__(self, parts: Sequence[Part], dtype: np.dtype[Any], columns: Array | None = None) -> None:
        self.parts = tuple(parts)
        self.dtype = dtype
        self.columns = columns  # (d,) order in which the columns of the files are returned
        self.starts = np.concatenate([[0], np.cumsum([part.rows for part in parts], dtype=np.int64)])
        self.shape = (int(self.starts[-1]), parts[0].width)

    def __len__(self) -> int:
        return self.shape[0]

    def with_columns(self, columns: Array) -> FileArray:
        """Return the same rows with the columns in another order (d,)."""
        order = columns if self.columns is None else self.columns[columns]
        return FileArray(self.parts, self.dtype, order)

    def __getitem__(self, key: slice | Array) -> Array:
        """Return the rows of a slice, or those at an integer array (n,), as a new array (n, d)."""
        rows = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key)
        result = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for start, stop in _runs(owner, rows):
            part = self.parts[owner[start]]
            local = rows[start:stop] - self.starts[owner[start]]
            first = int(local.min())
            block = part.read(slice(first, int(local.max()) + 1))
            if len(block) != stop - start or (np.diff(local) != 1).any():
                block = block[local - first]
            result[start:stop] = block
            _check_values(result[start:stop], part.path, local)
        return result if self.columns is None else np.take(result, self.columns, axis=1)


@contextlib.contextmanager
def open_array(path: Path, key: str) -> Iterator[Any]:
    """Yield an object with ``shape``, ``dtype`` and indexing that reads from the file, without pickle."""
    try:
        if path.suffix in (".h5", ".hdf5"):
            import h5py

            with h5py.File(path, "r") as file:
                yield file[key]
        elif path.suffix == ".pt":
            yield _load_pt(path)
        elif path.suffix == ".npz":
            mapped = map_npz(path, key)
            if mapped is not None:
                yield mapped
            else:
                with np.load(path, allow_pickle=False) as content:
                    yield content[key]
        else:
            yield np.load(path, mmap_mode="r", allow_pickle=False)
    except (StorageError, DataError):
        raise
    except Exception as error:  # a reader may raise anything on a damaged file
        raise StorageError(
            f"{path} cannot be read as features ({type(error).__name__}: {_first_line(error)}): "
            "write the file again, or leave the slide out."
        ) from error


def map_npz(path: Path, key: str) -> Array | None:
    """Return an array of an ``.npz`` file as a memory map, or None if it is compressed or not in C order."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{key}.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        # the member has its own header, whose extra field may differ from the one in the directory
        file.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(member.header_offset + 30 + name + extra)
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        if version == (2, 0):
            read_header = np.lib.format.read_array_header_2_0
        if read_header is None:
            return None
        shape, column_major, dtype = read_header(file)
        if column_major or dtype.hasobject or not np.prod(shape):
            return None
        return np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an .h5 or .npz file; [''] for formats with a single array."""
    if path.suffix in (".pt", ".npy"):
        return [""]
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as content:
                return list(content.files)
        import h5py

        with h5py.File(path, "r") as file:
            # getlink: skip links to other files
            return [
                name
                for name in file
                if isinstance(file.get(name, getlink=True), h5py.HardLink)
                and isinstance(file[name], h5py.Dataset)
                and not file[name].external
                and not file[name].is_virtual
            ]
    except Exception as error:  # as in open_array
        raise StorageError(
            f"{path} cannot be read as features ({type(error).__name__}: {_first_line(error)}): "
            "write the file again, or leave the slide out."
        ) from error


def _load_pt(path: Path) -> Array:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error explains what is wrong with the file
        try:
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of torch before 1.6 are not zip archives and cannot be mapped
            stored = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(stored, torch.Tensor):
        raise StorageError(f"{path} has a {type(stored).__name__}, not one tensor of features.")
    array: Array = (stored.float() if stored.dtype == torch.bfloat16 else stored).numpy()
    return array


def _runs(owner: Array, rows: Array) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each run of rows of one file without a large gap."""
    gaps = (np.diff(owner) != 0) | (np.abs(np.diff(rows)) > GAP)
    edges = np.concatenate([[0], np.flatnonzero(gaps) + 1, [len(owner)]])
    return ((int(a), int(b)) for a, b in itertools.pairwise(edges) if b > a)


def _check_values(block: Array, path: Path, rows: Array) -> None:
    limit = np.finfo(np.float32).max
    if block.dtype.kind == "f" and not (-limit <= block.min() and block.max() <= limit):
        row = int(rows[np.flatnonzero(~(np.abs(block) <= limit).all(axis=1))[0]])
        raise DataError(
            f"{path} has a NaN, infinite or too large value in row {row}: correct the file or leave it out."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0].rstrip(".")[:200]
