"""Methods compared on the same test bags: paired differences, ranks, reliability; one HTML page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from mipl.errors import DataError, listed, suggest
from mipl.files import atomic_file
from mipl.metrics import reliability_curve
from mipl.metrics.statistics import (
    Friedman,
    PairedDifference,
    corrected_difference,
    critical_difference,
    friedman,
    holm,
)
from mipl.records.store import Record
from mipl.reports import charts, figures

# metric of the records -> title, whether higher is better, factor, digits
METRICS: dict[str, tuple[str, bool, float, int]] = {
    "accuracy": ("accuracy in %", True, 100.0, 1),
    "expected_calibration_error": ("ECE in %", False, 100.0, 1),
    "negative_log_likelihood": ("NLL", False, 1.0, 3),
}
SIGNIFICANT = 0.05
Block = tuple[Any, ...]  # what the runs of a split have in common
Scores = dict[Block, dict[str, Record]]  # split -> method -> run


@dataclasses.dataclass(frozen=True)
class Row:
    """A method on one data set: means over its splits, and its difference to the reference."""

    method: str
    splits: int
    mean: dict[str, float]  # by metric, in the units of METRICS
    std: dict[str, float | None]
    difference: dict[str, PairedDifference]  # to the reference; empty: the reference itself
    adjusted: dict[str, float]  # p-values by Holm's procedure over the methods


@dataclasses.dataclass(frozen=True)
class DataSet:
    """The comparison on one data set."""

    title: str
    rows: list[Row]
    records: dict[str, list[Record]]  # by method, on the splits that all methods have


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Friedman's test of one metric, over data sets or over the splits of one data set."""

    metric: str
    methods: list[str]
    over: str  # "3 data sets" or "5 splits"
    test: Friedman
    critical_difference: float  # of Nemenyi's test


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Everything that the page shows."""

    reference: str
    datasets: list[DataSet]
    rankings: list[Ranking]
    notes: list[str]


def compare(
    records: Iterable[Record],
    reference: str | None = None,
    is_present: Callable[[Record], bool] | None = None,
) -> Comparison:
    """Compare the methods of some runs, each pair on the splits that both have.

    Args:
        records: the runs.
        reference: the method that the others are compared with; by default the one with the highest mean
            accuracy.
        is_present: whether a run is of the present recipe; others are left out.

    Raises:
        DataError: fewer than two methods share a split, runs of one split have other test bags, or there is
            no such reference.
    """
    every = list(records)
    present = [record for record in every if is_present is None or is_present(record)]
    notes = []
    if len(present) < len(every):
        notes.append(f"{len(every) - len(present)} runs of earlier versions of the recipe are left out.")
    common = common_settings(present)
    if common:
        notes.append(f"All runs have {', '.join(f'{name}={value}' for name, value in common.items())}.")
    grouped = _grouped(present, common)
    methods = list(dict.fromkeys(name for runs in grouped.values() for name in runs))
    if len(methods) < 2 or not any(len(runs) > 1 for runs in grouped.values()):
        raise DataError(
            f"There is nothing to compare: {len(present)} runs of {len(methods)} methods, of which no two "
            "share a split; run at least two methods on the same splits."
        )
    if reference is None:
        means = {
            name: np.mean([r[name].metrics["accuracy"] for r in grouped.values() if name in r])
            for name in methods
        }
        reference = max(methods, key=lambda name: means[name])
    alike = [name for name in methods if name.partition(" (")[0] == reference]
    if reference not in methods and len(alike) == 1:
        reference = alike[0]  # its settings need not be written
    if reference not in methods:
        raise DataError(f"No run is of the method '{reference}'.{suggest(reference, methods)}")
    by_data: dict[Block, Scores] = {}
    for block, runs in grouped.items():
        by_data.setdefault(block[:-1], {})[block] = runs
    several = [
        data for data, scores in by_data.items() if len({n for runs in scores.values() for n in runs}) > 1
    ]
    if len(several) < len(by_data):
        notes.append(f"{len(by_data) - len(several)} data sets with runs of one method only are left out.")
    datasets = [_dataset(data, by_data[data], reference) for data in several]
    rankings, more = _rankings(by_data, reference)
    return Comparison(reference, datasets, rankings, notes + more)


def settings_of(record: Record) -> dict[str, str]:
    """Return the settings that were given to a run, a seed other than 0 and a recipe other than stable."""
    spec, given = record.spec, dict(record.info.get("given", {}))
    if spec["seed"]:
        given["seed"] = spec["seed"]
    if spec["recipe"] != "stable" and not record.is_external:
        given["recipe"] = spec["recipe"]
    return {name: str(value) for name, value in sorted(given.items())}


def common_settings(records: Sequence[Record]) -> dict[str, str]:
    """Return the settings that all runs have in common; predictions of other tools have none."""
    own = [settings_of(record).items() for record in records if not record.is_external]
    return dict(sorted(set(own[0]).intersection(*own))) if own else {}


def label(record: Record, common: Mapping[str, str]) -> str:
    """Return the name of a run's method, with its settings but for the common ones."""
    own = [f"{name}={value}" for name, value in settings_of(record).items() if common.get(name) != value]
    return str(record.spec["method"]) + (f" ({', '.join(own)})" if own else "")


