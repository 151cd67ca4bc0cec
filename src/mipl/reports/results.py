"""The table of results: ours from records, the paper's beside them."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.records.store import Record
from mipl.records.summary import summarise

HEADER = (
    "data set", "r", "method", "recipe", "splits", "accuracy", "worst", "paper", "ECE", "paper", "seconds",
)  # fmt: skip


@functools.cache
def paper_results() -> dict[tuple[str, int | None, str, str], tuple[float, float]]:
    """Return the paper's printed values: (data set, r, method, metric) -> (mean, deviation), in percent.

    From the tables of W. Tang, Y.-F. Yang, W. Zhang and M.-L. Zhang, "Calibratable Disambiguation Loss for
    Multi-Instance Partial-Label Learning"; ``table`` in paper.csv names the one by its label there.
    """
    text = (resources.files("mipl.reports") / "paper.csv").read_text(encoding="utf-8")
    return {
        (
            row["dataset"].lower(),
            int(row["false_positives"]) if row["false_positives"] else None,
            row["method"].lower(),
            row["metric"],
        ): (float(row["mean"]), float(row["std"]))
        for row in csv.DictReader(text.splitlines())
        if row["mean"]
    }


def paper_scores(metric: str) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return the paper's means of a metric, a row for each data set and r, and the methods of the columns.

    Only methods that have a value on every data set are there: MIPLGP is not, as in the paper's own tests.
    """
    table = {key[:3]: value[0] for key, value in paper_results().items() if key[3] == metric}
    table = {key: value for key, value in table.items() if "/" not in key[0]}  # pooled bags are another table
    datasets = list(dict.fromkeys((dataset, r) for dataset, r, _ in table))
    methods = list(dict.fromkeys(method for _, _, method in table))
    methods = [method for method in methods if all((*dataset, method) in table for dataset in datasets)]
    return np.array([[table[*dataset, method] for method in methods] for dataset in datasets]), methods


def result_rows(
    records: Iterable[Record], is_present: Callable[[Record], bool] = lambda record: True
) -> list[dict[str, Any]]:
    """Return the rows of :func:`summarise`, each with the paper's accuracy and ECE, or None.

    Runs that are not present, of a recipe as it was before, have rows of their own: "stable, earlier".
    """
    present: dict[bool, list[Record]] = {True: [], False: []}
    for record in records:
        present[is_present(record)].append(record)
    rows, earlier = summarise(present[True]), summarise(present[False])
    for row in earlier:
        row["recipe"] += ", earlier"
    rows = sorted([*rows, *earlier], key=lambda row: (row["dataset"], row["r"] or 0, row["method"]))
    for row in rows:
        for metric in ("accuracy", "ece"):
            printed = paper_results().get((row["dataset"], row["r"], row["method"], metric))
            row[f"paper_{metric}"] = None if printed is None else printed[0]
    return rows


def result_cells(row: dict[str, Any]) -> list[str]:
    """Return a row of :func:`result_rows` as text under ``HEADER``."""
    return [
        row["dataset"],
        "" if row["r"] is None else str(row["r"]),
        row["method"] + (f" ({row['given']})" if row["given"] else ""),
        row["recipe"],
        f"{row['runs']} {row['splits']}",
        f"{row['accuracy']:.1f} ± {row['accuracy_std']:.1f}",
        f"{row['accuracy_min']:.1f}",
        _or_dash(row["paper_accuracy"]),
        f"{row['ece']:.1f} ± {row['ece_std']:.1f}",
        _or_dash(row["paper_ece"]),
        f"{row['seconds']:.0f}",
    ]


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(result_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
