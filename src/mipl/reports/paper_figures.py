"""The paper's figures and its table of statistics, drawn from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mipl import metrics
from mipl.metrics.statistics import critical_difference, friedman
from mipl.records.summary import sample_std
from mipl.reports import charts
from mipl.reports.claims import BASELINE, EVERY, OURS, Sets, claims_table
from mipl.reports.figures import BLUE, MUTED, VERMILLION
from mipl.reports.paper import (
    FAMILIES,
    NINE,
    ROWS,
    WORD,
    Item,
    Product,
    notes_of,
    our_values,
    plain,
    result_table,
)
from mipl.reports.results import paper_scores
from mipl.reports.runs import Runs, Settings, Want, mark_of, method_title, set_title
from mipl.reports.tables import Cell, Table
from mipl.seeding import rng_for

GAMMAS = (1, 2, 3, 4, 5)
NOISE = (0, 0.1, 0.2, 0.3, 0.4, 0.5)
SHARES = tuple(range(10, 101, 10))
RANKED = ROWS[1:]  # MIPLGP has no value on four sets
PRINTED_F = {"accuracy": "116.6938", "ece": "50.3444"}
LABEL = {"accuracy": "accuracy in %", "ece": "ECE in %"}


def draw_reliability(item: Item, name: str, runs: Runs) -> Product:
    """Draw Figs. 2 and 5: a reliability diagram of each method, all splits together."""
    sets = item.drawn(runs)
    if name == "fig2":
        panels = [
            [_reliability(runs, Want(*sets[0], m)) for m in column] for column in zip(*FAMILIES, strict=True)
        ]
        panels = [list(row) for row in zip(*panels, strict=True)]
        titles: list[str] = []
    else:
        panels = [[_reliability(runs, Want(*each, m)) for m in NINE] for each in sets]
        titles = [
            set_title(*each) if each[1] is None or len(sets) == 1 else f"r = {each[1]}" for each in sets
        ]
    figure = charts.reliability_grid(panels, titles, size=1.55 if name == "fig2" else 1.2)
    return _product(item, runs, figure, sets)


def draw_focal(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. 3: perfect calibration, generated, beside SAM with FL and with IFL."""
    (each,) = item.drawn(runs)
    rng = rng_for("perfect calibration")
    p = rng.dirichlet(np.full(5, 0.4), size=20_000)
    labels = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)
    perfect = (
        "Perfect calibration",
        _said(metrics.accuracy(p, labels), metrics.expected_calibration_error(p, labels)),
    )
    row: list[charts.Panel] = [(*perfect, metrics.reliability_curve(p, labels))]
    row += [_reliability(runs, Want(*each, method)) for method, _ in item.variants]
    figure = charts.reliability_grid([row], size=1.9)
    product = _product(item, runs, figure, (each,))
    said = (
        "Perfect calibration is generated: 20,000 labels drawn from their own probabilities over 5 classes."
    )
    return Product(product.title, product.tables, figure, [*product.notes, said], runs)


