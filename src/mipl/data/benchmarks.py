"""Data sets by name: the embedded default, tiny bags for tests, and the paper's, built from raw files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray, add_false_positives
from mipl.data.formats.idx import read_idx
from mipl.errors import DataError, SettingError, StorageError, suggest
from mipl.seeding import rng_for

Array = NDArray[Any]
EVEN = (0, 2, 4, 6, 8)


def digits_mipl(r: int = 1, seed: int = 0) -> Bags:
    """Return 250 bags of scikit-learn's 8×8 digits: 5 even target digits × 50 bags, 3 positives of 32–43.

    No positive image is used twice, so a training and a test bag never share one; negatives are drawn with
    replacement from the five odd digits.
    """
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8)
    rng = rng_for("digits-mipl", seed)
    sizes = rng.integers(32, 44, size=250)
    return _from_pools(
        "digits-mipl",
        images,
        [rng.permutation(np.flatnonzero(digits == target)) for target in EVEN],
        rng.choice(np.flatnonzero(digits % 2 == 1), size=int(sizes.sum())),
        sizes,
        np.full(250, 3),
        [str(target) for target in EVEN],
        r,
        seed,
        rng,
    )


def gaussian_bags(
    bags: int = 60, k: int = 3, d: int = 5, sizes: tuple[int, int] = (3, 9), r: int = 1, seed: int = 0
) -> Bags:
    """Return tiny bags for tests: a third of a bag's instances near its class's centre, the rest near 0."""
    rng = rng_for("gaussian", bags, k, d, *sizes, seed)
    centres = 4.0 * rng.standard_normal((k, d)) + 4.0 * (np.arange(k)[:, None] - (k - 1) / 2)
    labels = np.arange(bags) % k
    arrays, positives = [], []
    for label in labels:
        n = int(rng.integers(sizes[0], sizes[1] + 1))
        positive = rng.permutation(n) < max(1, n // 3)
        arrays.append((rng.standard_normal((n, d)) + positive[:, None] * centres[label]).astype(np.float32))
        positives.append(np.where(positive, label, -1))
    return Bags.from_list(
        arrays,
        add_false_positives(labels, k, r, "gaussian", seed),
        labels,
        range(k),
        instance_labels=positives,
        provenance={"dataset": "gaussian", "r": r, "seed": seed},
    )


def mnist_mipl(
    raw: Path, r: int = 1, seed: int = 0, targets: Sequence[int] = EVEN, name: str = "mnist-mipl"
) -> Bags:
    """Return 500 bags of 35–48 images in class order, 8% positive, built from IDX files in ``raw``.

    The paper does not say which classes are targets; no image is used twice.
    """
    images = read_idx(raw, "train-images-idx3-ubyte")
    digits = read_idx(raw, "train-labels-idx1-ubyte")
    if images.ndim != 3 or digits.shape != images.shape[:1]:
        raise StorageError(
            f"{raw} holds images of shape {images.shape} and labels of shape {digits.shape}: "
            "they must be (m, h, w) and (m,)."
        )
    if len(set(targets)) < 2 or not set(targets) < set(range(10)):
        raise SettingError(
            f"targets = {list(targets)}: give at least two distinct classes from 0 to 9, not all ten."
        )
    rng = rng_for(name, seed)
    sizes = rng.integers(35, 49, size=100 * len(targets))
    return _from_pools(
        name,
        images,
        [rng.permutation(np.flatnonzero(digits == target)) for target in targets],
        rng.permutation(np.flatnonzero(~np.isin(digits, targets))),
        sizes,
        np.round(0.08 * sizes).astype(np.int64),
        [str(target) for target in targets],
        r,
        seed,
        rng,
    )


def fmnist_mipl(raw: Path, r: int = 1, seed: int = 0, targets: Sequence[int] = EVEN) -> Bags:
    """Return FMNIST-MIPL: as :func:`mnist_mipl`, from Fashion-MNIST's IDX files."""
    return mnist_mipl(raw, r, seed, targets, name="fmnist-mipl")


