"""Read and write tables (CSV, TSV, XLSX, Parquet) of candidate sets, labels and predictions."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.candidates import Classes, candidate_matrix, infer_classes, label_array
from mipl.data.formats.cells import SEPARATOR, read_cells
from mipl.data.formats.header import (
    GROUPS,
    check_classes,
    check_misses,
    check_not_predictions,
    needed_column,
    one_column,
    plain_header,
)
from mipl.errors import DataError, StorageError, suggest
from mipl.files import atomic_file

IDS = ("bag_id", "slide_id", "FILENAME")  # STAMP's FILENAME ends in the suffix of a feature file
FEATURE_FILES = (".h5", ".pt", ".npy", ".npz")
REVIEW = ("bag_id", "label", "reviewer", "selected")  # columns of the reviews that `mipl serve` exports
KNOWN = {*IDS, *GROUPS, "candidates", "label", "weights"}
BINARY = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
Rows = dict[int, dict[str, str]]  # the fields by row number in the file; the header is row 1


@dataclasses.dataclass(frozen=True, eq=False)
class LabelTable:
    """The candidate sets, labels, groups and weights of m bags, in the order of the table's rows."""

    ids: tuple[str, ...]  # m distinct ids
    classes: tuple[str, ...]  # k, sorted, or in the order of the table's 0/1 columns
    sets: tuple[tuple[str, ...], ...] | None = None  # m non-empty candidate sets
    labels: tuple[str, ...] | None = None  # m
    groups: tuple[str, ...] | None = None  # m, for example the patient
    weights: NDArray[np.float32] | None = None  # (m, k)
    is_review: bool = False  # written by the review page: its rows replace others

    def select(self, ids: Sequence[str]) -> LabelTable:
        """Return the rows of these bags in this order; all of them must be in the table."""
        position = {bag: i for i, bag in enumerate(self.ids)}
        rows = [position[bag] for bag in ids]
        return dataclasses.replace(
            self,
            ids=tuple(ids),
            sets=None if self.sets is None else tuple(self.sets[i] for i in rows),
            labels=None if self.labels is None else tuple(self.labels[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            weights=None if self.weights is None else self.weights[rows],
        )


def read_table(path: Path, required: Sequence[str], *, strip: bool = True) -> Rows:
    """Read a table with a header; every row must have every column.

    A file that ends in .tsv, .xlsx (its first sheet) or .parquet is read as such, any other as CSV. Fields
    are text; integers have no decimal point. Rows of a Parquet file, which has no header row, count from 1.

    Args:
        path: the file.
        required: columns that the table must have.
        strip: remove blanks around the fields.
    """
    return read_rows(path, required, strip=strip)[1]


def read_rows(path: Path, required: Sequence[str] = (), *, strip: bool = True) -> tuple[list[str], Rows]:
    """Read the header and the rows of a table, as :func:`read_table`."""
    header, rows = read_cells(path)
    header = plain_header(path, header)
    for name in required:
        needed_column(path, header, (name,))
    for number, row in rows.items():
        if len(row) != len(header):
            raise DataError(f"{path}, row {number} has {len(row)} fields, but the header has {len(header)}.")
        if strip:
            row[:] = [field.strip() for field in row]
    return header, {number: dict(zip(header, row, strict=True)) for number, row in rows.items()}


def split_names(text: str) -> list[str]:
    """Return the distinct names in a field such as ``a|b``."""
    return list(dict.fromkeys(name.strip() for name in text.split(SEPARATOR) if name.strip()))


def weight_matrix(
    fields: Sequence[str], sets: Sequence[Sequence[str]], classes: Sequence[str], where: Sequence[str]
) -> NDArray[np.float32]:
    """Return initial weights (m, k) with sum 1 from one field such as ``0.7|0.3`` per candidate set."""
    weights = np.zeros((len(fields), len(classes)), dtype=np.float32)
    column = {name: j for j, name in enumerate(classes)}
    for row, field, names, what in zip(weights, fields, sets, where, strict=True):
        try:
            values = [float(part) for part in field.split(SEPARATOR)]
        except ValueError as error:
            raise DataError(f"{what} has a weight that is not a number: {error}.") from error
        if len(values) != len(names):
            raise DataError(
                f"{what} has {len(values)} weights for {len(names)} candidates: give one for each."
            )
        total = sum(values)
        if not math.isfinite(total) or total <= 0 or min(values) < 0:
            raise DataError(f"{what} has the weights {field}: use numbers of at least 0, not all of them 0.")
        # Bags accept a sum near 1: such weights are not scaled, so that written weights are read exactly.
        scale = 1.0 if abs(total - 1.0) <= 1e-4 else total
        row[[column[name] for name in names]] = np.array(values) / scale
    return weights


def complete(path: Path, column: str, values: Sequence[str], ids: Sequence[str]) -> tuple[str, ...] | None:
    """Return the values of a column, or None if it is empty; a partly filled column is an error."""
    if not any(values):
        return None
    if not all(values):
        bag = ids[list(map(bool, values)).index(False)]
        raise DataError(f"{path} has no {column} for bag '{bag}': give one to every bag, or to none.")
    return tuple(values)


def read_label_table(path: Path) -> LabelTable:
    """Read a table of candidate sets, labels, groups and weights.

    Columns: ``bag_id``, ``slide_id`` or STAMP's ``FILENAME`` (without the suffix of a feature file); then,
    where known, ``candidates`` (class names separated by ``|``), ``label``, the patient as ``group``,
    ``case_id``, ``patient`` or ``PATIENT``, and ``weights`` (numbers in the order of the candidates,
    separated by ``|``, scaled to sum 1). A column has a value for every bag, or for none.

    Instead of ``candidates`` there may be one column per class with 0 or 1 (or false or true): every other
    column with only such values, unless no label is the name of one. Other columns, such as an age, are
    ignored. In a table with binary columns that are not classes, use ``candidates``.

    In a table of reviews (``bag_id``, ``label``, ``reviewer``, ``selected``) there is one row per bag and
    reviewer, and the candidates of a bag are the labels of its reviewers.
    """
    header, rows = read_rows(path)
    check_not_predictions(path, header)
    if set(REVIEW) <= set(header):
        return _review_table(path, rows)
    column = needed_column(path, header, IDS)
    ids = tuple(_ids(path, rows, column))
    if "" in ids:
        number = list(rows)[ids.index("")]
        raise DataError(f"{path}, row {number} has nothing in column '{column}': fill it in.")

    def filled(name: str | None) -> tuple[str, ...] | None:
        return complete(path, name, [row[name] for row in rows.values()], ids) if name in header else None

    labels, groups = filled("label"), filled(one_column(path, header, GROUPS))
    check_misses(path, header)
    sets, classes = _sets(path, header, rows, labels)
    check_classes(path, classes)
    for bag, number, names in zip(ids, rows, sets or [], strict=False):
        if not names:
            raise DataError(
                f"{path}: Bag '{bag}' has no candidate label (row {number}): give one, or leave it out."
            )
    weights = None
    if (fields := filled("weights")) is not None:
        if sets is None or "candidates" not in header:
            raise DataError(f"{path} has weights without the column 'candidates' whose order they follow.")
        weights = weight_matrix(fields, sets, classes, [f"{path}, row {number}" for number in rows])
    return LabelTable(
        ids=ids,
        classes=classes,
        sets=None if sets is None else tuple(map(tuple, sets)),
        labels=labels,
        groups=groups,
        weights=weights,
    )


def write_labels(
    path: Path,
    ids: Sequence[str],
    candidates: Any,
    classes: Classes,
    labels: Any = None,
    groups: Any = None,
    weights: Any = None,
) -> None:
    """Write a CSV file from which :func:`read_label_table` restores the same values.

    Args:
        path: the file.
        ids: ids of the m bags.
        candidates: 0/1 matrix (m, k), or None.
        classes: names of the k classes.
        labels: indices into ``classes`` (m,), or None.
        groups: (m,), or None.
        weights: (m, k), or None.
    """
    if path.suffix.lower() != ".csv":
        raise StorageError(f"{path} should end in .csv.")
    columns = label_fields(ids, candidates, classes, labels, groups, weights)
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def label_fields(
    ids: Sequence[str], candidates: Any, classes: Classes, labels: Any, groups: Any, weights: Any
) -> dict[str, list[str]]:
    """Return the columns of :func:`write_labels`; raise an error for values that could not be restored."""
    names = [str(name) for name in classes]
    columns = {"bag_id": list(ids)}
    if candidates is not None:
        matrix = candidate_matrix(candidates, classes, ids)
        if not matrix.any(axis=1).all():
            bag = ids[int(matrix.any(axis=1).argmin())]
            raise DataError(f"Bag '{bag}' has no candidate label: give at least one, or leave the bag out.")
        columns["candidates"] = [SEPARATOR.join(names[j] for j in np.flatnonzero(row)) for row in matrix]
    if weights is not None:
        if candidates is None or weights.shape != matrix.shape or (weights[~matrix] != 0).any():
            raise DataError(
                "Initial weights need candidates: bags × classes, 0 for classes that are not candidates."
            )
        pairs = zip(weights, matrix, strict=True)
        columns["weights"] = [SEPARATOR.join(repr(float(w)) for w in row[chosen]) for row, chosen in pairs]
    if labels is not None:
        columns["label"] = [names[j] for j in label_array(labels, classes, ids)]
    if groups is not None:
        columns["group"] = [str(name) for name in groups]
    for what, given in (("class", names), ("bag", columns["bag_id"]), ("group", columns.get("group", []))):
        for name in given:
            if not name or name != name.strip() or (what == "class" and SEPARATOR in name):
                raise DataError(
                    f"The {what} '{name}' cannot be written to a table, where names are not empty, do not "
                    f"start or end with a blank, and '{SEPARATOR}' separates classes: rename it."
                )
            if any("\ud800" <= letter <= "\udfff" for letter in name):
                raise DataError(f"The {what} {name!a} is not valid Unicode: rename it.")
    if len(set(ids)) != len(ids) or any(len(fields) != len(ids) for fields in columns.values()):
        raise DataError("A table needs one row for each bag: give as many groups as bags, and distinct ids.")
    return columns


def write_predictions(
    path: Path, ids: Sequence[str], classes: Sequence[Any], probabilities: NDArray[Any]
) -> None:
    """Write bag_id, predicted, confidence and p(class) for each class, in full precision."""
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", "predicted", "confidence", *(f"p({name})" for name in classes)])
        for bag, row in zip(ids, probabilities, strict=True):
            top = int(row.argmax())
            writer.writerow([bag, classes[top], repr(float(row[top])), *(repr(float(p)) for p in row)])


def read_predictions(path: Path, *, derived: bool = True) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Read ids, class names and probabilities (m, k) written by :func:`write_predictions`.

    In older files the column ``predicted`` is called ``label``. ``derived``: whether the columns that follow
    from the probabilities are required; other tools need not write them.
    """
    header, rows = read_rows(path, ("bag_id", "confidence") if derived else ("bag_id",), strip=False)
    if derived:
        needed_column(path, header, ("predicted", "label"))
    if not rows:
        raise DataError(f"{path} has no predictions, only a header.")
    columns = [name for name in header if name.startswith("p(") and name.endswith(")")]
    if len(columns) < 2:
        raise DataError(
            f"{path} has {len(columns)} columns of probabilities, p(class): at least two are required."
        )
    ids = _ids(path, rows)
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


def _review_table(path: Path, rows: Rows) -> LabelTable:
    """Return the candidate sets of reviewed bags, and the label, or "" where reviewers disagree."""
    given: dict[str, dict[str, None]] = {}
    for number, row in rows.items():
        for name in ("bag_id", "label"):
            if not row[name]:
                raise DataError(f"{path}, row {number} has nothing in column '{name}': fill it in.")
        given.setdefault(row["bag_id"], {})[row["label"]] = None
    if not given:
        raise DataError(f"{path} has no reviews, only a header.")
    sets = tuple(tuple(labels) for labels in given.values())
    classes = tuple(sorted({name for labels in sets for name in labels}))
    check_classes(path, classes)
    return LabelTable(
        ids=tuple(given),
        classes=classes,
        sets=sets,
        labels=tuple(labels[0] if len(labels) == 1 else "" for labels in sets),
        is_review=True,
    )


def _sets(
    path: Path, header: list[str], rows: Rows, labels: Sequence[str] | None
) -> tuple[list[list[str]] | None, tuple[str, ...]]:
    """Return the candidate sets, or None, and the classes."""
    if "candidates" in header:
        sets = [split_names(row["candidates"]) for row in rows.values()]
        return sets, tuple(map(str, infer_classes(sets, labels)))
    values = {name: {row[name].lower() for row in rows.values()} - {""} for name in header}
    columns = [name for name in header if name and name not in KNOWN and values[name]]
    columns = [name for name in columns if values[name] <= BINARY.keys()]
    if not columns or (labels is not None and not set(labels) & set(columns)):
        return None, tuple(map(str, infer_classes(None, labels)))
    for number, row in rows.items():
        if empty := [name for name in columns if not row[name]]:
            raise DataError(f"{path}, row {number} has nothing in column '{empty[0]}': write 0 or 1.")
        if labels is not None and row["label"] not in columns:
            raise DataError(
                f"{path}, row {number} has the label '{row['label']}', which is not a column."
                f"{suggest(row['label'], columns)}"
            )
    return [[name for name in columns if BINARY[row[name].lower()]] for row in rows.values()], tuple(columns)


def _ids(path: Path, rows: Rows, column: str = "bag_id") -> list[str]:
    ids: dict[str, int] = {}
    for number, row in rows.items():
        bag = row[column]
        if column == "FILENAME" and bag.endswith(FEATURE_FILES):
            bag = bag.rpartition(".")[0]
        if bag in ids:
            raise DataError(f"{path}, row {number} names the bag '{bag}' a second time.")
        ids[bag] = number
    return list(ids)
