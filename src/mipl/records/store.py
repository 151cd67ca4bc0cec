"""Folders of finished runs: ``<hash>/record.json`` with predictions and checksums, written atomically.

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
from mipl.records.spec import RunSpec, spec_hash

FORMAT = "mipl-record-1"
INFO, PREDICTIONS = "record.json", "predictions.npz"
EXTERNAL = "external"  # the recipe of the predictions of another tool
ARRAYS = ("ids", "probabilities", "labels")
# Optional contents of a record, stored on request. They do not affect the result or the hash of a run.
EXTRAS = {
    "features": "the test bags' features z of Eq. 13",
    "attention": "the attention weights of all instances of the test bags",
    "training": "probabilities, candidate sets and labels of the training bags",
    "cost": "FLOPs of a prediction and processor time",  # stored for every method with attention
}
# The key that a record with an extra has, in its arrays or in its info.
EXTRA_KEYS = {
    "features": "features",
    "attention": "attention",
    "training": "training_probabilities",
    "cost": "flops",
}
# Exceptions that reading a damaged record can raise; one changed byte of a zip file alone gives four kinds.
READ_ERRORS = (
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

# The folder of a run, or its temporary name while another version replaces it.
RECORD_FOLDER = re.compile(rf"([^.].*)|\.(.+)\.[0-9a-f]{{12}}{re.escape(REPLACED)}")


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run: ``info`` as in record.json, and the arrays of its test bags."""

    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]  # ids (m,), probabilities (m, k), labels (m,), attention (N,)?

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the run (see :class:`mipl.records.spec.RunSpec`)."""
        return dict(self.info["spec"])

    @property
    def metrics(self) -> dict[str, float]:
        """Metric name -> value on the test bags."""
        return dict(self.info["metrics"])

    @property
    def is_external(self) -> bool:
        """Whether the predictions are those of another tool."""
        return bool(self.info["spec"]["recipe"] == EXTERNAL)

    @property
    def share(self) -> float:
        """The fraction of the split's training bags that was used."""
        return float(self.info["spec"].get("share", 1.0))

    @property
    def recipe_version(self) -> int:
        """The version of the recipe that was used."""
        return int(self.info["spec"].get("recipe_version", 1))

    def has_extras(self, extras: Iterable[str]) -> bool:
        """Return whether the record has all the given ``EXTRAS``."""
        return all(EXTRA_KEYS[name] in self.arrays or EXTRA_KEYS[name] in self.info for name in extras)


class Store:
    """The records under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, spec: RunSpec) -> Record | None:
        """Return the record of this spec, or None if it is missing or damaged; warn if it is damaged."""
        return self._read_or_warn(spec.hash)

    def has(self, spec: RunSpec, extras: Iterable[str] = ()) -> bool:
        """Return whether there is a record of this spec that has the given ``EXTRAS``."""
        record = self.get(spec)
        return record is not None and record.has_extras(extras)

    def put(self, spec: RunSpec, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the record of a finished run, replacing a previous record of the same spec."""
        content = io.BytesIO()  # not directly to the file: NumPy hides why a write failed, as on a full disk
        np.savez_compressed(content, allow_pickle=False, **arrays)
        with atomic_folder(self.root / spec.hash, marker=None) as temporary:
            (temporary / PREDICTIONS).write_bytes(content.getvalue())
            write_json(
                temporary / INFO, {"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict(), **info}
            )
            write_checksums(temporary)

    def __iter__(self) -> Iterator[Record]:
        """Yield every valid record in the order of the hashes, then the packed ones (records/pack.py).

        Warns of every damaged one.
        """
        from mipl.records.pack import is_pack, read_pack  # avoids a circular import

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
            warn_skipped(error)
            return None

    def _read(self, folder: Path) -> Record | None:
        files = read_folder(folder, (INFO, PREDICTIONS))
        if not files:
            return None
        try:
            info = parse_json(files[INFO], folder / INFO, FORMAT)
            with np.load(io.BytesIO(files[PREDICTIONS]), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            valid = (
                spec_hash(info["spec"]) == info["hash"] == folder.name
                and len({len(arrays[name]) for name in ARRAYS}) == 1
                and all(map(_is_number, (*info["metrics"].values(), *info["seconds"].values())))
                and all(isinstance(info.get(name, {}), dict) for name in ("given", "data"))
            )
        except StorageError:
            raise
        except KeyError as error:
            raise StorageError(f"{folder} is damaged: it has no {error.args[0]}.") from error
        except READ_ERRORS as error:
            raise StorageError(f"{folder} is damaged: {error}.") from error
        if not valid:
            raise StorageError(f"{folder} does not contain the run that its name refers to.")
        return Record(info, arrays)


def warn_skipped(error: object) -> None:
    """Warn that a damaged record is skipped."""
    text = f"{error} The record is skipped: delete its folder, or repeat the run."
    warnings.warn(text, MiplNotice, stacklevel=4)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