def birdsong_mipl(raw: Path, r: int = 1, seed: int = 0) -> Bags:
    """Return 1,300 bags of bird-song segments (38-d), 100 a species, 8.3% positive, from the HJA text files.

    548 recordings cannot give 1,300 bags, so bags are synthesised: positives with replacement from the
    species' labelled segments, the rest from the unlabelled ones. Training and test bags share segments.
    """
    features = _table(raw / "hja_birdsong_features.txt", 39)[:, 1:]
    species = _table(raw / "hja_birdsong_instance_labels.txt", 2)[:, 1].astype(np.int64)
    if len(features) != len(species):
        raise StorageError(f"{raw} holds {len(features)} segments but {len(species)} instance labels.")
    known = np.unique(species[species >= 0])
    if len(known) != 13 or not (species == -1).any():
        raise StorageError(f"{raw} has {len(known)} species with labelled segments: HJA Birdsong has 13.")
    rng = rng_for("birdsong-mipl", seed)
    sizes = np.clip(np.round(25 + rng.gamma(12, 12.25 / 12, size=1300)), 25, 76).astype(np.int64)
    positives = np.floor(sizes / 12 + 0.5).astype(np.int64)  # 6.9–10%, the ends of the paper's Table 1
    return _from_pools(
        "birdsong-mipl",
        features.astype(np.float32),
        [
            rng.choice(np.flatnonzero(species == s), size=int(positives[100 * i : 100 * i + 100].sum()))
            for i, s in enumerate(known)
        ],
        rng.choice(np.flatnonzero(species == -1), size=int(sizes.sum())),
        sizes,
        positives,
        _species(raw, known),
        r,
        seed,
        rng,
    )


BUILDERS: dict[str, Callable[..., Bags]] = {
    "digits-mipl": digits_mipl,
    "mnist-mipl": mnist_mipl,
    "fmnist-mipl": fmnist_mipl,
    "birdsong-mipl": birdsong_mipl,
}


def build(name: str, r: int = 1, seed: int = 0, raw: Path | None = None) -> Bags:
    """Return the named data set; all but ``digits-mipl`` need the folder of their raw files."""
    if name not in BUILDERS:
        raise SettingError(f"There is no data set '{name}'.{suggest(name, BUILDERS)}")
    if "raw" not in inspect.signature(BUILDERS[name]).parameters:
        return BUILDERS[name](r=r, seed=seed)
    if raw is None:
        raise SettingError(f"{name} is built from raw files: say where they are with --raw DIR.")
    return BUILDERS[name](raw=Path(raw), r=r, seed=seed)


def _from_pools(
    name: str,
    source: Array,
    positive_pools: list[IntArray],
    negative_pool: IntArray,
    sizes: IntArray,
    positives: IntArray,
    classes: list[str],
    r: int,
    seed: int,
    rng: np.random.Generator,
) -> Bags:
    """Deal bags in class order: bag i takes the next of its class's pool and of the negatives, shuffled."""
    labels = np.repeat(np.arange(len(classes)), len(sizes) // len(classes))
    taken, negatives_taken = [0] * len(classes), 0
    rows, instance_labels = [], []
    for label, size, p in zip(labels, sizes, positives, strict=True):
        positive = positive_pools[label][taken[label] : taken[label] + p]
        negative = negative_pool[negatives_taken : negatives_taken + size - p]
        if len(positive) < p or len(negative) < size - p:
            raise DataError(f"{name}: the raw data have too few instances for class '{classes[label]}'.")
        taken[label] += int(p)
        negatives_taken += int(size - p)
        order = rng.permutation(int(size))
        rows.append(np.concatenate([positive, negative])[order])
        instance_labels.append(np.where(order < p, label, -1))
    return Bags.from_list(
        [source[row] for row in rows],
        add_false_positives(labels, len(classes), r, name, seed),
        labels,
        classes,
        ids=[f"{name}-{i:04d}" for i in range(len(sizes))],
        instance_labels=instance_labels,
        provenance={
            "dataset": name,
            "r": r,
            "seed": seed,
            "classes": classes,
            "origin": "rebuilt from raw data",
        },
    )


def _table(path: Path, columns: int) -> Array:
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as the HJA Birdsong text file: {error}.") from error
    if table.shape[1] != columns or not np.isfinite(table).all():
        raise StorageError(
            f"{path} is not the HJA Birdsong text file: it needs {columns} numbers in each row."
        )
    return table


def _species(raw: Path, known: IntArray) -> list[str]:
    """Return the species' codes, or their numbers where the names file does not list them."""
    path = raw / "hja_birdsong_class_names.txt"
    names = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            number, _, text = line.partition("\t")
            if number.strip().isdecimal() and text:
                names[int(number)] = text.split(" - ")[0].strip()
    return [names.get(int(s), f"species {s}") for s in known]
