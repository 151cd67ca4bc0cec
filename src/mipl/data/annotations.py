"""The votes that bags carry: rows (bag, annotator, label), an annotator of −1 for a gold label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mipl.annotators.model import GOLD
from mipl.data.candidates import IntArray
from mipl.errors import DataError

if TYPE_CHECKING:
    from mipl.data.bags import Bags


def select_votes(votes: IntArray, index: IntArray) -> IntArray:
    """Return the votes of the bags at ``index`` (n,), renumbered 0 … n − 1; a bag may be selected twice."""
    ordered = votes[np.argsort(votes[:, 0], kind="stable")]
    first = np.searchsorted(ordered[:, 0], index)
    count = np.searchsorted(ordered[:, 0], index, side="right") - first
    rows = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
    selected: IntArray = ordered[rows]
    selected[:, 0] = np.repeat(np.arange(len(index)), count)
    return selected


def validate_votes(votes: IntArray, annotators: Sequence[str], ids: Sequence[str], k: int) -> None:
    """Raise a `DataError` for votes of a wrong shape, or on an unknown bag, annotator or class."""
    if votes.ndim != 2 or votes.shape[1] != 3:
        raise DataError(f"The votes have shape {votes.shape}: give rows (bag, annotator, label).")
    if len(set(annotators)) != len(annotators):
        raise DataError("Two annotators have the same name: names must be distinct.")
    for column, (what, low, high) in enumerate(
        (("bag", 0, len(ids)), ("annotator", GOLD, len(annotators)), ("label", 0, k))
    ):
        wrong = np.flatnonzero((votes[:, column] < low) | (votes[:, column] >= high))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"Row {row} of the votes has the {what} {votes[row, column]}: give {low} to {high - 1}."
            )
    gold = votes[votes[:, 1] == GOLD]
    bags, count = np.unique(gold[:, 0], return_counts=True)
    if (count > 1).any():
        raise DataError(f"Bag '{ids[int(bags[count > 1][0])]}' has two gold labels: keep one.")


def refuse_votes(bags: Bags, path: Path) -> None:
    """Raise an error for bags with votes, before they are written to a format that cannot store them."""
    if bags.votes is not None:
        raise DataError(
            f"{path} cannot store who voted for what: write an .npz file, or leave --votes out and keep the "
            "table of votes beside the bags."
        )
