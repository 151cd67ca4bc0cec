"""The Ray engine: a task a run, on a cluster that is there or on one started here for the purpose."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

from mipl.errors import SettingError
from mipl.experiments.engines import ATTEMPTS, epochs_of, without_record
from mipl.experiments.runner import Job, keep, measure
from mipl.training.progress import progress_bar


def run_ray(
    jobs: Sequence[Job], workers: int, address: str | None = None, show: bool = True
) -> list[tuple[Job, str]]:
    """Make every run that has no record yet on a Ray cluster; return the failed ones with the reason.

    Without an ``address`` a cluster of ``workers`` processes is started here and stopped at the end. Results
    come back to this process, which alone writes records, so that no folder need be shared; the data must
    be where the jobs say on every machine. A run whose worker or machine dies is done again.
    """
    waiting = without_record(jobs)
    if not waiting:  # nothing to start a cluster for
        return []
    ray = _ray()
    if address is not None:
        _check_reachable(address)
    cores = min(workers, os.cpu_count() or 1)
    ours = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **ours)
    except Exception as error:  # Ray has no class of its own for a start that fails
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(f"The Ray cluster {address or 'here'} cannot be used: {reason}") from error
    failures: list[tuple[Job, str]] = []
    try:
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_work)
        running = {task.remote(unit): unit for unit in waiting}
        done = 0
        with progress_bar("runs", sum(map(epochs_of, waiting)), show) as report:
            while running:
                (finished,), _ = ray.wait(list(running), num_returns=1)
                unit = running.pop(finished)
                try:
                    outcome = ray.get(finished)
                except ray.exceptions.RayError as error:
                    outcome = f"its worker was lost {ATTEMPTS} times ({type(error).__name__})"
                if isinstance(outcome, str):
                    failures += [(job, outcome) for job in unit]
                else:
                    for job, (info, arrays) in zip(unit, outcome, strict=True):
                        keep(job, info, arrays)
                done += epochs_of(unit)
                report(done, unit[0].title)
    finally:
        ray.shutdown()
    return failures


def _work(jobs: list[Job]) -> Any:
    """Make runs on a worker and return what their records hold, or the reason why there are none."""
    import torch

    torch.set_num_threads(1)
    try:
        return measure(jobs)
    except Exception as error:  # one run's failure is reported, and must not stop the rest
        return f"{type(error).__name__}: {error}"


def _check_reachable(address: str) -> None:
    """Raise an error if nobody answers at ``host:port``: Ray would go on asking for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # "auto", or a path: Ray knows what it means
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise SettingError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SettingError("The engine 'ray' needs Ray: pip install 'mipl[ray]'.") from error
    return ray
