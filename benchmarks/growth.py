"""Growth: time and memory of training against bags, instances, features, classes and methods."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from measuring import Json, Row, anonymous_mb, call, exponent
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.candidates import add_false_positives
from mipl.estimators import make_classifier
from mipl.training.recipe import DECAY
from training import mipl_run

AXES = ("bags", "instances", "features", "classes", "members")
BASE = {"bags": 128, "instances": 64, "features": 64, "classes": 8, "members": 1}
POINTS = {  # at least three doublings
    "bags": (256, 512, 1024, 2048),
    "instances": (128, 256, 512, 1024),
    "features": (128, 256, 512, 1024),
    "classes": (8, 16, 32, 64),
    "members": (3, 6, 12, 24),
}
QUICK = {name: tuple((3 if name == "members" else 8) * 2**i for i in range(4)) for name in AXES}
METHODS = ("dam-cn", "sam-cn", "mam-cn", "dam-cc", "sam-cc", "mam-cc", "sam-mdl", "mam-mdl")
ASKED = {"bags": 1.1, "instances": 1.1}


def train(
    path: str, bags: int, instances: int, features: int, classes: int, members: int, epochs: int
) -> Json:
    """Train on random numbers in a mapped file; return the seconds of the fastest epoch."""
    shape = (bags * instances, features)
    rng = np.random.default_rng(0)
    written = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
    for start in range(0, len(written), 8192):
        part = written[start : start + 8192]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    written.flush()
    labels = np.arange(bags) % classes
    data = Bags(
        source=np.memmap(path, dtype=np.float32, mode="r", shape=shape),
        starts=np.arange(bags, dtype=np.int64) * instances,
        sizes=np.full(bags, instances, dtype=np.int64),
        classes=tuple(range(classes)),
        ids=np.arange(bags).astype(np.str_),
        candidates=add_false_positives(labels, classes, 1, "growth", 0),
        labels=labels,
    )
    before = anonymous_mb()
    model = make_classifier("sam-cn", ensemble=members, weight_decay=DECAY, epochs=epochs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is nothing to learn
        model.fit(data)
    return {"seconds": members * min(model.history_["seconds"]), "before_mb": before}


def section(scratch: Path, quick: bool) -> Json:
    """Measure each axis over three doublings with the others held, and fit the exponents."""
    rows, data = [], {}
    path = scratch / "growth.f32"
    for axis, points in (QUICK if quick else POINTS).items():
        base = {**dict.fromkeys(AXES, 8), "bags": 64, "members": 1} if quick else BASE
        seconds, memory = [], []
        for point in points:
            found = call(
                "growth",
                "train",
                threads=1,
                path=str(path),
                epochs=3 if quick else 7,
                **{**base, axis: point},
            )
            seconds.append(found["seconds"])
            memory.append(max(found["peak_anon_mb"] - found["before_mb"], 0.1))
        data[axis] = {"points": points, "seconds": seconds, "above_mb": memory, "others": base}
        rows += _rows(axis, points, seconds, memory)
    path.unlink()
    small = scratch / "growth.npz"
    gaussian_bags(bags=20 if quick else 200, k=4, d=16, sizes=(10, 20)).save(small)
    counts = (1, 2) if quick else (1, 2, 4, 8)
    runs = [mipl_run(str(small), METHODS[:count], 2, 2 if quick else 20, scratch) for count in counts]
    walls = [run["wall"] for run in runs]
    data["methods"] = {"points": counts, "seconds": walls}
    rows += _rows("methods", counts, walls, None)
    return {"rows": rows, "data": data}


def _rows(axis: str, points: tuple[int, ...], seconds: list[float], memory: list[float] | None) -> list[Row]:
    span = f"{points[0]:,}–{points[-1]:,} {axis}"
    note = f"{seconds[0]:.3g} s to {seconds[-1]:.3g} s"
    rows = [
        Row(f"exponent of time, {span}", exponent(points, seconds), at_most=ASKED.get(axis), note=note),
    ]
    if memory is not None:
        note = f"{memory[0]:.0f} MB to {memory[-1]:.0f} MB"
        rows.append(Row(f"exponent of training's memory, {span}", exponent(points, memory), note=note))
    return rows
