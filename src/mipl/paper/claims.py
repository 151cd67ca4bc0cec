"""Claims of the paper's text about its tables, recomputed from its printed values and from our runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from mipl.paper.names import ALL_SETS, BENCHMARKS, CDL_METHODS, CRC, EARLIER_METHODS, Sets, baseline_of
from mipl.paper.printed import paper_results
from mipl.reports.tables import Cell, Table

Values = Mapping[tuple[str, int | None, str, str], float]  # (data set, r, method, metric) -> mean
Compute = Callable[[Values], str]


class Claim(NamedTuple):
    """A number that the paper's text states about a table."""

    item: str  # the table
    says: str
    printed: str
    compute: Compute  # recomputes the number from the values of the tables


def gain(values: Values, dataset: str, r: int | None, method: str, metric: str) -> float | None:
    """Return the gain of a CDL method over its baseline in points; None if a value is missing."""
    baseline = baseline_of(method)
    if baseline is None:
        return None
    ours, theirs = (values.get((dataset, r, name, metric)) for name in (method, baseline))
    if ours is None or theirs is None:
        return None
    return ours - theirs if metric == "accuracy" else theirs - ours


def claims_table(item: str, our_values: Callable[[], Values]) -> Table | None:
    """Return the claims about an item, recomputed from the paper's tables and our runs, or None."""
    if not any(claim.item == item for claim in CLAIMS):
        return None
    paper, ours = {key: value[0] for key, value in paper_results().items()}, our_values()
    rows = []
    for claim in CLAIMS:
        if claim.item == item:
            recomputed = claim.compute(paper)
            differs = recomputed != claim.printed
            row = [claim.says, claim.printed, recomputed, claim.compute(ours)]
            rows.append([Cell(text, column == 2 and differs) for column, text in enumerate(row)])
    header = ("the paper says", "printed", "from its tables", "from our runs")
    caption = "What the text says of the table; bold where the paper's own numbers give another value."
    return Table(caption, header, rows)


def _wins(sets: Sets, metric: str) -> Compute:
    """Count the pairs (data set, earlier method) where the best CDL method is better."""

    def compute(values: Values) -> str:
        won = total = 0
        for dataset, r in sets:
            cdl = _present(values, dataset, r, CDL_METHODS, metric)
            if len(cdl) == len(CDL_METHODS):
                for other in _present(values, dataset, r, EARLIER_METHODS, metric):
                    total += 1
                    won += max(cdl) > other if metric == "accuracy" else min(cdl) < other
        return _of(won, total)

    return compute


def _best(metric: str) -> Compute:
    """Compute the percentage of data sets on which the best CDL method is better than all earlier methods."""

    def compute(values: Values) -> str:
        won = total = 0
        for dataset, r in ALL_SETS:
            cdl = _present(values, dataset, r, CDL_METHODS, metric)
            others = _present(values, dataset, r, EARLIER_METHODS, metric)
            if len(cdl) == len(CDL_METHODS) and others:
                total += 1
                won += max(cdl) > max(others) if metric == "accuracy" else min(cdl) < min(others)
        return f"{100 * won / total:.2f}%" if total else "–"

    return compute


def _present(
    values: Values, dataset: str, r: int | None, methods: tuple[str, ...], metric: str
) -> list[float]:
    """Return the values of some methods that are there."""
    return [v for method in methods if (v := values.get((dataset, r, method, metric))) is not None]


def _gains(values: Values, sets: Sets, metric: str) -> list[float]:
    found = (gain(values, *key, method, metric) for key in sets for method in CDL_METHODS)
    return [value for value in found if value is not None]


def _above(sets: Sets, metric: str, points: float) -> Compute:
    """Count the gains above some points."""

    def compute(values: Values) -> str:
        gains = _gains(values, sets, metric)
        return _of(sum(value > points for value in gains), len(gains))

    return compute


def _summary(sets: Sets, metric: str, of: Callable[[list[float]], float]) -> Compute:
    """Compute a statistic of the gains."""

    def compute(values: Values) -> str:
        gains = _gains(values, sets, metric)
        return f"{of(gains):.2f}" if gains else "–"

    return compute


def _one(dataset: str, r: int, method: str) -> Compute:
    """Compute the gain in accuracy of one method."""

    def compute(values: Values) -> str:
        value = gain(values, dataset, r, method, "accuracy")
        return "–" if value is None else f"{value:.2f}"

    return compute


def _of(count: int, total: int) -> str:
    return f"{count} of {total}" if total else "–"


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


CLAIMS = (
    Claim("table2", "best of ours above each earlier method", "67 of 72", _wins(BENCHMARKS, "accuracy")),
    Claim("table2", "gain over the baseline above 10 points", "12 of 72", _above(BENCHMARKS, "accuracy", 10)),
    *(
        Claim(
            "table2",
            f"mean gain over the baseline, r = {r}",
            printed,
            _summary(tuple(key for key in BENCHMARKS if key[1] == r), "accuracy", _mean),
        )
        for r, printed in ((1, "3.27"), (2, "4.57"), (3, "8.93"))
    ),
    Claim("table2", "gain of DAM-CC on MNIST-MIPL, r = 3", "14.37", _one("mnist-mipl", 3, "dam-cc")),
    Claim("table2", "gain of SAM-CC on MNIST-MIPL, r = 3", "13.60", _one("mnist-mipl", 3, "sam-cc")),
    Claim("table2", "gain of MAM-CC on MNIST-MIPL, r = 3", "20.14", _one("mnist-mipl", 3, "mam-cc")),
    Claim("table2", "gain of MAM-CN on MNIST-MIPL, r = 3", "23.07", _one("mnist-mipl", 3, "mam-cn")),
    Claim(
        "table3",
        "best of ours above each earlier method, both tables",
        "105 of 110",
        _wins(ALL_SETS, "accuracy"),
    ),
    Claim("table4", "ECE lower by more than 50 points", "26 of 60", _above(BENCHMARKS, "ece", 50)),
    Claim("table4", "smallest reduction of ECE", "16.76", _summary(BENCHMARKS, "ece", min)),
    Claim("table4", "largest reduction of ECE", "58.76", _summary(BENCHMARKS, "ece", max)),
    Claim("table4", "mean reduction of ECE", "44.76", _summary(BENCHMARKS, "ece", _mean)),
    Claim(
        "table5", "best of ours below each earlier method, both tables", "93 of 95", _wins(ALL_SETS, "ece")
    ),
    Claim("table5", "ECE lower by more than 10 points", "33 of 42", _above(CRC, "ece", 10)),
    Claim("tableA3", "data sets on which ours are most accurate", "78.95%", _best("accuracy")),
    Claim("tableA3", "data sets on which ours have the lowest ECE", "94.74%", _best("ece")),
)
