"""How many cases a fuzz test runs, and the count at the end of the test report.

`make fuzz` runs every case (``MIPL_FUZZ=full``); any other run of the tests takes a fixed tenth of them. A
test takes the fixture ``fuzz`` and loops over the cases that it yields::

    def test_no_mutation_ends_in_a_traceback(fuzz):
        for seed in fuzz("mutated CSV files", range(500)):
            ...  # everything random follows from the case, so that a failure can be repeated

Every case that the loop finishes counts, also under pytest-xdist.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

FULL = os.environ.get("MIPL_FUZZ") == "full"
PROPERTY = "fuzz"


@pytest.fixture
def fuzz(record_property: Callable[[str, object], None]) -> Callable[[str, Iterable[Any]], Iterator[Any]]:
    """Return a function that yields all cases of a kind, or every tenth, and counts them."""

    def chosen(kind: str, cases: Iterable[Any]) -> Iterator[Any]:
        every = list(cases)
        ran = 0
        try:
            for case in every if FULL else every[::10]:
                yield case
                ran += 1
        finally:
            record_property(PROPERTY, [kind, ran, len(every)])

    return chosen


def summarise_cases(reporter: pytest.TerminalReporter) -> None:
    """Print how many cases of each kind have run, of how many."""
    ran: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for name in ("passed", "failed"):
        for report in reporter.getreports(name):
            for _, (kind, done, of) in (each for each in report.user_properties if each[0] == PROPERTY):
                ran[kind] += done
                every[kind] += of
    if every:
        kinds = ", ".join(f"{kind} {ran[kind]:,} of {every[kind]:,}" for kind in sorted(every))
        rest = "" if FULL else "; make fuzz runs all"
        reporter.write_line(f"fuzz cases: {ran.total():,} of {every.total():,} ({kinds}){rest}")
