"""A heat map of the attention of one bag over its slide, drawn from plain arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from mipl.data.geometry import Spacing, grid_spacing
from mipl.errors import DataError
from mipl.reports.figures import GRID, INK, MUTED, Floats, plain_colorbar

# Monotonic in lightness, for gray-scale prints; matplotlib rasterises a colour bar with 50 steps or more.
HEAT = LinearSegmentedColormap.from_list("heat", ["#fdf3e7", "#fdbb84", "#d7301f", "#5b0000"], N=48)
SIGNED = LinearSegmentedColormap.from_list(
    "signed", ["#00609a", "#8fc3e3", "#f7f7f7", "#f0a868", "#d55e00"], N=49
)
VECTORS = 2000  # maximum number of cells that are drawn as vectors, with lines between them


def heat_map(attention: npt.ArrayLike, coordinates: npt.ArrayLike, *, marked: int = 10) -> Figure:
    """Return a heat map of attention, in units of its mean 1/n.

    Patches that are not on a grid are drawn as dots.

    Args:
        attention: (n,), not negative.
        coordinates: upper left corners of the patches (n, 2).
        marked: the number of patches with the highest attention that are framed and numbered by rank.

    Raises:
        DataError: if the arrays differ in length, or a value is negative or not finite.
    """
    weights, places = _checked(attention, coordinates)
    times = weights * weights.size  # 1: the mean
    order = np.argsort(-weights, kind="stable")
    spacing = grid_spacing(places)
    low, high = _limits(places, spacing)
    wide, tall = high - low
    shape = float(np.clip(tall / wide, 0.35, 1.6))
    figure = Figure(figsize=(6.0, 5.0 * shape + 0.95), layout="constrained")
    ax = figure.add_subplot()
    # a root, because few patches have most of the attention
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(times.max()), 1.0))
    if spacing is None:
        rising = order[::-1]  # the highest on top
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
    plain_colorbar(bar)
    return figure


def _checked(attention: npt.ArrayLike, coordinates: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return attention (n,) and coordinates (n, 2), or raise an error if they cannot be drawn."""
    weights, places = np.asarray(attention, dtype=np.float64), np.asarray(coordinates, dtype=np.float64)
    if weights.ndim != 1 or not weights.size or places.shape != (weights.size, 2):
        raise DataError(
            f"There are {weights.size} weights and coordinates of shape {places.shape}: give (n, 2)."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and np.isfinite(places).all()):
        raise DataError(
            "Attention is negative, or attention or a coordinate is not finite: no heat map can be drawn."
        )
    return weights, places


def _limits(places: Floats, spacing: Spacing | None) -> tuple[Floats, Floats]:
    """Return the lower and the upper limits of the axes (2,)."""
    low, high = places.min(axis=0), places.max(axis=0)
    if spacing is not None:
        return low, high + np.array(spacing)
    margin = 0.04 * max(float((high - low).max()), 1.0)
    return low - margin, high + margin


