"""Train/test splits: stratified, grouped by patient, or the official ones of a data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray
from mipl.errors import DataError, SettingError, StorageError
from mipl.seeding import rng_for

Split = tuple[IntArray, IntArray]


def stratified_split(bags: Bags, number: int, train: float = 0.7) -> Split:
    """Return (train, test) indices of a deterministic split that divides every class in the same proportion.

    Bags without labels are divided at random. Bags of one group (patient) stay together; then the proportion
    is as close as whole groups allow.

    Args:
        bags: the bags.
        number: number of the split, which is its seed.
        train: fraction of the bags for training.
    """
    if not 0.0 < train < 1.0:
        raise SettingError(f"train = {train} is not a fraction between 0 and 1.")
    rng = rng_for("split", number)
    mask = np.zeros(len(bags), dtype=np.bool_)
    for blocks in _strata(bags):
        sizes = np.array([len(block) for block in blocks])
        order = rng.permutation(len(blocks))
        # The cut nearest to the fraction; for single bags that is round(fraction · bags).
        after = np.concatenate([[0], np.cumsum(sizes[order])])
        cut = int(np.abs(after - round(train * int(sizes.sum()))).argmin())
        mask[np.concatenate([np.zeros(0, dtype=np.int64), *(blocks[i] for i in order[:cut])])] = True
    if mask.all() or not mask.any():
        what = "bags" if bags.groups is None else "groups of bags"
        count = len(bags) if bags.groups is None else len(np.unique(bags.groups))
        raise DataError(f"{count} {what} are too few to split into a training and a test part.")
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def split_digest(bags: Bags, split: Split) -> str:
    """Return a hash of the ids of the training bags and of the test bags, both in order."""
    parts = [bags.ids[part].tolist() for part in split]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def training_fraction(bags: Bags, train: IntArray, fraction: float, number: int) -> IntArray:
    """Return a stratified fraction of the training indices of split ``number``, at least one bag per class.

    A smaller fraction is a subset of every larger one.
    """
    if not 0.0 < fraction <= 1.0:
        raise SettingError(f"share = {fraction} is not a fraction above 0 and up to 1.")
    if fraction == 1.0:
        return train
    shuffled = rng_for("share of the training bags", number).permutation(train)
    strata = np.zeros(len(bags), dtype=np.int64) if bags.labels is None else bags.labels
    parts = [shuffled[strata[shuffled] == wanted] for wanted in np.unique(strata[train])]
    return np.sort(np.concatenate([part[: max(1, round(fraction * len(part)))] for part in parts]))


def stratified_fold(bags: Bags, number: int, folds: int) -> Split:
    """Return (train, test) indices of fold ``number`` (from 1) of ``folds``: every bag is tested once.

    Bags of one group (patient) stay together.
    """
    if not 1 <= number <= folds or folds < 2:
        raise SettingError(f"There is no fold {number} of {folds}.")
    draw = rng_for("folds", folds).random(len(bags))
    fold = np.zeros(len(bags), dtype=np.int64)
    assigned = 0
    sizes = np.zeros(folds, dtype=np.int64)  # bags in each fold
    for blocks in _strata(bags):
        for block in sorted(blocks, key=lambda block: float(draw[block[0]])):
            # Single bags are assigned in turn; groups, which differ in size, to the smallest fold.
            chosen = assigned % folds if bags.groups is None else int(sizes.argmin())
            fold[block] = chosen
            sizes[chosen] += len(block)
            assigned += 1
    test = np.flatnonzero(fold == number - 1)
    if not len(test) or len(test) == len(bags):
        raise DataError(f"{len(bags)} bags are too few for {folds} folds.")
    return np.flatnonzero(fold != number - 1), test


class GroupedFolds:
    """A cross-validation splitter for scikit-learn that uses the groups and labels of `Bags`.

    Folds are those of :func:`stratified_fold`: the bags of a patient stay together, and classes are spread
    evenly where the bags have true labels. ``cross_val_score(model, bags, cv=GroupedFolds(5))``.
    """

    def __init__(self, n_splits: int = 5) -> None:
        if not isinstance(n_splits, int) or n_splits < 2:
            raise SettingError(f"n_splits = {n_splits!r} must be an integer of at least 2.")
        self.n_splits = n_splits

    def split(self, X: Bags, y: object = None, groups: object = None) -> Iterator[Split]:
        """Yield (train, test) indices; ``y`` and ``groups`` are those of the bags and not read."""
        if not isinstance(X, Bags):
            raise SettingError("GroupedFolds splits Bags: make them with Bags.from_list first.")
        for number in range(1, self.n_splits + 1):
            yield stratified_fold(X, number, self.n_splits)

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        """Return the number of folds."""
        return self.n_splits


def random_split(bags: Bags, fraction: float, *seed: str | int) -> Split:
    """Return (first, second) indices: about a ``fraction`` of the bags drawn at random, and the others.

    The split is not stratified: both parts of a sample of independent bags are such samples. Bags of one
    group (patient) stay together.
    """
    if not 0.0 < fraction < 1.0:
        raise SettingError(f"{fraction} is not a fraction between 0 and 1.")
    _, group = np.unique(np.arange(len(bags)) if bags.groups is None else bags.groups, return_inverse=True)
    sizes = np.bincount(group)
    order = rng_for("share", *seed).permutation(len(sizes))
    after = np.concatenate([[0], np.cumsum(sizes[order])])
    first = np.isin(group, order[: int(np.abs(after - fraction * len(bags)).argmin())])
    if first.all() or not first.any():
        raise DataError(
            f"{len(bags)} bags of {len(sizes)} groups are too few for a fraction of {fraction:g}."
        )
    return np.flatnonzero(first), np.flatnonzero(~first)


def one_per_group(bags: Bags, *seed: str | int) -> IntArray:
    """Return the index of one random bag per group (patient), or all indices if there are no groups.

    Bags of one patient are not independent, so bounds for independent bags would be too optimistic.
    """
    if bags.groups is None:
        return np.arange(len(bags))
    order = rng_for("one per group", *seed).permutation(len(bags))
    _, first = np.unique(bags.groups[order], return_index=True)
    return np.sort(order[first])


def _strata(bags: Bags) -> list[list[IntArray]]:
    """Return for each class the blocks of bags that stay together: single bags, or the bags of a group.

    A group with several classes belongs to its most common one.
    """
    strata = bags.labels if bags.labels is not None else np.zeros(len(bags), dtype=np.int64)
    if bags.groups is None:
        blocks = [np.array([i]) for i in range(len(bags))]
    else:
        _, group = np.unique(bags.groups, return_inverse=True)
        order = np.argsort(group, kind="stable")
        blocks = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    stratum = [int(np.bincount(strata[block]).argmax()) for block in blocks if len(block)]
    return [
        [block for block, s in zip(blocks, stratum, strict=True) if s == wanted]
        for wanted in np.unique(stratum).tolist()
    ]


def own_split(bags: Bags) -> Split | None:
    """Return the (train, test) indices of the only split of a data set with a split of its own, or None.

    Such a data set has ``provenance["own_split"]``: {"train": prefix of the training ids, "test": prefix of
    the test ids}.
    """
    prefixes = bags.provenance.get("own_split")
    if prefixes is None:
        return None
    train, test = (np.flatnonzero(np.char.startswith(bags.ids, prefixes[part])) for part in ("train", "test"))
    if not len(train) or not len(test):
        raise DataError(
            f"The bags have {len(train)} training and {len(test)} test bags of the data set's own split: "
            "use the whole data set."
        )
    return train, test


def official_split(bags: Bags, folder: Path, number: int) -> Split:
    """Return (train, test) indices from a split file in ``folder``.

    The file is either the authors' ``index<number>.mat`` (1-based trainIndex and testIndex, every bag in one
    of them) or CLAM's ``splits_<number>.csv`` (columns train and test of slides; val, if any, is ignored).
    """
    mat, table = folder / f"index{number}.mat", folder / f"splits_{number}.csv"
    if table.is_file():
        return _clam_split(bags, table)
    if not mat.is_file():
        raise StorageError(
            f"{folder} has neither {mat.name} nor {table.name}: give the folder of the official split files."
        )
    return _index_split(bags, mat)


def _clam_split(bags: Bags, path: Path) -> Split:
    from mipl.data.formats.table import read_table

    rows = read_table(path, ("train", "test"))
    position = {bag: i for i, bag in enumerate(bags.ids.tolist())}
    parts: dict[str, list[int]] = {"train": [], "test": []}
    seen: dict[str, str] = {}
    for number, row in rows.items():
        for part in ("train", "val", "test"):
            slide = row.get(part, "")
            if not slide:
                continue
            if slide in seen:
                raise DataError(
                    f"{path}, row {number} names '{slide}' a second time: a slide is in one part."
                )
            seen[slide] = part
            if slide not in position:
                raise DataError(
                    f"{path}, row {number} names the slide '{slide}', which is not among the bags."
                )
            if part in parts:
                parts[part].append(position[slide])
    if not all(parts.values()):
        raise DataError(f"{path} names no slide for training or none for testing.")
    train, test = (np.sort(np.array(part, dtype=np.int64)) for part in parts.values())
    if bags.groups is not None and (both := set(bags.groups[train]) & set(bags.groups[test])):
        raise DataError(
            f"{path} has slides of '{sorted(both)[0]}' in training and in testing ({len(both)} such groups): "
            "a patient belongs to one part; correct the file, or leave the patients out of the table."
        )
    return train, test


def _index_split(bags: Bags, path: Path) -> Split:
    from mipl.data.formats.matlab5 import read_variables

    content = read_variables(path, ("trainIndex", "testIndex"))
    if len(content) < 2 or any(
        isinstance(part, str) or part.dtype.kind not in "fiu" for part in content.values()
    ):
        raise StorageError(
            f"{path} is not an index file: it needs trainIndex and testIndex, both of numbers."
        )
    parts = [np.asarray(content[key], dtype=np.int64).ravel() - 1 for key in ("trainIndex", "testIndex")]
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(bags))) or not all(map(len, parts)):
        raise DataError(
            f"{path} does not fit these {len(bags)} bags: each must be in one part, training or test, once."
        )
    return np.sort(parts[0]), np.sort(parts[1])
