"""Data sets by name: embedded digits, tiny bags for tests, and those built from raw files."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.candidates import IntArray, add_confusable, add_false_positives
from mipl.data.formats.c45 import read_c45
from mipl.data.formats.idx import read_idx
from mipl.data.formats.mat import read_mat
from mipl.data.labelme import labelme
from mipl.data.sival6 import sival6_mipl
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


def digits_vectors(r: int = 1, seed: int = 0) -> Bags:
    """Return the bags of :func:`digits_mipl` with each image as a vector of 64 pixels: quick to train on."""
    bags = digits_mipl(r, seed)
    provenance = {**bags.provenance, "dataset": "digits-mipl-vectors"}
    return dataclasses.replace(bags, source=np.asarray(bags.source).reshape(-1, 64), provenance=provenance)


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
    """Return 500 bags of 35–48 images (FMNIST 36–48) in class order, 8% positive, from IDX files in ``raw``.

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
    sizes = rng.integers(36 if name == "fmnist-mipl" else 35, 49, size=100 * len(targets))  # Table 1
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
    # A skewed law: of 1,300 draws with mean 37.25 the least is about 25 and the greatest about 76 (Table 1).
    sizes = np.clip(np.round(25 + rng.gamma(2.5, 12.25 / 2.5, size=1300)), 25, 76).astype(np.int64)
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


def sival_mipl(raw: Path, r: int = 1, seed: int = 0) -> Bags:
    """Return SIVAL-MIPL: the positive images of every ``<class>.data`` file (C4.5) in ``raw``, 30-d regions.

    A row is two names (the image's, which repeats, and the region's), the features, and 1 for a region of
    the class's object or 0, perhaps followed by a full stop.
    """
    files = sorted(raw.glob("*.data"))
    if len(files) < 2:
        raise StorageError(
            f"{raw} has {len(files)} files <class>.data: SIVAL has one for each of 25 classes."
        )
    arrays, positives, labels, ids = [], [], [], []
    seen: dict[str, str] = {}
    for label, path in enumerate(files):
        for image, (regions, positive) in read_c45(path).items():
            if not positive.any():
                continue  # a negative of this class is a positive of another
            if image in seen:
                raise DataError(f"The image '{image}' is positive in {seen[image]} and in {path.name}.")
            seen[image] = path.name
            ids.append(image)
            arrays.append(regions)
            labels.append(label)
            positives.append(np.where(positive, label, -1))
    truth = np.array(labels, dtype=np.int64)
    classes = [path.stem for path in files]
    return Bags.from_list(
        arrays,
        add_false_positives(truth, len(classes), r, "sival-mipl", seed),
        truth,
        classes,
        ids=ids,
        instance_labels=positives,
        provenance=_provenance("sival-mipl", r=r, seed=seed, classes=classes),
    )


# How often annotators would take one tissue for another; a stand-in for the crowd's sets, 2.1 labels a tile.
CRC5 = {
    "H": {"AC": 0.10, "S": 0.50, "T": 0.35, "V": 0.15},  # healthy
    "AC": {"H": 0.10, "S": 0.15, "T": 0.40, "V": 0.45},  # adenocarcinoma
    "S": {"H": 0.45, "AC": 0.10, "T": 0.35, "V": 0.20},  # serrated
    "T": {"H": 0.15, "AC": 0.20, "S": 0.25, "V": 0.50},  # tubular
    "V": {"H": 0.10, "AC": 0.30, "S": 0.15, "T": 0.55},  # villous
}


def crc_mipl(raw: Path, seed: int = 0, *, name: str, generator: str, report: Any = None) -> Bags:
    """Return bags of tissue images, one folder a class in ``raw``, by an image generator.

    The candidate sets are drawn: for ``crc5-…`` by the table above, for ``c-…`` each of the other six
    classes with the same chance, 2.08 labels on average as the crowd gave. The crowd's own sets can only
    come from the authors' files.
    """
    from mipl.data.images import image_bags

    found = list(image_bags(raw, generator, report=report))
    classes = sorted({image.label for image in found if image.label is not None})
    expected = sorted(CRC5) if name.startswith("crc5-") else None
    if any(image.label is None for image in found) or (
        classes != expected if expected else len(classes) != 7
    ):
        wanted = f"the folders {', '.join(CRC5)}" if expected else "seven folders, one for each class"
        raise DataError(f"{name} is built from {wanted} of images: {raw} has {', '.join(classes) or 'none'}.")
    k = len(classes)
    confusion = np.array(
        [[CRC5[y].get(j, 0.0) if expected else 1.08 / (k - 1) for j in classes] for y in classes]
    )
    labels = np.array([classes.index(str(image.label)) for image in found], dtype=np.int64)
    return Bags.from_list(
        [image.instances.features for image in found],
        add_confusable(labels, confusion, name.partition("-")[0], seed),  # the same sets for every generator
        labels,
        classes,
        ids=[image.id for image in found],
        coordinates=[image.instances.coordinates for image in found],
        provenance=_provenance(
            name, seed=seed, classes=classes, generator=generator, candidates="drawn from a confusion table"
        ),
    )