def _grouped(records: Sequence[Record], common: Mapping[str, str]) -> Scores:
    """Return the runs by split, after a check that those of a split have the same test bags."""
    grouped: Scores = {}
    for record in sorted(records, key=lambda each: (each.spec["split"], label(each, common))):
        spec = record.spec
        data = (spec["dataset"], spec["r"], spec["data_digest"], spec["splits"], record.share)
        runs = grouped.setdefault((*data, (spec["split"], spec.get("split_digest", ""))), {})
        first = next(iter(runs.values()), record)
        if sorted(first.arrays["ids"].tolist()) != sorted(record.arrays["ids"].tolist()):
            raise DataError(
                f"{label(first, common)} and {label(record, common)} have other test bags in split "
                f"{spec['split']} of {spec['dataset']}: they cannot be compared."
            )
        runs[label(record, common)] = record
    return grouped


def _dataset(data: Block, scores: Scores, reference: str) -> DataSet:
    dataset, r, _, splits, share = data
    title = (
        dataset
        + ("" if r is None else f" r = {r}")
        + ("" if share == 1 else f", {share:.0%} of training bags")
    )
    methods = sorted({name for runs in scores.values() for name in runs})
    found = [(name, _differences(name, reference, scores)) for name in methods]
    adjusted = {
        metric: dict(
            zip(methods, holm([d[metric].p if d else np.nan for _, d in found]).tolist(), strict=True)
        )
        for metric in METRICS
    }
    rows = []
    for name, difference in found:
        values = _values(name, scores)
        rows.append(
            Row(
                name,
                len(next(iter(values.values()))),
                {metric: float(v.mean()) for metric, v in values.items()},
                {metric: float(v.std(ddof=1)) if len(v) > 1 else None for metric, v in values.items()},
                difference,
                {metric: adjusted[metric][name] for metric in METRICS},
            )
        )
    rows.sort(key=lambda row: -row.mean["accuracy"])
    complete = [runs for runs in scores.values() if len(runs) == len(methods)]
    records = {row.method: [runs[row.method] for runs in complete] for row in rows} if complete else {}
    return DataSet(f"{title}, {len(scores)} {splits} splits", rows, records)


def _values(name: str, scores: Scores) -> dict[str, Any]:
    runs = [runs[name].metrics for runs in scores.values() if name in runs]
    return {
        metric: factor * np.array([run[metric] for run in runs])
        for metric, (_, _, factor, _) in METRICS.items()
    }


def _differences(name: str, reference: str, scores: Scores) -> dict[str, PairedDifference]:
    """Return method − reference on the splits that both have; empty if there is none."""
    shared = [runs for runs in scores.values() if name in runs and reference in runs]
    if name == reference or not shared:
        return {}
    data = [runs[name].info["data"] for runs in shared]
    share = float(np.mean([each["test_bags"] / each["train_bags"] for each in data]))
    return {
        metric: corrected_difference(
            [factor * (runs[name].metrics[metric] - runs[reference].metrics[metric]) for runs in shared],
            share,
        )
        for metric, (_, _, factor, _) in METRICS.items()
    }


def _rankings(by_data: Mapping[Block, Scores], reference: str) -> tuple[list[Ranking], list[str]]:
    """Return Friedman's tests over data sets, or over the splits of a single one, and notes on them.

    Ranked are the methods that have runs on every data set on which the reference has some.
    """
    present = {data: {name for runs in scores.values() for name in runs} for data, scores in by_data.items()}
    chosen = [data for data, names in present.items() if reference in names and len(names) > 1]
    if not chosen:
        return [], [f"No method is ranked: none has runs on the data sets of {reference}."]
    methods = sorted(set.intersection(*(present[data] for data in chosen)))
    complete = [[runs for runs in by_data[data].values() if runs.keys() >= set(methods)] for data in chosen]
    several = len(chosen) > 1
    blocks = [runs for runs in complete if runs] if several else [[runs] for runs in complete[0]]
    if len(methods) < 3 or len(blocks) < 2:
        return [], [
            "Ranks need at least three methods on two data sets or splits: "
            f"{listed(methods)} have {len(blocks)} in common."
        ]
    rankings = []
    for metric, (_, higher, _, _) in METRICS.items():
        table = [[np.mean([r[name].metrics[metric] for r in block]) for name in methods] for block in blocks]
        test = friedman(table, higher_is_better=higher)
        difference = critical_difference(len(methods), len(blocks))
        over = f"{len(blocks)} {'data sets' if several else 'splits'}"
        rankings.append(Ranking(metric, methods, over, test, difference))
    notes = []
    if not several:
        notes.append(
            "Ranks are over the splits of one data set, which share bags: Friedman's and Nemenyi's tests "
            "then find differences too easily. Rely on the corrected intervals, or add data sets."
        )
    if others := sorted(set().union(*present.values()) - set(methods)):
        notes.append(f"Not ranked, for lack of runs on the data sets of {reference}: {listed(others)}.")
    return rankings, notes


