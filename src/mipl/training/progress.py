"""The progress bar of long work: on standard error, and only in a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Report(Protocol):
    """Called after each step of long work."""

    def __call__(self, done: int, note: str = "") -> None:
        """Report the number of finished steps, with a short note on the last."""


@contextlib.contextmanager
def progress_bar(title: str, total: int | None, show: bool) -> Iterator[Report]:
    """Yield a function that advances the bar; ``total`` None: unknown."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (show and console.is_terminal)
    ) as bar:
        task = bar.add_task(title, total=total, note="")

        def report(done: int, note: str = "") -> None:
            bar.update(task, completed=done, note=note)

        yield report
