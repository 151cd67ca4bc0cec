"""The page of ``mipl demo``: models side by side in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mipl import metrics
from mipl.errors import DataError
from mipl.files import atomic_file
from mipl.reports import figures
from mipl.reports.summary import (
    THRESHOLD,
    THRESHOLDS,
    Reported,
    Summary,
    findings,
    margin,
    points,
    sigmoid_ceiling,
    summarise,
    tendency,
)


@dataclass(frozen=True, eq=False)
class ModelResult:
    """The predictions of a model for the test bags: probabilities (m, k), labels (m,) as column indices."""

    name: str
    title: str
    note: str
    probabilities: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    seconds: float


@dataclass(frozen=True, eq=False)
class BagView:
    """A bag to draw: instances (n, h, w) in [0, 1] or (n, d), attention (n,), positives (n,) if known."""

    bag_id: str
    label: str
    candidates: tuple[str, ...]
    predicted: str
    confidence: float
    instances: npt.NDArray[Any]
    attention: npt.NDArray[Any]
    positives: npt.NDArray[np.bool_] | None
    model: str = ""  # the title of the model; "": not shown


class Cell(NamedTuple):
    """A value of the table of metrics, and whether it is the best."""

    text: str
    best: bool = False


class MetricRow(NamedTuple):
    """A row of the table of metrics: its name, its meaning, one cell per model."""

    name: str
    meaning: str
    cells: list[Cell]


def demo_page(
    results: Sequence[ModelResult], bags: Sequence[BagView], facts: Mapping[str, str], path: Path
) -> None:
    """Write the page that compares models on the same test bags, atomically.

    Args:
        results: one per model.
        bags: bags whose attention is drawn.
        facts: the provenance of the numbers, shown at the end.
        path: the HTML file.

    Raises:
        DataError: if the results are not of the same test bags, or a bag cannot be drawn.
    """
    page = _render(results, bags, facts)
    with atomic_file(Path(path)) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))


def _render(results: Sequence[ModelResult], bags: Sequence[BagView], facts: Mapping[str, str]) -> str:
    """Return the HTML of the page."""
    rows = _summaries(results)
    curves = [metrics.reliability_curve(r.probabilities, r.labels) for r in results]
    most = max(int(curve.count.max()) for curve in curves)
    with figures.style():
        models = [
            _model(number, result, row, curve, most)
            for number, (result, row, curve) in enumerate(zip(results, rows, curves, strict=True), start=1)
        ]
        coverage, views = _coverage(results), _bags(bags)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # titles, classes and facts come from the user
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("demo.html.jinja").render(
        m=rows[0].m,
        k=rows[0].k,
        bins=curves[0].count.size,
        ceiling=f"{sigmoid_ceiling(rows[0].k):.1%}",
        threshold=f"{THRESHOLD:.0%}",
        margin=points(max(map(margin, rows))),
        findings=findings(rows),
        metrics=_metric_rows(rows),
        triage=_triage(rows),
        models=models,
        coverage=coverage,
        bags=views,
        facts=facts,
    )


def _summaries(results: Sequence[ModelResult]) -> list[Summary]:
    """Return the summary of each result, or raise an error if they cannot be compared."""
    if not results:
        raise DataError("There is no result to show; give the page at least one model.")
    rows = []
    for result in results:
        try:
            rows.append(summarise(result.title, result.probabilities, result.labels, result.seconds))
        except DataError as error:
            raise DataError(f"Result '{result.name}': {error}") from error
        if rows[-1].k != rows[0].k or not np.array_equal(result.labels, results[0].labels):
            raise DataError(
                f"Results '{results[0].name}' and '{result.name}' have different classes or labels; "
                "compare models on the same test bags."
            )
    if len({row.title for row in rows}) < len(rows):
        raise DataError("Two results have the same title; give each its own, which the legend shows.")
    return rows


def _metric_rows(rows: Sequence[Summary]) -> list[MetricRow]:
    """Return the table of metrics, one column per model."""

    def metric(
        name: str,
        meaning: str,
        value: Callable[[Summary], float],
        form: str,
        best: Callable[[Iterable[float]], float] | None,
    ) -> MetricRow:
        texts = [format(value(row), form) for row in rows]
        # Compared as printed: a digit that is not shown decides nothing, and a tie has several best.
        top = format(best(map(value, rows)), form) if best and len(rows) > 1 else None
        return MetricRow(name, meaning, [Cell(text, text == top) for text in texts])

    reported = [Cell(f"{row.confident.count} of {row.m}") for row in rows]
    correct = [Cell(_accuracy(row.confident)) for row in rows]
    return [
        metric(
            "Accuracy\N{NO-BREAK SPACE}↑",
            "correct predictions",
            lambda r: r.accuracy,
            ".1%",
            max,
        ),
        metric("ECE\N{NO-BREAK SPACE}↓", "expected calibration error", lambda r: r.ece, ".1%", min),
        metric(
            "Brier score\N{NO-BREAK SPACE}↓",
            "squared error of the probabilities, 0 to 2",
            lambda r: r.brier,
            ".3f",
            min,
        ),
        metric(
            "NLL\N{NO-BREAK SPACE}↓", "negative log-likelihood of the true class", lambda r: r.nll, ".3f", min
        ),
        metric("Mean confidence", "to compare with the accuracy", lambda r: r.confidence, ".1%", None),
        MetricRow(f"Reported at ≥ {THRESHOLD:.0%} confidence", "without a person", reported),
        MetricRow("Of which correct", f"{THRESHOLD:.0%} or more if calibrated", correct),
        metric("Training time", "seconds", lambda r: r.seconds, ".1f", None),
    ]


def _triage(rows: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return one row per threshold: the number and the accuracy of each model's reported bags."""
    return [
        {
            "threshold": f"{threshold:.0%}",
            "chosen": threshold == THRESHOLD,
            "cells": [
                {
                    "count": (reported := row.reported[number]).count,
                    "correct": _accuracy(reported),
                    "short": reported.accuracy < threshold,  # False if nothing is reported
                }
                for row in rows
            ],
        }
        for number, threshold in enumerate(THRESHOLDS)
    ]


