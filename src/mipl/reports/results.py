"""The table of results: means over splits from records, with published values beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping

from mipl.records.store import Record
from mipl.records.summary import SummaryRow, summarise

HEADER = (
    "data set", "r", "method", "recipe", "splits", "accuracy", "worst", "paper", "ECE", "paper", "seconds",
)  # fmt: skip

# (data set, r, method, metric) -> (mean, standard deviation) in percent, as published
PublishedResults = Mapping[tuple[str, int | None, str, str], tuple[float, float]]


class ResultRow(SummaryRow):
    """A row of the table of results."""

    title: str  # the data set's name, with the digest of the data if several data sets have this name
    paper_accuracy: float | None
    paper_ece: float | None


def result_rows(
    records: Iterable[Record],
    is_present: Callable[[Record], bool] = lambda record: True,
    published: PublishedResults | None = None,
) -> list[ResultRow]:
    """Return the rows of :func:`summarise`, each with the published accuracy and ECE.

    Args:
        records: the runs.
        is_present: whether a run is of the present recipe. Other runs have separate rows, one per set of
            settings, whose recipe reads "stable, earlier".
        published: the values to show beside ours.
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
    digests: dict[tuple[str, int | None, bool], set[str]] = {}
    for row in rows:
        digests.setdefault(_data_name(row), set()).add(row["data_digest"])
    results = [_result_row(row, len(digests[_data_name(row)]) > 1, published or {}) for row in rows]
    return sorted(results, key=_sort_key)


def _sort_key(row: ResultRow) -> tuple[str | int, ...]:
    return row["dataset"], row["r"] or 0, row["title"], row["method"], row["recipe"], row["given"]


def _result_row(row: SummaryRow, ambiguous: bool, published: PublishedResults) -> ResultRow:
    """Return a row with title and published values; ``ambiguous``: other data have the same name."""
    accuracy, ece = (
        published.get((row["dataset"], row["r"], row["method"], metric)) for metric in ("accuracy", "ece")
    )
    return {
        **row,
        "title": row["dataset"] + (f" [{row['data_digest'][:8]}]" if ambiguous else ""),
        "paper_accuracy": None if accuracy is None else accuracy[0],
        "paper_ece": None if ece is None else ece[0],
    }


def result_cells(row: ResultRow) -> list[str]:
    """Return the cells of a row under ``HEADER``."""
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
        "–" if math.isnan(row["seconds"]) else f"{row['seconds']:.0f}",
    ]


def mean_and_std(mean: float, std: float | None, digits: int = 1) -> str:
    """Return "mean ± standard deviation", or the mean alone for a single run.

    >>> mean_and_std(81.04, 1.25), mean_and_std(81.04, None)
    ('81.0 ± 1.2', '81.0')
    """
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def markdown(rows: Iterable[ResultRow]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(result_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _data_name(row: SummaryRow) -> tuple[str, int | None, bool]:
    """Return the name of a row's data; digests of recipe version 1 cannot be compared with later ones."""
    return row["dataset"], row["r"], row["recipe_version"] == 1


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
