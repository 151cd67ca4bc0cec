"""Where the patches of a bag lie: the spacing of their grid, and their place in an image of the slide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mipl.data.bag import Bag
from mipl.errors import DataError

Floats = npt.NDArray[np.float64]
SAME_SHAPE = 0.03  # by which the ratio of width and height of a thumbnail may differ from that of the slide


class Spacing(NamedTuple):
    """Width and height of a cell of the grid of patches."""

    width: float
    height: float


def grid_spacing(coordinates: npt.ArrayLike) -> Spacing | None:
    """Return the spacing of the grid of coordinates (n, 2), or None if they are not on a grid.

    It is the most common distance between neighbours in a row and in a column, because pieces of tissue may
    have separate grids. If patches have neighbours in one direction only, cells are square.
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
    """Return the most common distance between neighbours on a line, if at least half of them have it."""
    order = np.lexsort((along, line))
    same = np.diff(line[order]) == 0
    steps = np.diff(along[order])[same]
    steps = steps[steps > 0]
    if not len(steps):
        return None
    # to four digits, because of rounding errors in single precision
    rounded = steps.round(3 - int(np.floor(np.log10(np.median(steps)))))
    sizes, counts = np.unique(rounded, return_counts=True)
    common = int(counts.argmax())
    if 2 * counts[common] < len(steps) or 2 * len(steps) < len(along):
        return None  # points that are on a line by chance have steps of all sizes
    return float(np.median(steps[rounded == sizes[common]]))


class Placement(NamedTuple):
    """An image in the unit of a bag's coordinates."""

    width: float
    height: float
    patch: Spacing | None  # None: unknown, and the coordinates are not on a grid


def placement(bag: Bag, width: int, height: int) -> Placement:
    """Return how an image of ``width`` × ``height`` pixels lies under the patches of a bag.

    The size of the slide comes from the feature file. If it is not recorded there, the coordinates are pixels
    of the image.

    Args:
        bag: a bag with coordinates (n, 2), the upper left corners of its patches.
        width: of the image, a tile or a thumbnail of the slide.
        height: of the image.

    Raises:
        DataError: the image cannot be brought into register with the patches.
    """
    if bag.coordinates is None or bag.coordinates.shape[1] != 2:
        raise DataError(f"The bag '{bag.id}' has no coordinates of its patches: no map can be drawn.")
    known = np.full(4, np.nan) if bag.geometry is None else np.asarray(bag.geometry, dtype=np.float64)
    places = np.asarray(bag.coordinates, dtype=np.float64)
    patch = Spacing(*known[:2].tolist()) if np.isfinite(known[:2]).all() else grid_spacing(places)
    slide = known[2:] if np.isfinite(known[2:]).all() else None
    if slide is not None and abs(np.log((width / height) / (slide[0] / slide[1]))) > SAME_SHAPE:
        raise DataError(
            f"The image of '{bag.id}' has {width}×{height} pixels, but its slide is "
            f"{slide[0]:g}×{slide[1]:g}: give the image that the features were made from, uncropped."
        )
    size = np.array([width, height], dtype=np.float64) if slide is None else slide
    ends = places + (0 if patch is None else np.array(patch) / 2)  # CLAM's patches may protrude by less
    if (places < -0.5).any() or (ends > size + 0.5).any():
        advice = (
            "give the image at full size, or features that record the size of the slide"
            if slide is None
            else "give the image that the features were made from"
        )
        raise DataError(
            f"The patches of '{bag.id}' reach beyond its image of {size[0]:g}×{size[1]:g}: {advice}."
        )
    return Placement(float(size[0]), float(size[1]), patch)
