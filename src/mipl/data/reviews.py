"""True labels from a table: of a study, or of reviewers, some of whose bags were chosen and not drawn.

A review page lists the most doubtful bags first, so its reviews are no random sample: an error measured on
them, or a temperature fitted to them, is not that of new bags. The column ``selected`` says which bags were
drawn at random beforehand. For training every review is useful, and for measuring only the random ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import Classes, label_array
from mipl.data.formats.cells import read_cells, text_header
from mipl.data.formats.header import GROUPS, check_not_predictions, needed_column, plain_header
from mipl.data.formats.table import FEATURE_FILES, IDS, read_rows
from mipl.errors import DataError, listed

RANDOM, CHOSEN = "random", "chosen"
EXPORT = ("bag_id", "label", "reviewer", "time", "comment", "selected")  # columns that a review page writes


@dataclasses.dataclass(frozen=True)
class Review:
    """One row of a table of labels; fields whose column is missing are empty."""

    bag_id: str
    label: str
    reviewer: str = ""
    time: str = ""
    comment: str = ""
    selected: str = RANDOM  # how the bag came to be reviewed; without the column every bag counts as random


@dataclasses.dataclass(frozen=True)
class TrueLabels:
    """One label per bag, and how many bags were left out because they were chosen for review."""

    labels: dict[str, str]  # by the id of the bag
    chosen: int = 0

    def note(self) -> str | None:
        """Return one sentence on what was left out, or None."""
        if not self.chosen:
            return None
        bags = "bag that was" if self.chosen == 1 else "bags that were"
        return (
            f"{len(self.labels)} bags drawn at random are used; {self.chosen} {bags} chosen for review "
            "(selected = chosen) would not be a fair sample and count for training only."
        )


def is_table_of_labels(path: Path, *, cohort: bool = False) -> bool:
    """Whether a file is a table of labels, and has no features; with ``cohort`` also one with candidate sets.

    Args:
        path: A file or folder of any kind.
        cohort: Allow columns of candidate sets and patients beside the label.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".xlsx") or not path.is_file():
        return False
    names = read_cells(path)[0] if suffix == ".xlsx" else text_header(path)[1]
    header = set(plain_header(path, names))
    columns = {*IDS, *EXPORT, *((*GROUPS, "candidates", "weights") if cohort else ())}
    return "label" in header and (header <= columns or bool({"selected", "reviewer"} & header))


def read_reviews(*paths: Path) -> list[Review]:
    """Read tables of labels with the columns ``EXPORT``, of which only the id and the label are needed.

    The last of several rows of one reviewer for one bag counts, those of later tables after earlier ones.
    Without a column ``reviewer``, a bag has one row in a table.

    Args:
        paths: CSV, TSV, XLSX or Parquet files.

    Raises:
        DataError: a field is wrong; the message names the row.
    """
    found = (review for path in paths for review in _read_table(path))
    return list({(review.bag_id, review.reviewer): review for review in found}.values())


def _read_table(path: Path) -> list[Review]:
    header, rows = read_rows(path)
    check_not_predictions(path, header)
    column = needed_column(path, header, IDS)
    needed_column(path, header, ("label",))
    latest: dict[tuple[str, str], Review] = {}
    for number, row in rows.items():
        bag, selected = row[column], row.get("selected", RANDOM).lower()
        if column == "FILENAME" and bag.endswith(FEATURE_FILES):
            bag = bag.rpartition(".")[0]
        for what, value in ((column, bag), ("label", row["label"])):
            if not value:
                raise DataError(f"{path}, row {number} has nothing in column '{what}': fill it in.")
        if selected not in (RANDOM, CHOSEN):
            raise DataError(
                f"{path}, row {number} has '{selected}' in column 'selected': write {RANDOM} or {CHOSEN}."
            )
        key = bag, row.get("reviewer", "")
        if key in latest and "reviewer" not in header:
            raise DataError(f"{path}, row {number} names the bag '{bag}' a second time.")
        latest.pop(key, None)  # so that the order is that of the latest rows
        latest[key] = Review(bag, row["label"], key[1], row.get("time", ""), row.get("comment", ""), selected)
    return list(latest.values())


def true_labels(reviews: Sequence[Review], path: Path) -> TrueLabels:
    """Return the labels to measure by: of bags drawn at random, one per bag.

    Bags on which reviewers disagree are refused rather than left out: they are the difficult ones, and
    without them the others would not be a random sample.

    Args:
        reviews: The result of :func:`read_reviews`.
        path: Their file, for messages.
    """
    given: dict[str, list[str]] = {}
    for review in reviews:
        given.setdefault(review.bag_id, [])
        if review.label not in given[review.bag_id]:
            given[review.bag_id].append(review.label)
    drawn = dict.fromkeys(review.bag_id for review in reviews if review.selected == RANDOM)
    if not drawn:
        raise DataError(
            f"{path} has no bag that was drawn at random (selected = {RANDOM}): an error among bags that "
            "were chosen is not that of new ones; draw bags with 'mipl serve --audit N' and review them."
        )
    split = [bag for bag in drawn if len(given[bag]) > 1]
    if split:
        labels = " or ".join(f"'{label}'" for label in given[split[0]])
        raise DataError(
            f"{path}: reviewers disagree on {len(split)} of {len(drawn)} bags ({listed(split)}), for example "
            f"'{split[0]}' is {labels}: decide on one label and correct the rows."
        )
    return TrueLabels({bag: given[bag][0] for bag in drawn}, len(given) - len(drawn))


def with_true_labels(bags: Bags, labels: TrueLabels, path: Path, classes: Classes) -> Bags:
    """Return the bags that have a true label, with these labels as names of ``classes``.

    Candidate sets are dropped, because the true label may be outside them.

    Args:
        bags: Bags, labelled or not.
        labels: Labels by id; each must be the id of a bag.
        path: The file of the labels, for messages.
        classes: The classes that a label may have.
    """
    ids = bags.ids.tolist()
    if unknown := sorted(labels.labels.keys() - set(ids)):
        raise DataError(f"{path} names {len(unknown)} bags that are not in the data: {listed(unknown)}.")
    chosen = np.array([i for i, bag in enumerate(ids) if bag in labels.labels], dtype=np.int64)
    names = tuple(map(str, classes))
    try:
        known = label_array([labels.labels[ids[i]] for i in chosen], names, [ids[i] for i in chosen])
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return dataclasses.replace(
        bags[chosen],
        classes=tuple(classes),
        labels=known,
        candidates=None,
        weights=None,
        instance_labels=None,
    )
