"""Train/test splits: stratified by seed, or the official ones of a benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray
from mipl.errors import DataError, SettingError, StorageError
from mipl.seeding import rng_for

Split = tuple[IntArray, IntArray]


def stratified_split(bags: Bags, number: int, train: float = 0.7) -> Split:
    """Return (train, test) indices of split ``number``: each class divided 7:3, the whole deterministic.

    Bags without labels are divided at random.
    """
    if not 0.0 < train < 1.0:
        raise SettingError(f"train = {train} is not a share between 0 and 1.")
    strata = bags.labels if bags.labels is not None else np.zeros(len(bags), dtype=np.int64)
    rng = rng_for("split", number)
    chosen = [np.zeros(0, dtype=np.int64)]
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        chosen.append(members[: round(train * len(members))])
    mask = np.zeros(len(bags), dtype=np.bool_)
    mask[np.concatenate(chosen)] = True
    if mask.all() or not mask.any():
        raise DataError(f"{len(bags)} bags are too few to split into a training and a test part.")
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def stratified_fold(bags: Bags, number: int, folds: int) -> Split:
    """Return (train, test) indices of fold ``number`` of ``folds`` (from 1): every bag is tested once."""
    if not 1 <= number <= folds or folds < 2:
        raise SettingError(f"There is no fold {number} of {folds}.")
    strata = bags.labels if bags.labels is not None else np.zeros(len(bags), dtype=np.int64)
    order = np.lexsort((rng_for("folds", folds).random(len(bags)), strata))  # by class, shuffled within
    test = np.sort(order[number - 1 :: folds])
    if not len(test) or len(test) == len(bags):
        raise DataError(f"{len(bags)} bags are too few for {folds} folds.")
    return np.setdiff1d(np.arange(len(bags)), test), test


def official_split(bags: Bags, folder: Path, number: int) -> Split:
    """Return (train, test) indices from ``folder/index<number>.mat`` (1-based trainIndex and testIndex)."""
    from scipy.io import loadmat

    path = folder / f"index{number}.mat"
    if not path.is_file():
        raise StorageError(f"{path} does not exist: give the folder of the official index files.")
    try:
        content = loadmat(path)
        parts = [np.asarray(content[key], dtype=np.int64).ravel() - 1 for key in ("trainIndex", "testIndex")]
    except Exception as error:  # the reader of a damaged .mat raises whatever it stumbles on
        raise StorageError(f"{path} is not an index file with trainIndex and testIndex: {error}.") from error
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(bags))) or not all(map(len, parts)):
        raise DataError(
            f"{path} does not fit these {len(bags)} bags: each must be in one part, training or test, once."
        )
    return np.sort(parts[0]), np.sort(parts[1])
