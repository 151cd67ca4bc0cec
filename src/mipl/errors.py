"""What can go wrong, said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MiplError(Exception):
    """Base of every error that a user can mend; the command line prints it and exits with 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # one line, whatever a file's fields hold


class DataError(MiplError, ValueError):
    """Bags, candidate sets or labels that cannot be learned from as they are."""


class SettingError(MiplError, ValueError):
    """A method, hyper-parameter or option that does not exist or is out of range."""


class StorageError(MiplError, OSError):
    """A file or folder that cannot be read or written, or is not what its name says."""


class TrainingError(MiplError, RuntimeError):
    """Training that cannot go on."""


class MiplNotice(UserWarning):
    """What a user should know although the work goes on; the command line prints it as a note."""


MOST_LISTED = 5


def listed(names: Iterable[object], most: int = MOST_LISTED) -> str:
    """Return the first names separated by commas, with ', …' where there are more."""
    given = [str(name) for name in names]
    return ", ".join(given[:most]) + (", …" if len(given) > most else "")


def suggest(name: object, known: Iterable[object]) -> str:
    """Return ' Did you mean …?' or, when nothing is near, the list of what is known."""
    options = [str(option) for option in known]
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else f" Known: {listed(options, 30)}."
