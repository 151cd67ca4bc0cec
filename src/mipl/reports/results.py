"""The table of results: ours from records, the paper's beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mipl.records.store import Record
from mipl.records.summary import summarise

HEADER = (
    "data set", "r", "method", "recipe", "splits", "accuracy", "worst", "paper", "ECE", "paper", "seconds",
)  # fmt: skip

# (data set, r, method, metric) -> (mean, standard deviation) in percent, as published
PublishedResults = Mapping[tuple[str, int | None, str, str], tuple[float, float]]


def result_rows(
    records: Iterable[Record],
    is_present: Callable[[Record], bool] = lambda record: True,
    published: PublishedResults | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of :func:`summarise`, each with the paper's accuracy and ECE, or None.

    Runs that are not present, of a recipe as it was before, have rows of their own, "stable, earlier", one
    for each set of settings. ``title`` is the data set's name, with the digest of the data where several data
    sets have that name.
    """
    present: list[Record] = []
    earlier: dict[str, list[Record]] = {}
    for record in records:
        if is_present(record):
            present.append(record)
        else:
            settings = [record.spec[name] for name in ("hyper_parameters", "recipe_settings")]
            earlier.setdefault(json.dumps(settings, sort_keys=True), []).append(record)
    rows = summarise(present)
    for _, members in sorted(earlier.items()):
        rows += [{**row, "recipe": f"{row['recipe']}, earlier"} for row in summarise(members)]
    digests: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        digests.setdefault(_name(row), set()).add(row["data_digest"])
    for row in rows:
        several = len(digests[_name(row)]) > 1
        row["title"] = row["dataset"] + (f" [{row['data_digest'][:8]}]" if several else "")
    order = ("title", "method", "recipe", "given")
    rows.sort(key=lambda row: (row["dataset"], row["r"] or 0, *(row[name] for name in order)))
    for row in rows:
        for metric in ("accuracy", "ece"):
            printed = (published or {}).get((row["dataset"], row["r"], row["method"], metric))
            row[f"paper_{metric}"] = None if printed is None else printed[0]
    return rows


def result_cells(row: dict[str, Any]) -> list[str]:
    """Return a row of :func:`result_rows` as text under ``HEADER``."""
    return [
        row["title"],
        "" if row["r"] is None else str(row["r"]),
        row["method"] + (f" ({row['given']})" if row["given"] else ""),
        row["recipe"],
        f"{row['runs']} {row['splits']}",
        mean_and_std(row["accuracy"], row["accuracy_std"]),
        f"{row['accuracy_min']:.1f}",
        _or_dash(row["paper_accuracy"]),
        mean_and_std(row["ece"], row["ece_std"]),
        _or_dash(row["paper_ece"]),
        f"{row['seconds']:.0f}",
    ]


def mean_and_std(mean: float, std: float | None, digits: int = 1) -> str:
    """Return "mean ± standard deviation", or the mean alone for a single run.

    >>> mean_and_std(81.04, 1.25), mean_and_std(81.04, None)
    ('81.0 ± 1.2', '81.0')
    """
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(result_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names the data of a row; digests of recipe version 1 do not compare with later ones."""
    return row["dataset"], row["r"], row["recipe_version"] == 1


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
