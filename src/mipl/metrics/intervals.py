"""Bootstrap intervals of metrics."""

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
    """The value of a metric on all examples, and its bootstrap interval."""

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
    """Return ``metric(probabilities, labels)``, a non-negative metric, with its bootstrap interval.

    The interval is that of the percentiles, shifted such that the median of the draws is the value: a binned
    calibration error includes the noise of resampling, so its plain percentiles would be above the value.

    Args:
        metric: a function of probabilities and labels.
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
        draws: number of samples of m examples with replacement.
        level: confidence level of the interval.
        seed: seed of the samples; the same seed draws the same examples for every metric.
    """
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise SettingError(f"draws is {draws!r}; give an integer of at least 1.")
    if not 0 < level < 1:
        raise SettingError(f"level is {level!r}; give a number between 0 and 1, such as 0.95.")
    p, y = checked(probabilities, labels)
    rng = rng_for("bootstrap", int(seed))
    m = len(y)
    samples = (rng.integers(m, size=m) for _ in range(draws))  # each (m,)
    values = np.array([metric(p[rows], y[rows]) for rows in samples], dtype=np.float64)  # (draws,)
    if not np.isfinite(values).all():
        draw = np.isfinite(values).argmin()
        raise DataError(
            f"The metric is {values[draw]:g} on bootstrap draw {draw}; give one that is always finite."
        )
    value = float(metric(p, y))
    low, median, high = np.quantile(values, [(1 - level) / 2, 0.5, (1 + level) / 2])
    shift = value - median
    return Interval(
        value, max(0.0, float(low + shift)), min(float(high + shift), max(value, float(values.max())))
    )
