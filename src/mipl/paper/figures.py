"""The paper's figures of accuracy and calibration, drawn from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from mipl import metrics
from mipl.paper.base import Item, Output, Variant, plain
from mipl.paper.names import (
    BASELINE,
    CDL_METHODS,
    FAMILIES,
    METRIC_TITLES,
    NINE_METHODS,
    Sets,
    Settings,
    mark_of,
    method_title,
    set_title,
)
from mipl.paper.runs import RunIndex, RunQuery
from mipl.paper.tables import notes_of, result_table
from mipl.records.summary import sample_std
from mipl.reports import charts
from mipl.reports.figures import BLUE, MUTED, VERMILLION
from mipl.reports.tables import Cell, Table
from mipl.seeding import rng_for

GAMMAS = (1, 2, 3, 4, 5)
NOISE = (0, 0.1, 0.2, 0.3, 0.4, 0.5)
PERCENTAGES = tuple(range(10, 101, 10))
AXIS_LABELS = {"accuracy": "accuracy in %", "ece": "ECE in %"}


def draw_reliability_by_family(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. 2: reliability diagrams over all splits, one row per attention."""
    sets = item.drawn_sets(runs)
    panels = {m: _reliability(runs, RunQuery(*sets[0], m)) for m in _by_column(FAMILIES)}
    figure = charts.reliability_grid([[panels[m] for m in family] for family in FAMILIES], size=1.55)
    return _figure_output(item, runs, figure, sets)


def draw_reliability_by_set(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. 5: reliability diagrams over all splits, one row per data set."""
    sets = item.drawn_sets(runs)
    panels = [[_reliability(runs, RunQuery(*key, m)) for m in NINE_METHODS] for key in sets]
    titles = [set_title(*key) if key[1] is None or len(sets) == 1 else f"r = {key[1]}" for key in sets]
    return _figure_output(item, runs, charts.reliability_grid(panels, titles, size=1.2), sets)


def draw_focal(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. 3: SAM with FL and with IFL beside perfect calibration, which is simulated."""
    (key,) = item.drawn_sets(runs)
    rng = rng_for("perfect calibration")
    p = rng.dirichlet(np.full(5, 0.4), size=20_000)
    labels = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)
    below = _accuracy_and_ece(metrics.accuracy(p, labels), metrics.expected_calibration_error(p, labels))
    row: list[charts.Panel] = [("Perfect calibration", below, metrics.reliability_curve(p, labels))]
    row += [_reliability(runs, RunQuery(*key, method)) for method, _ in item.variants]
    note = (
        "Perfect calibration is generated: 20,000 labels drawn from their own probabilities over 5 classes."
    )
    return _figure_output(item, runs, charts.reliability_grid([row], size=1.9), (key,), note)


