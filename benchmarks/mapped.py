"""Larger than memory: one epoch on a memory-mapped set, its anonymous memory and the bytes it asks for."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cohort
from measuring import Json, Row, anonymous_mb, call
from mipl.data.bags import Bags
from mipl.data.candidates import IntArray
from mipl.data.formats.npz import FORMAT
from mipl.data.lazy import Part
from mipl.estimators import make_classifier
from mipl.training.recipe import DECAY

CLASSES = 4
ROOM = 1.2  # free disk for this many times the set


def write_set(path: Path, bags: int, instances: int | IntArray, width: int) -> None:
    """Write bags × instances × width single-precision numbers as `Bags.save` would, without holding them.

    ``instances`` is one number, or one per bag.

    A tenth of each bag is shifted by its class; every bag has two candidates.
    """
    sizes = np.broadcast_to(np.asarray(instances, dtype=np.int64), (bags,))
    labels = np.arange(bags) % CLASSES
    candidates = np.zeros((bags, CLASSES), dtype=np.bool_)
    candidates[np.arange(bags), labels] = True
    candidates[np.arange(bags), (labels + 1 + np.arange(bags) // CLASSES % (CLASSES - 1)) % CLASSES] = True
    meta = {"format": FORMAT, "classes": list(range(CLASSES)), "missing_truth": False, "provenance": {}}
    small = {
        "meta": np.array(json.dumps(meta)),
        "offsets": np.concatenate([[0], np.cumsum(sizes)]),
        "ids": np.arange(bags).astype(np.str_),
        "candidates": candidates,
        "labels": labels.astype(np.int64),
    }
    block = np.random.default_rng(0).standard_normal((int(sizes.max()), width), dtype=np.float32)
    header = {"descr": "<f4", "fortran_order": False, "shape": (int(sizes.sum()), width)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in small.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        with archive.open("instances.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for i, size in enumerate(sizes.tolist()):
                bag = np.roll(block[:size], i, axis=1)  # cheaper than new numbers, and no two bags are equal
                bag[: max(1, size // 10), i % CLASSES] += 5
                file.write(bag.data.cast("B"))


@contextlib.contextmanager
def counted_reads() -> Iterator[list[int]]:
    """Yield the list that the rows of every read from a file are noted in.

    The system's counters cannot tell: a page in its cache is read without a trace, and that is where a file
    just written is.
    """
    rows: list[int] = []
    read = Part.read

    def counted(self: Part, which: slice) -> Any:
        rows.append(which.stop - which.start)
        return read(self, which)

    Part.read = counted  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        Part.read = read  # type: ignore[method-assign]


def train(path: str, epochs: int = 1, given: Json | None = None) -> Json:
    """Train on the set in this process, one network or as given; return seconds and passes by stage."""
    before, started, ends = anonymous_mb(), time.perf_counter(), []
    with counted_reads() as rows:
        data = Bags.load(path, mapped=True)
        opened, whole = sum(rows), int(data.sizes.sum())
        model = make_classifier("sam-cn", epochs=epochs, **(given or {"ensemble": 1}))
        model.fit(data, report=lambda epoch, note="": ends.append(sum(rows)))
        asked = sum(rows)
    return {
        "before_mb": before,
        "seconds": time.perf_counter() - started,
        "epoch_seconds": model.history_["seconds"],
        "loss": model.history_["loss"],
        "passes": asked / whole,
        "passes_by_stage": {
            "opening": opened / whole,
            "scaling and first epoch": (ends[0] - opened) / whole,
            "further epochs": (ends[-1] - ends[0]) / whole,
            "after": (asked - ends[-1]) / whole,
        },
    }


def fitting_bags(free: int, bags: int, instances: int, width: int) -> int:
    """Return how many of the bags have room in ``free`` bytes of disk."""
    return min(bags, int(free / (ROOM * 4 * instances * width)))


def section(scratch: Path, quick: bool) -> Json:
    """Train one epoch on 1,000 bags × 5,000 × 512 (10 GB), and on a small cohort of slide files."""
    wanted, instances, width = (20, 100, 32) if quick else (1000, 5000, 512)
    bags = fitting_bags(shutil.disk_usage(scratch).free, wanted, instances, width)
    said = []
    if bags < 2 * CLASSES:
        return {"rows": [], "said": ["There is no room on the disk for the memory-mapped set."], "data": {}}
    if bags < wanted:
        said.append(f"The disk has room for {bags} of {wanted} bags: the set is smaller than it should be.")
    path = scratch / "mapped.npz"
    started = time.perf_counter()
    write_set(path, bags, instances, width)
    written, size = time.perf_counter() - started, path.stat().st_size / 2**30
    found = call("mapped", "train", threads=1, path=str(path))
    # without the choice of a weight decay, for which the ensemble is trained a second time
    ensemble = call("mapped", "train", threads=1, path=str(path), given={"weight_decay": DECAY})
    path.unlink()
    slides, sizes = (4, ((20, 40), 16)) if quick else (40, ((200, 8000), 512))
    folders = [cohort.measure("clam", n, *sizes, epochs=1, parent=scratch) for n in (slides, 2 * slides)]
    above = [float(each["above_mb"]) for each in folders]
    title = f"{bags:,} bags × {instances:,} × {width} in a mapped file ({size:.1f} GB)"
    stages = ", ".join(f"{name} {value:.2f}" for name, value in found["passes_by_stage"].items())
    rows = [
        Row(
            f"{title}, most anonymous memory", found["peak_anon_mb"], "MB", at_most=1.5 * 1024,
            note=f"{found['before_mb']:.0f} MB before",
        ),
        Row(f"{title}, passes over the bytes with one epoch", found["passes"], at_most=2.01, note=stages),
        Row(
            f"{title}, passes with one epoch of the ensemble", ensemble["passes"], at_most=3.1,
            note="scaling, the epoch, out-of-fold predictions, and a sample for principal components: "
            + ", ".join(f"{name} {value:.2f}" for name, value in ensemble["passes_by_stage"].items()),
        ),
        Row(f"{title}, one epoch, one thread", found["epoch_seconds"][0], "s",
            note=f"{found['seconds']:.0f} s with everything, written in {written:.0f} s"),
        Row(
            f"a folder of {slides} slides ({folders[0]['disk_mb']:.0f} MB), memory above the interpreter's",
            above[0], "MB",
        ),
        Row(
            "the same with twice as many slides", above[1] / above[0], "×", at_most=1.25,
            note=f"{above[1]:.0f} MB: flat, but for the largest slides that meet in a step",
        ),
    ]  # fmt: skip
    return {
        "rows": rows,
        "said": said,
        "data": {"mapped": found, "ensemble": ensemble, "folders": folders, "write_seconds": written},
    }
