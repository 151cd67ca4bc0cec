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
    chosen = []
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        chosen.append(members[: round(train * len(members))])
    mask = np.zeros(len(bags), dtype=np.bool_)
    mask[np.concatenate(chosen)] = True
    if mask.all() or not mask.any():
        raise DataError(f"{len(bags)} bags are too few to split into a training and a test part.")
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def official_split(bags: Bags, folder: Path, number: int) -> Split:
    """Return (train, test) indices from ``folder/index<number>.mat`` (1-based trainIndex and testIndex)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = folder / f"index{number}.mat"
    if not path.is_file():
        raise StorageError(f"{path} does not exist: give the folder of the official index files.")
    try:
        content = loadmat(path)
        parts = [np.asarray(content[key], dtype=np.int64).ravel() - 1 for key in ("trainIndex", "testIndex")]
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, MatReadError) as error:
        raise StorageError(f"{path} is not an index file with trainIndex and testIndex: {error}.") from error
    together = np.concatenate(parts)
    if len(np.unique(together)) != len(together) or together.min() < 0 or together.max() >= len(bags):
        raise DataError(
            f"{path} does not fit these {len(bags)} bags: an index is out of range or used twice."
        )
    return np.sort(parts[0]), np.sort(parts[1])
