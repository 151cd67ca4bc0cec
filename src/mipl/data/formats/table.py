"""Tables as CSV: candidate sets and labels in, predictions out and in."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix, infer_classes, label_array
from mipl.errors import DataError, StorageError
from mipl.files import atomic_file

SEPARATOR = "|"
Rows = dict[int, dict[str, str]]  # the fields by the row's number in the file; the header is row 1


def read_table(path: Path, required: Sequence[str], *, strip: bool = True) -> Rows:
    """Read a CSV file with a header; every row has every column, and the required ones are there."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = {number: row for number, row in enumerate(reader, start=2) if row}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is not a CSV file in UTF-8: {error}.") from error
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(f"{path} has no column '{missing[0]}': its header is {', '.join(header) or 'empty'}.")
    if len(set(header)) != len(header):
        raise DataError(f"{path} names a column twice in its header: {', '.join(header)}.")
    for number, row in rows.items():
        if len(row) != len(header):
            raise DataError(f"{path}, row {number} has {len(row)} fields, but the header has {len(header)}.")
        if strip:
            row[:] = [field.strip() for field in row]
    return {number: dict(zip(header, row, strict=True)) for number, row in rows.items()}


def apply_label_table(bags: Bags, path: Path) -> Bags:
    """Return the bags with the candidate sets, and labels if there are any, of a CSV file.

    Columns: ``bag_id``, ``candidates`` (class names separated by ``|``), optionally ``label``. The
    bags' classes are kept, but 0 … k−1 only if the table, too, speaks of whole numbers.
    """
    rows = _by_id(path, read_table(path, ("bag_id", "candidates")))
    _match(path, rows, bags)
    ids = bags.ids.tolist()
    sets = [
        [name.strip() for name in rows[bag]["candidates"].split(SEPARATOR) if name.strip()] for bag in ids
    ]
    labels = [label for bag in ids if (label := rows[bag].get("label"))] or None
    if labels is not None and len(labels) < len(ids):
        bag = next(bag for bag in ids if not rows[bag]["label"])
        raise DataError(f"{path} has no label for bag '{bag}': give one to every bag, or to none.")
    known = tuple(str(name) for name in bags.classes)
    spoken = infer_classes(sets, labels)
    numbered = bool(known) and isinstance(bags.classes[0], int)
    kept = bool(known) and (not numbered or all(str(name).isdecimal() for name in spoken))
    names = known if kept else spoken
    try:
        return dataclasses.replace(
            bags,
            classes=bags.classes if kept else names,
            candidates=candidate_matrix(sets, names, ids),
            labels=None if labels is None else label_array(labels, names, ids),
            instance_labels=bags.instance_labels if kept else None,
            weights=None,
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def write_predictions(
    path: Path, ids: Sequence[str], classes: Sequence[Any], probabilities: NDArray[Any]
) -> None:
    """Write bag_id, label, confidence and p(class) for each class, with all digits."""
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", "label", "confidence", *(f"p({name})" for name in classes)])
        for bag, row in zip(ids, probabilities, strict=True):
            top = int(row.argmax())
            writer.writerow([bag, classes[top], repr(float(row[top])), *(repr(float(p)) for p in row)])


def read_predictions(path: Path) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Read ids, class names and probabilities (m, k) written by :func:`write_predictions`."""
    rows = read_table(path, ("bag_id", "label", "confidence"), strip=False)
    if not rows:
        raise DataError(f"{path} has no prediction: it holds only a header.")
    columns = [name for name in next(iter(rows.values())) if name.startswith("p(") and name.endswith(")")]
    if len(columns) < 2:
        raise DataError(
            f"{path} has {len(columns)} columns of probabilities, p(class): at least two are needed."
        )
    ids = list(_by_id(path, rows))
    probabilities = np.empty((len(rows), len(columns)))
    for i, (number, row) in enumerate(rows.items()):
        try:
            probabilities[i] = [float(row[column]) for column in columns]
        except ValueError as error:
            raise DataError(
                f"{path}, row {number} has a probability that is not a number: {error}."
            ) from error
        if not ((probabilities[i] >= 0) & (probabilities[i] <= 1.001)).all():  # the metrics' tolerance
            raise DataError(f"{path}, row {number} has a probability that is not between 0 and 1.")
    return ids, [column[2:-1] for column in columns], probabilities


def _by_id(path: Path, rows: Rows) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for number, row in rows.items():
        if row["bag_id"] in table:
            raise DataError(f"{path}, row {number} names the bag '{row['bag_id']}' a second time.")
        table[row["bag_id"]] = row
    return table


def _match(path: Path, rows: dict[str, dict[str, str]], bags: Bags) -> None:
    ids = set(bags.ids.tolist())
    for what, names in (("bags have no row in", ids - set(rows)), ("rows name no bag, in", set(rows) - ids)):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
            raise DataError(f"{len(names)} {what} {path}: {shown}.")
