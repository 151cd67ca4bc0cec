"""Bag generators without a network: from an image, uint8 RGB (h, w, 3), to its instances."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.errors import DataError, SettingError

Image = NDArray[np.uint8]  # (h, w, 3), RGB
Array = NDArray[Any]

SIDE = 8  # Row and SBN reduce the image to 8×8
BLOB = 4  # KMeansSeg's blobs are 4×4 pixels
SEGMENTS = (3, 6)
DROP = 0.15  # fraction by which a further segment must lower the error of k-means
GRID = 5  # SIFT computes one descriptor per cell of a 5×5 grid
YCBCR = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


@dataclasses.dataclass(frozen=True, eq=False)
class Instances:
    """The instances of one image."""

    features: NDArray[np.float32]  # (n, d)
    coordinates: NDArray[np.float32]  # (n, 2): x and y of the upper left corner, in pixels
    extent: tuple[float, float] | None = None  # width and height of an instance, if all have the same


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """A function from images to bags, with the settings that reproduce it."""

    name: str
    make: Callable[[Sequence[Image]], list[Instances]]
    min_side: int  # of an image, in pixels
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as JSON
    images_at_once: int = 1


def row(image: Image) -> Instances:
    """Return the 8 rows of the image reduced to 8×8: mean RGB and its difference to both neighbours (8, 9).

    RGB is from 0 to 1. The missing neighbour of an outer row is the row itself.
    """
    check_image(image, SIDE, "row")
    means = _reduced(image).mean(axis=1)  # (8, 3)
    around = np.pad(means, ((1, 1), (0, 0)), mode="edge")
    tops = np.arange(SIDE) * image.shape[0] / SIDE
    return _instances(
        np.hstack([means, means - around[:-2], means - around[2:]]),
        np.stack([np.zeros(SIDE), tops], axis=1),
        (image.shape[1], image.shape[0] / SIDE),
    )


def sbn(image: Image) -> Instances:
    """Return the 2×2 blobs of the image reduced to 8×8 that have four neighbours (9, 15).

    The features are the mean RGB of the blob, from 0 to 1, and its difference to the blobs above, below, left
    and right of it. At 3×3 positions all four neighbours are within the image.
    """
    check_image(image, SIDE, "sbn")
    small = _reduced(image)
    blobs = (small[:-1, :-1] + small[:-1, 1:] + small[1:, :-1] + small[1:, 1:]) / 4  # (7, 7, 3), by corner
    near, own, far = slice(0, 3), slice(2, 5), slice(4, 7)
    centre = blobs[own, own]
    neighbours = (blobs[near, own], blobs[far, own], blobs[own, near], blobs[own, far])
    features = np.concatenate([centre, *(centre - other for other in neighbours)], axis=-1)  # (3, 3, 15)
    y, x = np.mgrid[own, own] + 0.5  # blobs overlap: the position is the pixel in the middle of a blob
    height, width = image.shape[:2]
    return _instances(
        features.reshape(9, 15),
        np.stack([x.ravel() * width / SIDE, y.ravel() * height / SIDE], axis=1),
        (width / SIDE, height / SIDE),
    )


def kmeans_seg(image: Image) -> Instances:
    """Return the segments that k-means finds among 4×4 blobs, each the mean of its blobs (3–6, 6).

    The features of a blob are its mean Y, Cb and Cr and the energy of Y in three wavelet bands. k grows from
    3 to 6 while each step lowers the error by ``DROP``; an image of one or two distinct blobs has as many
    segments. Segments are in the order of their first blob. The coordinates of a segment are the mean of its
    blobs' centres.
    """
    from sklearn.cluster import KMeans

    check_image(image, 2 * BLOB, "kmeans")
    features, centres = _blobs(image)
    features = features.round(6)  # so that blobs which differ only by rounding are equal
    most = min(SEGMENTS[1], len(np.unique(features, axis=0)))

    def fit(k: int) -> Any:
        return KMeans(k, n_init=3, random_state=0).fit(features)

    found = fit(min(SEGMENTS[0], most))
    while found.n_clusters < most:
        more = fit(found.n_clusters + 1)
        if more.inertia_ > (1 - DROP) * found.inertia_:
            break
        found = more
    names, first = np.unique(found.labels_, return_index=True)
    members = [found.labels_ == name for name in names[first.argsort()]]
    return _instances(
        np.array([features[member].mean(axis=0) for member in members]),
        np.array([centres[member].mean(axis=0) for member in members]),
    )


def sift(image: Image) -> Instances:
    """Return one upright SIFT descriptor per cell of a 5×5 grid, with values from 0 to 255 (25, 128)."""
    check_image(image, BLOB * GRID, "sift")
    cv2 = require("cv2")
    height, width = image.shape[:2]
    rows, columns = np.mgrid[:GRID, :GRID] + 0.5
    centres = np.stack([columns.ravel() * width / GRID, rows.ravel() * height / GRID], axis=1)
    # OpenCV's 4×4 histograms span six times a keypoint's size: a cell. Its default angle is −1 degree, not 0.
    size = min(height, width) / GRID / 6
    keypoints = [
        cv2.KeyPoint(x=float(x) - 0.5, y=float(y) - 0.5, size=size, angle=0, class_id=i)
        for i, (x, y) in enumerate(centres)
    ]
    kept, descriptors = cv2.SIFT_create().compute(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), keypoints)
    features = np.zeros((GRID * GRID, 128))
    for keypoint, descriptor in zip(kept, () if descriptors is None else descriptors, strict=True):
        features[keypoint.class_id] = descriptor  # OpenCV may drop or sort keypoints
    extent = (width / GRID, height / GRID)
    return _instances(features, centres - np.array(extent) / 2, extent)


def check_image(image: Image, side: int, name: str) -> None:
    """Raise an error if ``image`` is not uint8 (h, w, 3) of at least ``side`` × ``side`` pixels."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise DataError(f"An image is {image.dtype} of shape {image.shape}: give uint8, (h, w, 3).")
    height, width = image.shape[:2]
    if min(height, width) < side:
        raise DataError(f"The image has {width}×{height} pixels; {name} needs at least {side}×{side}.")


