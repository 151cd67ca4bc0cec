"""The Ray engine: one task per run, on an existing cluster or on one that is started here."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from mipl.errors import SettingError
from mipl.experiments.engines import ATTEMPTS, Failure, epochs_of, without_record
from mipl.experiments.notices import Notices, forwarded_warnings
from mipl.experiments.runner import Job, Outcome, measure, save_record
from mipl.training.progress import progress_bar


def run_ray(
    jobs: Sequence[Job], workers: int, address: str | None = None, show: bool = True
) -> list[Failure]:
    """Run the jobs that have no record yet on a Ray cluster; return the failed ones.

    Without an ``address``, a cluster of ``workers`` processes is started here and stopped at the end. The
    tasks return their results to this process, which alone writes records, so no folder need be shared. The
    data must have the same path on every machine. A run whose worker or machine dies is repeated.
    """
    waiting = without_record(jobs)
    if not waiting:  # do not start a cluster for nothing
        return []
    failures: list[Failure] = []
    notices = Notices()
    with _cluster(workers, address) as ray:
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_work)
        running = {task.remote(job): job for job in waiting}
        done = 0
        with progress_bar("runs", sum(map(epochs_of, waiting)), show) as report:
            while running:
                (finished,), _ = ray.wait(list(running), num_returns=1)
                job = running.pop(finished)
                outcome, texts = _result(ray, finished)
                for text in texts:
                    notices.add(text, job.title)
                if isinstance(outcome, str):
                    failures.append((job, outcome))
                else:
                    save_record(job, outcome)
                done += epochs_of(job)
                report(done, job.title)
    notices.show()
    return failures


@contextlib.contextmanager
def _cluster(workers: int, address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one; yield the module ``ray``; disconnect at the end."""
    try:
        import ray
    except ImportError as error:
        raise SettingError("The engine 'ray' needs Ray: pip install 'mipl[ray]'.") from error
    if address is not None:
        _check_reachable(address)
    cores = min(workers, os.cpu_count() or 1)
    local: dict[str, Any] = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
    except Exception as error:  # Ray raises no specific exception if it cannot start
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(f"The Ray cluster {address or 'here'} cannot be used: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _work(job: Job) -> tuple[Outcome | str, list[str]]:
    """Run a job on a worker; return its outcome, or the reason of its failure, and its warnings."""
    import torch

    torch.set_num_threads(1)
    notices: list[str] = []
    try:
        with forwarded_warnings(notices.append):
            return measure(job), notices
    except Exception as error:  # reported by the process that waits, which goes on with the other jobs
        return f"{type(error).__name__}: {error}", notices


def _result(ray: Any, finished: object) -> tuple[Outcome | str, list[str]]:
    """Return what :func:`_work` returned, or the reason why it never did."""
    try:
        result: tuple[Outcome | str, list[str]] = ray.get(finished)
    except ray.exceptions.RayError as error:
        return f"its worker was lost {ATTEMPTS} times ({type(error).__name__})", []
    return result


def _check_reachable(address: str) -> None:
    """Raise an error if nothing answers at ``host:port``, for which Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # "auto" or a path, which only Ray can check
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise SettingError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from error
