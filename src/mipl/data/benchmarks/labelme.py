"""``labelme``: scenes labelled by a crowd, with candidate sets from real votes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data import votes
from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import rebuilt
from mipl.data.formats.arrays import Shape, read_arrays
from mipl.data.formats.table import read_label_table
from mipl.errors import StorageError

FILES = ("votes.csv", "labels.csv", "features.npz")
TRAIN, VALID, CLASSES = 1000, 500, 8
SHAPES: dict[str, Shape] = {"train": (TRAIN, 512), "valid": (VALID, 512)}


def labelme(raw: Path) -> Bags:
    """Build 1,500 bags of one 512-d vector from LabelMe's scenes and their crowd labels.

    The candidate set of a training bag is the union of its votes, so the true label may be missing from it.
    A validation bag has no votes: its set holds all classes. The data set comes with its own split
    (:func:`mipl.data.splits.own_split`): training on ``train-…``, testing on ``valid-…``.

    Args:
        raw: folder of ``votes.csv`` (bag_id, annotator, label), ``labels.csv`` (bag_id, label) and
            ``features.npz`` (``train`` (1000, 512), ``valid`` (500, 512)). Row i of ``train`` is the bag
            ``train-i``, i with four digits.

    Returns:
        The bags, training before validation.

    Raises:
        StorageError: a file is missing, damaged or not of this data set.
        DataError: a table has a wrong column or row.
    """
    for name in FILES:
        if not (raw / name).is_file():
            raise StorageError(f"{raw} has no {name}: labelme is built from {', '.join(FILES)}.")
    arrays = read_arrays(raw / "features.npz", SHAPES)
    train = [f"train-{i:04d}" for i in range(TRAIN)]
    ids = [*train, *(f"valid-{i:04d}" for i in range(VALID))]
    table = read_label_table(raw / "labels.csv")
    cast = votes.read_votes(raw / "votes.csv")
    _check_ids(raw / "labels.csv", table.ids, ids)
    _check_ids(raw / "votes.csv", cast.ids, train)
    classes = sorted({*table.classes, *cast.classes})
    if table.labels is None or len(classes) != CLASSES:
        raise StorageError(
            f"{raw} has {len(classes)} classes in votes.csv and labels.csv: labelme has {CLASSES}, "
            "and labels.csv gives every bag a label."
        )
    union = np.zeros((TRAIN, CLASSES), dtype=np.bool_)
    union[:, [classes.index(name) for name in cast.classes]] = votes.candidates(cast)
    row = {bag: i for i, bag in enumerate(cast.ids)}
    return Bags.from_list(
        np.concatenate([arrays["train"], arrays["valid"]])[:, None].astype(np.float32),  # (1500, 1, 512)
        np.concatenate([union[[row[bag] for bag in train]], np.ones((VALID, CLASSES), dtype=np.bool_)]),
        table.select(ids).labels,
        classes,
        ids=ids,
        missing_truth=True,
        provenance=rebuilt(
            "labelme",
            classes=classes,
            candidates="union of the votes",
            own_split={"train": "train-", "test": "valid-"},
        ),
    )


def _check_ids(path: Path, found: tuple[str, ...], expected: list[str]) -> None:
    if wrong := sorted(set(found) ^ set(expected)):
        what = "has no row of" if wrong[0] in expected else "names"
        raise StorageError(
            f"{path} {what} bag '{wrong[0]}': expected the bags {expected[0]} to {expected[-1]}, "
            f"{len(expected)} in all."
        )
