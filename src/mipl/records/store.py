"""Folders of finished runs: ``<hash>/record.json`` and ``<hash>/predictions.npz``, whole or not there.

A folder may also hold packed runs (records/pack.py), which are read in the same way.
"""

from __future__ import annotations

import dataclasses
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import StorageError
from mipl.files import atomic_folder, read_json, write_json
from mipl.records.spec import RunSpec

FORMAT = "mipl-record-1"
ARRAYS = ("ids", "probabilities", "labels")
# What a record has besides, some of it only where a run was asked for it: it decides no result.
EXTRAS = {
    "features": "the test bags' features z of Eq. 13",
    "attention": "the attention of every instance of the test bags",
    "training": "probabilities, candidates and labels of the training bags",
    "cost": "arithmetic of a prediction, and processor time",  # of every run by attention, asked or not
}
# What reading a damaged record can raise; a zip file with a changed byte alone gives four kinds.
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run: ``info`` as in record.json, and the arrays of its test bags."""

    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]  # ids (m,), probabilities (m, k), labels (m,), attention (N,)?

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that made it."""
        return dict(self.info["spec"])

    @property
    def metrics(self) -> dict[str, float]:
        """Metric name -> value on the test bags."""
        return dict(self.info["metrics"])

    @property
    def share(self) -> float:
        """The share of the split's training bags that it was trained on."""
        return float(self.info["spec"].get("share", 1.0))

    @property
    def recipe_version(self) -> int:
        """The version of the recipe that it was trained with."""
        return int(self.info["spec"].get("recipe_version", 1))

    def holds(self, extras: Iterable[str]) -> bool:
        """Tell whether it has all of some ``EXTRAS``."""
        marks = {
            "features": self.arrays,
            "attention": self.arrays,
            "training_probabilities": self.arrays,
            "flops": self.info,
        }
        there = dict(zip(EXTRAS, (mark in place for mark, place in marks.items()), strict=True))
        return all(there[name] for name in extras)


class Store:
    """The records under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, spec: RunSpec) -> Record | None:
        """Return the finished run of this spec, or None where there is none or it is damaged."""
        try:
            return self._read(self.root / spec.hash)
        except StorageError:
            return None

    def has(self, spec: RunSpec, extras: Iterable[str] = ()) -> bool:
        """Tell whether there is a finished run of this spec that holds some ``EXTRAS``."""
        record = self.get(spec)
        return record is not None and record.holds(extras)

    def put(self, spec: RunSpec, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a finished run; one of the same spec, damaged or with fewer extras, is replaced."""
        folder = self.root / spec.hash
        if folder.exists() and self.get(spec) is None:
            shutil.rmtree(folder)
        with atomic_folder(folder, "record.json") as temporary:
            np.savez_compressed(temporary / "predictions.npz", allow_pickle=False, **arrays)
            write_json(
                temporary / "record.json",
                {"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict(), **info},
            )

    def __iter__(self) -> Iterator[Record]:
        """Yield every sound record, in the order of the hashes, packed ones (records/pack.py) at the end.

        Damaged folders are passed over.
        """
        from mipl.records.pack import is_pack, read_pack  # which needs the records of this module

        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if (folder / "record.json").is_file():
                try:
                    yield self._read(folder)
                except StorageError:
                    continue
        if is_pack(self.root):
            yield from (
                record for record in read_pack(self.root) if not (self.root / record.info["hash"]).is_dir()
            )

    def _read(self, folder: Path) -> Record:
        info = read_json(folder / "record.json")
        try:
            with np.load(folder / "predictions.npz", allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            sound = (
                info["format"] == FORMAT
                and RunSpec(**info["spec"]).hash == info["hash"] == folder.name
                and len({len(arrays[name]) for name in ARRAYS}) == 1
                and isinstance(info["metrics"], dict)
            )
        except DAMAGE as error:
            raise StorageError(f"{folder} is damaged: {error}.") from error
        if not sound:
            raise StorageError(f"{folder} does not hold the run that its name says.")
        return Record(info, arrays)