def as_json_values(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON-ready values."""

    def finite(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return {
        "reference": found.reference,
        "notes": found.notes,
        "data_sets": [
            {
                "title": data.title,
                "methods": [
                    {
                        "method": row.method,
                        "splits": row.splits,
                        **{
                            metric: {
                                "mean": row.mean[metric],
                                "std": row.std[metric],
                                **(
                                    {
                                        "difference": d.mean,
                                        "low": finite(d.low),
                                        "high": finite(d.high),
                                        "p": finite(d.p),
                                        "p_holm": finite(row.adjusted[metric]),
                                    }
                                    if (d := row.difference.get(metric))
                                    else {}
                                ),
                            }
                            for metric in METRICS
                        },
                    }
                    for row in data.rows
                ],
            }
            for data in found.datasets
        ],
        "rankings": [
            {
                "metric": each.metric,
                "over": each.over,
                "ranks": dict(zip(each.methods, each.test.ranks.tolist(), strict=True)),
                "f": finite(each.test.f),
                "p": finite(each.test.p),
                "critical_difference": each.critical_difference,
            }
            for each in found.rankings
        ],
    }


def cells(row: Row, metric: str) -> tuple[str, str]:
    """Return mean ± standard deviation, and the difference with its interval, as text."""
    digits = METRICS[metric][3]
    std = row.std[metric]
    mean = f"{row.mean[metric]:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
    if metric not in row.difference:
        return mean, ""
    d = row.difference[metric]
    if not np.isfinite(d.low):
        return mean, f"{d.mean:+.{digits}f}"
    star = " *" if row.adjusted[metric] < SIGNIFICANT else ""
    return mean, f"{d.mean:+.{digits}f} [{d.low:+.{digits}f}, {d.high:+.{digits}f}]{star}"


def write_page(found: Comparison, path: Path) -> None:
    """Write the comparison as one self-contained HTML page, atomically."""
    with figures.style():
        reliability = [_reliability(number, data) for number, data in enumerate(found.datasets, start=1)]
        ranks = _ranks(found)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of methods and data come from the user
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("compare.html.jinja").render(
        reference=found.reference,
        metrics=[title for title, *_ in METRICS.values()],
        datasets=[
            {
                "title": data.title,
                "rows": [
                    {"method": row.method, "splits": row.splits, "cells": [cells(row, m) for m in METRICS]}
                    for row in data.rows
                ],
                "reliability": figure,
            }
            for data, figure in zip(found.datasets, reliability, strict=True)
        ],
        rankings=[
            {
                "title": METRICS[each.metric][0],
                "over": each.over,
                "f": f"{each.test.f:.2f}",
                "critical": f"{each.test.critical:.2f}",
                "p": f"{each.test.p:.2g}",
            }
            for each in found.rankings
        ],
        ranks=ranks,
        notes=found.notes,
    )
    with atomic_file(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))


def _ranks(found: Comparison) -> Markup:
    """Return the critical-difference diagrams, one below the other."""
    if not found.rankings:
        return Markup("")
    names = found.rankings[0].methods
    height = 1.2 + 0.22 * len(names)
    figure = Figure(figsize=(7.6, height * len(found.rankings)), layout="constrained")
    axes = figure.subplots(len(found.rankings), 1, squeeze=False)[:, 0]
    for ax, each in zip(axes, found.rankings, strict=True):
        marked = [name == found.reference for name in names]
        charts.critical_difference_diagram(ax, each.test.ranks, names, each.critical_difference, marked)
        ax.set_title(f"{METRICS[each.metric][0]}, {each.over}", loc="left", fontsize=9.5)
    text = f"Mean ranks of {listed(names, 30)} with the critical difference of Nemenyi's test."
    return Markup(figures.svg(figure, "ranks", text))


def _reliability(number: int, data: DataSet) -> Markup:
    """Return reliability diagrams side by side, of the test bags of all splits together."""
    if not data.records:
        return Markup("")
    panels: list[charts.Panel] = []
    for row in data.rows:
        runs = data.records[row.method]
        p = np.concatenate([run.arrays["probabilities"] for run in runs])
        curve = reliability_curve(p, np.concatenate([run.arrays["labels"] for run in runs]))
        panels.append((row.method, f"ECE {row.mean['expected_calibration_error']:.1f}%", curve))
    columns = min(4, len(panels))
    panels += [("", "", None)] * (-len(panels) % columns)
    figure = charts.reliability_grid([panels[i : i + columns] for i in range(0, len(panels), columns)])
    for ax in figure.axes:
        if not ax.get_title().strip() and any(text.get_text() == "no run" for text in ax.texts):
            ax.set_visible(False)  # fills the last row
    text = f"Reliability diagrams on {data.title}: {listed([row.method for row in data.rows], 30)}."
    return Markup(figures.svg(figure, f"reliability-{number}", text))
