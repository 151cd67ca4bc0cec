"""Warnings of worker processes, collected and shown once by the process that started them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

from mipl.errors import MiplNotice


@contextlib.contextmanager
def forwarded_warnings(send: Callable[[str], None]) -> Iterator[None]:
    """Pass the text of every warning raised in the block to ``send`` instead of printing it."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        send(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class Notices:
    """The warnings of several runs, by text."""

    def __init__(self) -> None:
        self._titles: dict[str, dict[str, None]] = {}

    def add(self, text: str, title: str) -> None:
        """Remember a warning of the run with this title."""
        self._titles.setdefault(text, {})[title] = None

    def show(self) -> None:
        """Issue one :class:`MiplNotice` per distinct text, naming the run or the number of runs."""
        for text, titles in self._titles.items():
            first, *others = titles
            runs = f"{len(titles)} runs, the first is {first}" if others else first
            warnings.warn(f"{text} ({runs})", MiplNotice, stacklevel=2)