def require(module: str) -> Any:
    """Import an optional module; the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"Images need the module {module} ({error}): install it with pip install 'mipl[images]'."
        ) from error


def _instances(features: Array, coordinates: Array, extent: tuple[float, float] | None = None) -> Instances:
    return Instances(features.astype(np.float32), coordinates.astype(np.float32), extent)


def _reduced(image: Image) -> Array:
    """Return the image as 8×8 means over equal areas, from 0 to 1 (8, 8, 3)."""
    height, width = image.shape[:2]
    rows = _overlaps(height) @ image.reshape(height, -1).astype(np.float32)  # (8, 3w)
    small: Array = _overlaps(width) @ rows.reshape(SIDE, width, 3)  # (8, w) @ (8, w, 3)
    return small / 255


def _overlaps(pixels: int) -> Array:
    """Return the fraction of each of 8 equal cells that each pixel covers (8, pixels)."""
    edges = np.arange(SIDE + 1) * pixels / SIDE
    left = np.arange(pixels)
    overlap = np.minimum(edges[1:, None], left + 1) - np.maximum(edges[:-1, None], left)
    return (overlap.clip(min=0) * SIDE / pixels).astype(np.float32)


def _blobs(image: Image) -> tuple[Array, Array]:
    """Return Y, Cb, Cr and three energies of each 4×4 blob (b, 6), and its centre (b, 2).

    Up to three pixels at the right and bottom edges belong to no blob. An energy is the root mean square of
    one Haar band, which has the unit of Y, so that k-means weights it like a colour.
    """
    rows, columns = image.shape[0] // BLOB, image.shape[1] // BLOB
    used = image[: rows * BLOB, : columns * BLOB] / 255.0
    colours = (used @ YCBCR.T).reshape(rows, BLOB, columns, BLOB, 3)
    means = colours.mean(axis=(1, 3)).reshape(-1, 3)
    pairs = colours[..., 0].reshape(rows, 2, 2, columns, 2, 2)  # blob, half and pixel of y, then of x
    a, b, c, d = (pairs[:, :, y, :, :, x] for y in (0, 1) for x in (0, 1))
    bands = [(a + b - c - d) / 2, (a - b + c - d) / 2, (a - b - c + d) / 2]
    energies = [np.sqrt((band**2).mean(axis=(1, 3))).ravel() for band in bands]
    y, x = np.mgrid[:rows, :columns] * BLOB + BLOB / 2
    return np.column_stack([means, *energies]), np.stack([x.ravel(), y.ravel()], axis=1)
