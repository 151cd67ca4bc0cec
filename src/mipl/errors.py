"""Exceptions. A message is one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sized


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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one: 1 bag, 2 bags."""
    plural = (
        f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}{'es' if noun.endswith(('s', 'x')) else 's'}"
    )
    return f"{number:,} {noun if number == 1 else plural}"


def have(things: Sized) -> str:
    """Return the verb for a number of things."""
    return "has" if len(things) == 1 else "have"