def draw_gamma(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A3: accuracy and ECE against γ, one column per attention, with the baselines."""
    (key,) = item.drawn_sets(runs)
    panels = []
    for metric in ("accuracy", "ece"):
        for attention, (base, *cdl) in zip(BASELINE, FAMILIES, strict=True):
            lines = {method_title(base): [_point(runs, RunQuery(*key, base), metric)] * len(GAMMAS)}
            lines |= {
                method_title(m): [_point(runs, RunQuery(*key, m, gamma(g)), metric) for g in GAMMAS]
                for m in cdl
            }
            panels.append((attention.upper() if metric == "accuracy" else "", AXIS_LABELS[metric], lines))
    return _figure_output(item, runs, charts.line_panels(panels, GAMMAS, ("γ",) * 3), (key,))


class _Column(NamedTuple):
    """A column of bar charts: accuracy above, ECE below."""

    title: str
    sets: Sets
    group_names: Sequence[str]  # one per data set
    variants: Sequence[Variant]


def draw_bars(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A5: all methods on all data sets."""
    sets = item.drawn_sets(runs)
    column = _Column("", sets, [set_title(*key) for key in sets], item.variants)
    return _figure_output(item, runs, _bars(item, runs, [column]), sets)


def draw_bars_by_set(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A4: one column per data set, with bars for each r."""
    sets = item.drawn_sets(runs)
    columns = []
    for dataset in dict.fromkeys(dataset for dataset, _ in sets):
        same = tuple(key for key in sets if key[0] == dataset)
        columns.append(_Column(set_title(dataset), same, [f"r = {r}" for _, r in same], item.variants))
    return _figure_output(item, runs, _bars(item, runs, columns), sets)


def draw_bars_by_family(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A9: one column per attention, with bars for each number of patches N."""
    sets = item.drawn_sets(runs)
    columns = [
        _Column(f"{method_title(family[0])} and ours", sets, _patch_counts(sets), plain(family))
        for family in FAMILIES[1:]
    ]
    output = _figure_output(item, runs, _bars(item, runs, columns), sets)
    if len(sets) == 1:
        return output
    notes = [_recommended_patches(runs, sets, method) for method in CDL_METHODS[2:]]
    return replace(output, notes=[*output.notes, *filter(None, notes)])


def _bars(item: Item, runs: RunIndex, columns: Sequence[_Column]) -> Figure:
    """Return bar charts of accuracy and ECE."""
    looks = {method_title(*variant): bar_look(*variant) for variant in item.variants}
    panels, groups = [], []
    for metric in ("accuracy", "ece"):
        for column in columns:
            bars = {
                method_title(*v): [_point(runs, RunQuery(*key, *v), metric) for key in column.sets]
                for v in column.variants
            }
            panels.append((column.title if metric == "accuracy" else "", AXIS_LABELS[metric], bars))
            groups.append(column.group_names)
    width = 7.2 if len(columns) == 1 else 3.6
    return charts.bar_panels(panels, groups, looks, columns=len(columns), width=width)


def draw_noise(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A6: accuracy and ECE against the noise in the candidate sets and in the bags."""
    options = (item.sets, item.other_stand_ins, item.quick_sets)
    sets = next((sets for sets in options if runs.has(*sets[0])), item.sets)
    (clean, *noisy) = sets
    panels = []
    for metric in ("accuracy", "ece"):
        for kind in ("class", "attribute"):
            levels = [clean, *(key for key in noisy if f" {kind} " in key[0])]
            lines = {
                method_title(method): [_point(runs, RunQuery(*key, method), metric) for key in levels]
                for method, _ in item.variants
            }
            title = f"{kind.capitalize()} noise" if metric == "accuracy" else ""
            panels.append((title, AXIS_LABELS[metric], lines))
    figure = charts.line_panels(panels, NOISE, ("bags without their true label", "instances dropped"))
    note = "Birdsong-MIPL stands in for SIVAL-MIPL, which cannot be had offline."
    return _figure_output(item, runs, figure, sets, note if sets == item.other_stand_ins else None)


def noisy(dataset: str, r: int | None) -> Sets:
    """Return a data set without noise, then with each level of class noise and of attribute noise."""
    names = [f"{dataset} {kind} noise {level:g}" for kind in ("class", "attribute") for level in NOISE[1:]]
    return ((dataset, r), *((name, r) for name in names))


def draw_top_share(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A10: accuracy and ECE on the k% of the test bags with the highest confidence."""
    (key,) = item.drawn_sets(runs)
    found: dict[str, list[_TopMetrics]] = {}
    for method, given in item.variants:
        splits = [record.arrays for record in runs.find(RunQuery(*key, method, given))]
        found[method_title(method)] = [_top(splits, k / 100) for k in PERCENTAGES] if splits else []
    panels = []
    for place, metric in enumerate(("accuracy", "ece")):
        lines: dict[str, list[charts.Point]] = {title: [None] * len(PERCENTAGES) for title in found}
        for title, points in found.items():
            for i, point in enumerate(points):
                lines[title][i] = (100 * point[place].mean(), sample_std(100 * point[place]))
        panels.append(("", AXIS_LABELS[metric], lines))
    figure = charts.line_panels(panels, PERCENTAGES, ("most confident predictions kept, in %",))
    rows = [
        [Cell(f"{k}%"), *(_top_cell(points, i) for points in found.values())]
        for i, k in enumerate(PERCENTAGES)
    ]
    caption = f"Accuracy / ECE in percent on the most confident share, {set_title(*key)}."
    table = Table(caption, ["share", *found], rows)
    return Output(item.title, [table], figure, figure_notes(runs, (key,)), runs)


class _TopMetrics(NamedTuple):
    """Metrics of each split (n,) on its most confident test bags."""

    accuracy: npt.NDArray[np.float64]
    ece: npt.NDArray[np.float64]


def _top(splits: Sequence[Mapping[str, npt.NDArray[Any]]], fraction: float) -> _TopMetrics:
    pairs = [(arrays["probabilities"], arrays["labels"]) for arrays in splits]
    return _TopMetrics(
        np.array([metrics.accuracy_at_top(p, y, fraction) for p, y in pairs]),
        np.array([metrics.calibration_error_at_top(p, y, fraction) for p, y in pairs]),
    )


def _top_cell(points: Sequence[_TopMetrics], i: int) -> Cell:
    if not points:
        return Cell("–")
    return Cell(f"{100 * points[i].accuracy.mean():.2f} / {100 * points[i].ece.mean():.2f}")


def _figure_output(item: Item, runs: RunIndex, figure: Figure, sets: Sets, note: str | None = None) -> Output:
    """Return a figure with its numbers as tables, and perhaps a further note."""
    tables = [
        result_table(runs, f"{METRIC_TITLES[metric]}.", sets, item.variants, metric)
        for metric in ("accuracy", "ece")
    ]
    notes = figure_notes(runs, sets) + ([note] if note else [])
    return Output(item.title, tables, figure, notes, runs)


def figure_notes(runs: RunIndex, sets: Sets, *, first_split: bool = False) -> list[str]:
    """Return the notes of a figure: its data, then those of a table."""
    names = ", ".join(dict.fromkeys(set_title(*key) for key in sets))
    marks = "".join(sorted({mark_of([record]) for record in runs.used.values()}, reverse=True))
    return [f"Data: {names}{marks}.", *notes_of(runs, first_split=first_split)]


def _by_column(rows: Sequence[Sequence[str]]) -> list[str]:
    return [value for column in zip(*rows, strict=True) for value in column]


def _reliability(runs: RunIndex, query: RunQuery) -> charts.Panel:
    title, predictions = method_title(query.method), runs.predictions(query)
    accuracy, ece = (runs.mean(query, metric) for metric in ("accuracy", "ece"))
    if predictions is None or accuracy is None or ece is None:
        return title, "", None
    below = _accuracy_and_ece(accuracy.mean / 100, ece.mean / 100)
    return title, below, metrics.reliability_curve(*predictions)


def _accuracy_and_ece(accuracy: float, ece: float) -> str:
    return f"ACC {100 * accuracy:.1f} · ECE {100 * ece:.1f}"


def _point(runs: RunIndex, query: RunQuery, metric: str) -> charts.Point:
    mean = runs.mean(query, metric)
    return None if mean is None else (mean.mean, mean.std)


def gamma(value: int) -> Settings:
    """Return the setting of γ, which is 1 by default."""
    return () if value == 1 else (("gamma", float(value)),)


def bar_look(method: str, given: Settings = ()) -> dict[str, Any]:
    """Return the look of a bar: the colour shows the method, hatching that it has settings."""
    if method in CDL_METHODS:
        shades = {"cc": ("#9ecae1", "#4292c6", "#08519c"), "cn": ("#fdbe85", "#fd8d3c", "#c2500a")}
        shade = shades[method[4:]][list(BASELINE).index(method[:3])]
        return {"facecolor": shade, "edgecolor": "white"}
    if method in ("proden", "lws", "pop"):
        shade = {"proden": "#d3d8de", "lws": "#a3adb8", "pop": "#6b7885"}[method]
        return {"facecolor": shade, "edgecolor": "white", "hatch": "////" if given else ""}
    if method in BASELINE.values():
        shade = ("#cfd5db", "#9aa5b1", "#5a6775")[list(BASELINE.values()).index(method)]
        return {"facecolor": shade, "edgecolor": "white"}
    colours = {"fl": charts.GREEN, "ifl": charts.AMBER, "cc": BLUE, "cn": VERMILLION}
    return {"facecolor": colours.get(method.rpartition("-")[2], MUTED), "edgecolor": "white"}


def _patch_counts(sets: Sets) -> list[str]:
    """Return "N = 9" for a data set whose name ends in its number of patches, else the name."""
    return [f"N = {end}" if (end := name.rpartition("-")[2]).isdecimal() else name for name, _ in sets]


def _recommended_patches(runs: RunIndex, sets: Sets, method: str) -> str:
    """Return the N of the paper's rule: raise N while accuracy gains a point and ECE at most two."""
    points = [[runs.mean(RunQuery(*key, method), metric) for key in sets] for metric in ("accuracy", "ece")]
    chosen = 0
    for i in range(1, len(sets)):
        (before, after), (low, high) = ((line[i - 1], line[i]) for line in points)
        if before is None or after is None or low is None or high is None:
            return ""
        if after.mean - before.mean < 1 or high.mean - low.mean > 2:
            break
        chosen = i
    rule = "raising N while accuracy gains at least 1 point and ECE at most 2"
    return f"{method_title(method)}: {rule} ends at {_patch_counts(sets)[chosen]}."
