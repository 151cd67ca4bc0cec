"""The attention of one bag over its slide, drawn from plain arrays in the style of the other figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from mipl.errors import DataError
from mipl.reports.figures import GRID, INK, MUTED, Floats

# From nearly white to nearly black, so that it reads in grey too; 48 steps stay vectors in a colour bar.
HEAT = LinearSegmentedColormap.from_list("heat", ["#fdf3e7", "#fdbb84", "#d7301f", "#5b0000"], N=48)
VECTORS = 2000  # cells up to which a figure draws them as vectors, with lines between them


class Spacing(NamedTuple):
    """Width and height of a cell of the grid that patches lie on."""

    width: float
    height: float


def grid_spacing(coordinates: npt.ArrayLike) -> Spacing | None:
    """Return the spacing of the grid that places (n, 2) lie on; None: they lie on no grid.

    It is the most common distance from a patch to the next in its row, and in its column: pieces of tissue
    may each have a grid of their own, shifted against the others. Where patches have neighbours in one
    direction only, cells are square.
    """
    places = np.asarray(coordinates, dtype=np.float64)
    across, down = _steps(places[:, 0], places[:, 1]), _steps(places[:, 1], places[:, 0])
    if across is None and down is None:
        return None
    width, height = across or down, down or across
    assert width is not None
    assert height is not None
    return Spacing(width, height)


def _steps(along: Floats, line: Floats) -> float | None:
    """Return the most common step between neighbours on a line, if at least half of the steps are of it."""
    order = np.lexsort((along, line))
    same = np.diff(line[order]) == 0
    steps = np.diff(along[order])[same]
    steps = steps[steps > 0]
    if not len(steps):
        return None
    # to four figures: single precision spoils steps that are no whole numbers
    rounded = steps.round(3 - int(np.floor(np.log10(np.median(steps)))))
    sizes, counts = np.unique(rounded, return_counts=True)
    common = int(counts.argmax())
    if 2 * counts[common] < len(steps) or 2 * len(steps) < len(along):
        return None  # points that happen to share a line have steps of all sizes
    return float(np.median(steps[rounded == sizes[common]]))


def heat_map(attention: npt.ArrayLike, coordinates: npt.ArrayLike, *, marked: int = 10) -> Figure:
    """Return the attention (n,) of patches as cells at their upper left corners, coordinates (n, 2).

    Colour is attention in units of its mean, 1/n; the ``marked`` patches of most attention have a frame with
    their rank. Places that lie on no grid are drawn as dots.
    """
    weights, places = np.asarray(attention, dtype=np.float64), np.asarray(coordinates, dtype=np.float64)
    if weights.ndim != 1 or not weights.size or places.shape != (weights.size, 2):
        raise DataError(f"There are {weights.size} weights and places of shape {places.shape}: give (n, 2).")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and np.isfinite(places).all()):
        raise DataError("Attention is negative, or it or a place is not finite: no heat map can be drawn.")
    times = weights * weights.size  # 1: as much as the mean instance
    order = np.argsort(-weights, kind="stable")
    spacing = grid_spacing(places)
    low, high = places.min(axis=0), places.max(axis=0)
    if spacing is None:
        room = 0.04 * max(float((high - low).max()), 1.0)
        low, high = low - room, high + room
    else:
        high = high + np.array(spacing)
    wide, tall = high - low
    shape = float(np.clip(tall / wide, 0.35, 1.6))
    figure = Figure(figsize=(6.0, 5.0 * shape + 0.95), layout="constrained")
    ax = figure.add_subplot()
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(times.max()), 1.0))  # a root: few patches have most of it
    if spacing is None:
        rising = order[::-1]  # what counts most on top
        x, y = places[rising].T
        ax.scatter(x, y, s=26, c=times[rising], cmap=HEAT, norm=norm, edgecolor=MUTED, lw=0.4)
    else:
        _cells(ax, places, times, spacing, norm)
    ax.set(xlim=(low[0], high[0]), ylim=(high[1], low[1]), aspect="equal", xlabel="x", ylabel="y")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    _ranks(ax, places[order[:marked]], spacing, 5.0 * 72 / max(wide, tall))
    bar = figure.colorbar(ScalarMappable(norm, HEAT), ax=ax, location="bottom", aspect=36, pad=0.03)
    bar.set_label("attention, in multiples of the mean")
    bar.locator = MaxNLocator(6)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    if bar.solids is not None:  # viewers leave white seams between the steps otherwise
        bar.solids.set_edgecolor("face")
    return figure


def _cells(ax: Axes, places: Floats, times: Floats, spacing: Spacing, norm: PowerNorm) -> None:
    """Draw a cell for each patch, as a bitmap where there are too many for vectors."""
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * np.array(spacing)  # (4, 2)
    few = len(places) <= VECTORS
    cells = PolyCollection(
        list(places[:, None] + corners),
        array=times,
        cmap=HEAT,
        norm=norm,
        edgecolor=GRID if few else "face",
        linewidth=0.4 if few else 0.2,
        label="cells",
    )
    cells.set_rasterized(not few)
    ax.add_collection(cells)


def _ranks(ax: Axes, places: Floats, spacing: Spacing | None, points: float) -> None:
    """Frame the cells at ``places`` (m, 2) and write their ranks; ``points`` of print to a unit of length.

    A rank is left out where it would stand on a better one.
    """
    size = np.zeros(2) if spacing is None else np.array(spacing)
    side = float(size.min()) * points
    inside = side >= 11  # room for two digits
    if spacing is not None:
        corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * size
        width = 1.3 if inside else 0.5
        frames = PolyCollection(list(places[:, None] + corners), facecolor="none", edgecolor=INK, lw=width)
        frames.set_label("frames")
        ax.add_collection(frames)
    written: list[Floats] = []
    for rank, place in enumerate(places, start=1):
        if any(float(np.hypot(*(place - other))) * points < 10 for other in written):
            continue
        written.append(place)
        text = ax.annotate(
            str(rank),
            tuple(place + size / 2) if inside else (place[0] + size[0], place[1]),
            xytext=(0, 0) if inside else (1.5, 1.5),
            textcoords="offset points",
            ha="center" if inside else "left",
            va="center" if inside else "bottom",
            fontsize=float(np.clip(0.55 * side, 7.0, 9.0)),
            fontweight="bold",
        )
        text.set_path_effects([withStroke(linewidth=1.8, foreground="white")])
