"""Folders of finished runs: ``<hash>/record.json``, its predictions and checksums, whole or not there.

A folder may also hold packed runs (records/pack.py), which are read in the same way.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import MiplNotice, StorageError
from mipl.files import REPLACED, atomic_folder, parse_json, read_folder, write_checksums, write_json
from mipl.records.spec import RunSpec

FORMAT = "mipl-record-1"
INFO, PREDICTIONS = "record.json", "predictions.npz"
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
    AttributeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


# The folder of a run, or where it stands for a moment while another replaces it.
RECORD_FOLDER = re.compile(rf"([^.].*)|\.(.+)\.[0-9a-f]{{12}}{re.escape(REPLACED)}")


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
        """Return the finished run of this spec, or None where there is none; a notice names a damaged one."""
        return self._read_or_warn(spec.hash)

    def has(self, spec: RunSpec, extras: Iterable[str] = ()) -> bool:
        """Tell whether there is a finished run of this spec that holds some ``EXTRAS``."""
        record = self.get(spec)
        return record is not None and record.holds(extras)

    def put(self, spec: RunSpec, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a finished run; one of the same spec, damaged or with fewer extras, is replaced."""
        content = io.BytesIO()  # first: Python's own write says why it failed, for example on a full disk
        np.savez_compressed(content, allow_pickle=False, **arrays)
        with atomic_folder(self.root / spec.hash, marker=None) as temporary:
            (temporary / PREDICTIONS).write_bytes(content.getvalue())
            write_json(
                temporary / INFO, {"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict(), **info}
            )
            write_checksums(temporary)

    def __iter__(self) -> Iterator[Record]:
        """Yield every sound record, in the order of the hashes, then packed ones (records/pack.py).

        A notice names every damaged one.
        """
        from mipl.records.pack import is_pack, read_pack  # which needs the records of this module

        entries = (entry.name for entry in self.root.iterdir()) if self.root.is_dir() else ()
        names = {match[1] or match[2] for entry in entries if (match := RECORD_FOLDER.fullmatch(entry))}
        for name in sorted(names):
            record = self._read_or_warn(name)
            if record is not None:
                yield record
        if is_pack(self.root):
            yield from (record for record in read_pack(self.root) if record.info["hash"] not in names)

    def _read_or_warn(self, name: str) -> Record | None:
        try:
            return self._read(self.root / name)
        except StorageError as error:
            warn_of(error)
            return None

    def _read(self, folder: Path) -> Record | None:
        files = read_folder(folder, (INFO, PREDICTIONS))
        if not files:
            return None
        try:
            info = parse_json(files[INFO], folder / INFO, FORMAT)
            with np.load(io.BytesIO(files[PREDICTIONS]), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            sound = (
                RunSpec(**info["spec"]).hash == info["hash"] == folder.name
                and len({len(arrays[name]) for name in ARRAYS}) == 1
                and all(map(_is_number, (*info["metrics"].values(), *info["seconds"].values())))
                and all(isinstance(info.get(name, {}), dict) for name in ("given", "data"))
            )
        except StorageError:
            raise
        except KeyError as error:
            raise StorageError(f"{folder} is damaged: it holds no {error.args[0]}.") from error
        except DAMAGE as error:
            raise StorageError(f"{folder} is damaged: {error}.") from error
        if not sound:
            raise StorageError(f"{folder} does not hold the run that its name says.")
        return Record(info, arrays)


def warn_of(error: object) -> None:
    """Warn that a record is left out because it is damaged."""
    text = f"{error} The record is left out: delete its folder, or make the run again."
    warnings.warn(text, MiplNotice, stacklevel=4)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
