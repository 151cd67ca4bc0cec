"""What a user waits for: ``fit`` against a lean loop of one bag per step, per bag and member, on one thread.

Processor time, since other processes share the machine. The loop has its bags as tensors in memory and no
DataLoader; the network and the loss are those of `loop`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases import Case, raw_folder
from loop import BagDataset, Network, cdl_cn
from machine import step_gflop
from measuring import Json, Row, call, environment, ratio_row
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.datasets import build
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier
from mipl.experiments.runner import epoch_seconds
from mipl.training.recipe import DECAY

SINGLE: dict[str, Any] = {"ensemble": 1}
ENSEMBLE: dict[str, Any] = {"weight_decay": DECAY}  # of the default's two trainings one
RUNS, TINY = 20, 60  # of `mipl run`; bags of the smallest fit


def bag_by_bag(path: str, epochs: int) -> Json:
    """Train one network on a split with one bag per step; return milliseconds per bag of every epoch."""
    bags = Bags.load(path)
    known = bags[stratified_split(bags, 1)[0]]
    instances = torch.tensor(known.instances, dtype=torch.float32)
    data = BagDataset(known, instances.mean(dim=0), instances.std(dim=0).clamp(min=1e-7))
    torch.manual_seed(0)
    net = Network(known.feature_shape, known.k, "sam").train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    table = data.candidates / data.candidates.sum(dim=1, keepdim=True)
    times = []
    for epoch in range(epochs):
        alpha, started = 1 - epoch / epochs, time.process_time()
        for i in torch.randperm(len(known)).tolist():
            optimizer.zero_grad()
            logits, candidates = net(data.bags[i]), data.candidates[i : i + 1]
            inside = logits.detach().masked_fill(~candidates, -torch.inf).softmax(dim=1)
            table[i : i + 1] = alpha * table[i : i + 1] + (1 - alpha) * inside
            torch.autograd.backward(cdl_cn(logits, candidates, table[i : i + 1]))
            optimizer.step()
        times.append(1000 * (time.process_time() - started) / len(known))
    return {"ms": times}


def fitted(path: str, epochs: int, given: dict[str, Any]) -> Json:
    """Fit on the same split; return milliseconds per bag and member of the median epoch."""
    bags = Bags.load(path)
    known = bags[stratified_split(bags, 1)[0]]
    marks: list[tuple[int, float]] = []
    model = make_classifier("sam-cn", epochs=epochs, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few epochs learn nothing
        model.fit(known, report=lambda done, note="": marks.append((done, time.process_time())))
    return {"ms": 1000 * (epoch_seconds(marks) or np.nan) / len(known) / model.recipe_.ensemble}


def first_fit(path: str) -> Json:
    """Return the processor seconds of a one-epoch fit in a fresh process, beyond ``import torch``."""
    code = (
        "import time, torch\nstarted = time.process_time()\nimport sys, warnings, mipl\n"
        "warnings.simplefilter('ignore')\n"
        "mipl.make_classifier('sam-cn', epochs=1).fit(mipl.Bags.load(sys.argv[1]))\n"
        "print(time.process_time() - started)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True, env=environment(1)
    )
    return {"seconds": float(done.stdout)}


def deep_bags(folder: Path, quick: bool, raw: Path | None = None) -> tuple[str, bool]:
    """Write crc5-lite0-16, or random numbers of its shape, once; return the path, and whether it is real."""
    raw = raw_folder(raw) / "crc-tiles"
    real = raw.is_dir() and not quick
    path = folder / ("crc5-lite0-16.npz" if real else "crc5-lite0-16-stand-in.npz")
    if not path.exists():
        bags = (
            build("crc5-lite0-16", raw=raw)
            if real
            else gaussian_bags(bags=40 if quick else 2000, k=5, d=200 if quick else 1280, sizes=(16, 16))
        )
        bags.save(path)
    return str(path), real


def section(case: Case, gemm: Json, scratch: Path, repeats: int, quick: bool, raw: Path | None) -> Json:
    """Measure loop, one network and ensemble in turns; the wide set; and what surrounds short trainings."""
    from training import mipl_run  # which imports this module's neighbours

    epochs = 2 if quick else 4
    deep, real = deep_bags(scratch, quick, raw)
    found: dict[str, list[float]] = {name: [] for name in ("loop", "single", "ensemble", "deep", "first")}
    tiny = scratch / "tiny.npz"
    gaussian_bags(bags=TINY, k=4).save(tiny)
    for _ in range(repeats):
        loop = call("lean", "bag_by_bag", threads=1, path=case.path, epochs=epochs)
        found["loop"].append(float(np.median(loop["ms"])))
        for name, path, given in (
            ("single", case.path, SINGLE),
            ("ensemble", case.path, ENSEMBLE),
            ("deep", deep, ENSEMBLE),
        ):
            one = call("lean", "fitted", threads=1, path=path, epochs=epochs + 1, given=given)
            found[name].append(one["ms"])
        found["first"].append(call("lean", "first_fit", threads=1, path=str(tiny))["seconds"])
    wide = Bags.load(deep)
    # what is computed: on the components
    width = min(wide.feature_shape[0], make_classifier("sam-cn").parts()[1].components)
    work = step_gflop(gaussian_bags(bags=8, k=wide.k, d=width, sizes=(16, 16)), "sam")
    rates = [100 * work / (ms / 1000) / gemm["one"] for ms in found["deep"]]
    title = "crc5-lite0-16" if real else "crc5-lite0-16 (stand-in)"
    rows = [
        ratio_row(
            f"{name} against the lean loop, {case.title}, per bag and member",
            found["loop"],
            found[side],
            least,
            f"{np.median(found['loop']):.3g} ms against {np.median(found[side]):.3g} ms",
        )
        for name, side, least in (("a single network", "single", 5.0), ("the ensemble", "ensemble", 8.0))
    ]
    rows.append(
        Row(f"share of the matrix products' rate, the ensemble, {title}", float(np.median(rates)), "%",
            min(rates), max(rates), at_least=50.0, note="one thread")
    )  # fmt: skip
    firsts = found["first"]
    rows.append(
        Row(f"one epoch on {TINY} bags, beyond `import torch`", float(np.median(firsts)), "s", min(firsts),
            max(firsts), at_most=1.0, note="processor time, importing mipl included")
    )  # fmt: skip
    runs = 3 if quick else RUNS
    run = mipl_run(str(tiny), ["sam-cn"], runs, 1, scratch, ("ensemble=1",))
    around = (run["wall"] - run["fit"]) / runs
    rows.append(
        Row(f"mipl run of {runs} tiny runs, overhead per run", around, "s", at_most=0.3,
            note=f"{run['wall']:.1f} s in all, {run['fit']:.2f} s of them in fits")
    )  # fmt: skip
    return {"rows": rows, "data": json.loads(json.dumps({**found, "run": run}))}
