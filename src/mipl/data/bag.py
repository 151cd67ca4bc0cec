"""`Bag`: one bag of a `Bags`, for iteration."""

from __future__ import annotations

import dataclasses
from typing import Any

from numpy.typing import NDArray

from mipl.data.candidates import BoolArray, IntArray

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Bag:
    """One bag: instances (n, …) with labels and metadata; the label is an index into the classes."""

    id: str
    instances: Array  # (n, *feature_shape)
    candidates: BoolArray | None = None  # (k,)
    label: int | None = None
    instance_labels: IntArray | None = None  # (n,), −1: none of the classes
    coordinates: Array | None = None  # (n, c)
    group: str | None = None
    geometry: Array | None = None  # (4,) width and height of a patch and of the image; NaN: unknown

    def __len__(self) -> int:
        return len(self.instances)
