"""Ragged mini-batches: the instances of several bags concatenated, without padding."""

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
from mipl.data.candidates import NO_CANDIDATES, IntArray
from mipl.errors import DataError


@dataclasses.dataclass(frozen=True)
class BagBatch:
    """b bags with N instances in all."""

    instances: Tensor  # (N, *feature_shape) float32
    sizes: Tensor  # (b,) int64
    index: Tensor  # (b,) int64, positions of the bags in the loader's shard
    candidates: Tensor | None = None  # (b, k) bool
    step: int = 0  # bags in this step over all processes
    mask: Tensor | None = None  # (members, b) 1 where an ensemble member trains on the bag, else 0

    @property
    def candidate_sets(self) -> Tensor:
        """The candidate sets (b, k), for code that requires them.

        Raises:
            DataError: the bags have no candidate sets.
        """
        if self.candidates is None:
            raise DataError(NO_CANDIDATES)
        return self.candidates


class BagLoader:
    """Converts `Bags` to batches on a device.

    Args:
        bags: the bags; uint8 instances become value/255.
        device: where the tensors are.
        shard: (rank, processes). Of several processes, process i mod ``processes`` reads bag i, at position
            i // ``processes`` of its shard.
    """

    PREFETCH = 256  # bags whose rows are looked up together

    def __init__(
        self, bags: Bags, device: torch.device | str = "cpu", shard: tuple[int, int] = (0, 1)
    ) -> None:
        self.bags = bags
        self.device = torch.device(device)
        self.shard = shard
        self._candidates = None if bags.candidates is None else self.local_rows(bags.candidates)

    def local_rows(self, array: NDArray[Any]) -> Tensor:
        """Return this process's rows of an array with one row per bag, on the device."""
        rank, processes = self.shard
        return torch.tensor(array[rank::processes], device=self.device)

    def batch(self, index: IntArray) -> BagBatch:
        """Return the bags at ``index`` as one batch."""
        position = torch.from_numpy(index // self.shard[1]).to(self.device)
        return BagBatch(
            instances=self.read(self.bags.rows(index)),
            sizes=torch.from_numpy(self.bags.sizes[index]).to(self.device),
            index=position,
            candidates=None if self._candidates is None else self._candidates[position],
            step=len(index),
        )

    def read(self, rows: IntArray) -> Tensor:
        """Return rows of the source (n, *feature_shape) float32."""
        source = self.bags.source
        instances = torch.from_numpy(source[rows])  # fancy indexing: a writable copy
        instances = instances.to(self.device, torch.float32)
        return instances.div_(255.0) if source.dtype == np.uint8 else instances

    def epoch(
        self, batch_size: int, rng: np.random.Generator, drop: float = 0.0, most: int | None = None
    ) -> Iterator[BagBatch]:
        """Yield every bag once in shuffled order.

        If the instances are in files, the next batch is read while the current one is in use. With several
        processes, each gets the bags of its shard of every batch, possibly none.

        Args:
            batch_size: bags per batch.
            rng: shuffles the bags and draws the dropped instances.
            drop: fraction of the instances to drop at random. One instance per bag is never dropped.
            most: number of instances of a larger bag that are drawn at random before; None: all.
        """
        batches = self._shuffled(batch_size, rng, drop, most)
        if type(self.bags.source) is np.ndarray:  # in memory, neither memory-mapped nor in files
            yield from batches
            return
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(next, batches, None)
            while (batch := following.result()) is not None:
                following = reader.submit(next, batches, None)
                yield batch

    def _shuffled(
        self, batch_size: int, rng: np.random.Generator, drop: float, most: int | None
    ) -> Iterator[BagBatch]:
        rank, processes = self.shard
        order = rng.permutation(len(self.bags))
        block = batch_size * max(1, self.PREFETCH // batch_size)
        for begin in range(0, len(order), block):  # the rows of many bags in one call
            index = order[begin : begin + block]
            rows, sizes = self.bags.rows(index), self.bags.sizes[index]
            if most is not None and (sizes > most).any():
                rows, sizes = _sampled(rows, sizes, most, rng)
            if drop:
                starts = np.cumsum(sizes) - sizes
                draw = rng.random(len(rows))
                largest = np.maximum.reduceat(draw, starts)
                kept = (draw >= drop) | (draw == np.repeat(largest, sizes))
                rows, sizes = rows[kept], np.add.reduceat(kept, starts, dtype=np.int64)
            steps = [len(index[first : first + batch_size]) for first in range(0, len(index), batch_size)]
            local = index % processes == rank
            before = np.concatenate([[0], np.cumsum(local)])  # this shard's bags before each bag
            if processes > 1:
                rows = rows[np.repeat(local, sizes)]
                index, sizes = index[local], sizes[local]
            ends = np.concatenate([[0], np.cumsum(sizes)])
            position = torch.from_numpy(index // processes).to(self.device)
            lengths = torch.from_numpy(sizes).to(self.device)
            candidates = None if self._candidates is None else self._candidates[position]
            for first, step in zip(range(0, sum(steps), batch_size), steps, strict=True):
                part = slice(before[first], before[first + step])
                yield BagBatch(
                    instances=self.read(rows[ends[part.start] : ends[part.stop]]),
                    sizes=lengths[part],
                    index=position[part],
                    candidates=None if candidates is None else candidates[part],
                    step=step,
                )

    def in_order(self, instances: int = 8192, *, stored: int | None = None) -> Iterator[BagBatch]:
        """Yield every bag once in order.

        Args:
            instances: approximate number of instances per batch; a batch has at least one bag.
            stored: batches with more instances than this have `StoredRows` in place of a tensor.
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


class EnsembleLoader:
    """Batches of bags that all members see, each learning from those that are not left out for it.

    Args:
        bags: m bags with candidate sets.
        seen: (members, m) 1 where a member learns from a bag.
        device: where the tensors are.
    """

    def __init__(self, bags: Bags, seen: Tensor, device: torch.device | str = "cpu") -> None:
        self.bags = bags
        self._seen = seen.to(device)
        self._loader = BagLoader(bags, device)
        self._starts = torch.arange(len(seen), device=device)[:, None] * len(bags)  # (members, 1)

    def epoch(
        self, batch_size: int, rng: np.random.Generator, drop: float = 0.0, most: int | None = None
    ) -> Iterator[BagBatch]:
        """Yield every bag once, read once for all: index and candidates (members · b), mask (members, b)."""
        for batch in self._loader.epoch(batch_size, rng, drop, most):
            yield dataclasses.replace(
                batch,
                index=(batch.index + self._starts).flatten(),
                candidates=batch.candidate_sets.repeat(len(self._seen), 1),
                mask=self._seen[:, batch.index],
            )


def _sampled(
    rows: IntArray, sizes: IntArray, most: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return at most ``most`` of the rows of each bag, drawn at random, in their order; and the new sizes."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((rng.random(len(rows)), owner))  # shuffled within each bag
    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[place < most])
    return rows[kept], np.minimum(sizes, most)


class StoredRows:
    """Instances (N, *feature_shape) that are read as tensors in parts, on each iteration."""

    def __init__(self, loader: BagLoader, rows: IntArray) -> None:
        self._loader, self._rows = loader, rows

    def parts(self, instances: int) -> Iterator[Tensor]:
        """Yield them in order, ``instances`` per part."""
        for first in range(0, len(self._rows), instances):
            yield self._loader.read(self._rows[first : first + instances])
