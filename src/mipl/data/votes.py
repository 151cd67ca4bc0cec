"""Votes of annotators: candidate sets, initial weights and agreement."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.annotators import VoteTable, posterior_sets, votes_alone
from mipl.data.candidates import BoolArray, IntArray
from mipl.data.formats.cells import as_text, opened
from mipl.data.formats.header import (
    GROUPS,
    check_classes,
    check_not_predictions,
    is_metadata,
    needed_column,
    one_column,
    without,
)
from mipl.data.formats.table import Rows, complete, read_rows, split_names
from mipl.errors import DataError, MiplNotice, SettingError, listed

IDS = ("bag_id", "slide_id", "bag", "task")  # task, worker and label: crowd-kit's names
ANNOTATORS = ("annotator", "rater", "worker")
LABELS = ("label", "vote")


@dataclasses.dataclass(frozen=True, eq=False)
class Votes:
    """v votes of annotators for the labels of m bags; an annotator may give a bag several labels."""

    ids: tuple[str, ...]  # m bags, in the table's order; some may have no vote
    annotators: tuple[str, ...]
    classes: tuple[str, ...]  # k names, sorted
    bag: IntArray  # (v,) index into ids
    annotator: IntArray  # (v,) index into annotators
    label: IntArray  # (v,) index into classes
    truth: IntArray | None = None  # (m,) true labels, index into classes
    groups: tuple[str, ...] | None = None  # m, for example the patient

    @property
    def counts(self) -> IntArray:
        """(m, k) votes of each bag for each class."""
        m, k = len(self.ids), len(self.classes)
        return np.bincount(self.bag * k + self.label, minlength=m * k).reshape(m, k)


def read_votes(path: Path, *, ignore: Iterable[str] = ()) -> Votes:
    """Read votes from a table (CSV, TSV, XLSX or Parquet) or from peerannot's ``answers.json``.

    The bag is in a column ``bag_id``, ``slide_id``, ``bag`` or ``task``. The table is in long format if it
    has a column ``annotator``, ``rater`` or ``worker``: one row per vote with the label
    in ``vote`` or, without such a column, in ``label``. Otherwise it is in wide format: one row per bag and
    one column per annotator. An empty field is no vote, and ``a|b`` is a vote for each. The patient
    (``group``, ``case_id``, ``patient``) and, in a separate column, the true ``label`` are read too. Columns
    named like metadata (``comment``, ``date``) are not annotators.

    Args:
        path: the table.
        ignore: further columns that are not annotators.

    Raises:
        DataError: a column or field is wrong, or an annotator has two rows for one bag.
    """
    header, rows = _read_answers(path) if path.suffix.lower() == ".json" else read_rows(path)
    check_not_predictions(path, header)
    header = without(path, header, ignore)
    id_name = needed_column(path, header, IDS)
    annotator_name = one_column(path, header, ANNOTATORS)
    if annotator_name is not None:
        label_name = next((name for name in reversed(LABELS) if name in header), None)
        if label_name is None:
            raise DataError(f"{path} has a column '{annotator_name}', but no column 'label' or 'vote'.")
        fields = _long(path, rows, id_name, annotator_name, label_name)
        annotators: dict[str, int] = {}
    else:
        label_name = None
        columns = _annotators(path, header, id_name)
        fields = _wide(path, rows, id_name, columns)
        annotators = {name: j for j, name in enumerate(columns)}
    ids: dict[str, int] = {}
    names: dict[str, int] = {}
    votes = _collect(path, fields, ids, annotators, names)
    if label_name is None:
        _check_shared(path, votes, list(annotators))
    truth_name = "label" if "label" in header and label_name != "label" else None
    truths = _truths(path, _of_bags(path, rows, id_name, truth_name), list(ids))
    groups = _of_bags(path, rows, id_name, one_column(path, header, GROUPS))
    classes = tuple(sorted({*names, *(truths or ())}))
    check_classes(path, classes)
    rank = {name: j for j, name in enumerate(classes)}
    bag_, annotator_, label_ = np.array(votes, dtype=np.int64).T
    return Votes(
        tuple(ids),
        tuple(annotators),
        classes,
        bag_,
        annotator_,
        np.array([rank[name] for name in names])[label_],
        None if truths is None else np.array([rank[name] for name in truths]),
        None if groups is None else complete(path, "patient", groups, list(ids)),
    )


def candidates(votes: Votes, min_votes: int = 1, min_share: float = 0.0) -> BoolArray:
    """Return candidate sets (m, k): by default the union, every label that has a vote.

    Args:
        votes: the votes.
        min_votes: votes that a candidate needs.
        min_share: fraction of the bag's votes that a candidate needs.

    Raises:
        DataError: a bag has no candidates.
    """
    if min_votes < 1:
        raise SettingError(f"min_votes = {min_votes} is not an integer of at least 1.")
    if not 0.0 <= min_share <= 1.0:
        raise SettingError(f"min_share = {min_share} is not a fraction between 0 and 1.")
    counts = votes.counts
    total = counts.sum(axis=1, keepdims=True)
    chosen: BoolArray = (counts >= min_votes) & (counts / np.maximum(total, 1) >= min_share)
    empty = np.flatnonzero(~chosen.any(axis=1))
    if len(empty):
        first = int(empty[0])
        most = int(counts[first].max())
        cause = (
            f"at most {most} of its {int(total[first, 0])} votes are for one label; lower min_votes = "
            f"{min_votes} or min_share = {min_share:g}, or leave such bags out"
            if most
            else "it has no vote; leave such bags out"
        )
        raise DataError(f"Bag '{votes.ids[first]}' has no candidate left ({len(empty)} such bags): {cause}.")
    return chosen


def posterior_candidates(votes: Votes, mass: float) -> BoolArray:
    """Return the smallest candidate sets (m, k) whose posterior probability is at least ``mass``.

    The posterior is that of a confusion matrix per annotator, estimated from the votes alone.

    Raises:
        DataError: a bag has no vote.
    """
    if not 0.0 < mass <= 1.0:
        raise SettingError(f"mass = {mass} is not a fraction above 0 and up to 1.")
    unvoted = np.flatnonzero(votes.counts.sum(axis=1) == 0)
    if len(unvoted):
        raise DataError(
            f"Bag '{votes.ids[int(unvoted[0])]}' has no vote ({len(unvoted)} such bags): leave such bags out."
        )
    rows = np.stack([votes.bag, votes.annotator, votes.label], axis=1)
    table = VoteTable.of(rows, len(votes.ids), len(votes.annotators), len(votes.classes))
    return posterior_sets(votes_alone(table)[1], mass)


def weights(votes: Votes, candidates: BoolArray) -> NDArray[np.float32]:
    """Return initial weights (m, k): the fraction of each candidate in the votes for the bag's candidates."""
    counts = votes.counts
    if candidates.shape != counts.shape:
        raise DataError(
            f"The candidates have shape {candidates.shape}, but {len(votes.ids)} bags and "
            f"{len(votes.classes)} classes require {counts.shape}."
        )
    kept = np.where(candidates, counts, 0)
    total = kept.sum(axis=1, keepdims=True)
    if not total.all():
        raise DataError(f"No vote for bag '{votes.ids[int(total.argmin())]}' is for one of its candidates.")
    shares: NDArray[np.float32] = (kept / total).astype(np.float32)
    return shares


