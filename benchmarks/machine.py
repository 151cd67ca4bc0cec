"""What the machine can do: the rate of large matrix products; and the arithmetic of a training step."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from loop import Network, cdl_cn
from measuring import Json, Row, call, cores
from mipl.data.bags import Bags


def gemm(size: int, repeats: int) -> Json:
    """Return the rate of products of single-precision matrices: the best of the repeats, and all."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        a @ b
        rates.append(2e-9 * size**3 / (time.perf_counter() - started))
    return {"gflops": max(rates), "each": rates, "threads": torch.get_num_threads()}


def step_gflop(bags: Bags, attention: str) -> float:
    """Return the arithmetic (10⁹ operations) of forward and backward of the loop's network on a mean bag."""
    size = round(float(bags.sizes.mean()))
    channel = (1,) if len(bags.feature_shape) == 2 else ()
    net = Network(bags.feature_shape, bags.k, attention)
    candidates = torch.zeros(1, bags.k, dtype=torch.bool)
    candidates[0, 0] = True
    with FlopCounterMode(display=False) as counter:
        logits = net(torch.randn(size, *channel, *bags.feature_shape))
        torch.autograd.backward(cdl_cn(logits, candidates, candidates.float()))
    return float(counter.get_total_flops()) / 1e9


def section(quick: bool) -> Json:
    """Measure the machine on one thread and on all."""
    size, repeats = (256, 3) if quick else (2048, 12)
    one = call("machine", "gemm", threads=1, size=size, repeats=repeats)
    every = call("machine", "gemm", threads=None, size=size, repeats=repeats)
    rows = [
        Row(f"matrix product, {title}", found["gflops"], "GFLOP/s", min(found["each"]), max(found["each"]))
        for title, found in (("one thread", one), (f"{every['threads']} threads", every))
    ]
    return {"rows": rows, "one": one["gflops"], "all": every["gflops"], "threads": every["threads"]}


def described() -> dict[str, Any]:
    """Return the machine in a few words, without its name."""
    model = ""
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    return {
        "processor": model or platform.machine(),
        "cores": cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
