"""Predictions of other tools as records beside one's own runs, on the same test bags."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data.formats.table import read_predictions
from mipl.errors import DataError, SettingError, listed
from mipl.methods import METHODS
from mipl.metrics import evaluate
from mipl.records.spec import RunSpec
from mipl.records.store import EXTERNAL, Record, Store

LONGEST = 60  # name of a method


def add_predictions(folder: Path, path: Path, method: str, split: int) -> RunSpec:
    """Write the record of another tool's predictions for the test bags of a split.

    Which bags these are, and their true labels, is known from the records in the folder: at least one run of
    the split must be there. The predictions must be of exactly these bags and classes, so that everything in
    the folder can be compared.

    Args:
        folder: a folder of records.
        path: CSV with ``bag_id`` and one column ``p(class)`` per class.
        method: a name for the tool, not that of a method of the library.
        split: the number of the split.

    Returns:
        The specification of the record. A record that was added before is replaced.

    Raises:
        SettingError: the name cannot be used, or the folder has no run of the split.
        DataError: the predictions are of other bags or classes, or are no probabilities.
    """
    if method in METHODS:
        raise SettingError(f"--method {method} is a method of mipl: give the predictions another name.")
    if not method.strip() or len(method) > LONGEST or not method.isprintable():
        raise SettingError(f"--method {method!r} must be a name of 1 to {LONGEST} printable characters.")
    ids, classes, probabilities = read_predictions(path, derived=False)
    record = _same_bags(folder, path, ids, split)
    names = [str(name) for name in record.arrays["classes"].tolist()]
    if set(classes) != set(names):
        absent = listed(name for name in names if name not in classes)
        more = listed(name for name in classes if name not in names)
        raise DataError(
            f"{path} has other classes than the runs in {folder}: "
            + "; ".join(
                text
                for text in (absent and f"no column for {absent}", more and f"columns for unknown {more}")
                if text
            )
            + "."
        )
    row_of = {bag: row for row, bag in enumerate(ids)}
    order = [row_of[bag] for bag in record.arrays["ids"].tolist()]
    p = probabilities[np.ix_(order, [classes.index(name) for name in names])]
    try:
        metrics = evaluate(p, record.arrays["labels"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    spec, info = record.spec, record.info
    kept = {name: spec[name] for name in ("dataset", "r", "data_digest", "split", "splits")}
    made = RunSpec(
        **kept,
        method=method,
        recipe=EXTERNAL,
        hyper_parameters={},
        recipe_settings={},
        seed=0,
        share=record.share,
        split_digest=spec.get("split_digest", ""),
        recipe_version=record.recipe_version,
    )
    about = {"metrics": metrics, "data": info["data"], "seconds": {}, "given": {}, "source": path.name}
    arrays = {
        "ids": record.arrays["ids"],
        "probabilities": p.astype(np.float32),
        "labels": record.arrays["labels"],
        "classes": record.arrays["classes"],
    }
    Store(folder).put(made, about, arrays)
    return made


def _same_bags(folder: Path, path: Path, ids: list[str], split: int) -> Record:
    """Return a run of the split whose test bags are those of the predictions."""
    runs = [
        record
        for record in Store(folder)
        if record.spec["split"] == split and not record.is_external and "classes" in record.arrays
    ]
    if not runs:
        raise SettingError(
            f"{folder} has no run of split {split}: run a method on it with 'mipl run', so that its test "
            "bags are known."
        )
    same = [record for record in runs if set(record.arrays["ids"].tolist()) == set(ids)]
    if not same:
        tested = runs[0].arrays["ids"].tolist()
        absent, more = (
            [bag for bag in tested if bag not in set(ids)],
            [b for b in ids if b not in set(tested)],
        )
        raise DataError(
            f"{path} does not predict the test bags of split {split}: "
            + " and ".join(
                text
                for text in (
                    absent and f"{len(absent)} of {len(tested)} are missing ({listed(absent, 3)})",
                    more and f"{len(more)} are no test bags ({listed(more, 3)})",
                )
                if text
            )
            + "."
        )
    data = {(r.spec["dataset"], r.spec["r"], r.spec["data_digest"], r.spec["splits"], r.share) for r in same}
    if len(data) > 1:
        raise SettingError(
            f"{folder} has runs of {len(data)} data sets with these test bags: keep each in its own folder."
        )
    return same[0]
