"""Statistics of a data set, as the paper's Table 1 lists them."""

from __future__ import annotations

import dataclasses

import numpy as np

from mipl.data.bags import Bags
from mipl.errors import DataError


@dataclasses.dataclass(frozen=True)
class BagStatistics:
    """One row of Table 1; fractions of positive instances are None where instance labels are unknown."""

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


def bag_statistics(bags: Bags) -> BagStatistics:
    """Compute the row of Table 1 for these bags."""
    if not len(bags):
        raise DataError("There are no bags to describe.")
    positives = None
    if bags.instance_labels is not None and bags.labels is not None:
        hits = bags.instance_labels[bags.rows()] == np.repeat(bags.labels, bags.sizes)
        positives = np.add.reduceat(hits.astype(np.int64), bags.offsets[:-1]) / bags.sizes
    return BagStatistics(
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
