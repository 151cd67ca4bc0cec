"""What every benchmark shares: fresh processes with set threads, their memory, and rows of results.

A measured function runs as ``python measuring.py MODULE FUNCTION JSON`` and prints its result as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SPARING = "MIPL_BENCH_ONE_THREAD"  # set by --quick: never more than one, beside whatever else is running
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured number, with its spread over repeats and what was asked of it."""

    name: str
    value: float
    unit: str = ""  # "×": a ratio
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""


def ratio_row(
    name: str, slow: Sequence[float], fast: Sequence[float], at_least: float | None, note: str = ""
) -> Row:
    """Return how many times as long the slow side took: the median of the pairs, lowest and highest."""
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return Row(name, float(np.median(ratios)), "×", min(ratios), max(ratios), at_least=at_least, note=note)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return b of values ≈ a · sizes^b, fitted to the logarithms."""
    positive = np.maximum(values, 1e-9)  # a difference of two memories can be nothing at all
    return float(np.polyfit(np.log(sizes), np.log(positive), 1)[0])


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a process with so many threads; none: as the libraries choose themselves."""
    if os.environ.get(SPARING):
        threads = 1
    inherited = {name: value for name, value in os.environ.items() if name not in THREADS}
    return inherited if threads is None else {**inherited, **dict.fromkeys(THREADS, str(threads))}


def anonymous_mb(pid: int | str = "self") -> float:
    """Return the anonymous memory of a process (RssAnon): without files that are only mapped."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
    except OSError:  # the process has ended, or the system has no /proc
        pass
    return 0.0


def call(module: str, function: str, *, threads: int | None = None, **arguments: Any) -> Json:
    """Call a function of a module here in a fresh process; add ``peak_anon_mb``, watched from outside."""
    return commands([call_words(module, function, **arguments)], threads)[0]


def call_words(module: str, function: str, **arguments: Any) -> list[str]:
    """Return the command of :func:`call`."""
    return [sys.executable, str(HERE / "measuring.py"), module, function, json.dumps(arguments)]


def commands(wanted: Sequence[Sequence[str]], threads: int | None = None) -> list[Json]:
    """Run commands whose output is JSON, all at once; add ``peak_anon_mb`` and ``wall_seconds`` to each.

    They are stopped when we are.
    """
    started = time.perf_counter()
    peaks, walls = [0.0] * len(wanted), [0.0] * len(wanted)
    with contextlib.ExitStack() as stack:
        files = [
            [stack.enter_context(tempfile.TemporaryFile()) for _ in ("output", "errors")] for _ in wanted
        ]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for words, (out, errors) in zip(wanted, files, strict=True):
                with _signals_held():
                    # a group of its own, so that what it has started is stopped with it
                    process = subprocess.Popen(
                        words, stdout=out, stderr=errors, env=environment(threads), start_new_session=True
                    )
                    processes.append(process)
            while not all(walls):
                time.sleep(0.01)
                for i, process in enumerate(processes):
                    peaks[i] = max(peaks[i], anonymous_mb(process.pid))
                    if not walls[i] and process.poll() is not None:
                        walls[i] = time.perf_counter() - started
        finally:
            for process in processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
        results = []
        for words, process, (out, errors) in zip(wanted, processes, files, strict=True):
            out.seek(0)
            errors.seek(0)
            if process.returncode:
                reason = errors.read().decode()[-2000:] or out.read().decode()[-2000:]
                raise RuntimeError(f"{' '.join(words)} ended with code {process.returncode}: {reason}")
            results.append(json.loads(out.read()))
    return [
        {**result, "peak_anon_mb": peak, "wall_seconds": wall}
        for result, peak, wall in zip(results, peaks, walls, strict=True)
    ]


@contextlib.contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Give a temporary folder that is deleted also when the benchmark is interrupted or terminated."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    folder = Path(tempfile.mkdtemp(prefix="mipl-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let an interruption wait for the end of the block: a process half started would never be stopped."""
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, _: arrived.append(got)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    for got in arrived:
        signal.raise_signal(got)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    name, function, given = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(name), function)(**json.loads(given))))