def _model(
    number: int, result: ModelResult, row: Summary, curve: metrics.ReliabilityCurve, most: int
) -> dict[str, Any]:
    """Return the values of a model for the template; ``most`` gives all models one scale."""
    reliability, ax = _panel(3.4, 4.08)
    figures.reliability_diagram(ax, curve, most=most)
    description = (
        f"Reliability diagram of {row.title}: accuracy {row.accuracy:.1%}, expected calibration error "
        f"{row.ece:.1%}, samples in {(curve.count > 0).sum()} of {curve.count.size} bins."
    )
    histogram, ax = _panel(3.4, 2.8)
    figures.confidence_histogram(ax, curve, ceiling=sigmoid_ceiling(row.k), most=most)
    histogram_description = (
        f"Histogram of the confidence of {row.title}: mean {row.confidence:.1%}, highest {row.highest:.1%}; "
        f"accuracy {row.accuracy:.1%}."
    )
    return {
        "title": row.title,
        "note": result.note,
        "tendency": tendency(row),
        "highest": f"{row.highest:.1%}",
        "reliability": Markup(figures.svg(reliability, f"reliability-{number}", description)),
        "histogram": Markup(figures.svg(histogram, f"confidence-{number}", histogram_description)),
    }


def _coverage(results: Sequence[ModelResult]) -> Markup:
    """Return the figure of accuracy against coverage of all models."""
    figure, ax = _panel(3.7, 2.9 + 0.18 * len(results))
    curves = {r.title: metrics.accuracy_at_coverage(r.probabilities, r.labels) for r in results}
    figures.coverage_curve(ax, curves, at=THRESHOLD)
    return Markup(figures.svg(figure, "coverage", f"Accuracy against coverage of {', '.join(curves)}."))


def _bags(bags: Sequence[BagView]) -> list[dict[str, Any]]:
    """Return the values of the bags for the template, all strips on one scale."""
    columns = min(10, max([6, *(np.size(bag.attention) for bag in bags)]))
    views = []
    for number, bag in enumerate(bags, start=1):
        shape, n = np.shape(bag.instances), np.size(bag.attention)
        if len(shape) not in (2, 3) or shape[0] != n:
            raise DataError(
                f"Bag '{bag.bag_id}': instances have shape {shape} with {n} attention scores; "
                "give (n, h, w) images or (n, d) features and n scores."
            )
        try:
            images = bag.instances if len(shape) == 3 else None
            strip = figures.attention_strip(bag.attention, bag.positives, images, columns=columns)
        except DataError as error:
            raise DataError(f"Bag '{bag.bag_id}': {error}") from error
        description = f"Bag {bag.bag_id}: {n} instances in descending order of attention."
        views.append(
            {
                "bag": bag,
                "right": bag.predicted == bag.label,
                "confidence": f"{bag.confidence:.1%}",
                "known": bag.positives is not None,
                "strip": Markup(figures.svg(strip, f"bag-{number}", description)),
            }
        )
    return views


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of a size in inches, and its Axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _accuracy(reported: Reported) -> str:
    return f"{reported.accuracy:.1%}" if reported.count else "–"
