"""The progress of long work on standard error: a bar in a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY = 30.0  # seconds between two lines


class Report(Protocol):
    """Called after each step of long work."""

    def __call__(self, done: int, note: str = "") -> None:
        """Report the number of finished steps, with a short note on the last."""


@contextlib.contextmanager
def progress_bar(title: str, total: int | None, show: bool) -> Iterator[Report]:
    """Yield a function that reports finished steps; ``total`` None: unknown."""
    console = Console(stderr=True)
    if show and not console.is_terminal:
        yield Lines(title, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not show) as bar:
        task = bar.add_task(title, total=total, note="")

        def report(done: int, note: str = "") -> None:
            bar.update(task, completed=done, note=note)

        yield report


class Lines:
    """Prints a line at the first step after every 30 seconds, for logs and pipes.

    Args:
        title: the work.
        total: the number of steps; None: unknown.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._started = self._printed = time.monotonic()
        self._first: int | None = None  # steps that were finished before this work began

    def __call__(self, done: int, note: str = "") -> None:
        """Report the number of finished steps."""
        now = time.monotonic()
        if self._first is None:
            self._first = max(done - 1, 0)
        if now - self._printed < EVERY:
            return
        self._printed = now
        parts = [str(done) if self._total is None else f"{done} of {self._total}", *([note] if note else [])]
        steps = done - self._first
        if self._total is not None and max(3, self._total / 50) <= steps and done < self._total:
            left = (now - self._started) / steps * (self._total - done)
            parts.append(f"about {duration(left)} left")
        print(f"mipl: {self._title}: {', '.join(parts)}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a time in words, to about two digits.

    Examples:
        >>> duration(42.4), duration(100), duration(9000)
        ('42 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
