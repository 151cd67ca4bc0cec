"""Training: the bag-by-bag loop against ``mipl run``, on the same splits and epochs, in turns."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cases import REFERENCE_GFLOPS, Case
from machine import step_gflop
from measuring import Json, Row, call, call_words, commands, cores, ratio_row
from mipl.records.store import Store

SPLITS, EPOCHS = 10, 100
LIMIT = 300.0  # seconds on the way to an accuracy, for each side


def mipl_run(
    data: str,
    methods: Sequence[str],
    splits: int,
    epochs: int,
    scratch: Path,
    settings: Sequence[str] = (),
) -> Json:
    """Run ``mipl run`` as a user would, one process per core; return times and accuracy."""
    with tempfile.TemporaryDirectory(dir=scratch) as store:
        words = [
            *(sys.executable, "-m", "mipl.cli", "run", data, "--out", store, "--json"),
            *("--methods", ",".join(methods), "--splits", f"1-{splits}"),
            *("--jobs", str(cores()), "--set", f"epochs={epochs}"),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        done = commands([words])[0]
        records = list(Store(Path(store)))
    assert len(records) == splits * len(methods), "every run leaves its record"
    return {
        "wall": done["wall_seconds"],
        "fit": sum(record.info["seconds"]["fit"] for record in records),
        "threads": sorted({record.info["threads"] for record in records}),
        "accuracy": float(np.mean([record.metrics["accuracy"] for record in records])),
    }


def whole_run(measured: Json, splits: int, epochs: int) -> float:
    """Return the seconds that all splits take with all epochs, from fewer of both.

    What is not training (starting processes, reading, predicting) grows with the splits only.
    """
    workers = min(cores(), splits)
    training = measured["fit"] / workers
    rest = max(measured["wall"] - training, 0.0)
    return float((rest + training * EPOCHS / epochs) * SPLITS / splits)


def section(cases: Sequence[Case], gemm: Json, scratch: Path, repeats: int, full: bool) -> Json:
    """Measure both sides in turns, and print as ratios; ``full`` trains the fast side to the end."""
    rows, said, data = [], [], {}
    for case in cases:
        splits, epochs = (
            (SPLITS, EPOCHS) if full and case.real else (case.measured_splits, case.measured_epochs)
        )
        bags_in_all = case.train_bags * EPOCHS * SPLITS
        ms, slow, fast, threads = [], [], [], []
        for _ in range(repeats):
            loop = call(
                "loop", "run", bags=case.path, split=1, method=case.method, epochs=EPOCHS,
                warm=case.warm, measure=case.measured_bags,
            )  # fmt: skip
            # one network, and convolutions trained with the other layers: the same work on both sides
            same = ("ensemble=1", *(() if case.vectors else ("pretrain=0",)))
            ours = mipl_run(case.path, [case.method], splits, epochs, scratch, same)
            ms.append(loop["ms_per_bag"])
            slow.append(ms[-1] * bags_in_all / 1000)
            fast.append(whole_run(ours, splits, epochs))
            threads = ours["threads"]
        allowed = case.reference_ms and case.reference_ms * REFERENCE_GFLOPS / gemm["all"]
        work = step_gflop(case.bags, case.method.split("-")[0]) * bags_in_all  # 10⁹ operations
        note = f"{np.median(slow):.0f} s against {np.median(fast):.0f} s"
        rows += [
            ratio_row(f"training, {case.title}, {case.method}", slow, fast, case.least_speed, note),
            Row(  # the fastest turn, as the matrix products' rate is that of their fastest
                f"the loop, {case.title}", min(ms), "ms a bag", min(ms), max(ms), at_most=allowed,
                note="no slower than the reference, scaled by the matrix products" if allowed else "",
            ),
            *(
                Row(
                    f"share of the matrix products' rate, {who}, {case.title}",
                    100 * work / float(np.median(times)) / gemm["all"],
                    "%",
                )
                for who, times in (("loop", slow), ("mipl", fast))
            ),
        ]  # fmt: skip
        data[case.title] = {"ms_per_bag": ms, "loop_seconds": slow, "mipl_seconds": fast, "threads": threads}
        said.append(
            f"{case.title}: {SPLITS} splits × {EPOCHS} epochs; the loop's time is extrapolated from "
            f"{case.measured_bags} bags"
            + (
                ", mipl's is measured in full."
                if (splits, epochs) == (SPLITS, EPOCHS)
                else f", mipl's from {splits} splits × {epochs} epochs with everything around them."
            )
        )
    times = call("training", "encoder", threads=1, repeats=10 * repeats)
    slow, fast = times["conv2d"], times["products"]
    note = f"{1000 * np.median(slow):.0f} ms against {1000 * np.median(fast):.0f} ms, 295 images, one thread"
    rows.append(ratio_row("a step of the 28×28 encoder, by conv2d and as trained", slow, fast, None, note))
    return {"rows": rows, "said": said, "data": data}


def encoder(repeats: int, images: int = 295) -> Json:
    """Time the image encoder's forward and backward pass in turns: by conv2d, and as it is trained."""
    from mipl.nn.encoders import ImageEncoder

    net = ImageEncoder(1, 28, 128, 0.0).train()
    x, slope = torch.rand(images, 28, 28), torch.randn(images, 128)

    def plain() -> torch.Tensor:
        parts = torch.split(x[:, None].contiguous(memory_format=torch.channels_last), net.CHUNK)
        return net.linear(torch.cat([net._maps(part) for part in parts]).flatten(1)).relu()  # type: ignore[no-any-return]

    times: dict[str, list[float]] = {"conv2d": [], "products": []}
    for turn in range(repeats + 1):
        for name, forward in (("conv2d", plain), ("products", lambda: net(x))):
            started = time.perf_counter()
            torch.autograd.grad(forward(), list(net.parameters()), slope)
            if turn:  # the first time finds nothing ready
                times[name].append(time.perf_counter() - started)
    return times


