"""Records as one table, one row per run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from mipl.errors import SettingError, StorageError
from mipl.files import atomic_file
from mipl.records.store import Record, Store, warn_skipped

COLUMNS = {
    "hash": pa.string(),
    "dataset": pa.string(),
    "r": pa.int64(),
    "data_digest": pa.string(),
    "split_digest": pa.string(),  # of the ids of the training and test bags; empty in old records
    "method": pa.string(),
    "recipe": pa.string(),
    "recipe_version": pa.int64(),
    "given": pa.string(),  # JSON of the settings that differ from the defaults
    "splits": pa.string(),
    "split": pa.int64(),
    "seed": pa.int64(),
    "share": pa.float64(),  # fraction of the training bags that was used
    "train_bags": pa.int64(),
    "test_bags": pa.int64(),
    "fit_seconds": pa.float64(),
    "predict_seconds": pa.float64(),
    "peak_memory_mb": pa.float64(),
    "parameters": pa.int64(),
    "flops": pa.int64(),
}


def load_table(records: Path | str | Iterable[Record]) -> pa.Table:
    """Return the records of a folder as one table: one row per run, the metrics in the last columns.

    A damaged record is skipped with a warning. ``load_table("runs").to_pandas()`` gives a data frame.

    Args:
        records: a folder of records, or the records themselves.

    Raises:
        StorageError: if the folder does not exist.
    """
    if isinstance(records, str | Path):
        if not Path(records).is_dir():
            raise StorageError(f"{records} is not a folder of records.")
        records = Store(Path(records))
    rows = [row for record in records if (row := _row(record)) is not None]
    metrics = sorted({name for _, measured in rows for name in measured})
    schema = pa.schema([*COLUMNS.items(), *((name, pa.float64()) for name in metrics)])
    return pa.Table.from_pylist([{**row, **measured} for row, measured in rows], schema=schema)


def write_table(records: Iterable[Record], path: Path) -> None:
    """Write :func:`load_table` to a ``.parquet`` or ``.csv`` file, atomically."""
    writers = {".parquet": pyarrow.parquet.write_table, ".csv": pyarrow.csv.write_csv}
    if path.suffix not in writers:
        raise SettingError(f"{path} does not end in {' or '.join(writers)}.")
    table = load_table(records)
    with atomic_file(path) as temporary:
        writers[path.suffix](table, temporary)


def _row(record: Record) -> tuple[dict[str, Any], dict[str, float]] | None:
    """Return the columns of a run and its metrics; values that an older record lacks are null.

    Returns None if a value does not have the type of its column, as in a damaged record without checksums.
    """
    info = record.info
    seconds, data = info.get("seconds", {}), info.get("data", {})
    row = {
        **{name: record.spec[name] for name in COLUMNS if name in record.spec},
        "hash": info["hash"],
        "split_digest": record.spec.get("split_digest", ""),
        "recipe_version": record.recipe_version,
        "share": record.share,
        "given": json.dumps(info.get("given", {}), sort_keys=True),
        "train_bags": data.get("train_bags"),
        "test_bags": data.get("test_bags"),
        "fit_seconds": seconds.get("fit"),
        "predict_seconds": seconds.get("predict"),
        "peak_memory_mb": info.get("peak_memory_mb"),
        "parameters": info.get("parameters"),
        "flops": info.get("flops"),
    }
    try:
        pa.RecordBatch.from_pylist([row], schema=pa.schema(COLUMNS.items()))
    except (pa.ArrowException, OverflowError) as error:
        warn_skipped(f"The record {info['hash']} is damaged: {error}.")
        return None
    return row, record.metrics
