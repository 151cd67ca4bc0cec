"""Bags with the votes of a table: matched by id and class, with known labels among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mipl.annotators.model import GOLD
from mipl.data.bags import Bags
from mipl.data.candidates import BoolArray, IntArray
from mipl.data.formats.table import read_label_table
from mipl.data.votes import Votes
from mipl.errors import DataError, listed, suggest


def read_gold(path: Path) -> dict[str, str]:
    """Read labels that are known to be true, by bag, from a table of ``bag_id`` and ``label``."""
    table = read_label_table(path)
    if table.labels is None:
        raise DataError(f"{path} has no column 'label': gold labels are a table of bag_id and label.")
    return dict(zip(table.ids, table.labels, strict=True))


def with_votes(bags: Bags, votes: Votes, gold: Mapping[str, str] | None = None) -> Bags:
    """Return the bags with the votes of a table, matched by id and class name.

    The candidate set of a bag becomes the union of its votes, or its gold label. Bags without votes keep
    their set, or get all classes. True labels and patients are taken from the table where the bags have none.

    Args:
        bags: m bags. Bags without classes get those of the votes.
        votes: votes on some of the bags.
        gold: labels that are known to be true, by bag; training uses them.

    Raises:
        DataError: a vote or gold label is for an unknown bag or class.
    """
    row = {bag: i for i, bag in enumerate(bags.ids.tolist())}
    known = dict(gold or {})
    if unknown := sorted({*votes.ids, *known} - row.keys()):
        raise DataError(f"{len(unknown)} bags with votes are not in the data: {listed(unknown)}.")
    named = {*votes.classes, *known.values()}
    numbered = bool(bags.classes) and isinstance(bags.classes[0], int)
    kept = bool(bags.classes) and (not numbered or all(name.isdecimal() for name in named))
    classes = bags.classes if kept else tuple(sorted(named))
    column = {str(name): j for j, name in enumerate(classes)}
    for name in sorted(named - column.keys()):
        raise DataError(f"There is a vote for '{name}', which is not a class.{suggest(name, column)}")
    bag_of = np.array([row[bag] for bag in votes.ids], dtype=np.int64)
    label_of = np.array([column[name] for name in votes.classes], dtype=np.int64)
    cast = np.stack([bag_of[votes.bag], votes.annotator, label_of[votes.label]], axis=1)
    certain = np.array([[row[bag], GOLD, column[name]] for bag, name in known.items()], dtype=np.int64)
    labels, groups = bags.labels if kept else None, bags.groups
    complete = set(votes.ids) == row.keys()
    if labels is None and votes.truth is not None and complete:
        labels = label_of[votes.truth][bag_of.argsort()]
    if groups is None and votes.groups is not None and complete:
        groups = np.array(votes.groups, dtype=np.str_)[bag_of.argsort()]
    return dataclasses.replace(
        bags,
        classes=classes,
        candidates=_sets(cast, certain, len(classes), bags, bags.candidates if kept else None),
        labels=labels,
        instance_labels=bags.instance_labels if kept else None,
        groups=groups,
        weights=None,
        missing_truth=True,
        votes=np.concatenate([cast, certain.reshape(-1, 3)]),
        annotators=votes.annotators,
    )


def _sets(cast: IntArray, certain: IntArray, k: int, bags: Bags, own: BoolArray | None) -> BoolArray:
    """Return the union of the votes (m, k), the gold label, or for bags without votes their own set."""
    sets = np.zeros((len(bags), k), dtype=np.bool_)
    sets[cast[:, 0], cast[:, 2]] = True
    unvoted = ~sets.any(axis=1)
    sets[unvoted] = True if own is None else own[unvoted]
    for i, _, label in certain:
        sets[i] = np.arange(k) == label
    return sets
