"""Ragged mini-batches: the instances of several bags one after the other, never padded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray


@dataclasses.dataclass(frozen=True)
class BagBatch:
    """b bags with N instances in all."""

    instances: Tensor  # (N, *feature_shape) float32
    sizes: Tensor  # (b,) int64
    index: Tensor  # (b,) int64, the bags' places in their `Bags`
    candidates: Tensor | None = None  # (b, k) bool


class BagLoader:
    """Turns `Bags` into batches on a device; the only door from stored bags to tensors."""

    AHEAD = 256  # bags whose rows are looked up together

    def __init__(self, bags: Bags, device: torch.device | str = "cpu") -> None:
        self.bags = bags
        self.device = torch.device(device)
        self._candidates = (
            None if bags.candidates is None else torch.tensor(bags.candidates, device=self.device)
        )

    def batch(self, index: IntArray) -> BagBatch:
        """Return the bags at ``index`` as one batch; uint8 instances become value/255."""
        return self._batch(index, self.bags.rows(index), self.bags.sizes[index])

    def _batch(self, index: IntArray, rows: IntArray, sizes: IntArray) -> BagBatch:
        source = self.bags.source
        instances = torch.from_numpy(source[rows])  # fancy indexing: a writable copy
        instances = instances.to(self.device, torch.float32)
        if source.dtype == np.uint8:
            instances = instances.div_(255.0)
        where = torch.from_numpy(index).to(self.device)
        return BagBatch(
            instances=instances,
            sizes=torch.from_numpy(sizes).to(self.device),
            index=where,
            candidates=None if self._candidates is None else self._candidates[where],
        )

    def epoch(self, batch_size: int, rng: np.random.Generator, drop: float = 0.0) -> Iterator[BagBatch]:
        """Yield every bag once, shuffled, ``batch_size`` a batch, without a random share of its instances.

        The instance with the largest draw stays whatever the share, so that no bag is empty.
        """
        order = rng.permutation(len(self.bags))
        block = batch_size * max(1, self.AHEAD // batch_size)
        for begin in range(0, len(order), block):  # the rows of some hundred bags at once: fewer calls
            index = order[begin : begin + block]
            rows, sizes = self.bags.rows(index), self.bags.sizes[index]
            if drop:
                starts = np.cumsum(sizes) - sizes
                draw = rng.random(len(rows))
                largest = np.maximum.reduceat(draw, starts)
                kept = (draw >= drop) | (draw == np.repeat(largest, sizes))
                rows, sizes = rows[kept], np.add.reduceat(kept, starts, dtype=np.int64)
            ends = np.concatenate([[0], np.cumsum(sizes)])
            for first in range(0, len(index), batch_size):
                part = slice(first, min(first + batch_size, len(index)))
                yield self._batch(index[part], rows[ends[part.start] : ends[part.stop]], sizes[part])

    def in_order(self, instances: int = 8192) -> Iterator[BagBatch]:
        """Yield every bag once, in order, about ``instances`` a batch and at least one bag."""
        group = (self.bags.offsets[1:] - 1) // instances
        for part in np.split(np.arange(len(self.bags)), np.flatnonzero(np.diff(group)) + 1):
            if len(part):
                yield self.batch(part)
