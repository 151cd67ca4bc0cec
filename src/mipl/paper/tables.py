"""The paper's tables of accuracy and calibration error, drawn from records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mipl.paper.base import Item, Output, Variant
from mipl.paper.claims import Values, claims_table
from mipl.paper.names import (
    ALL_SETS,
    BASELINE,
    CDL_METHODS,
    EARLIER_METHODS,
    METRIC_TITLES,
    QUICK_SET,
    SetKey,
    Sets,
    Settings,
    baseline_of,
    mark_of,
    method_title,
    set_title,
)
from mipl.paper.printed import paper_results
from mipl.paper.runs import Mean, RunIndex, RunQuery
from mipl.reports.tables import Cell, Table, number


def printed(query: RunQuery, metric: str) -> tuple[float, float] | None:
    """Return the paper's mean and standard deviation for a query, or None."""
    dataset, given = query.dataset, dict(query.given)
    if query.method.startswith("pop"):  # which pools by the mean by default
        dataset = f"{dataset}/{given.pop('pooling', 'mean')}"
    return None if given else paper_results().get((dataset, query.r, query.method, metric))


def result_table(runs: RunIndex, caption: str, sets: Sets, variants: Sequence[Variant], metric: str) -> Table:
    """Return methods by data sets: our value and its gain, the paper's value and the difference."""
    means = {(key, v): runs.mean(RunQuery(*key, *v), metric) for key in sets for v in variants}
    better = max if metric == "accuracy" else min
    rows: list[list[Cell]] = [[Cell(method_title(*variant))] for variant in variants]
    values: list[dict[str, Any]] = []
    header, one_r = ["method"], len({r for _, r in sets}) == 1
    for key in sets:
        column = [mean for v in variants if (mean := means[key, v]) is not None]
        # Compared as printed: a digit that is not shown decides nothing.
        best = f"{better(mean.mean for mean in column):.2f}" if len(column) > 1 else None
        records = [record for v in variants for record in runs.find(RunQuery(*key, *v))]
        header.append(set_title(key[0], None if one_r else key[1]) + mark_of(records))
        for row, variant in zip(rows, variants, strict=True):
            query, mean = RunQuery(*key, *variant), means[key, variant]
            base, gain = baseline_of(variant[0]), None
            if base is not None and (key, (base, variant[1])) in means:
                gain = runs.gain(query, replace(query, method=base), metric)
            row.append(cell_of(mean, gain, printed(query, metric), best, len(runs.splits), metric))
            values.append(csv_row(runs, query, metric, mean, gain))
    return Table(caption, header, rows, values)


def cell_of(
    mean: Mean | None,
    gain: float | None,
    paper: tuple[float, float] | None,
    best: str | None,
    splits: int,
    metric: str,
) -> Cell:
    """Return our value with the gain over the baseline; below it the paper's value and the difference."""
    below = [] if paper is None else [f"paper {number(*paper)}"]
    if mean is None:
        return Cell("–", below=" ".join(below))
    if paper is not None:
        below.append(f"Δ {mean.mean - paper[0]:+.2f}")
    if mean.runs != splits:
        below.append(f"n={mean.runs}")
    text = number(mean.mean, mean.std) + ("" if gain is None else f" ({_arrow(gain, metric)})")
    return Cell(text, f"{mean.mean:.2f}" == best, ", ".join(below).replace("-", "−"))


def _arrow(gain: float, metric: str) -> str:
    """Return a gain as the paper writes it: ↑ for higher accuracy, ↓ for lower error."""
    amount = f"{abs(gain):.2f}"
    if float(amount) == 0:
        return amount
    return amount + ("↑" if (gain > 0) == (metric == "accuracy") else "↓")


def csv_row(
    runs: RunIndex, query: RunQuery, metric: str, mean: Mean | None, gain: float | None
) -> dict[str, Any]:
    """Return a cell as a row of the CSV: its numbers, and their records or the command that makes them."""
    paper, records = printed(query, metric), runs.find(query)
    origins = {"": "authors' file", "†": "rebuilt", "‡": "stand-in"}
    return {
        "dataset": query.dataset,
        "r": "" if query.r is None else query.r,
        "method": query.method,
        "settings": " ".join(f"{name}={value}" for name, value in runs.settings(query).items()),
        "metric": metric,
        "runs": 0 if mean is None else mean.runs,
        "mean": "" if mean is None else round(mean.mean, 4),
        "std": "" if mean is None or mean.std is None else round(mean.std, 4),
        "gain_over_baseline": "" if gain is None else round(gain, 4),
        "paper_mean": "" if paper is None else paper[0],
        "paper_std": "" if paper is None else paper[1],
        "difference": "" if paper is None or mean is None else round(mean.mean - paper[0], 4),
        "data": origins.get(mark_of(records), "mixed") if records else "",
        "records": " ".join(record.info["hash"] for record in records),
        "command": "" if records else runs.command(query),
    }


