"""What a data set is like: its row of the paper's Table 1, and the paper's own rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from mipl.data.bags import Bags
from mipl.errors import DataError


@dataclasses.dataclass(frozen=True)
class Characteristics:
    """A row of Table 1; shares of positive instances are None where instance labels are unknown."""

    bags: int
    instances: int
    max_instances: int
    min_instances: int
    mean_instances: float
    max_positives: float | None
    min_positives: float | None
    mean_positives: float | None
    dimension: int
    classes: int
    mean_candidates: float | None


def characteristics(bags: Bags) -> Characteristics:
    """Return the row of Table 1 that these bags would have."""
    if not len(bags):
        raise DataError("There is no bag to describe.")
    positives = None
    if bags.instance_labels is not None and bags.labels is not None:
        hits = bags.instance_labels[bags.rows()] == np.repeat(bags.labels, bags.sizes)
        positives = np.add.reduceat(hits.astype(np.int64), bags.offsets[:-1]) / bags.sizes
    return Characteristics(
        bags=len(bags),
        instances=int(bags.sizes.sum()),
        max_instances=int(bags.sizes.max()),
        min_instances=int(bags.sizes.min()),
        mean_instances=float(bags.sizes.mean()),
        max_positives=None if positives is None else float(positives.max()),
        min_positives=None if positives is None else float(positives.min()),
        mean_positives=None if positives is None else float(positives.mean()),
        dimension=int(np.prod(bags.feature_shape)),
        classes=bags.k,
        mean_candidates=None if bags.candidates is None else float(bags.candidates.sum(axis=1).mean()),
    )


def table1(name: str, r: int = 1) -> Characteristics | None:
    """Return the paper's row for a data set, or None if it is not one of the paper's."""
    row = TABLE1.get(name)
    return row if row is None or row.mean_candidates else dataclasses.replace(row, mean_candidates=1.0 + r)


def _crc(instances: int, most: int, fewest: int, mean: float, d: int) -> Characteristics:
    return Characteristics(7000, instances, most, fewest, mean, None, None, None, d, 7, 2.08)


TABLE1 = {  # mean candidates of the first four: 1 + r
    "mnist-mipl": Characteristics(500, 20664, 48, 35, 41.33, 0.091, 0.070, 0.080, 784, 5, None),
    "fmnist-mipl": Characteristics(500, 20810, 48, 36, 41.62, 0.091, 0.070, 0.080, 784, 5, None),
    "birdsong-mipl": Characteristics(1300, 48425, 76, 25, 37.25, 0.100, 0.069, 0.083, 38, 13, None),
    "sival-mipl": Characteristics(1500, 47414, 32, 31, 31.61, 0.9062, 0.0312, 0.256, 30, 25, None),
    "c-row": _crc(56000, 8, 8, 8, 9),
    "c-sbn": _crc(63000, 9, 9, 9, 15),
    "c-kmeans": _crc(30178, 6, 3, 4.311, 6),
    "c-sift": _crc(175000, 25, 25, 25, 128),
    "c-r34-9": _crc(63000, 9, 9, 9, 1000),
    "c-r34-16": _crc(112000, 16, 16, 16, 1000),
    "c-r34-25": _crc(175000, 25, 25, 25, 1000),
}
