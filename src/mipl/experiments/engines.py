"""Engines that run jobs: local processes with one thread each, or a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from mipl.errors import SettingError, suggest
from mipl.experiments.notices import Notices, forwarded_warnings
from mipl.experiments.runner import Job, run
from mipl.records.store import Store
from mipl.training.progress import Report, progress_bar
from mipl.training.recipe import REGULARISATIONS

ENGINES = ("local", "ray")
ATTEMPTS = 3  # before a run whose process is killed counts as failed
REPORT_INTERVAL = 0.2  # seconds between two progress messages of a worker

# Environment variables that a new process reads before torch can be configured: one thread for OpenMP and
# BLAS; and a C library that keeps freed memory, which image encoders would otherwise request in every step.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**29),
}

Failure = tuple[Job, str]  # a job and the reason of its failure


def run_jobs(
    jobs: Sequence[Job], engine: str, workers: int, address: str | None = None, show: bool = True
) -> list[Failure]:
    """Run the jobs that have no record yet.

    Args:
        jobs: the runs that are wanted.
        engine: "local" or "ray".
        workers: the number of processes.
        address: the address of a Ray cluster; without it, one is started on this machine.
        show: whether to show a progress bar.

    Returns:
        The jobs that failed, with the reason.
    """
    if engine not in ENGINES:
        raise SettingError(f"There is no engine '{engine}'.{suggest(engine, ENGINES)}")
    if engine == "ray":
        from mipl.experiments.cluster import run_ray  # Ray is optional, and slow to import

        return run_ray(jobs, workers, address, show)
    if address is not None:
        raise SettingError("--address is the address of a Ray cluster: add --engine ray.")
    return run_local(jobs, workers, show)


def run_local(jobs: Sequence[Job], workers: int, show: bool = True) -> list[Failure]:
    """Run the jobs that have no record yet in ``workers`` processes; return the failed ones.

    A failure does not stop the other runs. A run whose process is killed is repeated.
    """
    pool = _Pool(without_record(jobs), workers)
    with progress_bar("runs", pool.epochs, show) as report:
        try:
            pool.run(report)
        finally:
            pool.stop()
    pool.notices.show()
    return pool.failures


def without_record(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that have no record, or one without the extras that they ask for."""
    return [job for job in jobs if not Store(Path(job.store)).has(job.spec, job.extras)]


def epochs_of(job: Job) -> int:
    """Return the number of epochs that a job trains for, of an ensemble those of every weight decay."""
    settings = job.spec.recipe_settings
    several = job.vectors and settings.get("ensemble", 1) > 1 and settings.get("weight_decay") is None
    return int(settings["epochs"]) * (len(REGULARISATIONS) if several else 1)


@dataclasses.dataclass(frozen=True)
class _Progress:
    """A worker has trained for this number of epochs."""

    epochs: int


@dataclasses.dataclass(frozen=True)
class _Notice:
    """A worker has issued a warning."""

    text: str


@dataclasses.dataclass(frozen=True)
class _End:
    """A worker has finished its run, or failed for a reason."""

    failure: str | None


_Message = _Progress | _Notice | _End


@dataclasses.dataclass(eq=False)
class _Task:
    """A job and its progress."""

    job: Job
    epochs: int
    done: int = 0  # epochs
    lost: int = 0  # processes that were killed


class _Pool:
    """Processes that run jobs, at most ``workers`` at a time."""

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self.tasks = [_Task(job, epochs_of(job)) for job in jobs]
        self.workers = max(1, min(workers, os.cpu_count() or 1))
        self.failures: list[Failure] = []
        self.notices = Notices()
        self._waiting = list(self.tasks)
        self._running: dict[Connection, tuple[_Task, SpawnProcess]] = {}
        self._context = multiprocessing.get_context("spawn")  # a forked torch may hang

    @property
    def epochs(self) -> int:
        """The epochs of all jobs."""
        return sum(task.epochs for task in self.tasks)

    def run(self, report: Report) -> None:
        """Run all jobs and report the number of epochs that are done."""
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self.workers:
                self._start(self._waiting.pop(0))
            for connection in wait(list(self._running)):
                assert isinstance(connection, Connection)
                task, _ = self._running[connection]
                match _receive(connection):
                    case _Progress(epochs):
                        task.done = epochs
                        report(sum(each.done for each in self.tasks), task.job.title)
                    case _Notice(text):
                        self.notices.add(text, task.job.title)
                    case ended:
                        self._finish(connection, ended)

    def stop(self) -> None:
        """End all processes."""
        for _, process in self._running.values():
            process.terminate()
            process.join()

    def _start(self, task: _Task) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(task.job, theirs), daemon=True)
        with _worker_environment():
            process.start()
        theirs.close()
        self._running[ours] = (task, process)

    def _finish(self, connection: Connection, ended: _End | None) -> None:
        """Handle the end of a process; ``ended`` is None if it was killed."""
        task, process = self._running.pop(connection)
        process.join()
        connection.close()
        if ended is None:
            task.lost += 1
            if task.lost < ATTEMPTS:
                self._waiting.append(task)
                return
            ended = _End(f"its process ended {ATTEMPTS} times with code {process.exitcode}")
        task.done = task.epochs
        if ended.failure is not None:
            self.failures.append((task.job, ended.failure))


def _work(job: Job, connection: Connection) -> None:
    """Run a job in a new process and send messages about it."""
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def report(done: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_INTERVAL:
            last = time.monotonic()
            connection.send(_Progress(done))

    try:
        with forwarded_warnings(lambda text: connection.send(_Notice(text))):
            run(job, report)
        connection.send(_End(None))
    except (KeyboardInterrupt, BrokenPipeError):  # stopped, or the parent process has ended
        pass
    except Exception as error:  # reported by the parent process, which goes on with the other jobs
        connection.send(_End(f"{type(error).__name__}: {error}"))


def _receive(connection: Connection) -> _Message | None:
    """Return the next message, or None if the process was killed."""
    try:
        message: _Message = connection.recv()
    except EOFError:
        return None
    return message


@contextlib.contextmanager
def _worker_environment() -> Iterator[None]:
    """Set ``WORKER_ENVIRONMENT`` for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
