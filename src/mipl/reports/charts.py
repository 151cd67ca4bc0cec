"""Charts that compare methods, drawn from plain numbers in the style of :mod:`mipl.reports.figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mipl.metrics import ReliabilityCurve
from mipl.metrics.statistics import cliques
from mipl.reports.figures import BLUE, GRID, INK, MUTED, SAMPLES, VERMILLION, plain_colorbar

GREEN, AMBER = "#009e73", "#b07d00"
# A method has the same colour, marker and line style in every figure, by the end of its name.
LOOKS: dict[str, dict[str, Any]] = {
    "baseline": {"color": MUTED, "marker": "o", "linestyle": (0, (1.2, 1.4))},
    "cc": {"color": BLUE, "marker": "s", "linestyle": "solid"},
    "cn": {"color": VERMILLION, "marker": "^", "linestyle": (0, (5, 2))},
    "fl": {"color": GREEN, "marker": "D", "linestyle": (0, (5, 2, 1, 2))},
    "ifl": {"color": AMBER, "marker": "v", "linestyle": (0, (8, 2, 1, 2, 1, 2))},
}

# Colours and markers of classes; they repeat after seven.
CLASS_LOOKS = (
    (BLUE, "o"), (VERMILLION, "^"), (GREEN, "s"), ("#cc79a7", "D"), (AMBER, "v"), ("#56b4e9", "P"),
    (INK, "X"),
)  # fmt: skip

# (title, line below it, curve or None if there is no run)
Panel = tuple[str, str, ReliabilityCurve | None]
# (title, line below it, points (m, 2) and labels (m,), or None if there is no run)
Cloud = tuple[str, str, tuple[npt.NDArray[Any], npt.NDArray[Any]] | None]
# mean and standard deviation (None for a single run) in percent; None if there is no run
Point = tuple[float, float | None] | None
# (title, y label, method -> points)
Series = tuple[str, str, Mapping[str, Sequence[Point]]]


def look(method: str) -> dict[str, Any]:
    """Return colour, marker and line style of a method."""
    return LOOKS.get(method.rpartition("-")[2], LOOKS["baseline"])


def critical_difference_diagram(
    ax: Axes, ranks: npt.ArrayLike, names: Sequence[str], difference: float, highlighted: Sequence[bool]
) -> None:
    """Draw the mean ranks of methods on an axis, the best to the right.

    A bar joins methods whose ranks do not differ significantly.

    Args:
        ax: the Axes.
        ranks: mean ranks (l,).
        names: names of the methods.
        difference: the critical difference.
        highlighted: whether a method is coloured.
    """
    values = np.asarray(ranks, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    low, high = math.floor(values.min()), math.ceil(values.max())
    high = max(high, math.ceil(low + difference))  # so that the ruler fits
    groups = cliques(values, difference)
    best, worst = order[: (len(order) + 1) // 2], order[(len(order) + 1) // 2 :][::-1]
    # From top to bottom, in lines of text: ruler, axis, bars of groups, names.
    first = 0.75 + 0.34 * len(groups)
    bottom = first + max(len(best), len(worst))
    ax.set(xlim=(high + 1.9, low - 1.9), ylim=(bottom - 0.4, -1.9))  # ranks decrease to the right
    ax.set_axis_off()
    ax.plot([low, high], [0, 0], color=INK, linewidth=1.2)
    for tick in range(low, high + 1):
        ax.plot([tick, tick], [0, -0.18], color=INK, linewidth=1)
        ax.text(tick, -0.28, str(tick), ha="center", va="bottom", fontsize=8.5, color=MUTED)
    ax.plot([high, high - difference], [-1.25, -1.25], color=INK, linewidth=1.4, marker="|", markersize=6)
    ax.text(high - difference / 2, -1.35, f"CD = {difference:.2f}", ha="center", va="bottom", fontsize=8.5)
    for line, group in enumerate(groups):
        ends = [values[group[0]] - 0.06, values[group[-1]] + 0.06]
        y = 0.35 + 0.34 * line
        ax.plot(ends, [y, y], color=INK, linewidth=3, solid_capstyle="butt", label="group")
    for side, chosen in ((low - 0.25, best), (high + 0.25, worst)):
        for line, i in enumerate(chosen):
            y, right = first + line, side < low
            colour, weight = (VERMILLION, "bold") if highlighted[i] else (INK, "normal")
            ax.plot([values[i], values[i], side], [0, y, y], color=colour, linewidth=0.8, zorder=1)
            text = f"{names[i]}  {values[i]:.2f}" if right else f"{values[i]:.2f}  {names[i]}"
            ax.text(
                side + (-0.08 if right else 0.08), y, text, color=colour, fontsize=9,
                ha="left" if right else "right", va="center", fontweight=weight,
            )  # fmt: skip


def reliability_grid(
    panels: Sequence[Sequence[Panel]], row_titles: Sequence[str] = (), *, size: float = 1.55
) -> Figure:
    """Return rows of reliability diagrams, with an empty frame where there is no run.

    The colour of a bar is its proportion of the panel's samples, on one scale for the whole figure.
    """
    rows, columns = len(panels), len(panels[0])
    width, height = (size + 0.14) * columns + 1.35, (size + 0.42) * rows + 0.42
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for row, line in enumerate(panels):
        for ax, panel in zip(axes[row], line, strict=True):
            _reliability_panel(ax, panel, norm)
        title = f"{row_titles[row]}\n" if row_titles else ""
        axes[row, 0].set_ylabel(f"{title}accuracy in %", fontsize=8.5)
    for ax in axes[-1]:
        ax.set_xlabel("confidence in %", fontsize=8.5)
    bar = figure.colorbar(
        ScalarMappable(norm, SAMPLES), ax=axes, location="right", aspect=14 * rows, pad=0.01, shrink=0.8
    )
    bar.set_label("share of samples", fontsize=8.5)
    bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "5%", "20%", "50%", "100%"])
    plain_colorbar(bar)
    return figure


def _reliability_panel(ax: Axes, panel: Panel, norm: PowerNorm) -> None:
    title, below, curve = panel
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    if curve is None:
        ax.text(0.62, 0.28, "no run", ha="center", color=MUTED, fontsize=8)
    else:
        some = curve.count > 0
        left, wide = curve.edges[:-1][some], np.diff(curve.edges)[some]
        shades = SAMPLES(norm(curve.count[some] / curve.count.sum()))
        ax.bar(left, curve.accuracy[some], wide, align="edge", color=shades, edgecolor="white", lw=0.4)
        # A cap shows a bin also if its accuracy is 0 or its colour is pale.
        ax.hlines(curve.accuracy[some], left, left + wide, color=INK, linewidth=1.1)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    ax.tick_params(labelsize=7.5, length=2)
    ax.set_title(f"{title}\n", fontsize=8.5, pad=3.5)
    ax.annotate(below, (0.5, 1), (0, 3), "axes fraction", textcoords="offset points", ha="center", fontsize=7)


def scatter_grid(
    panels: Sequence[Sequence[Cloud]], classes: Sequence[str], row_titles: Sequence[str] = ()
) -> Figure:
    """Return rows of scatter plots, with an empty frame where there is no run.

    A class has its own colour and marker. There are no axes: only distances within a panel are meaningful.
    """
    rows, columns = len(panels), len(panels[0])
    figure = Figure(figsize=(1.28 * columns + 0.5, 1.5 * rows + 0.3))
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.03)
    axes = figure.subplots(rows, columns, squeeze=False)
    looks = [CLASS_LOOKS[i % len(CLASS_LOOKS)] for i in range(len(classes))]
    for row, line in enumerate(panels):
        for ax, (title, below, cloud) in zip(axes[row], line, strict=True):
            if cloud is None:
                _no_run(ax, fontsize=8)
            else:
                _scatter(ax, *cloud, looks)
            ax.set(xticks=[], yticks=[])
            ax.set_box_aspect(1)
            for spine in ax.spines.values():
                spine.set(visible=True, color=GRID)
            ax.set_title(title if row == 0 else "", fontsize=8.5, pad=4)
            ax.set_xlabel(below, fontsize=7.5, labelpad=2)
        if row_titles:
            axes[row, 0].set_ylabel(row_titles[row], fontsize=8.5)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markersize=5) for colour, marker in looks
    ]
    if classes:
        names = [f"class {name}" for name in classes]
        figure.legend(handles, names, loc="outside lower center", ncols=len(classes), handletextpad=0)
    return figure


def _scatter(
    ax: Axes, points: npt.NDArray[Any], labels: npt.NDArray[Any], looks: Sequence[tuple[str, str]]
) -> None:
    """Draw points (m, 2) by class in a square with the same scale in both directions."""
    for i, (colour, marker) in enumerate(looks):
        ax.plot(
            *points[labels == i].T, linestyle="", marker=marker, color=colour,
            markersize=3.4, markeredgecolor="white", markeredgewidth=0.3,
        )  # fmt: skip
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    half = 0.54 * max(float(np.ptp(points, axis=0).max()), 1e-9)
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))


def _no_run(ax: Axes, fontsize: float | None = None) -> None:
    ax.text(0.5, 0.5, "no run", transform=ax.transAxes, ha="center", color=MUTED, fontsize=fontsize)


def line_panels(
    panels: Sequence[Series], x: Sequence[float], x_labels: Sequence[str], *, from_zero: bool = False
) -> Figure:
    """Return line charts with one column, with its own legend, per x label.

    Args:
        panels: row by row; a method has one point per value of ``x``, missing ones are left out, and the
            standard deviation is a band.
        x: positions of the points.
        x_labels: one per column.
        from_zero: whether the axes start at zero.
    """
    columns = len(x_labels)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.1 * columns + 0.4, 2.15 * rows + 0.75), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    for number, (title, y_label, lines) in enumerate(panels):
        ax = axes[divmod(number, columns)]
        for name, points in lines.items():
            _line(ax, name, x, points)
        if not ax.lines:
            _no_run(ax)
        ax.set_ylabel(y_label if number % columns == 0 else "")
        ax.set_title(title, loc="left", fontsize=9.5, pad=19 if number < columns else 6)
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xticks(x)
        ax.grid(axis="y")
        if number < columns and ax.lines:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=2.4, borderaxespad=0.3)
    for ax, label in zip(axes[-1], x_labels, strict=True):
        ax.set_xlabel(label)
    for ax in axes[:, 0] if from_zero else ():  # the panels of a row share their scale
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
    return figure


def _line(ax: Axes, name: str, x: Sequence[float], points: Sequence[Point]) -> None:
    present = [(at, *point) for at, point in zip(x, points, strict=True) if point is not None]
    if not present:
        return
    at, mean, std = np.array(present, dtype=np.float64).T  # the None of a single run becomes NaN
    style = look(name.lower())
    ax.plot(at, mean, linewidth=1.6, markersize=4.5, markeredgecolor="white", label=name, **style)
    if np.isfinite(std).any():
        ax.fill_between(at, mean - std, mean + std, color=style["color"], alpha=0.13, linewidth=0)


def bar_panels(
    panels: Sequence[Series],
    groups: Sequence[Sequence[str]],
    looks: Mapping[str, Mapping[str, Any]],
    *,
    columns: int,
    width: float = 3.6,
    numbers: str = "",
) -> Figure:
    """Return bar charts with standard deviations and one legend above.

    Args:
        panels: row by row; a name has one bar per group, missing ones leave a gap.
        groups: for each panel, the names of its groups.
        looks: for each name, the keywords of its bars.
        columns: panels per row.
        width: of a panel, in inches.
        numbers: the format of the values above the bars; "": no values.
    """
    rows = math.ceil(len(panels) / columns)
    names = list(dict.fromkeys(name for _, _, bars in panels for name in bars))
    lines = math.ceil(len(names) / max(3, int(width * columns // 1.35)))  # of the legend
    figure = Figure(figsize=(width * columns, 2.1 * rows + 0.22 * lines + 0.2), layout="constrained")
    axes = figure.subplots(rows, columns, sharey="row", squeeze=False)
    for number, ((title, y_label, bars), group_names) in enumerate(zip(panels, groups, strict=True)):
        ax = axes[divmod(number, columns)]
        _bars(ax, bars, looks, numbers)
        ax.set_xticks(range(len(group_names)), group_names)
        ax.tick_params(axis="x", length=0)
        ax.set(xlim=(-0.55, len(group_names) - 0.45), ylabel=y_label if number % columns == 0 else "")
        ax.set_title(title, loc="left", fontsize=9.5)
        ax.grid(axis="y", color=GRID)
    for row in range(rows):  # panels of a row share their scale, which the first must not determine alone
        drawn = [bars for _, _, bars in panels[row * columns : (row + 1) * columns]]
        ends = [p[0] + (p[1] or 0.0) for bars in drawn for line in bars.values() for p in line if p]
        axes[row, 0].set_ylim(0, (1.16 if numbers else 1.06) * max(ends, default=1.0))
    handles = [Patch(linewidth=0.5, **looks[name]) for name in names]
    figure.legend(handles, names, loc="outside upper left", ncols=math.ceil(len(names) / lines), fontsize=8)
    return figure


def _bars(
    ax: Axes, bars: Mapping[str, Sequence[Point]], looks: Mapping[str, Mapping[str, Any]], numbers: str
) -> None:
    wide = 0.84 / len(bars)
    for place, (name, points) in enumerate(bars.items()):
        for group, point in enumerate(points):
            if point is None:
                continue
            mean, std = point
            at = group + (place - (len(bars) - 1) / 2) * wide
            ax.bar(at, mean, wide * 0.94, linewidth=0.5, **looks[name])
            if std is not None:
                ax.errorbar(at, mean, std, color=INK, linewidth=0.8, capsize=1.6)
            if numbers:
                ax.annotate(
                    f"{mean:{numbers}}", (at, mean + (std or 0.0)), (0, 1.5),
                    textcoords="offset points", ha="center", va="bottom", fontsize=6.5, rotation=90,
                )  # fmt: skip
    if not ax.patches:
        _no_run(ax)
