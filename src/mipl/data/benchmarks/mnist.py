"""``mnist-mipl`` and ``fmnist-mipl``: bags of images from MNIST's and Fashion-MNIST's IDX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import Pools, sample_bags
from mipl.data.formats.idx import read_idx
from mipl.errors import SettingError, StorageError
from mipl.seeding import rng_for

TARGETS = (0, 2, 4, 6, 8)  # our choice: the paper does not name its target classes


def mnist_mipl(raw: Path, r: int = 1, seed: int = 0, targets: Sequence[int] = TARGETS) -> Bags:
    """Build MNIST-MIPL: 100 bags of 35–48 images per target class, 8% positive; no image is used twice.

    Args:
        raw: folder of the IDX files, plain or gzipped.
        r: false positives per candidate set.
        seed: seed of the bags and the candidate sets.
        targets: the classes of the bags; images of the other classes are negatives.

    Raises:
        StorageError: a file is missing, damaged or of another shape.
        SettingError: the targets are not at least two distinct classes from 0 to 9, or are all ten.
    """
    return _image_bags("mnist-mipl", raw, 35, r, seed, targets)


def fmnist_mipl(raw: Path, r: int = 1, seed: int = 0, targets: Sequence[int] = TARGETS) -> Bags:
    """Build FMNIST-MIPL: as :func:`mnist_mipl`, with bags of 36–48 images of Fashion-MNIST."""
    return _image_bags("fmnist-mipl", raw, 36, r, seed, targets)


def _image_bags(name: str, raw: Path, smallest: int, r: int, seed: int, targets: Sequence[int]) -> Bags:
    images = read_idx(raw, "train-images-idx3-ubyte")
    digits = read_idx(raw, "train-labels-idx1-ubyte")
    if images.ndim != 3 or digits.shape != images.shape[:1]:
        raise StorageError(
            f"{raw} has images of shape {images.shape} and labels of shape {digits.shape}: "
            "expected (m, h, w) and (m,)."
        )
    if len(set(targets)) < 2 or not set(targets) < set(range(10)):
        raise SettingError(
            f"targets = {list(targets)}: give at least two distinct classes from 0 to 9, not all ten."
        )
    rng = rng_for(name, seed)
    sizes = rng.integers(smallest, 49, size=100 * len(targets))  # Table 1
    pools = Pools(
        images,
        positive=[rng.permutation(np.flatnonzero(digits == target)) for target in targets],
        negative=rng.permutation(np.flatnonzero(~np.isin(digits, targets))),
        classes=[str(target) for target in targets],
    )
    return sample_bags(name, pools, sizes, np.round(0.08 * sizes).astype(np.int64), r, seed, rng)