def tissue_map(
    image: npt.NDArray[np.uint8],
    extent: tuple[float, float],
    attention: npt.ArrayLike,
    coordinates: npt.ArrayLike,
    evidence: Mapping[str, npt.ArrayLike],
    spacing: Spacing | None,
    *,
    marked: int = 10,
) -> Figure:
    """Return an image beside itself with the attention, and with the evidence for some classes, over it.

    Args:
        image: the tile or a thumbnail of the slide, RGB (h, w, 3).
        extent: width and height of the image in the unit of the coordinates.
        attention: (n,), not negative; drawn in multiples of its mean 1/n.
        coordinates: upper left corners of the patches (n, 2).
        evidence: by class, the evidence of each patch for it (n,); above 0: for, below 0: against.
        spacing: width and height of a patch; None: patches are drawn as dots.
        marked: the number of patches with the highest attention that are framed and numbered by rank.

    Raises:
        DataError: if the arrays differ in length, or a value cannot be drawn.
    """
    weights, places = _checked(attention, coordinates)
    times = weights * weights.size
    signed = {name: np.asarray(values, dtype=np.float64) for name, values in evidence.items()}
    if any(values.shape != weights.shape or not np.isfinite(values).all() for values in signed.values()):
        raise DataError("The evidence is not one finite number per instance: no map can be drawn.")
    wide, high = extent
    panels = 2 + len(signed)
    columns = 2 if panels % 2 == 0 else panels
    side = 3.9
    shape = float(np.clip(high / wide, 0.3, 1.8))
    figure = Figure(figsize=(columns * side, panels // columns * side * shape + 1.5), layout="constrained")
    axes = figure.subplots(panels // columns, columns, squeeze=False).ravel()
    most = max(float(times.max()), 1.0)
    furthest = max([float(np.abs(values).max()) for values in signed.values()] + [1e-9])
    attention_norm, evidence_norm = PowerNorm(0.5, vmin=0, vmax=most), Normalize(-furthest, furthest)
    layers: list[tuple[str, Floats | None, Colormap, Normalize]] = [
        ("image", None, HEAT, attention_norm),
        ("attention", times, HEAT, attention_norm),
        *((f"evidence for {name}", values, SIGNED, evidence_norm) for name, values in signed.items()),
    ]
    for ax, (title, values, colours, norm) in zip(axes, layers, strict=True):
        ax.imshow(image, extent=(0, wide, high, 0), interpolation="antialiased")
        if values is not None:
            _over(ax, places, values, spacing, norm, colours)
        ax.set(xlim=(0, wide), ylim=(high, 0), aspect="equal", xticks=[], yticks=[])
        ax.set_title(title, fontsize=9, loc="left", parse_math=False)
    order = np.argsort(-weights, kind="stable")
    _ranks(axes[1], places[order[:marked]], spacing, 72 * side * 0.9 / max(wide, high / shape))
    bars: list[tuple[Normalize, Colormap, str]] = [
        (attention_norm, HEAT, "attention, in multiples of the mean")
    ]
    if signed:
        bars.append((evidence_norm, SIGNED, "evidence: against (below 0) and for the class, in logits"))
    for norm, colours, label in bars:
        bar = figure.colorbar(
            ScalarMappable(norm, colours), ax=list(axes), location="bottom", aspect=44, pad=0.02, shrink=0.8
        )
        bar.set_label(label, fontsize=8)
        bar.locator = MaxNLocator(6)
        plain_colorbar(bar)
    return figure


def _over(
    ax: Axes, places: Floats, values: Floats, spacing: Spacing | None, norm: Normalize, colours: Colormap
) -> None:
    """Draw values of patches over an image, through which it stays visible."""
    if spacing is None:
        x, y = places.T
        ax.scatter(x, y, s=18, c=values, cmap=colours, norm=norm, edgecolor=MUTED, lw=0.3)
    else:
        _cells(ax, places, values, spacing, norm, colours, opacity=0.55)


def _cells(
    ax: Axes,
    places: Floats,
    times: Floats,
    spacing: Spacing,
    norm: Normalize,
    colours: Colormap = HEAT,
    opacity: float | None = None,
) -> None:
    """Draw one cell per patch, as a bitmap if there are more than ``VECTORS``."""
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * np.array(spacing)  # (4, 2)
    few = len(places) <= VECTORS
    cells = PolyCollection(
        list(places[:, None] + corners),
        array=times,
        cmap=colours,
        norm=norm,
        # edges of translucent cells would overlap
        edgecolor="none" if opacity else GRID if few else "face",
        linewidth=0.0 if opacity else 0.4 if few else 0.2,
        alpha=opacity,
        label="cells",
    )
    cells.set_rasterized(not few)
    ax.add_collection(cells)


def _ranks(ax: Axes, places: Floats, spacing: Spacing | None, points: float) -> None:
    """Frame the cells at ``places`` (m, 2) and write their ranks, unless one would cover a better rank.

    ``points`` is the number of typographic points per unit of length.
    """
    size = np.zeros(2) if spacing is None else np.array(spacing)
    side = float(size.min()) * points
    inside = side >= 11  # two digits fit
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
