"""``sival6-mipl``: bags of image regions from six of SIVAL's 25 classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import rebuilt
from mipl.data.candidates import add_false_positives
from mipl.data.formats.arrays import Shape, read_arrays
from mipl.errors import StorageError

FILE = "sival6.npz"
BAGS, CLASSES = 360, 6
SHAPES: dict[str, Shape] = {"X": (None, 30), "bag": (None,), "y": (BAGS,), "class_names": (CLASSES,)}


def sival6_mipl(raw: Path, r: int = 1, seed: int = 0) -> Bags:
    """Build 360 bags of 31 or 32 regions (30-d), 60 bags per class, from ``sival6.npz``.

    Args:
        raw: folder of ``sival6.npz``: ``X`` (n, 30) regions in any order, ``bag`` (n,) the bag of each
            region, ``y`` (360,) the class of each bag, ``class_names`` (6,).
        r: false positives per candidate set, drawn uniformly from the other classes.
        seed: seed of the candidate sets.

    Returns:
        The bags; the labels of single regions are unknown.

    Raises:
        StorageError: the file is missing, damaged or not this data set.
    """
    path = raw / FILE
    arrays = read_arrays(path, SHAPES)
    features, bag, labels = arrays["X"], arrays["bag"], arrays["y"]
    classes = [str(name) for name in arrays["class_names"]]
    if arrays["class_names"].dtype.kind != "U" or len(set(classes)) != CLASSES:
        raise StorageError(f"{path} must have {CLASSES} distinct names in class_names.")
    if features.dtype.kind != "f":
        raise StorageError(f"{path} has X of type {features.dtype}: expected floating-point numbers.")
    if bag.shape != features.shape[:1]:
        raise StorageError(f"{path} has {len(features)} rows in X but {len(bag)} in bag: expected as many.")
    for name, values, count in (("bag", bag, BAGS), ("y", labels, CLASSES)):
        if values.dtype.kind not in "iu" or not np.array_equal(np.unique(values), np.arange(count)):
            raise StorageError(f"{path} must have each whole number from 0 to {count - 1} in {name}.")
    order = np.argsort(bag, kind="stable")  # regions of a bag need not be adjacent
    ends = np.cumsum(np.bincount(bag))
    truth = labels.astype(np.int64)
    return Bags.from_list(
        np.split(features[order].astype(np.float32), ends[:-1]),
        add_false_positives(truth, CLASSES, r, "sival6-mipl", seed),
        truth,
        classes,
        ids=[f"sival6-mipl-{i:04d}" for i in range(BAGS)],
        provenance=rebuilt("sival6-mipl", r=r, seed=seed, classes=classes),
    )
