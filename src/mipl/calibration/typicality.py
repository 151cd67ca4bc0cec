"""How unlike the training bags a bag is, from its features alone.

The mean instance of a bag is standardised by the training bags and compared with their principal components:
the mean squared coordinate on the leading components, each in units of its standard deviation, plus the mean
squared remainder in units of its own. A change of stain, scanner or encoder moves bags off these components
even where the predictions hardly change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mipl.data.bags import Bags
from mipl.seeding import rng_for

Floats = npt.NDArray[np.float64]
Stored = Mapping[str, npt.NDArray[np.float32]]
MOST_BAGS, MOST_FEATURES, MOST_AXES = 500, 20_000, 32
LEAST_BAGS, MOST_INSTANCES = 40, 200_000  # a small part of a set that is larger than memory
BAGS_PER_AXIS = 4
TINY = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingFeatures:
    """Mean, standard deviation and principal components of the training bags' mean instances."""

    mean: npt.NDArray[np.float32]  # (d,)
    std: npt.NDArray[np.float32]  # (d,)
    axes: npt.NDArray[np.float32]  # (d, q)
    variances: npt.NDArray[np.float32]  # (q + 1,) on each axis, and of each dimension of the remainder

    @classmethod
    def of(cls, bags: Bags) -> TrainingFeatures | None:
        """Return the statistics of some training bags; None for a single bag or very large images."""
        d = math.prod(bags.feature_shape)
        if len(bags) < 2 or d > MOST_FEATURES:
            return None
        drawn = rng_for("training features").permutation(len(bags))[:MOST_BAGS]
        fitting = int((np.cumsum(bags.sizes[drawn]) <= MOST_INSTANCES).sum())
        x = _means(bags[np.sort(drawn[: max(fitting, LEAST_BAGS)])])  # (m, d)
        mean, std = x.mean(axis=0), x.std(axis=0)
        std = np.where(std > 1e-7 * np.abs(mean) + TINY, std, 1.0)
        z = (x - mean) / std
        _, singular, axes = np.linalg.svd(z, full_matrices=False)  # descending
        q = min(MOST_AXES, len(x) // BAGS_PER_AXIS, d)
        spread = singular**2 / len(x)
        rest = spread[q:].sum() / max(d - q, 1)
        variances = np.maximum(np.append(spread[:q], rest), TINY)
        parts = (mean, std, axes[:q].T, variances)
        return cls(*(np.ascontiguousarray(part, dtype=np.float32) for part in parts))

    def distances(self, bags: Bags) -> Floats:
        """Return how unlike the training bags each bag is (m,), about 2 for a training bag."""
        z = (_means(bags) - self.mean) / self.std  # (m, d), in double precision
        own = z @ self.axes  # (m, q)
        d, q = self.axes.shape
        remainder = np.maximum((z**2).sum(axis=1) - (own**2).sum(axis=1), 0.0)
        inside = (own**2 / self.variances[:q]).mean(axis=1) if q else np.zeros(len(z))
        return np.asarray(inside + (remainder / (d - q) / self.variances[q] if d > q else 0.0))

    def to_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Stored, d: int) -> TrainingFeatures:
        """Return the statistics of d features from the result of :meth:`to_arrays`."""
        made = cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})
        q = made.variances.size - 1
        if (made.mean.shape, made.std.shape, made.axes.shape) != ((d,), (d,), (d, q)):
            raise ValueError("the statistics do not fit the features")
        return made


def _means(bags: Bags) -> Floats:
    """Return the mean instance of each bag as a vector (m, d)."""
    unit = 255.0 if bags.source.dtype == np.uint8 else 1.0
    means = [bag.instances.reshape(len(bag), -1).mean(axis=0, dtype=np.float64) / unit for bag in bags]
    return np.stack(means) if means else np.empty((0, math.prod(bags.feature_shape)))
