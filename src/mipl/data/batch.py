"""Ragged mini-batches: the instances of several bags one after the other, never padded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray


@dataclasses.dataclass(frozen=True)
class BagBatch:
    """b bags with N instances in all."""

    instances: Tensor  # (N, *feature_shape) float32
    sizes: Tensor  # (b,) int64
    index: Tensor  # (b,) int64, the bags' places in the loader's share
    candidates: Tensor | None = None  # (b, k) bool
    step: int = 0  # bags of this step on all processes
    mask: Tensor | None = None  # (members, b) 1 where a member of an ensemble learns from the bag, else 0


class BagLoader:
    """Turns `Bags` into batches on a device; the only door from stored bags to tensors.

    ``share`` (rank, processes): with several processes, bag i is that of process i mod processes, which
    alone reads it; its place in the share is i // processes.
    """

    AHEAD = 256  # bags whose rows are looked up together

    def __init__(
        self, bags: Bags, device: torch.device | str = "cpu", share: tuple[int, int] = (0, 1)
    ) -> None:
        self.bags = bags
        self.device = torch.device(device)
        self.share = share
        self._candidates = None if bags.candidates is None else self.mine(bags.candidates)

    def mine(self, rows: NDArray[Any]) -> Tensor:
        """Return this process's rows of an array with one row a bag, on the device."""
        rank, processes = self.share
        return torch.tensor(rows[rank::processes], device=self.device)

    def batch(self, index: IntArray) -> BagBatch:
        """Return the bags at ``index`` as one batch; uint8 instances become value/255."""
        return self._batch(index, self.bags.rows(index), self.bags.sizes[index], len(index))

    def _batch(self, index: IntArray, rows: IntArray, sizes: IntArray, step: int) -> BagBatch:
        where = torch.from_numpy(index // self.share[1]).to(self.device)
        return BagBatch(
            instances=self.read(rows),
            sizes=torch.from_numpy(sizes).to(self.device),
            index=where,
            candidates=None if self._candidates is None else self._candidates[where],
            step=step,
        )

    def read(self, rows: IntArray) -> Tensor:
        """Return rows of the source (n, *feature_shape) float32."""
        source = self.bags.source
        instances = torch.from_numpy(source[rows])  # fancy indexing: a writable copy
        instances = instances.to(self.device, torch.float32)
        return instances.div_(255.0) if source.dtype == np.uint8 else instances

    def epoch(self, batch_size: int, rng: np.random.Generator, drop: float = 0.0) -> Iterator[BagBatch]:
        """Yield every bag once, shuffled, ``batch_size`` a batch, without a random share of its instances.

        Of a bag the instance with the largest draw stays whatever the share, so that none is empty. With
        several processes each gets its own bags of every batch, and perhaps none. Where instances are in
        files the next batch is read while this one is worked on.
        """
        batches = self._shuffled(batch_size, rng, drop)
        if type(self.bags.source) is np.ndarray:  # neither mapped nor in other files
            yield from batches
            return
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(next, batches, None)
            while (batch := following.result()) is not None:
                following = reader.submit(next, batches, None)
                yield batch

    def _shuffled(self, batch_size: int, rng: np.random.Generator, drop: float) -> Iterator[BagBatch]:
        rank, processes = self.share
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
            steps = [len(index[first : first + batch_size]) for first in range(0, len(index), batch_size)]
            own = np.concatenate([[0], np.cumsum(index % processes == rank)])  # own bags before each bag
            if processes > 1:
                rows = rows[np.repeat(index % processes == rank, sizes)]
                index, sizes = index[index % processes == rank], sizes[index % processes == rank]
            ends = np.concatenate([[0], np.cumsum(sizes)])
            for first, step in zip(range(0, sum(steps), batch_size), steps, strict=True):
                part = slice(own[first], own[first + step])
                yield self._batch(index[part], rows[ends[part.start] : ends[part.stop]], sizes[part], step)

    def in_order(self, instances: int = 8192, *, stored: int | None = None) -> Iterator[BagBatch]:
        """Yield every bag once, in order, about ``instances`` a batch and at least one bag.

        Batches of more than ``stored`` instances have `StoredRows` in place of a tensor.
        """
        group = (self.bags.offsets[1:] - 1) // instances
        for part in np.split(np.arange(len(self.bags)), np.flatnonzero(np.diff(group)) + 1):
            if not len(part):
                continue
            sizes = self.bags.sizes[part]
            if stored is None or sizes.sum() <= stored:
                yield self.batch(part)
                continue
            rows = StoredRows(self, self.bags.rows(part))
            yield BagBatch(
                instances=cast(Tensor, rows),
                sizes=torch.from_numpy(sizes).to(self.device),
                index=torch.from_numpy(part).to(self.device),
                step=len(part),
            )


class StoredRows:
    """Instances (N, *feature_shape) that become tensors a part at a time, as often as they are asked for."""

    def __init__(self, loader: BagLoader, rows: IntArray) -> None:
        self._loader, self._rows = loader, rows

    def parts(self, instances: int) -> Iterator[Tensor]:
        """Yield them in order, ``instances`` a part."""
        for first in range(0, len(self._rows), instances):
            yield self._loader.read(self._rows[first : first + instances])
