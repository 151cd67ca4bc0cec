"""Figures of a report, drawn from plain arrays on given Axes, without pyplot or other global state."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from html import escape
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from mipl.errors import DataError
from mipl.metrics import CoverageCurve, ReliabilityCurve

Floats = npt.NDArray[np.float64]
Options = dict[str, Any]  # of a matplotlib artist

# The palette of Okabe and Ito, for colour-blind readers; each line also has its own style.
INK, MUTED, GRID = "#1c2733", "#5a6775", "#dde2e8"
BLUE, VERMILLION = "#0072b2", "#d55e00"
LINES: tuple[tuple[str, Any], ...] = (
    (VERMILLION, (0, (1.2, 1.2))),
    ("#8a5a83", (0, (5, 2))),
    (BLUE, "solid"),
    ("#009e73", (0, (5, 2, 1, 2))),
    ("#b07d00", (0, (8, 2, 1, 2, 1, 2))),
)
# Fewer than 50 steps: matplotlib rasterises a colour bar with more.
SAMPLES = LinearSegmentedColormap.from_list("samples", ["#dbe9f6", "#6baed6", "#2171b5", "#08306b"], N=48)

RING: Options = {
    "marker": "o",
    "markersize": 8.5,
    "markerfacecolor": "white",
    "markeredgewidth": 2,
    "linestyle": "",
}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.9,
    "image.composite_image": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.2,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "svg.fonttype": "none",  # text stays text: searchable, in the font of the page
    "svg.hashsalt": "mipl",  # otherwise ids differ in every run
}


def style() -> AbstractContextManager[None]:
    """Return a context with matplotlib's defaults and STYLE, independent of the user's settings."""
    return matplotlib.style.context(["default", STYLE])


def reliability_diagram(ax: Axes, curve: ReliabilityCurve, *, most: int | None = None) -> None:
    """Draw the accuracy of each confidence bin, coloured by its count, and its gap to the confidence.

    Bins without samples stay empty; the Axes' containers "accuracy" and "gap" hold the bars of the others.

    Args:
        ax: the Axes.
        curve: accuracy and confidence of the bins.
        most: the count of the darkest colour, to give several diagrams the same scale.
    """
    left, width, count, accuracy, confidence = _filled(curve)
    share = count / count.sum()
    ece = float(share @ np.abs(accuracy - confidence))

    # A square root, so that bins with few samples differ although one bin may have most of them.
    norm = PowerNorm(0.5, vmin=0, vmax=most or int(count.max()))
    shades = SAMPLES(norm(count))
    ax.bar(
        left, accuracy, width, align="edge", color=shades, edgecolor="white", linewidth=0.6, label="accuracy"
    )
    low, high = np.minimum(accuracy, confidence), np.maximum(accuracy, confidence)
    gap: Options = {"facecolor": "none", "edgecolor": VERMILLION, "hatch": "////", "linewidth": 0.8}
    # Half-transparent white, so that the hatching is visible on dark bars.
    ax.bar(left, high - low, width, low, align="edge", color="white", alpha=0.5)
    ax.bar(left, high - low, width, low, align="edge", label="gap", **gap)
    # A cap on every bar shows whether the gap is inside it or on top, also if the bar is pale or of height 0.
    ax.hlines(accuracy, left, left + width, color=INK, linewidth=2, clip_on=False)
    (diagonal,) = ax.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)))

    _confidence_axis(ax)
    _percent_axis(ax.yaxis, step=0.2)
    ax.set(ylim=(0, 1), aspect="equal", ylabel="accuracy in the bin")
    ax.grid(axis="y")
    ax.set_title(f"ACC {float(share @ accuracy):.1%} · ECE {ece:.1%}", loc="left", pad=20)
    cap = Line2D([], [], color=INK, linewidth=2)
    _legend_above(ax, {"accuracy": cap, "gap": Patch(**gap), "ideal": diagonal}, columns=3)
    bar = ax.figure.colorbar(ScalarMappable(norm, SAMPLES), ax=ax, location="bottom", aspect=32, pad=0.03)
    bar.set_label("samples in the bin")
    bar.locator = MaxNLocator(4, integer=True)
    plain_colorbar(bar)


def confidence_histogram(
    ax: Axes, curve: ReliabilityCurve, *, ceiling: float | None = None, most: int | None = None
) -> None:
    """Draw the number of samples in each confidence bin, the correct ones below the wrong ones.

    Lines mark the mean confidence and the accuracy.

    Args:
        ax: the Axes.
        curve: accuracy and confidence of the bins.
        ceiling: an upper limit of the confidence to mark as well.
        most: the count at the top of the axis, to give several histograms the same scale.
    """
    left, width, count, accuracy, confidence = _filled(curve)
    right = np.rint(count * accuracy)
    some = count > right  # a bar of height 0 would still draw a line
    fill: Options = {"facecolor": "#6baed6", "edgecolor": "white", "linewidth": 0.6}
    hatched: Options = {"facecolor": "white", "edgecolor": VERMILLION, "hatch": "xxxx", "linewidth": 0.6}
    ax.bar(left, right, width, align="edge", label="right", **fill)
    ax.bar(
        left[some], (count - right)[some], width[some], right[some], align="edge", label="wrong", **hatched
    )

    share = count / count.sum()
    handles: dict[str, Artist] = {"right": Patch(**fill), "wrong": Patch(**hatched)}
    if ceiling is not None:
        dotted = ax.axvline(ceiling, color=MUTED, linewidth=1.3, linestyle=(0, (1, 1.6)))
        handles[f"sigmoid limit {ceiling:.1%}"] = dotted
    handles["mean confidence"] = ax.axvline(float(share @ confidence), color=INK, linewidth=1.6)
    handles["accuracy"] = ax.axvline(float(share @ accuracy), color=INK, linewidth=1.6, linestyle=(0, (3, 2)))
    _confidence_axis(ax)
    ax.set(ylim=(0, 1.05 * (most or int(count.max()))), ylabel="samples")
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.grid(axis="y")
    _legend_above(ax, handles, columns=2)


def coverage_curve(
    ax: Axes, curves: Mapping[str, CoverageCurve], *, at: float = 0.9, least: float = 0.05
) -> None:
    """Draw accuracy against coverage, one line per curve.

    Args:
        ax: the Axes.
        curves: the curves by name.
        at: a ring marks the coverage at this confidence, if the curve reaches it.
        least: the smallest coverage to draw, because the accuracy of a few samples is noise.
    """
    handles: dict[str, Artist] = {}
    lowest = 1.0
    for number, (name, curve) in enumerate(curves.items()):
        colour, dashes = LINES[number % len(LINES)]
        shown = curve.coverage >= least  # never empty: the last coverage is 1
        x, y = curve.coverage[shown], curve.accuracy[shown]
        # If all confidences are equal the curve is a single point, which needs a marker.
        marker = "s" if len(x) == 1 else None
        (handles[name],) = ax.plot(x, y, color=colour, linestyle=dashes, linewidth=2, marker=marker)
        lowest = min(lowest, float(y.min()))
        if confident := int((curve.threshold >= at).sum()):
            ring = curve.coverage[confident - 1], curve.accuracy[confident - 1]
            ax.plot(*ring, color=colour, zorder=3, clip_on=False, **RING)
            lowest = min(lowest, float(ring[1]))
    handles[f"all with confidence ≥ {at:.0%}"] = Line2D([], [], color=MUTED, **RING)
    _percent_axis(ax.xaxis, step=0.2)
    _percent_axis(ax.yaxis)
    floor = max(0.0, math.floor(20 * lowest - 0.5) / 20)
    ax.set(xlim=(0, 1.02), ylim=(floor, 1 + 0.03 * (1 - floor)))
    ax.set(xlabel="coverage (share reported)", ylabel="accuracy on the share")
    ax.grid()
    _legend_above(ax, handles, columns=1, handlelength=2.8)


class _Strip(NamedTuple):
    """The layout of an attention strip, in units of a cell's width."""

    columns: int
    picture: float  # height of the picture of an instance
    bar: float  # height of the longest bar below it
    text: float = 0.8  # height of the two lines of text below the bar

    @property
    def row(self) -> float:
        """The height of a row of instances."""
        return self.picture + self.bar + self.text


