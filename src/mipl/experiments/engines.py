"""Runs by an engine: here, one process a run and one thread a process, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, ClassVar

from mipl.errors import SettingError, suggest
from mipl.experiments.runner import Job, run
from mipl.records.store import Store
from mipl.training.progress import progress_bar

ENGINES = ("local", "ray")
ATTEMPTS = 3  # starts of a run whose process is killed before it is a failure


def run_local(jobs: Sequence[Job], workers: int, show: bool = True) -> list[tuple[Job, str]]:
    """Make every run that has no record yet, ``workers`` at a time; return the failed ones with the reason.

    A run that fails costs only itself. One whose process is killed is done again.
    """
    waiting = without_record(jobs)
    # threads × processes are never above the cores
    workers = max(1, min(workers, os.cpu_count() or 1, len(waiting) or 1))
    total = sum(map(epochs_of, waiting))
    failures: list[tuple[Job, str]] = []
    running: dict[Connection, tuple[list[Job], SpawnProcess]] = {}
    done: dict[int, int] = {}
    killed: dict[int, int] = {}
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    with progress_bar("runs", total, show) as report:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    unit = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_work, args=(unit, theirs), daemon=True)
                    with _worker_environment():
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
                    if message is None:
                        killed[id(unit)] = killed.get(id(unit), 0) + 1
                        if killed[id(unit)] < ATTEMPTS:
                            waiting.append(unit)
                            continue
                        message = f"its process ended {ATTEMPTS} times with code {process.exitcode}"
                    done[id(unit)] = epochs_of(unit)
                    if message != "finished":
                        failures += [(job, message) for job in unit]
        finally:
            for _, process in running.values():
                process.terminate()
                process.join()
    return failures


def run_jobs(
    jobs: Sequence[Job], engine: str, workers: int, address: str | None = None, show: bool = True
) -> list[tuple[Job, str]]:
    """Make the runs that have no record yet with the engine ``local`` or ``ray``; return the failed ones."""
    if engine not in ENGINES:
        raise SettingError(f"There is no engine '{engine}'.{suggest(engine, ENGINES)}")
    if engine == "ray":
        from mipl.experiments.cluster import run_ray  # Ray is optional, and slow to import

        return run_ray(jobs, workers, address, show)
    if address is not None:
        raise SettingError("--address is that of a Ray cluster: give --engine ray with it.")
    return run_local(jobs, workers, show)


def without_record(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return what is still to be run, one list per process.

    A record without the extras that are asked for counts as missing.
    """
    return [[job] for job in jobs if not Store(Path(job.store)).has(job.spec, job.extras)]


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
    except (KeyboardInterrupt, BrokenPipeError):  # stopped, or nobody is left to tell
        pass
    except Exception as error:  # one run's failure is reported, and must not stop the rest
        connection.send(f"{type(error).__name__}: {error}")


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None


def epochs_of(unit: list[Job]) -> int:
    """Return the epochs that runs will train for, in all."""
    return len(unit) * int(unit[0].spec.recipe_settings["epochs"])


class _worker_environment:  # noqa: N801 (used as a context manager)
    """Give a new process what is read before torch can be asked.

    One thread, by OpenMP. And, by the C library, memory that stays with the process when it is free: image
    encoders would give it back, and ask for it anew, in every step.
    """

    SETTINGS: ClassVar = {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "MALLOC_MMAP_THRESHOLD_": str(2**25),
        "MALLOC_TRIM_THRESHOLD_": str(2**29),
    }

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.SETTINGS}
        os.environ.update(self.SETTINGS)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