def accuracy_section(cases: Sequence[Case], scratch: Path, limit: float = LIMIT) -> Json:
    """Measure the time to an accuracy: the loop's final one, or a fixed one."""
    rows, said = [], []
    data: Json = {}
    for case in cases:
        if not case.real:
            said.append(f"{case.title}: no raw files, so there is no accuracy to reach; give --raw.")
            continue
        loop = _loop_to(case, limit)
        ours = _mipl_to(case, loop["accuracy"], scratch, limit)
        data[case.title] = {"loop": loop, "mipl": ours}
        name = f"time to {100 * loop['accuracy']:.1f}% accuracy, {case.title}, {case.to_accuracy}"
        said += [f"{case.title}: {loop['said']}", f"{case.title}: {ours['said']}"]
        if ours["seconds"] is not None:
            note = f"{loop['seconds']:.0f} s against {ours['seconds']:.0f} s; {ours['epochs']} epochs"
            ratio = loop["seconds"] / ours["seconds"]
            rows.append(Row(name, ratio, "×", at_least=case.least_to_accuracy, note=note))
    return {"rows": rows, "said": said, "data": data}


def _loop_to(case: Case, limit: float) -> Json:
    """Return the accuracy to reach and the seconds that the loop takes to it on all splits."""
    settings: Json = {"bags": case.path, "method": case.to_accuracy, "epochs": EPOCHS}
    if case.accuracy is not None:
        one = call("loop", "run", split=1, stop_at=case.accuracy, limit=limit, **settings)
        reached = "reached" if one["reached"] else "had not reached"
        return {
            "accuracy": case.accuracy,
            "seconds": one["seconds"] * SPLITS,
            "accuracies": one["accuracies"],
            "said": f"the loop {reached} it on split 1 after {one['epochs']} epochs"
            + (", times ten." if one["reached"] else ": its time, and the ratio, are at least this."),
        }
    timed = call("loop", "run", split=1, warm=case.warm, measure=case.measured_bags, **settings)
    # Whole trainings for the accuracy alone: one thread each, so that they can share the machine.
    splits = range(1, min(cores(), SPLITS) + 1)
    done = commands([call_words("loop", "run", split=split, **settings) for split in splits], threads=1)
    found = [each["accuracies"][-1] for each in done]
    return {
        "accuracy": float(np.mean(found)),
        "seconds": timed["ms_per_bag"] * case.train_bags * EPOCHS * SPLITS / 1000,
        "accuracies": found,
        "said": f"the accuracy is the mean of the loop's whole trainings on splits 1–{len(found)}; "
        f"its time is extrapolated from {case.measured_bags} bags to {SPLITS} splits × {EPOCHS} epochs.",
    }


def _mipl_to(case: Case, accuracy: float, scratch: Path, limit: float) -> Json:
    """Return the seconds of the shortest training on all splits that ends at the accuracy."""
    splits, started = min(cores(), SPLITS), time.perf_counter()
    tried: list[Json] = []
    for epochs in case.ladder:
        run = mipl_run(case.path, [case.to_accuracy], splits, epochs, scratch, case.settings)
        tried.append({"epochs": epochs, **run})
        if run["accuracy"] >= accuracy:
            break
        if time.perf_counter() - started > limit:
            break
    last = tried[-1]
    if last["accuracy"] < accuracy:
        said = f"mipl had not reached it with {last['epochs']} epochs ({100 * last['accuracy']:.1f}%)."
        return {"seconds": None, "epochs": last["epochs"], "tried": tried, "said": said}
    rounds = SPLITS / splits
    what = f"mipl with {', '.join([*case.settings, str(last['epochs'])])} epochs"
    if last["wall"] * rounds > limit:
        said = (
            f"{what}, from splits 1–{splits} in parallel, times {rounds:g}; "
            f"it was chosen by the test accuracy."
        )
        return {"seconds": last["wall"] * rounds, "epochs": last["epochs"], "tried": tried, "said": said}
    whole = mipl_run(case.path, [case.to_accuracy], SPLITS, last["epochs"], scratch, case.settings)
    said = (
        f"{what}, measured on all {SPLITS} splits "
        f"({100 * whole['accuracy']:.1f}% on them); the epochs were chosen by the test accuracy of "
        f"splits 1–{splits}."
    )
    return {"seconds": whole["wall"], "epochs": last["epochs"], "tried": tried, "said": said, **whole}
