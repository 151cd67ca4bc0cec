"""Finished runs in two Parquet files that are small enough to be committed with the code.

``runs.parquet`` has one row per run: the columns of :func:`mipl.records.load_table`, and the record without
its arrays as JSON. ``predictions.parquet`` has the ids, labels and log-probabilities of the test bags, the
last quantised in steps of 1/512. Metrics are those of the probabilities before quantisation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from mipl.errors import StorageError
from mipl.files import atomic_file
from mipl.records.store import Record
from mipl.records.table import load_table

RUNS, PREDICTIONS = "runs.parquet", "predictions.parquet"
STEPS = 512  # per nat: the relative error of a probability is at most 0.1%
LOWEST = -60.0  # smaller log-probabilities are clipped
SCHEMA = pa.schema(
    {
        "hash": pa.string(),
        "ids": pa.list_(pa.string()),
        "labels": pa.list_(pa.int16()),
        "log_probabilities": pa.list_(pa.int16()),  # (m · k), row by row, times 512
    }
)


def write_pack(records: Iterable[Record], folder: Path) -> None:
    """Write records as ``runs.parquet`` and ``predictions.parquet`` into a folder, each atomically."""
    chosen = sorted(records, key=lambda record: str(record.info["hash"]))
    folder.mkdir(parents=True, exist_ok=True)
    predictions = pa.Table.from_pylist([_predictions(record) for record in chosen], schema=SCHEMA)
    runs = load_table(chosen).append_column("info", pa.array([json.dumps(record.info) for record in chosen]))
    # predictions first, so that every listed run has its predictions
    for name, table in ((PREDICTIONS, predictions), (RUNS, runs)):
        with atomic_file(folder / name) as temporary:
            pyarrow.parquet.write_table(table, temporary, compression="zstd", compression_level=19)


def is_pack(folder: Path) -> bool:
    """Return whether a folder has packed records."""
    return (folder / RUNS).is_file()


def read_pack(folder: Path) -> Iterator[Record]:
    """Yield the records that :func:`write_pack` wrote, in the order of their hashes."""
    try:
        runs, predictions = (
            pyarrow.parquet.read_table(str(folder / name), use_threads=False) for name in (RUNS, PREDICTIONS)
        )
        arrays = {row["hash"]: row for row in predictions.to_pylist()}
        for text in runs.column("info").to_pylist():
            info = json.loads(text)
            yield Record(info, _arrays(arrays[info["hash"]]))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise StorageError(
            f"{folder / RUNS} and {PREDICTIONS} are damaged or do not belong together ({error}): "
            "write them again with 'mipl results DIR --pack'."
        ) from error


def _predictions(record: Record) -> dict[str, Any]:
    p = record.arrays["probabilities"].astype(np.float64)
    with np.errstate(divide="ignore"):
        log_p = np.maximum(np.log(p), LOWEST)
    return {
        "hash": record.info["hash"],
        "ids": record.arrays["ids"].astype(str).tolist(),
        "labels": record.arrays["labels"].tolist(),
        "log_probabilities": np.rint(STEPS * log_p).astype(np.int16).ravel(),
    }


def _arrays(row: dict[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    labels = np.array(row["labels"], dtype=np.int64)
    p = np.exp(np.array(row["log_probabilities"], dtype=np.float64).reshape(len(labels), -1) / STEPS)
    p /= p.sum(axis=1, keepdims=True)
    return {"ids": np.array(row["ids"]), "probabilities": p.astype(np.float32), "labels": labels}
