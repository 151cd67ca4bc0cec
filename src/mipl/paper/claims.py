"""What the paper's text says of its tables, computed again: from its own numbers, and from ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from mipl.paper.printed import paper_results
from mipl.reports.tables import Cell, Table

Values = Mapping[tuple[str, int | None, str, str], float]  # (data set, r, method, metric) -> mean

OURS = tuple(f"{attention}-{loss}" for attention in ("dam", "sam", "mam") for loss in ("cc", "cn"))
BASELINE = {"dam": "demipl", "sam": "elimipl", "mam": "miplma"}
OTHERS = ("miplgp", "promipl", "fastmipl")
EARLIER = (*OTHERS, *BASELINE.values())
BENCHMARKS = tuple(
    (f"{name}-mipl", r) for r in (1, 2, 3) for name in ("mnist", "fmnist", "birdsong", "sival")
)
CRC = tuple((f"c-{name}", None) for name in ("row", "sbn", "kmeans", "sift", "r34-9", "r34-16", "r34-25"))
EVERY: tuple[tuple[str, int | None], ...] = (*BENCHMARKS, *CRC)
Sets = tuple[tuple[str, int | None], ...]


class Claim(NamedTuple):
    """A sentence of the paper, the item whose table it is about, its number, and how to compute that."""

    item: str
    says: str
    printed: str
    compute: Callable[[Values], str]


def baseline_of(method: str) -> str | None:
    """Return the earlier method that one of the six improves on, or None for any other method."""
    return BASELINE[method[:3]] if method in OURS else None


def gain(values: Values, dataset: str, r: int | None, method: str, metric: str) -> float | None:
    """Return how much better one of the six is than its baseline, in points; None where one is missing."""
    baseline = baseline_of(method)
    if baseline is None:
        return None
    ours, theirs = (values.get((dataset, r, name, metric)) for name in (method, baseline))
    if ours is None or theirs is None:
        return None
    return ours - theirs if metric == "accuracy" else theirs - ours


def claims_table(item: str, our_values: Callable[[], Values]) -> Table | None:
    """Return what the paper says about an item beside what its tables and our runs give, if it says any."""
    if not any(claim.item == item for claim in CLAIMS):
        return None
    ours, paper = our_values(), {key: value[0] for key, value in paper_results().items()}
    rows = []
    for claim in CLAIMS:
        if claim.item == item:
            again, here = claim.compute(paper), claim.compute(ours)
            rows.append(
                [Cell(claim.says), Cell(claim.printed), Cell(again, again != claim.printed), Cell(here)]
            )
    header = ("the paper says", "printed", "from its tables", "from our runs")
    caption = "What the text says of the table; bold where the paper's own numbers give another value."
    return Table(caption, header, rows)


def _wins(sets: Sets, metric: str, earlier: tuple[str, ...] = EARLIER) -> Callable[[Values], str]:
    """Count the pairs (data set, earlier method) where the best of the six is better."""

    def compute(values: Values) -> str:
        won = total = 0
        for dataset, r in sets:
            six = [v for m in OURS if (v := values.get((dataset, r, m, metric))) is not None]
            for method in earlier:
                other = values.get((dataset, r, method, metric))
                if len(six) == len(OURS) and other is not None:
                    total += 1
                    won += max(six) > other if metric == "accuracy" else min(six) < other
        return _of(won, total)

    return compute


def _best(metric: str) -> Callable[[Values], str]:
    """Return the share of data sets on which no earlier method is as good as the best of the six."""

    def compute(values: Values) -> str:
        won = total = 0
        for dataset, r in EVERY:
            six, others = (
                [v for m in names if (v := values.get((dataset, r, m, metric))) is not None]
                for names in (OURS, EARLIER)
            )
            if len(six) == len(OURS) and others:
                total += 1
                won += max(six) > max(others) if metric == "accuracy" else min(six) < min(others)
        return f"{100 * won / total:.2f}%" if total else "–"

    return compute


def _gains(values: Values, sets: Sets, metric: str) -> list[float]:
    found = (gain(values, *each, method, metric) for each in sets for method in OURS)
    return [value for value in found if value is not None]


def _above(sets: Sets, metric: str, points: float) -> Callable[[Values], str]:
    def compute(values: Values) -> str:
        gains = _gains(values, sets, metric)
        return _of(sum(value > points for value in gains), len(gains))

    return compute


def _summary(sets: Sets, metric: str, of: Callable[[list[float]], float]) -> Callable[[Values], str]:
    def compute(values: Values) -> str:
        gains = _gains(values, sets, metric)
        return f"{of(gains):.2f}" if gains else "–"

    return compute


def _one(dataset: str, r: int, method: str) -> Callable[[Values], str]:
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
            _summary(tuple(each for each in BENCHMARKS if each[1] == r), "accuracy", _mean),
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
        _wins(EVERY, "accuracy"),
    ),
    Claim("table4", "ECE lower by more than 50 points", "26 of 60", _above(BENCHMARKS, "ece", 50)),
    Claim("table4", "smallest reduction of ECE", "16.76", _summary(BENCHMARKS, "ece", min)),
    Claim("table4", "largest reduction of ECE", "58.76", _summary(BENCHMARKS, "ece", max)),
    Claim("table4", "mean reduction of ECE", "44.76", _summary(BENCHMARKS, "ece", _mean)),
    Claim("table5", "best of ours below each earlier method, both tables", "93 of 95", _wins(EVERY, "ece")),
    Claim("table5", "ECE lower by more than 10 points", "33 of 42", _above(CRC, "ece", 10)),
    Claim("tableA3", "data sets on which ours are most accurate", "78.95%", _best("accuracy")),
    Claim("tableA3", "data sets on which ours have the lowest ECE", "94.74%", _best("ece")),
)
