"""Give bags the candidate sets, labels, patients and weights of tables, and join several tables."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix, label_array
from mipl.data.formats.table import LabelTable, read_label_table
from mipl.data.names import NameIndex
from mipl.errors import DataError, MiplNotice, counted, have, listed


def apply_label_table(bags: Bags, paths: Path | Sequence[Path], *, missing_truth: bool = False) -> Bags:
    """Return the bags with the candidate sets, labels, groups and weights of tables, later ones first.

    Classes that are names stay; classes 0 … k−1 stay only if the classes in the table are integers too.
    Groups stay if the tables have none. If the tables are reviews, bags that are not reviewed keep their
    candidate sets; without candidate sets they are left out.

    Args:
        bags: the bags; the tables must have a row for each, unless they are reviews.
        paths: tables with the columns of :func:`read_label_table`, or one.
        missing_truth: allow true labels outside their candidate sets.
    """
    paths = [paths] if isinstance(paths, Path) else list(paths)
    path = ", ".join(map(str, paths))
    index = NameIndex(bags.ids.tolist())
    tables = [_renamed(read_label_table(each), index) for each in paths]
    if all(table.is_review for table in tables):
        if bags.candidates is None:
            reviewed = {bag for table in tables for bag in table.ids}
            bags = bags[np.array([bag in reviewed for bag in bags.ids.tolist()])]
        else:
            paths, tables = [Path("the data"), *paths], [_own_table(bags), *tables]
    table = joined_labels(paths, tables)
    if table.sets is None:
        raise DataError(f"{path} has no column 'candidates' and no 0/1 column per class: add either.")
    _match(path, table.ids, bags)
    ids = bags.ids.tolist()
    table = table.select(ids)
    known = tuple(str(name) for name in bags.classes)
    numbered = bool(known) and isinstance(bags.classes[0], int)
    kept = bool(known) and (not numbered or all(name.isdecimal() for name in table.classes))
    names = known if kept else table.classes
    try:
        matrix = candidate_matrix(table.sets, names, ids)
        labels = None if table.labels is None else label_array(table.labels, names, ids)
        weights = None
        if table.weights is not None:  # then every class of the table occurs in a set or a label and is known
            weights = np.zeros(matrix.shape, dtype=np.float32)
            weights[:, [names.index(name) for name in table.classes]] = table.weights
        return dataclasses.replace(
            bags,
            classes=bags.classes if kept else names,
            candidates=matrix,
            labels=labels,
            instance_labels=bags.instance_labels if kept else None,
            groups=bags.groups if table.groups is None else np.array(table.groups, dtype=np.str_),
            weights=weights,
            missing_truth=missing_truth or bags.missing_truth,
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def joined_labels(paths: Sequence[Path], tables: Sequence[LabelTable]) -> LabelTable:
    """Return one table with the rows of all: of several rows for a bag, the last that has a value wins.

    A note says which rows were joined.

    Args:
        paths: the files, for messages.
        tables: one table per file.

    Raises:
        DataError: only some bags would have candidates, or a patient.
    """
    if len(tables) == 1:
        (table,) = tables
        known = table.labels is not None and all(table.labels)
        return table if known else dataclasses.replace(table, labels=None)
    classes = tuple(dict.fromkeys(name for table in tables for name in table.classes))
    column = {name: j for j, name in enumerate(classes)}
    rows: dict[str, dict[str, Any]] = {}
    notes = []
    for path, table in zip(paths, tables, strict=True):
        replaced = sum(bag in rows for bag in table.ids)
        after = f" ({replaced:,} in place of earlier ones)" if replaced else ""
        notes.append(f"{counted(len(table.ids), 'bag')} from {path}{after}")
        for i, bag in enumerate(table.ids):
            row = rows.setdefault(bag, {})
            if table.sets is not None:
                row["set"] = table.sets[i]
                row["weights"] = None if table.weights is None else (table.classes, table.weights[i])
            if table.labels is not None or table.is_review:
                row["label"] = None if table.labels is None else table.labels[i] or None
            if table.groups is not None:
                row["group"] = table.groups[i]
    for key, what in (("set", "candidates"), ("group", "patient")):
        lacking = [bag for bag, row in rows.items() if key not in row]
        if lacking and len(lacking) < len(rows):
            raise DataError(
                f"{counted(len(lacking), 'bag')} would have no {what} after joining "
                f"{listed(map(str, paths))}: {listed(lacking)}; give one to every bag, or to none."
            )
    warnings.warn(f"Labels joined: {'; '.join(notes)}.", MiplNotice, stacklevel=4)
    found = list(rows.values())
    labelled = all(row.get("label") for row in found)
    sets = tuple(row["set"] for row in found) if all("set" in row for row in found) else None
    return LabelTable(
        ids=tuple(rows),
        classes=classes,
        sets=sets,
        labels=tuple(row["label"] for row in found) if labelled else None,
        groups=tuple(row["group"] for row in found) if all("group" in row for row in found) else None,
        weights=_joined_weights(found, column) if sets is not None else None,
    )


def _joined_weights(rows: Sequence[dict[str, Any]], column: dict[str, int]) -> NDArray[np.float32] | None:
    """Return the initial weights (m, k) of joined rows, uniform for a row without; None if none has any."""
    if all(row["weights"] is None for row in rows):
        return None
    weights = np.zeros((len(rows), len(column)), dtype=np.float32)
    for own, row in zip(weights, rows, strict=True):
        if row["weights"] is None:
            own[[column[name] for name in row["set"]]] = 1 / len(row["set"])
        else:
            own[[column[name] for name in row["weights"][0]]] = row["weights"][1]
    return weights


def _renamed(table: LabelTable, index: NameIndex) -> LabelTable:
    """Return a table with the ids of the bags that its names stand for, unless two stand for one."""
    ids = [index.find(name) or name for name in table.ids]
    return dataclasses.replace(table, ids=tuple(ids)) if len(set(ids)) == len(ids) else table


def _own_table(bags: Bags) -> LabelTable:
    """Return the candidate sets, labels, groups and weights of bags as a table."""
    names = tuple(map(str, bags.classes))
    return LabelTable(
        ids=tuple(bags.ids.tolist()),
        classes=names,
        sets=tuple(tuple(names[j] for j in np.flatnonzero(row)) for row in bags.candidate_sets),
        labels=None if bags.labels is None else tuple(names[j] for j in bags.labels.tolist()),
        groups=None if bags.groups is None else tuple(bags.groups.tolist()),
        weights=None if bags.weights is None else np.asarray(bags.weights),
    )


def _match(path: str, named: Iterable[str], bags: Bags) -> None:
    ids, rows = set(bags.ids.tolist()), set(named)
    lacking, unknown = sorted(ids - rows), sorted(rows - ids)
    if lacking:
        raise DataError(
            f"{counted(len(lacking), 'bag')} {have(lacking)} no row in {path}: {listed(lacking)}."
        )
    if unknown:
        name = "names" if len(unknown) == 1 else "name"
        raise DataError(f"{counted(len(unknown), 'row')} {name} no bag, in {path}: {listed(unknown)}.")