def draw_gamma(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A3: accuracy and ECE of each attention against γ, the baseline beside them."""
    (each,) = item.drawn(runs)
    panels = []
    for metric in ("accuracy", "ece"):
        for attention, (base, *ours) in zip(BASELINE, FAMILIES, strict=True):
            lines = {method_title(base): [_point(runs, Want(*each, base), metric)] * len(GAMMAS)}
            lines |= {
                method_title(m): [_point(runs, Want(*each, m, gamma(g)), metric) for g in GAMMAS]
                for m in ours
            }
            panels.append((attention.upper() if metric == "accuracy" else "", LABEL[metric], lines))
    figure = charts.line_panels(panels, GAMMAS, ("γ",) * 3)
    return _product(item, runs, figure, (each,))


def draw_bars(item: Item, name: str, runs: Runs) -> Product:
    """Draw Figs. A4, A5 and A9: methods side by side on several data sets."""
    sets = item.drawn(runs)
    looks = {method_title(*variant): bar_look(*variant) for variant in item.variants}
    columns: list[tuple[str, Sets, Sequence[str], Sequence[Any]]] = []
    if name == "figA9":
        columns += [
            (f"{method_title(family[0])} and ours", sets, _short(sets), plain(family))
            for family in FAMILIES[1:]
        ]
    elif name == "figA4":
        for dataset in dict.fromkeys(d for d, _ in sets):
            same = tuple(each for each in sets if each[0] == dataset)
            columns.append((set_title(dataset), same, [f"r = {r}" for _, r in same], item.variants))
    else:
        columns.append(("", sets, [set_title(*each) for each in sets], item.variants))
    panels, groups = [], []
    for metric in ("accuracy", "ece"):
        for title, those, names, variants in columns:
            bars = {
                method_title(*v): [_point(runs, Want(*each, *v), metric) for each in those] for v in variants
            }
            panels.append((title if metric == "accuracy" else "", LABEL[metric], bars))
            groups.append(names)
    width = 7.2 if len(columns) == 1 else 3.6
    figure = charts.bar_panels(panels, groups, looks, columns=len(columns), width=width)
    product = _product(item, runs, figure, sets)
    said = (
        [_recommended(runs, sets, method) for method in OURS[2:]] if name == "figA9" and len(sets) > 1 else []
    )
    return Product(product.title, product.tables, figure, [*product.notes, *filter(None, said)], runs)


def draw_noise(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A6: accuracy and ECE against the noise in the candidate sets and in the bags."""
    groups = [(each, item.sets) for each in item.sets[:1]]
    groups += [(sets[0], sets) for sets in (item.others, item.quick_sets)]
    sets = next((sets for first, sets in groups if runs.has(*first)), item.sets)
    (clean, *noisy) = sets
    panels = []
    for metric in ("accuracy", "ece"):
        for kind in ("class", "attribute"):
            those = [clean, *(each for each in noisy if f" {kind} " in each[0])]
            lines = {
                method_title(method): [_point(runs, Want(*each, method), metric) for each in those]
                for method, _ in item.variants
            }
            panels.append(
                (f"{kind.capitalize()} noise" if metric == "accuracy" else "", LABEL[metric], lines)
            )
    figure = charts.line_panels(panels, NOISE, ("bags without their true label", "instances dropped"))
    product = _product(item, runs, figure, sets)
    if clean[0] == "birdsong-mipl":
        said = "Birdsong-MIPL stands in for SIVAL-MIPL, which cannot be had offline."
        return Product(product.title, product.tables, figure, [*product.notes, said], runs)
    return product


def noisy(dataset: str, r: int | None) -> Sets:
    """Return a data set clean, then with each level of class noise and of attribute noise."""
    levels = [f"{dataset} {kind} noise {share:g}" for kind in ("class", "attribute") for share in NOISE[1:]]
    return ((dataset, r), *((name, r) for name in levels))


def draw_top_share(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A10: accuracy and ECE on the k% of the test bags with the highest confidence."""
    (each,) = item.drawn(runs)
    found: dict[str, list[dict[str, Any]]] = {}
    for method, given in item.variants:
        splits = [record.arrays for record in runs.of(Want(*each, method, given))]
        found[method_title(method)] = [_top(splits, share / 100) for share in SHARES] if splits else []
    panels = []
    for metric in ("accuracy", "ece"):
        lines: dict[str, list[charts.Point]] = {title: [None] * len(SHARES) for title in found}
        for title, points in found.items():
            for i, point in enumerate(points):
                lines[title][i] = (100 * point[metric].mean(), sample_std(100 * point[metric]))
        panels.append(("", LABEL[metric], lines))
    figure = charts.line_panels(panels, SHARES, ("most confident predictions kept, in %",))
    rows = [
        [Cell(f"{share}%"), *(_percent(points, i) for points in found.values())]
        for i, share in enumerate(SHARES)
    ]
    caption = f"Accuracy / ECE in percent on the most confident share, {set_title(*each)}."
    table = Table(caption, ["share", *found], rows)
    return Product(item.title, [table], figure, figure_notes(runs, (each,)), runs)


def draw_differences(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A8: mean ranks and the critical difference, from the paper's tables and from ours."""
    tests = _tests(runs)
    figure = Figure(figsize=(6.6, 2.7 * len(tests)), layout="constrained")
    axes = figure.subplots(len(tests), 1, squeeze=False)[:, 0]
    for ax, (metric, whose, _, test, methods) in zip(axes, tests, strict=True):
        difference = critical_difference(len(methods), test.datasets)
        ours = [method in OURS for method in methods]
        charts.critical_difference_diagram(
            ax, test.ranks, [method_title(m) for m in methods], difference, ours
        )
        ax.set_title(f"{WORD[metric]}, {whose}, {test.datasets} data sets", loc="left", fontsize=9.5)
    notes = [
        "Mean rank over the data sets, the best to the right; a bar joins methods that Nemenyi's test "
        "does not tell apart at the level 0.05; the six with CDL in colour.",
        *_lacking(tests),
    ]
    return Product(item.title, (), figure, notes, runs)


def draw_friedman(item: Item, name: str, runs: Runs) -> Product:
    """Draw Table A3: the Friedman statistics as printed, from the paper's tables, and from our runs."""
    tests = _tests(runs)
    rows = []
    for metric, whose, printed, test, methods in tests:
        row = [f"{WORD[metric]}, {whose}", printed, f"{test.f:.4f}", f"{test.chi2:.4f}"]
        row += [f"{test.chi2_ties:.4f}", f"{test.f_ties:.4f}", f"{test.critical:.4f}"]
        row += [f"{critical_difference(len(methods), test.datasets):.4f}", str(test.datasets)]
        off = printed not in ("", f"{test.f:.4f}")
        rows.append([Cell(text, place == 2 and off) for place, text in enumerate(row)])
    header = [
        "",
        "F_F printed",
        "F_F",
        "χ²",
        "χ², ties corrected",
        "F_F of that",
        "critical value",
        "CD",
        "sets",
    ]
    caption = "Friedman statistics by the paper's formula, and with SciPy's correction for ties."
    tables = [Table(caption, header, rows)]
    said = claims_table(name, lambda: our_values(runs))
    notes = [
        "The paper's F_F for accuracy is its χ², which its formula turns into the F_F in bold.",
        "The paper prints CD = 3.4638, with q rounded to 3.219.",
        *_lacking(tests),
    ]
    return Product(item.title, tables + ([said] if said else []), None, notes, runs)


def _product(item: Item, runs: Runs, figure: Figure, sets: Sets) -> Product:
    """Return a figure with the numbers behind it as tables."""
    tables = [result_table(runs, f"{WORD[m]}.", sets, item.variants, m) for m in ("accuracy", "ece")]
    return Product(item.title, tables, figure, figure_notes(runs, sets), runs)


def figure_notes(runs: Runs, sets: Sets, *, first: bool = False) -> list[str]:
    """Return what a reader must know of a figure: its data, then as for tables."""
    names = ", ".join(dict.fromkeys(set_title(*each) for each in sets))
    marks = "".join(sorted({mark_of([record]) for record in runs.used.values()}, reverse=True))
    return [f"Data: {names}{marks}.", *notes_of(runs, first=first)]


def _reliability(runs: Runs, want: Want) -> charts.Panel:
    title, both = method_title(want.method), runs.predictions(want)
    accuracy, ece = (runs.mean(want, metric) for metric in ("accuracy", "ece"))
    if both is None or accuracy is None or ece is None:
        return title, "", None
    return title, _said(accuracy.mean / 100, ece.mean / 100), metrics.reliability_curve(*both)


def _said(accuracy: float, ece: float) -> str:
    return f"ACC {100 * accuracy:.1f} · ECE {100 * ece:.1f}"


def _point(runs: Runs, want: Want, metric: str) -> charts.Point:
    mean = runs.mean(want, metric)
    return None if mean is None else (mean.mean, mean.std)


def gamma(value: int) -> Settings:
    """Return the setting of γ, which is 1 by itself."""
    return () if value == 1 else (("gamma", float(value)),)


def bar_look(method: str, given: Any = ()) -> dict[str, Any]:
    """Return the look of a bar: the attention or method by its shade, the variant by hatching."""
    if method in OURS:
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


def _short(sets: Sets) -> list[str]:
    """Return N of the sets of patches, whose names end in it."""
    return [f"N = {end}" if (end := d.rpartition("-")[2]).isdecimal() else d for d, _ in sets]


def _recommended(runs: Runs, sets: Sets, method: str) -> str:
    """Return the N of the paper's rule: raised while accuracy gains a point and ECE at most two."""
    points = [[runs.mean(Want(*each, method), metric) for each in sets] for metric in ("accuracy", "ece")]
    chosen = 0
    for i in range(1, len(sets)):
        (before, after), (low, high) = ((line[i - 1], line[i]) for line in points)
        if before is None or after is None or low is None or high is None:
            return ""
        if after.mean - before.mean < 1 or high.mean - low.mean > 2:
            break
        chosen = i
    rule = "raising N while accuracy gains at least 1 point and ECE at most 2"
    return f"{method_title(method)}: {rule} ends at {_short(sets)[chosen]}."


def _top(splits: Sequence[Any], share: float) -> dict[str, Any]:
    """Return accuracy and ECE of each split on its most confident share."""
    pairs = [(a["probabilities"], a["labels"]) for a in splits]
    return {
        "accuracy": np.array([metrics.accuracy_at_top(p, y, share) for p, y in pairs]),
        "ece": np.array([metrics.calibration_error_at_top(p, y, share) for p, y in pairs]),
    }


def _percent(points: Sequence[dict[str, Any]], i: int) -> Cell:
    if not points:
        return Cell("–")
    return Cell(f"{100 * points[i]['accuracy'].mean():.2f} / {100 * points[i]['ece'].mean():.2f}")


def _tests(runs: Runs) -> list[tuple[str, str, str, Any, list[str]]]:
    """Return (metric, whose, printed F_F, test, methods) of the paper's tables and, if whole, ours."""
    tests = []
    values = our_values(runs)
    for metric in ("accuracy", "ece"):
        table, methods = paper_scores(metric)
        test = friedman(table, higher_is_better=metric == "accuracy")
        tests.append((metric, "the paper's tables", PRINTED_F[metric], test, methods))
    for metric in ("accuracy", "ece"):
        whole = [s for s in EVERY if all((*s, m, metric) in values for m in RANKED)]
        if len(whole) > 1:
            scores = [[values[*each, m, metric] for m in RANKED] for each in whole]
            test = friedman(scores, higher_is_better=metric == "accuracy")
            tests.append((metric, "our runs", "", test, list(RANKED)))
    return tests


def _lacking(tests: Sequence[Any]) -> list[str]:
    if any(whose == "our runs" for _, whose, *_ in tests):
        return []
    return [
        "Our runs have all eleven methods on fewer than two data sets, too few to rank: see tables 2 to 5."
    ]
