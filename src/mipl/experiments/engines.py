"""The local engine: one process a run, one thread a process, threads × processes never above the cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from mipl.experiments.runner import Job, run
from mipl.records.store import Store
from mipl.training.progress import progress_bar


def run_local(jobs: Sequence[Job], workers: int, show: bool = True) -> list[tuple[Job, str]]:
    """Make every run that has no record yet, ``workers`` at a time; return the failed ones with the reason.

    A run that fails, or whose process is killed, costs only itself and those trained together with it.
    """
    store = Store(Path(jobs[0].store)) if jobs else None
    waiting = [
        unit
        for unit in _units(jobs)
        if store is not None and any(store.get(job.spec) is None for job in unit)
    ]
    workers = max(1, min(workers, os.cpu_count() or 1, len(waiting) or 1))
    total = sum(map(_epochs, waiting))
    failures: list[tuple[Job, str]] = []
    running: dict[Connection, tuple[list[Job], SpawnProcess]] = {}
    done: dict[int, int] = {}
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    with progress_bar("runs", total, show) as report:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    unit = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_work, args=(unit, theirs), daemon=True)
                    with _single_thread():
                        process.start()
                    theirs.close()
                    running[ours] = (unit, process)
                for connection in wait(list(running)):
                    assert isinstance(connection, Connection)
                    unit, process = running[connection]
                    message = _receive(connection)
                    if isinstance(message, int):
                        done[id(unit)] = message * len(unit)
                        report(sum(done.values()), unit[0].title)
                        continue
                    process.join()
                    connection.close()
                    del running[connection]
                    done[id(unit)] = _epochs(unit)
                    if message != "finished":
                        reason = message or f"its process ended with code {process.exitcode}"
                        failures += [(job, reason) for job in unit]
        finally:
            for _, process in running.values():
                process.terminate()
                process.join()
    return failures


def _units(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return what is run in one process each: a run alone, or those that are trained together."""
    units: dict[tuple[object, ...], list[Job]] = {}
    for number, job in enumerate(jobs):
        key = (job.method, job.together) if job.together else (number,)
        units.setdefault(key, []).append(job)
    return list(units.values())


def _work(jobs: list[Job], connection: Any) -> None:
    """Make the runs of one process, sending the epochs done, then ``finished`` or the reason."""
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def report(done: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            connection.send(done)

    try:
        run(jobs, report)
        connection.send("finished")
    except KeyboardInterrupt:
        pass
    except Exception as error:  # one run's failure is reported, and must not stop the rest
        connection.send(f"{type(error).__name__}: {error}")


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None


def _epochs(unit: list[Job]) -> int:
    return len(unit) * int(unit[0].spec.recipe_settings["epochs"])


class _single_thread:  # noqa: N801 (used as a context manager)
    """Give a new process one thread: OpenMP reads its environment before torch can be asked."""

    NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.NAMES}
        os.environ.update(dict.fromkeys(self.NAMES, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