def agreement(votes: Votes) -> dict[str, Any]:
    """Return counts of the votes and measures of agreement; a measure that cannot be computed is None.

    ``unanimous``: fraction of the bags with a single label, among the bags of two annotators or more.
    ``pairwise_agreement``: fraction of equal labels among all pairs of votes of two annotators on one bag.
    ``alpha``: Krippendorff's alpha for nominal data. ``annotator_agreement``: for each annotator, the
    fraction of bags with the others' most frequent label, among those where the others do not tie.
    """
    counts = votes.counts
    total = counts.sum(axis=1)
    pairs = np.unique(votes.bag * len(votes.annotators) + votes.annotator, return_counts=True)
    voter, voted = pairs[0] // len(votes.annotators), pairs[1]
    several = np.bincount(voter, minlength=len(counts)) > 1
    own = np.bincount(voter, weights=voted.astype(np.float64) ** 2, minlength=len(counts))
    return {
        "bags": len(votes.ids),
        "annotators": len(votes.annotators),
        "votes": len(votes.bag),
        "votes_per_bag": float(total.mean()),
        "unanimous": _ratio(((counts > 0).sum(axis=1) == 1)[several].sum(), several.sum()),
        # without pairs of votes of one annotator, which are never equal
        "pairwise_agreement": _ratio((counts * (counts - 1)).sum(), (total**2 - own).sum()),
        "alpha": _alpha(counts),
        "candidates_per_bag": _ratio((counts > 0).sum(), (total > 0).sum()),
        "annotator_agreement": _with_majority(votes, counts),
    }


