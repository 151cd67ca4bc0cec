"""Exceptions. A message is one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MiplError(Exception):
    """Base of every error that a user can fix; the command line prints it and exits with 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # one line, whatever it quotes


class DataError(MiplError, ValueError):
    """Invalid bags, candidate sets or labels."""


class SettingError(MiplError, ValueError):
    """An unknown method, hyper-parameter or option, or an invalid value."""


class StorageError(MiplError, OSError):
    """A file or folder that cannot be read or written, or has the wrong format."""


class TrainingError(MiplError, RuntimeError):
    """Training that cannot continue."""


class MiplNotice(UserWarning):
    """A warning for users; the command line prints it as a note."""


MOST_LISTED = 5


def listed(names: Iterable[object], most: int = MOST_LISTED) -> str:
    """Return the first names separated by commas, with ', …' where there are more."""
    given = [str(name) for name in names]
    return ", ".join(given[:most]) + (", …" if len(given) > most else "")


def suggest(name: object, known: Iterable[object]) -> str:
    """Return ' Did you mean …?' or, if no known name is similar, the list of known names."""
    options = [str(option) for option in known]
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else f" Known: {listed(options, 30)}."
