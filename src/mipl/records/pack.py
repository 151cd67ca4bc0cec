"""Finished runs in two Parquet files, small enough to be kept with the code.

``runs.parquet`` has a row per run: the columns of :func:`mipl.records.load_table` and the whole record but
its arrays, as JSON. ``predictions.parquet`` has the test bags' ids, labels and log-probabilities, in steps of
1/512. Metrics are those of the unrounded probabilities.
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
STEPS = 512  # per nat: a probability is kept to 0.1 %
LOWEST = -60.0  # log-probabilities below are raised to it
SCHEMA = pa.schema(
    {
        "hash": pa.string(),
        "ids": pa.list_(pa.string()),
        "labels": pa.list_(pa.int16()),
        "log_probabilities": pa.list_(pa.int16()),  # (m · k), row by row, in steps of 1/512
    }
)


def write_pack(records: Iterable[Record], folder: Path) -> None:
    """Write records as ``runs.parquet`` and ``predictions.parquet`` into a folder, each whole or not."""
    kept = sorted(records, key=lambda record: str(record.info["hash"]))
    folder.mkdir(parents=True, exist_ok=True)
    predictions = pa.Table.from_pylist([_predictions(record) for record in kept], schema=SCHEMA)
    runs = load_table(kept).append_column("info", pa.array([json.dumps(record.info) for record in kept]))
    # predictions first: a run that is listed has its predictions
    for name, table in ((PREDICTIONS, predictions), (RUNS, runs)):
        with atomic_file(folder / name) as temporary:
            pyarrow.parquet.write_table(table, temporary, compression="zstd", compression_level=19)


def is_pack(folder: Path) -> bool:
    """Return whether a folder holds packed records."""
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