def notes_of(runs: RunIndex, *, first_split: bool = False) -> list[str]:
    """Return notes on the numbers that were used; ``first_split``: they are of the first split only."""
    notes = []
    used = list(runs.used.values())
    if used and first_split:
        numbers = sorted({int(record.spec["split"]) for record in used})
        notes.append(f"Split {' and '.join(map(str, numbers))} alone; recipe “{runs.recipe}”.")
    elif used:
        kinds = " or ".join(sorted({record.spec["splits"] for record in used}, reverse=True))
        notes.append(
            f"Mean ± standard deviation in percent over up to {len(runs.splits)} {kinds} 7:3 splits "
            "(n where there are others); Δ is ours minus the paper's, a gain the mean over the splits that "
            f"both methods have; recipe “{runs.recipe}”."
        )
    marks = {mark_of([record]) for record in used}
    if "†" in marks:
        notes.append(
            "† Bags rebuilt from raw data: the authors' are not public, so values compare to some points."
        )
    if "‡" in marks:
        notes.append(
            "‡ A stand-in that is none of the paper's data sets: not to be compared with its values."
        )
    trained = {
        record.spec["recipe_settings"].get("epochs") for record in used if record.info["given"].get("epochs")
    }
    if trained:
        few = " and ".join(map(str, sorted(trained)))
        notes.append(
            f"Some runs were trained for {few} epochs only: they show the way, not what methods reach."
        )
    if runs.missing:
        notes.append("Empty cells: the commands below fill them; DIR is the folder of the raw files.")
    return notes


def draw_table(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Tables 2 to 5 and A1: one table per r, then the stand-ins, then the claims of the text."""
    tables: list[Table] = []
    metrics: tuple[str, ...] = item.options["metrics"]
    for metric in metrics:
        title = METRIC_TITLES[metric]
        for r in dict.fromkeys(r for _, r in item.sets):
            sets = tuple(key for key in item.sets if key[1] == r)
            where = item.options["where"] + ("" if r is None else f", r = {r}")
            tables.append(result_table(runs, f"{title} on {where}.", sets, item.variants, metric))
        extra = tuple(key for key in (*item.stand_ins(), *QUICK_SET) if runs.has(*key))
        if extra:
            caption = f"{title} on stand-ins, which are none of the paper's data sets."
            table = result_table(runs, caption, extra, item.variants, metric)
            # first, if the other tables are empty
            tables.insert(len(tables) if any(runs.has(*key) for key in item.sets) else 0, table)
    claims = claims_table(name, lambda: our_values(runs))
    return Output(item.title, tables + ([claims] if claims else []), None, notes_of(runs), runs)


def our_values(runs: RunIndex) -> Values:
    """Return our means on the paper's data sets, for claims and statistics over whole tables."""
    found = {}
    for dataset, r in ALL_SETS:
        for method in (*EARLIER_METHODS, *CDL_METHODS):
            query = RunQuery(dataset, r, method)
            for metric in ("accuracy", "ece"):
                if runs.has(dataset, r) and (mean := runs.mean(query, metric, required=False)) is not None:
                    found[dataset, r, method, metric] = mean.mean
    return found


def draw_head_vs_loss(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw the table that separates the effect of the head from the effect of the loss."""
    tables = [_head_vs_loss_table(item, runs, key) for key in item.drawn_sets(runs)]
    notes = notes_of(runs)
    notes.append(
        "A gain down a column is the loss's, a gain along a row the head's. The earlier methods put a "
        "sigmoid on the class scores before the softmax, so that no confidence passes e/(e + k − 1)."
    )
    return Output(item.title, tables, None, notes, runs)


def _head_vs_loss_table(item: Item, runs: RunIndex, key: SetKey) -> Table:
    rows, values = [], []
    for attention, base in BASELINE.items():
        rows.append([Cell(f"{attention.upper()} attention")])
        for method in (base, f"{attention}-mdl", f"{attention}-cc", f"{attention}-cn"):
            row = [Cell(method_title(method))]
            for cell, value in _head_cells(runs, key, method):
                row.append(cell)
                values += [value] if value else []
            rows.append(row)
    header = ["loss", "accuracy, sigmoid head", "linear head", "gain"]
    header += ["ECE, sigmoid head", "linear head", "gain"]
    records = [record for query in item.queries() for record in runs.find(query) if query.dataset == key[0]]
    caption = (
        f"Head against loss on {set_title(*key)}{mark_of(records)}: one network, two heads, four losses."
    )
    return Table(caption, header, rows, values)


def _head_cells(runs: RunIndex, key: SetKey, method: str) -> Iterator[tuple[Cell, dict[str, Any] | None]]:
    """Yield for each metric the cells of the two heads with their CSV rows, then the gain of the second."""
    paper_head = "sigmoid" if method in BASELINE.values() else "linear"  # that the paper used
    for metric in ("accuracy", "ece"):
        queries = {h: RunQuery(*key, method, head_settings(method, h)) for h in ("sigmoid", "linear")}
        for head, query in queries.items():
            paper = printed(RunQuery(*key, method), metric) if head == paper_head else None
            mean = runs.mean(query, metric)
            cell = cell_of(mean, None, paper, None, len(runs.splits), metric)
            yield cell, csv_row(runs, query, metric, mean, None)
        gain = runs.gain(queries["linear"], queries["sigmoid"], metric)
        yield Cell("–" if gain is None else f"{gain:+.2f}".replace("-", "−")), None


def head_settings(method: str, head: str) -> Settings:
    """Return the settings that give a method a head and, for baselines, CDL's order of updates."""
    if method in BASELINE.values():
        return (("head", head), ("update", "before"))
    return () if head == "linear" else (("head", head),)
