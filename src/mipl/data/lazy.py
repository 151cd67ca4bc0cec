"""Instances that stay in files, one file a bag, and are read when a batch needs them."""

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
GAP = 32  # rows that are rather read in vain than left out by reading twice


@dataclasses.dataclass(frozen=True)
class Part:
    """One array in one file: (n, d), or (1, n, d) with a leading batch dimension as some tools write it."""

    path: Path
    key: str  # the array's name in an .h5 or .npz file; unused in .pt and .npy
    shape: tuple[int, ...]  # as stored
    dtype: np.dtype[Any]

    @property
    def rows(self) -> int:
        """n."""
        return self.shape[-2]

    @property
    def width(self) -> int:
        """d."""
        return self.shape[-1]

    def read(self, rows: slice) -> Array:
        """Return some rows (n', d) of the array; the rest of the file is not read where the format allows."""
        with open_array(self.path, self.key) as stored:
            if tuple(stored.shape) != self.shape:
                raise StorageError(
                    f"{self.path} has changed since it was opened: it held {self.shape}, "
                    f"and now {tuple(stored.shape)}; open the data again."
                )
            return np.asarray(stored[(0, rows) if len(self.shape) == 3 else rows])


class FileArray:
    """The rows of many files as if they were one array (rows, d); every access reads, nothing is kept.

    Values are checked when they are read: a NaN names its file.
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
        """Return the same rows with their columns in another order (d,)."""
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
    """Yield an object with ``shape``, ``dtype`` and indexing that reads from the file; never unpickles."""
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
    except Exception as error:  # the reader of a damaged file raises whatever it stumbles on
        raise StorageError(
            f"{path} cannot be read as features ({type(error).__name__}: {_first_line(error)}): "
            "write the file again, or leave the slide out."
        ) from error


def map_npz(path: Path, key: str) -> Array | None:
    """Return an array of an ``.npz`` file as a memory map; None if it is compressed, or not plain rows."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{key}.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        # the member's own header is before its data, and its extra field may differ from the directory's
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
    """Return the names of the arrays in an .h5 or .npz file; [''] for the formats that hold just one."""
    if path.suffix in (".pt", ".npy"):
        return [""]
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as content:
                return list(content.files)
        import h5py

        with h5py.File(path, "r") as file:
            # get(getlink=True): a link to another file is not an array of this one
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
        warnings.simplefilter("ignore")  # what is wrong with the file is said by the error
        try:
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of torch before 1.6 are no zip archives and cannot be mapped
            stored = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(stored, torch.Tensor):
        raise StorageError(f"{path} holds a {type(stored).__name__}, not one tensor of features.")
    array: Array = (stored.float() if stored.dtype == torch.bfloat16 else stored).numpy()
    return array


def _runs(owner: Array, rows: Array) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each run of one owner without a gap between its rows."""
    gaps = (np.diff(owner) != 0) | (np.abs(np.diff(rows)) > GAP)
    edges = np.concatenate([[0], np.flatnonzero(gaps) + 1, [len(owner)]])
    return ((int(a), int(b)) for a, b in itertools.pairwise(edges) if b > a)


def _check_values(block: Array, path: Path, rows: Array) -> None:
    limit = np.finfo(np.float32).max
    if block.dtype.kind == "f" and not (-limit <= block.min() and block.max() <= limit):
        row = int(rows[np.flatnonzero(~(np.abs(block) <= limit).all(axis=1))[0]])
        raise DataError(
            f"{path} has a NaN, infinite or too large value in row {row}: mend the file or leave it out."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0].rstrip(".")[:200]