def _alpha(counts: IntArray) -> float | None:
    """Return Krippendorff's alpha for nominal data from the values (m, k) of m units."""
    counts = counts[counts.sum(axis=1) > 1]  # a single value has no pair
    total = counts.sum(axis=1, keepdims=True)
    n, by_class = int(total.sum()), counts.sum(axis=0)
    observed = ((counts * (total - counts)) / (total - 1)).sum()
    expected = (by_class * (n - by_class)).sum() / max(n - 1, 1)
    return None if expected == 0 else float(1.0 - observed / expected)


def _with_majority(votes: Votes, counts: IntArray) -> dict[str, float | None]:
    order = np.argsort(votes.annotator, kind="stable")
    ends = np.cumsum(np.bincount(votes.annotator, minlength=len(votes.annotators)))
    result = {}
    for name, mine in zip(votes.annotators, np.split(order, ends[:-1]), strict=True):
        bags, row = np.unique(votes.bag[mine], return_inverse=True)
        own = np.zeros((len(bags), counts.shape[1]), dtype=np.int64)
        own[row, votes.label[mine]] = 1
        others = counts[bags] - own
        most = others.max(axis=1, keepdims=True)
        clear = (most[:, 0] > 0) & ((others == most).sum(axis=1) == 1)
        hit = own[np.arange(len(bags)), others.argmax(axis=1)]
        result[name] = _ratio(hit[clear].sum(), clear.sum())
    return result


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None


