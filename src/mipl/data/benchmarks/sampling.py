"""Sample bags from pools of positive and negative instances."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray, add_false_positives
from mipl.errors import DataError


@dataclasses.dataclass(frozen=True)
class Pools:
    """Instances to sample from, as rows of ``source`` in the order in which they are used."""

    source: NDArray[Any]  # (rows, *feature_shape)
    positive: list[IntArray]  # one pool per class
    negative: IntArray
    classes: list[str]


def sample_bags(
    name: str,
    pools: Pools,
    sizes: IntArray,
    positives: IntArray,
    r: int,
    seed: int,
    rng: np.random.Generator,
) -> Bags:
    """Build bags in class order, as many per class, from the next instances of the pools.

    Args:
        name: the data set, for ids, provenance and the seed of the candidate sets.
        pools: the instances; each row of a pool is used once.
        sizes: instances of each bag (m,).
        positives: positive instances of each bag (m,).
        r: false positives per candidate set.
        seed: seed of the candidate sets.
        rng: shuffles the instances of each bag.

    Returns:
        The m bags with instance labels.

    Raises:
        DataError: a pool has too few instances.
    """
    k = len(pools.classes)
    labels = np.repeat(np.arange(k), len(sizes) // k)
    next_positive, next_negative = [0] * k, 0
    arrays, instance_labels = [], []
    for label, size, p in zip(labels, sizes, positives, strict=True):
        positive = pools.positive[label][next_positive[label] : next_positive[label] + p]
        negative = pools.negative[next_negative : next_negative + size - p]
        if len(positive) < p or len(negative) < size - p:
            raise DataError(
                f"{name}: the raw data have too few instances for class '{pools.classes[label]}'."
            )
        next_positive[label] += int(p)
        next_negative += int(size - p)
        order = rng.permutation(int(size))
        arrays.append(pools.source[np.concatenate([positive, negative])[order]])
        instance_labels.append(np.where(order < p, label, -1))
    return Bags.from_list(
        arrays,
        add_false_positives(labels, k, r, name, seed),
        labels,
        pools.classes,
        ids=[f"{name}-{i:04d}" for i in range(len(sizes))],
        instance_labels=instance_labels,
        provenance=rebuilt(name, r=r, seed=seed, classes=pools.classes),
    )


def rebuilt(name: str, **details: Any) -> dict[str, Any]:
    """Return the provenance of a data set that was built from raw data."""
    return {"dataset": name, **details, "origin": "rebuilt from raw data"}
