"""How sure a metric is, given the examples it was measured on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError, SettingError
from mipl.metrics._inputs import Floats, Ints, checked
from mipl.seeding import rng_for

Metric = Callable[[Floats, Ints], float]


class Interval(NamedTuple):
    """A metric's value on all examples and the interval of its resampled values."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    metric: Metric,
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return ``metric(probabilities, labels)``, never negative, with its bootstrap interval.

    Examples, the rows of (m, k) probabilities and (m,) labels, are drawn with replacement; one seed draws the
    same rows for every metric, so that metrics can be compared. The interval is that of the percentiles,
    moved so that the draws' median falls on the value: a binned calibration error counts the resampling's own
    noise as error, and its plain percentiles would lie above the value they are to bracket.
    """
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise SettingError(f"draws is {draws!r}; give a whole number of bootstrap draws, 1 or more.")
    if not 0 < level < 1:
        raise SettingError(f"level is {level!r}; give a share between 0 and 1, such as 0.95.")
    p, y = checked(probabilities, labels)
    rng = rng_for("bootstrap", int(seed))
    m = len(y)
    samples = (rng.integers(m, size=m) for _ in range(draws))  # each (m,)
    values = np.array([metric(p[rows], y[rows]) for rows in samples], dtype=np.float64)  # (draws,)
    if not np.isfinite(values).all():
        draw = np.isfinite(values).argmin()
        raise DataError(
            f"The metric is {values[draw]:g} on bootstrap draw {draw}; give one that is finite on any rows."
        )
    value = float(metric(p, y))
    low, median, high = np.quantile(values, [(1 - level) / 2, 0.5, (1 + level) / 2])
    moved = value - median
    return Interval(
        value, max(0.0, float(low + moved)), min(float(high + moved), max(value, float(values.max())))
    )
