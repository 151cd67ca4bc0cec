"""Train/test splits: stratified by seed, grouped by patient, or the official ones of a data set."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray
from mipl.errors import DataError, SettingError, StorageError
from mipl.seeding import rng_for

Split = tuple[IntArray, IntArray]


def stratified_split(bags: Bags, number: int, train: float = 0.7) -> Split:
    """Return (train, test) indices of split ``number``: each class divided 7:3, the whole deterministic.

    Bags without labels are divided at random. Bags of one group (patient) stay together: then every class
    is divided by its bags as nearly as whole groups allow.
    """
    if not 0.0 < train < 1.0:
        raise SettingError(f"train = {train} is not a share between 0 and 1.")
    rng = rng_for("split", number)
    mask = np.zeros(len(bags), dtype=np.bool_)
    for blocks in _strata(bags):
        sizes = np.array([len(block) for block in blocks])
        order = rng.permutation(len(blocks))
        # The cut nearest to the share; for single bags that is round(share · bags).
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


def training_share(bags: Bags, train: IntArray, share: float, number: int) -> IntArray:
    """Return a share of the training indices of split ``number``, the same of every class, at least one bag.

    A smaller share is part of every larger one.
    """
    if not 0.0 < share <= 1.0:
        raise SettingError(f"share = {share} is not a share above 0 and up to 1.")
    if share == 1.0:
        return train
    shuffled = rng_for("share of the training bags", number).permutation(train)
    strata = np.zeros(len(bags), dtype=np.int64) if bags.labels is None else bags.labels
    parts = [shuffled[strata[shuffled] == wanted] for wanted in np.unique(strata[train])]
    return np.sort(np.concatenate([part[: max(1, round(share * len(part)))] for part in parts]))


def stratified_fold(bags: Bags, number: int, folds: int) -> Split:
    """Return (train, test) indices of fold ``number`` of ``folds`` (from 1): every bag is tested once.

    Bags of one group (patient) stay together.
    """
    if not 1 <= number <= folds or folds < 2:
        raise SettingError(f"There is no fold {number} of {folds}.")
    place = rng_for("folds", folds).random(len(bags))
    fold = np.zeros(len(bags), dtype=np.int64)
    dealt = 0
    held = np.zeros(folds, dtype=np.int64)  # bags in each fold
    for blocks in _strata(bags):
        for block in sorted(blocks, key=lambda block: float(place[block[0]])):
            # Single bags are dealt in turn; groups, which differ in size, to the emptiest fold.
            chosen = dealt % folds if bags.groups is None else int(held.argmin())
            fold[block] = chosen
            held[chosen] += len(block)
            dealt += 1
    test = np.flatnonzero(fold == number - 1)
    if not len(test) or len(test) == len(bags):
        raise DataError(f"{len(bags)} bags are too few for {folds} folds.")
    return np.flatnonzero(fold != number - 1), test


def random_split(bags: Bags, share: float, *seed: str | int) -> Split:
    """Return (first, second) indices: about ``share`` of the bags drawn at random, and the rest.

    Not stratified, so that either part of independent bags is one of independent bags. Bags of one group
    (patient) stay together.
    """
    if not 0.0 < share < 1.0:
        raise SettingError(f"{share} is not a share between 0 and 1.")
    _, group = np.unique(np.arange(len(bags)) if bags.groups is None else bags.groups, return_inverse=True)
    sizes = np.bincount(group)
    order = rng_for("share", *seed).permutation(len(sizes))
    after = np.concatenate([[0], np.cumsum(sizes[order])])
    first = np.isin(group, order[: int(np.abs(after - share * len(bags)).argmin())])
    if first.all() or not first.any():
        raise DataError(f"{len(bags)} bags of {len(sizes)} groups are too few to take a share of {share:g}.")
    return np.flatnonzero(first), np.flatnonzero(~first)


def one_per_group(bags: Bags, *seed: str | int) -> IntArray:
    """Return the indices of one bag of each group (patient), drawn at random; of all bags without groups.

    Bags of one patient are not independent, and bounds that count independent bags would be too hopeful.
    """
    if bags.groups is None:
        return np.arange(len(bags))
    order = rng_for("one per group", *seed).permutation(len(bags))
    _, first = np.unique(bags.groups[order], return_index=True)
    return np.sort(order[first])


def _strata(bags: Bags) -> list[list[IntArray]]:
    """Return, class by class, the blocks of bags that stay together: single bags, or a group's bags.

    A group with several classes counts for its most common one.
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
    """Return the (train, test) indices of the one split that a data set comes with, or None.

    Such a data set has ``provenance["own_split"]``: {"train": prefix of the training bags' ids, "test":
    prefix of the test bags' ids}.
    """
    prefixes = bags.provenance.get("own_split")
    if prefixes is None:
        return None
    train, test = (np.flatnonzero(np.char.startswith(bags.ids, prefixes[part])) for part in ("train", "test"))
    if not len(train) or not len(test):
        raise DataError(
            f"Of the data set's own split, {len(train)} training and {len(test)} test bags are here: "
            "use the whole data set."
        )
    return train, test


def official_split(bags: Bags, folder: Path, number: int) -> Split:
    """Return (train, test) indices from a file in ``folder`` that says which bags are in which part.

    Either the authors' ``index<number>.mat`` (1-based trainIndex and testIndex, every bag in one of them) or
    CLAM's ``splits_<number>.csv`` (columns of slides, train and test; those of val, if any, are left out).
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
    place = {bag: i for i, bag in enumerate(bags.ids.tolist())}
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
            if slide not in place:
                raise DataError(
                    f"{path}, row {number} names the slide '{slide}', which is not among the bags."
                )
            if part in parts:
                parts[part].append(place[slide])
    if not all(parts.values()):
        raise DataError(f"{path} names no slide for training or none for testing.")
    train, test = (np.sort(np.array(part, dtype=np.int64)) for part in parts.values())
    if bags.groups is not None and (both := set(bags.groups[train]) & set(bags.groups[test])):
        raise DataError(
            f"{path} has slides of '{sorted(both)[0]}' in training and in testing ({len(both)} such groups): "
            "a patient belongs to one part; mend the file, or leave the patients out of the table."
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
