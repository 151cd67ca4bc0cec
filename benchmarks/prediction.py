"""Prediction: bags a second, the latency of one bag, and bags of up to 100,000 instances."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import mipl
from cases import Case
from measuring import Json, Row, anonymous_mb, call, exponent
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.estimators import make_classifier


def rate(model: str, bags: str, repeats: int, single: int) -> Json:
    """Return bags a second, several times, and milliseconds of bags one at a time."""
    classifier, loaded = mipl.load(model), Bags.load(bags)
    classifier.predict_proba(loaded)
    rates, latencies = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        classifier.predict_proba(loaded)
        rates.append(len(loaded) / (time.perf_counter() - started))
    for i in range(single):
        bag = [loaded[i % len(loaded)].instances]
        started = time.perf_counter()
        classifier.predict_proba(bag)
        latencies.append(1000 * (time.perf_counter() - started))
    return {"rates": rates, "latencies": latencies}


def huge(model: str, path: str, instances: int, width: int) -> Json:
    """Predict one bag that lies in a memory-mapped file; its own bytes are not anonymous memory."""
    classifier = mipl.load(model)
    source = np.memmap(path, dtype=np.float32, mode="r", shape=(instances, width))
    bags = Bags(
        source=source,
        starts=np.zeros(1, dtype=np.int64),
        sizes=np.array([instances]),
        classes=tuple(classifier.classes_.tolist()),
        ids=np.array(["0"]),
    )
    classifier.predict_proba([np.zeros((2, width), dtype=np.float32)])  # libraries are loaded by now
    before, started = anonymous_mb(), time.perf_counter()
    classifier.predict_proba(bags)
    return {"seconds": time.perf_counter() - started, "before_mb": before}


def section(case: Case, scratch: Path, repeats: int, quick: bool) -> Json:
    """Measure small bags on one thread and on all, and huge ones on one."""
    rows, model = [], scratch / "model"
    make_classifier(case.method, epochs=1).fit(case.bags[::10]).save(model)
    single = 10 if quick else 300
    data: Json = {}
    for threads, title in ((1, "one thread"), (None, "all threads")):
        found = call(
            "prediction", "rate", threads=threads, model=str(model), bags=case.path,
            repeats=3 * repeats, single=single,
        )  # fmt: skip
        rates, latencies = found["rates"], found["latencies"]
        low, middle, high = np.percentile(latencies, [5, 50, 95])
        rows += [
            Row(
                f"prediction, {case.title}, {title}",
                float(np.median(rates)),
                "bags/s",
                min(rates),
                max(rates),
            ),
            Row(
                f"one bag at a time, {title}",
                float(middle),
                "ms",
                float(low),
                float(high),
                note="5–95% of calls",
            ),
        ]
        data[title] = found
    sizes = [200, 400, 800, 1600] if quick else [12_500, 25_000, 50_000, 100_000]
    width, wide, path = 16 if quick else 512, scratch / "wide", scratch / "huge.f32"
    make_classifier("sam-cn", epochs=1).fit(gaussian_bags(d=width)).save(wide)
    block = np.random.default_rng(0).standard_normal((sizes[0], width), dtype=np.float32)
    seconds, above = [], []
    for size in sizes:
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block.tobytes())
        found = call(
            "prediction",
            "huge",
            threads=1,
            model=str(wide),
            path=str(path),
            instances=size,
            width=width,
        )
        seconds.append(found["seconds"])
        above.append(max(found["peak_anon_mb"] - found["before_mb"], 0.0))
    path.unlink()
    data["huge"] = {"instances": sizes, "width": width, "seconds": seconds, "above_mb": above}
    title = f"a bag of {sizes[-1]:,} × {width}"
    rows += [
        Row(f"{title}, one thread", seconds[-1], "s"),
        Row(
            f"{title}, memory beyond the model",
            above[-1],
            "MB",
            note=f"{above[0]:.0f} MB with {sizes[0]:,} instances; the bag itself is "
            f"{4e-6 * sizes[-1] * width:.0f} MB in a mapped file",
        ),
        Row(f"exponent of time in a bag's instances, {sizes[0]:,}–{sizes[-1]:,}", exponent(sizes, seconds)),
    ]
    return {"rows": rows, "data": data}