def attention_strip(
    attention: npt.ArrayLike,
    positives: npt.ArrayLike | None = None,
    images: npt.ArrayLike | None = None,
    *,
    columns: int = 10,
    most: int = 40,
    first: int = 1,
) -> Figure:
    """Return a bag's instances in descending order of attention, with the attention as a bar below each.

    Args:
        attention: (n,), not negative.
        positives: (n,), whether an instance is of the true class, which is marked by a frame.
        images: gray values (n, h, w) or colours (n, h, w, 3) in [0, 1]; without them only bars are drawn.
        columns: instances per row.
        most: the number of instances that are drawn; a line of text summarises the others.
        first: the number of the first instance.

    Raises:
        DataError: if the arrays differ in length, or attention is negative or not finite.
    """
    share, positive, pictures = _strip_inputs(attention, positives, images)
    order = np.argsort(-share, kind="stable")
    shown, rest = order[:most], order[most:]
    strip = _Strip(columns, 0.0, 1.3) if pictures is None else _Strip(columns, 1.0, 0.7)
    rows = math.ceil(len(shown) / columns)
    bottom, inch = -rows * strip.row - (0.45 if len(rest) else 0), 4.2 / columns
    figure = Figure(figsize=(4.2, 0.04 - bottom * inch))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, columns), ylim=(bottom, 0.04 / inch))
    ax.set_axis_off()
    scale = (strip.bar - 0.1) / share.max()
    for place, i in enumerate(shown):
        row, column = divmod(place, columns)
        top = -row * strip.row
        framed: Options = {"edgecolor": VERMILLION, "linewidth": 2.2} if positive[i] else {"edgecolor": GRID}
        if pictures is not None:
            _picture(ax, pictures[i], column, top, framed)
        edge = framed if pictures is None else {"linewidth": 0}
        base = top - strip.picture - strip.bar
        bar = (column + 0.2, base), 0.6, share[i] * scale
        ax.add_patch(Rectangle(*bar, facecolor=BLUE, label="share", **edge))
        ax.plot([column + 0.06, column + 0.94], [base, base], color=MUTED, linewidth=0.7)
        ax.text(column + 0.5, base - 0.05, _percent(share[i]), ha="center", va="top", fontsize=9.5)
        ax.text(column + 0.5, base - 0.38, f"#{i + first}", ha="center", va="top", fontsize=8.6, color=MUTED)
        equal = base + scale / share.size  # the height of the bars for uniform attention
        ax.plot([column, column + 1], [equal, equal], color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
    if len(rest):
        marked = f" ({positive[rest].sum()} of the true class)" if positive[rest].any() else ""
        summary = f"not drawn: {len(rest)} more{marked}, together {share[rest].sum():.1%}"
        ax.text(0.06, bottom + 0.08, summary, va="bottom", fontsize=9)
    return figure


def _strip_inputs(
    attention: npt.ArrayLike, positives: npt.ArrayLike | None, images: npt.ArrayLike | None
) -> tuple[Floats, npt.NDArray[np.bool_], Floats | None]:
    """Return normalised attention (n,), positives (n,) and images, or raise an error if lengths differ."""
    share, positive = _normalised(attention), np.zeros(np.shape(attention), dtype=bool)
    if positives is not None:
        positive = np.asarray(positives, dtype=bool)
    pictures = None if images is None else np.asarray(images, dtype=np.float64)
    if positive.shape != share.shape or (pictures is not None and pictures.shape[:1] != share.shape):
        raise DataError(
            f"There are {share.size} attention scores, marks of shape {positive.shape} and "
            f"{'no' if pictures is None else len(pictures)} images; give one of each for every instance."
        )
    return share, positive, pictures


def _picture(ax: Axes, picture: Floats, column: int, top: float, framed: Options) -> None:
    """Draw the picture of an instance with its frame."""
    box = (column + 0.06, column + 0.94, top - 0.92, top - 0.04)
    ax.imshow(picture, extent=box, cmap="gray_r", vmin=0, vmax=1, interpolation="none", aspect="auto")
    ax.add_patch(Rectangle((box[0], box[2]), 0.88, 0.88, facecolor="none", label="frame", **framed))


def plain_colorbar(bar: Colorbar) -> None:
    """Remove outline and minor ticks of a colour bar, and the white seams between its steps."""
    bar.minorticks_off()
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_edgecolor("face")


def svg(figure: Figure, prefix: str, description: str) -> str:
    """Return the figure as an ``<svg>`` element for HTML, with ids that start with ``prefix``."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # a date differs in every run
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip()
    # Ids must be unique on a page. Only tags are changed, not the text between them.
    text = re.sub("<[^>]+>", lambda tag: re.sub(r'( id="|href="#|url\(#)', rf"\1{prefix}-", tag[0]), text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def _filled(curve: ReliabilityCurve) -> list[Floats]:
    """Return left edge, width, count, accuracy and confidence of the bins with samples."""
    columns = (curve.edges[:-1], np.diff(curve.edges), curve.count, curve.accuracy, curve.confidence)
    return [column[curve.count > 0].astype(np.float64) for column in columns]


def _normalised(attention: npt.ArrayLike) -> Floats:
    """Return attention (n,) divided by its sum; uniform if it is zero everywhere."""
    scores = np.asarray(attention, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0 or not (np.isfinite(scores).all() and (scores >= 0).all()):
        raise DataError("Attention is empty, negative or not finite; give one score ≥ 0 for each instance.")
    total = scores.sum()
    return scores / total if total > 0 else np.full(scores.shape, 1 / scores.size)


def _percent(share: float) -> str:
    """Return a fraction as a percentage that fits in a narrow cell."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _percent_axis(axis: Axis, step: float | None = None) -> None:
    axis.set_major_locator(MultipleLocator(step) if step else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def _confidence_axis(ax: Axes) -> None:
    _percent_axis(ax.xaxis, step=0.2)
    ax.set(xlim=(0, 1), xlabel="confidence")


def _legend_above(ax: Axes, handles: Mapping[str, Artist], columns: int, **options: Any) -> None:
    """Put the legend between title and axes, where it covers no data."""
    legend = ax.legend(
        list(handles.values()),
        ["x"] * len(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1.015),
        ncols=columns,
        **options,
    )
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set_parse_math(False)  # names come from the user and may have a $ or a leading underscore
        text.set_text(textwrap.fill(name, 36))