BUILDERS: dict[str, Callable[..., Bags]] = {
    "digits-mipl": digits_mipl,
    "mnist-mipl": mnist_mipl,
    "fmnist-mipl": fmnist_mipl,
    "birdsong-mipl": birdsong_mipl,
    "sival-mipl": sival_mipl,
    "digits-mipl-vectors": digits_vectors,
    "sival6-mipl": sival6_mipl,
    "labelme": labelme,
}
for _set, _encoder in (("c", "r34"), ("crc5", "lite0")):
    for _generator in ("row", "sbn", "kmeans", "sift", *(f"{_encoder}-{n}" for n in (9, 16, 25))):
        BUILDERS[f"{_set}-{_generator}"] = functools.partial(
            crc_mipl, name=f"{_set}-{_generator}", generator=_generator
        )


def takes_r(name: str) -> bool:
    """Tell whether a data set is built with r false positives, or has candidate sets of its own."""
    return "r" in inspect.signature(BUILDERS[name]).parameters


def raw_files(name: str) -> str:
    """Return what the folder of raw files of a data set holds."""
    if name.startswith("c-"):
        return "images in seven folders, one per class"
    return f"images in {', '.join(CRC5)}" if name.startswith("crc5-") else RAW.get(name, "")


RAW = {
    "digits-mipl": "not needed",
    "digits-mipl-vectors": "not needed",
    "mnist-mipl": "MNIST's IDX files, plain or gzipped",
    "fmnist-mipl": "Fashion-MNIST's IDX files, plain or gzipped",
    "birdsong-mipl": "HJA Birdsong's text files",
    "sival-mipl": "SIVAL as <class>.data files (C4.5)",
    "sival6-mipl": "six classes of SIVAL in sival6.npz",
    "labelme": "LabelMe's crowd labels: votes.csv, labels.csv, features.npz",
}


def build(
    name: str, r: int | None = None, seed: int | None = None, raw: str | Path | None = None, **settings: Any
) -> Bags:
    """Return the named data set; all but ``digits-mipl…`` need the folder of their raw files.

    Where ``raw`` holds the authors' own ``.mat`` file of the set, that is what is read; it has no seed.
    """
    if name not in BUILDERS:
        raise SettingError(f"There is no data set '{name}'.{suggest(name, BUILDERS)}")
    takes = inspect.signature(BUILDERS[name]).parameters
    if not takes_r(name) and r is not None:
        raise SettingError(f"{name} has its own candidate sets: -r does not apply to it.")
    if "raw" in takes:
        if raw is None:
            raise SettingError(f"{name} is built from raw files: say where they are with --raw DIR.")
        raw = Path(raw)
        if not raw.is_dir():
            raise StorageError(f"{raw} is not a folder: give the folder of the raw files of {name}.")
        authors = raw / authors_file(name, 1 if r is None else r)
        if name in AUTHORS and authors.is_file():
            if seed is not None:
                raise SettingError(f"{authors} is the authors' file, which has no seed: leave it out.")
            return read_authors(name, authors)
        settings["raw"] = raw
    if "seed" not in takes and seed is not None:
        raise SettingError(f"{name} has nothing to draw: leave the seed out.")
    settings |= {"r": 1 if r is None else r, "seed": seed or 0}
    return BUILDERS[name](**{key: value for key, value in settings.items() if key in takes})


# What the authors call the sets: the part before _r1.mat, or the whole name for those with crowd labels.
AUTHORS = {
    "mnist-mipl": "MNIST_MIPL",
    "fmnist-mipl": "FMNIST_MIPL",
    "birdsong-mipl": "Birdsong_MIPL",
    "sival-mipl": "SIVAL_MIPL",
    "c-row": "CRC-MIPL-Row",
    "c-sbn": "CRC-MIPL-SBN",
    "c-kmeans": "CRC-MIPL-KMeansSeg",
    "c-sift": "CRC-MIPL-SIFT",
    "c-r34-9": "C-R34-9",
    "c-r34-16": "C-R34-16",
    "c-r34-25": "C-R34-25",
}


def authors_file(name: str, r: int) -> str:
    """Return the name of the authors' file of a data set."""
    base = AUTHORS.get(name, name)
    return f"{base}.mat" if name.startswith("c") else f"{base}_r{r}.mat"


def read_authors(name: str, path: Path) -> Bags:
    """Return the bags of an authors' file, images as images."""
    bags = read_mat(path, shape=(28, 28) if name in ("mnist-mipl", "fmnist-mipl") else None)
    provenance = {**bags.provenance, "dataset": name, "origin": "the authors' file"}
    return dataclasses.replace(bags, provenance=provenance)


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
        provenance=_provenance(name, r=r, seed=seed, classes=classes),
    )


def _provenance(name: str, **details: Any) -> dict[str, Any]:
    return {"dataset": name, **details, "origin": "rebuilt from raw data"}


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