def _read_answers(path: Path) -> tuple[list[str], Rows]:
    """Read peerannot's ``{bag: {annotator: label}}`` as a table in long format; rows count from 1."""
    with opened(path, "JSON of votes") as file:
        content = json.load(file, object_pairs_hook=_distinct)
    rows: Rows = {}
    for bag, answers in content.items() if isinstance(content, dict) else [("", None)]:
        if not isinstance(answers, dict):
            raise DataError(f"{path} is not of the form {{bag: {{annotator: label}}}}.")
        for annotator, label in answers.items():
            if isinstance(label, dict):
                raise DataError(
                    f"{path}: the label of '{annotator}' for bag '{bag}' is not a text or number."
                )
            fields = (bag.strip(), annotator.strip(), as_text(label).strip())
            rows[len(rows) + 1] = dict(zip(("bag", "annotator", "label"), fields, strict=True))
    return ["bag", "annotator", "label"], rows


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a name that occurs twice is an error, where the last would win."""
    names = Counter(name for name, _ in pairs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"'{twice[0]}' occurs twice in one object")
    return dict(pairs)


def _collect(
    path: Path,
    fields: Iterable[tuple[int, str, str, str]],
    ids: dict[str, int],
    annotators: dict[str, int],
    names: dict[str, int],
) -> list[tuple[int, int, int]]:
    """Return bag, annotator and label of each vote as indices, adding new names to the dictionaries."""
    votes: list[tuple[int, int, int]] = []  # in the order of the file
    voted: dict[tuple[int, int], int] = {}  # row of the vote of an annotator on a bag
    for number, bag, annotator, text in fields:
        i, j = ids.setdefault(bag, len(ids)), annotators.setdefault(annotator, len(annotators))
        if not text:
            continue
        if (i, j) in voted:
            raise DataError(
                f"{path}, row {number} is a second vote of '{annotator}' on bag '{bag}', after row "
                f"{voted[i, j]}: keep one of them, or write several labels in one row, as in a|b."
            )
        voted[i, j] = number
        votes += [(i, j, names.setdefault(name, len(names))) for name in split_names(text)]
    if not votes:
        raise DataError(f"{path} has no votes.")
    return votes


def _long(
    path: Path, rows: Rows, bag: str, annotator: str, label: str
) -> Iterator[tuple[int, str, str, str]]:
    """Yield row number, bag, annotator and labels of each row of a table in long format."""
    for number, row in rows.items():
        if not row[bag] or not row[annotator]:
            missing = annotator if row[bag] else bag
            raise DataError(f"{path}, row {number} has nothing in column '{missing}': fill it in.")
        yield number, row[bag], row[annotator], row[label]


def _wide(path: Path, rows: Rows, bag: str, annotators: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield row number, bag, annotator and labels of each field of a table in wide format."""
    seen: set[str] = set()
    for number, row in rows.items():
        if not row[bag]:
            raise DataError(f"{path}, row {number} has nothing in column '{bag}': fill it in.")
        if row[bag] in seen:
            raise DataError(f"{path}, row {number} names the bag '{row[bag]}' a second time.")
        seen.add(row[bag])
        for annotator in annotators:
            yield number, row[bag], annotator, row[annotator]


def _annotators(path: Path, header: Sequence[str], id_name: str) -> list[str]:
    """Return the columns of annotators of a table in wide format; warn of columns that are skipped."""
    columns = [name for name in header if name and name not in (id_name, *LABELS, *GROUPS)]
    others = [name for name in columns if is_metadata(name)]
    if others:
        _note(f"{path}: the columns {listed(others)} are not read as annotators because of their names.")
    columns = [name for name in columns if name not in others]
    if not columns:
        raise DataError(f"{path} has no annotators: add a column 'annotator', or one column per annotator.")
    return columns


def _check_shared(path: Path, votes: Sequence[tuple[int, int, int]], annotators: Sequence[str]) -> None:
    """Warn of columns whose labels occur in no other column: they are probably comments."""
    given: dict[int, set[int]] = {}
    for _, annotator, label in votes:
        given.setdefault(annotator, set()).add(label)
    if len(given) < 3:  # of two columns, either could be the wrong one
        return
    uses = Counter(label for labels in given.values() for label in labels)
    unshared = [annotators[j] for j, labels in given.items() if all(uses[label] == 1 for label in labels)]
    if unshared:
        _note(
            f"{path}: {listed(unshared)} gave no label that another annotator gave: leave out a column that "
            "is not votes with --ignore COLUMN."
        )


def _of_bags(path: Path, rows: Rows, id_name: str, column: str | None) -> list[str] | None:
    """Return the value of a column for each bag; different values for one bag are an error."""
    if column is None:
        return None
    found: dict[str, str] = {}
    for number, row in rows.items():
        bag, value = row[id_name], row[column]
        if found.setdefault(bag, value) != value:
            raise DataError(
                f"{path}, row {number} gives bag '{bag}' the {column} '{value}', but an earlier row "
                f"'{found[bag]}': give the same value in every row of a bag."
            )
    return list(found.values())


def _truths(path: Path, labels: list[str] | None, ids: Sequence[str]) -> list[str] | None:
    """Return the true labels if every bag has one; warn if only some have."""
    if labels is None or not any(labels):
        return None
    missing = [bag for bag, label in zip(ids, labels, strict=True) if not label]
    if missing:
        _note(f"{path} has no true label for {listed(missing)}: the column 'label' is ignored.")
        return None
    return labels


def _note(text: str) -> None:
    warnings.warn(text, MiplNotice, stacklevel=4)
