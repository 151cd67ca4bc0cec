"""Engines that run jobs: local processes with one thread each, or a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.errors import SettingError, suggest
from mipl.experiments.notices import Notices, forwarded_warnings
from mipl.experiments.runner import Job, run
from mipl.machine import forget_peak_memory
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

    A process makes one run after the other, and reads data that they share once. A failure does not stop the
    other runs. A run whose process is killed is repeated by another.
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
        self._idle: list[tuple[Connection, SpawnProcess]] = []
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
            self._end_idle()
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
        for process in [process for _, process in [*self._running.values(), *self._idle]]:
            process.terminate()
            process.join()

    def _end_idle(self) -> None:
        """End the processes for which there is no other run."""
        for connection, process in self._idle:
            connection.close()  # a process ends when nobody is connected to it
            process.join()
        self._idle.clear()

    def _start(self, task: _Task) -> None:
        """Give the job to an idle process, or to a new one."""
        while self._idle:
            connection, process = self._idle.pop()
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                connection.send(task.job)
                self._running[connection] = (task, process)
                return
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        with _worker_environment():
            process.start()
        theirs.close()
        with contextlib.suppress(OSError):  # it was killed already: the next message says so
            ours.send(task.job)
        self._running[ours] = (task, process)

    def _finish(self, connection: Connection, ended: _End | None) -> None:
        """Handle the end of a run; ``ended`` is None if its process was killed."""
        task, process = self._running.pop(connection)
        if ended is not None:
            self._idle.append((connection, process))
        else:
            process.join()
            connection.close()
            task.lost += 1
            if task.lost < ATTEMPTS:
                self._waiting.append(task)
                return
            ended = _End(f"its process ended {ATTEMPTS} times with code {process.exitcode}")
        task.done = task.epochs
        if ended.failure is not None:
            self.failures.append((task.job, ended.failure))


def _work(connection: Connection) -> None:
    """Make the runs that arrive, and send messages about them, until the parent process ends this one."""
    import torch

    torch.set_num_threads(1)
    open_data = functools.lru_cache(maxsize=1)(Source.open)
    with contextlib.suppress(
        KeyboardInterrupt, BrokenPipeError, EOFError
    ):  # stopped, or the parent has ended
        while True:
            _make(connection.recv(), connection, open_data)


def _make(job: Job, connection: Connection, open_data: Callable[[Source], Bags]) -> None:
    """Run one job and send messages about it."""
    last = 0.0

    def report(done: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_INTERVAL:
            last = time.monotonic()
            connection.send(_Progress(done))

    forget_peak_memory()
    try:
        with forwarded_warnings(lambda text: connection.send(_Notice(text))):
            run(job, report, open_data)
    except BrokenPipeError:
        raise
    except Exception as error:  # reported by the parent process, which goes on with the other jobs
        connection.send(_End(f"{type(error).__name__}: {error}"))
    else:
        connection.send(_End(None))


def _receive(connection: Connection) -> _Message | None:
    """Return the next message, or None if the process was killed."""
    try:
        message: _Message = connection.recv()
    except (EOFError, ConnectionResetError):  # the second: with a message not yet read by it
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
