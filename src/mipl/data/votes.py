"""Votes of annotators: candidate sets, initial weights and how far the annotators agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.candidates import BoolArray, IntArray
from mipl.data.formats.table import GROUPS, Rows, needed_column, one_column, read_rows, split_names
from mipl.errors import DataError, SettingError

IDS = ("bag_id", "slide_id", "bag")
ANNOTATORS = ("annotator", "rater")
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

    @property
    def counts(self) -> IntArray:
        """(m, k) votes of each bag for each class."""
        m, k = len(self.ids), len(self.classes)
        return np.bincount(self.bag * k + self.label, minlength=m * k).reshape(m, k)


def read_votes(path: Path) -> Votes:
    """Read votes from a table (CSV, TSV, XLSX or Parquet) with a column ``bag_id``, ``slide_id`` or ``bag``.

    Long, if there is a column ``annotator`` or ``rater``: one row a vote, its label in ``label`` or ``vote``.
    Wide otherwise: one row a bag and one column an annotator; a column ``label`` or ``vote`` and one of
    patients are no annotators. An empty field is no vote, ``a|b`` is a vote for each. An annotator may vote
    for several labels of a bag; the same vote in two rows is an error.
    """
    header, rows = read_rows(path)
    id_name = needed_column(path, header, IDS)
    annotator_name = one_column(path, header, ANNOTATORS)
    if annotator_name is not None:
        label_name = one_column(path, header, LABELS)
        if label_name is None:
            raise DataError(f"{path} has a column '{annotator_name}', but no 'label' or 'vote' beside it.")
        fields = _long(path, rows, id_name, annotator_name, label_name)
        annotators: dict[str, int] = {}
    else:
        columns = [name for name in header if name and name not in (id_name, *LABELS, *GROUPS)]
        if not columns:
            raise DataError(
                f"{path} names no annotator: add a column 'annotator', or one column for each annotator."
            )
        fields = _wide(path, rows, id_name, columns)
        annotators = {name: j for j, name in enumerate(columns)}
    ids: dict[str, int] = {}
    names: dict[str, int] = {}
    votes: dict[tuple[int, int, int], int] = {}  # in the order of the file, with the row
    for number, bag, annotator, text in fields:
        i, j = ids.setdefault(bag, len(ids)), annotators.setdefault(annotator, len(annotators))
        for name in split_names(text):
            vote = (i, j, names.setdefault(name, len(names)))
            if vote in votes:
                raise DataError(
                    f"{path}, row {number} repeats the vote of '{annotator}' for '{name}' on bag '{bag}' "
                    f"in row {votes[vote]}: remove one of them."
                )
            votes[vote] = number
    if not votes:
        raise DataError(f"{path} holds no vote.")
    bag_, annotator_, label_ = np.array(list(votes), dtype=np.int64).T
    rank = np.argsort(np.argsort(np.array(list(names), dtype=object)))  # classes are sorted by name
    return Votes(tuple(ids), tuple(annotators), tuple(sorted(names)), bag_, annotator_, rank[label_])


def candidates(votes: Votes, min_votes: int = 1, min_share: float = 0.0) -> BoolArray:
    """Return candidate sets (m, k): labels with at least so many of the bag's votes, and that share of them.

    With the defaults that is the union, every label that has a vote. A bag left without any is an error.
    """
    if min_votes < 1:
        raise SettingError(f"min_votes = {min_votes} is not a whole number from 1 on.")
    if not 0.0 <= min_share <= 1.0:
        raise SettingError(f"min_share = {min_share} is not a share between 0 and 1.")
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
        raise DataError(f"Bag '{votes.ids[first]}' keeps no candidate ({len(empty)} such bags): {cause}.")
    return chosen


def weights(votes: Votes, candidates: BoolArray) -> NDArray[np.float32]:
    """Return initial weights (m, k): the share of each candidate in the votes for the bag's candidates."""
    counts = votes.counts
    if candidates.shape != counts.shape:
        raise DataError(
            f"The candidates have shape {candidates.shape}, but {len(votes.ids)} bags and "
            f"{len(votes.classes)} classes ask for {counts.shape}."
        )
    kept = np.where(candidates, counts, 0)
    total = kept.sum(axis=1, keepdims=True)
    if not total.all():
        raise DataError(f"No vote for bag '{votes.ids[int(total.argmin())]}' is for one of its candidates.")
    shares: NDArray[np.float32] = (kept / total).astype(np.float32)
    return shares


def agreement(votes: Votes) -> dict[str, Any]:
    """Return how many votes there are and how far they agree; what cannot be computed is None.

    ``unanimous``: the share of bags with one label only, among the bags of two annotators or more.
    ``pairwise_agreement``: the share of equal labels among all pairs of votes of two annotators on one bag.
    ``alpha``: Krippendorff's, nominal, each vote a value. ``annotator_agreement``: for each annotator, the
    share of bags to which they gave the others' most frequent label; where the others tie, a bag is left out.
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
        # pairs of one annotator's votes are left out; they are never equal
        "pairwise_agreement": _ratio((counts * (counts - 1)).sum(), (total**2 - own).sum()),
        "alpha": _alpha(counts),
        "candidates_per_bag": _ratio((counts > 0).sum(), (total > 0).sum()),
        "annotator_agreement": _with_majority(votes, counts),
    }


def _alpha(counts: IntArray) -> float | None:
    """Return Krippendorff's alpha for nominal data from the values (m, k) of m units."""
    counts = counts[counts.sum(axis=1) > 1]  # a single value can be paired with nothing
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


def _long(
    path: Path, rows: Rows, bag: str, annotator: str, label: str
) -> Iterator[tuple[int, str, str, str]]:
    """Yield row number, bag, annotator and labels of each row of a long table."""
    for number, row in rows.items():
        if not row[bag] or not row[annotator]:
            missing = annotator if row[bag] else bag
            raise DataError(f"{path}, row {number} has nothing in column '{missing}': fill it in.")
        yield number, row[bag], row[annotator], row[label]


def _wide(path: Path, rows: Rows, bag: str, annotators: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield row number, bag, annotator and labels of each field of a wide table."""
    seen: set[str] = set()
    for number, row in rows.items():
        if not row[bag]:
            raise DataError(f"{path}, row {number} has nothing in column '{bag}': fill it in.")
        if row[bag] in seen:
            raise DataError(f"{path}, row {number} names the bag '{row[bag]}' a second time.")
        seen.add(row[bag])
        for annotator in annotators:
            yield number, row[bag], annotator, row[annotator]
