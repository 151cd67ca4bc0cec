"""``birdsong-mipl``: bags of bird-song segments from the HJA Birdsong text files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import Pools, sample_bags
from mipl.data.candidates import IntArray
from mipl.errors import StorageError
from mipl.seeding import rng_for

CLASSES, BAGS_PER_CLASS = 13, 100
BAGS = CLASSES * BAGS_PER_CLASS


def birdsong_mipl(raw: Path, r: int = 1, seed: int = 0) -> Bags:
    """Build Birdsong-MIPL: 1,300 bags of segments (38-d), 100 per species, 8.3% positive.

    548 recordings cannot give 1,300 bags, so bags are synthesised: positives are drawn with replacement
    from the species' labelled segments, negatives from the unlabelled ones. Training and test bags share
    segments.

    Args:
        raw: folder of the HJA Birdsong text files.
        r: false positives per candidate set.
        seed: seed of the bags and the candidate sets.

    Raises:
        StorageError: a file is missing, damaged or not of this data set.
    """
    features = _read_table(raw / "hja_birdsong_features.txt", 39)[:, 1:]
    species = _read_table(raw / "hja_birdsong_instance_labels.txt", 2)[:, 1].astype(np.int64)
    if len(features) != len(species):
        raise StorageError(f"{raw} has {len(features)} segments but {len(species)} instance labels.")
    known = np.unique(species[species >= 0])
    if len(known) != CLASSES or not (species == -1).any():
        raise StorageError(
            f"{raw} has {len(known)} species with labelled segments: HJA Birdsong has {CLASSES}."
        )
    rng = rng_for("birdsong-mipl", seed)
    # A skewed distribution: of 1,300 draws with mean 37.25 the minimum is about 25, the maximum about 76.
    sizes = np.clip(np.round(25 + rng.gamma(2.5, 12.25 / 2.5, size=BAGS)), 25, 76).astype(np.int64)
    positives = np.floor(sizes / 12 + 0.5).astype(np.int64)  # 6.9–10%, the range in the paper's Table 1
    per_species = positives.reshape(CLASSES, BAGS_PER_CLASS).sum(axis=1)
    pools = Pools(
        features.astype(np.float32),
        positive=[
            rng.choice(np.flatnonzero(species == s), size=int(size))
            for s, size in zip(known, per_species, strict=True)
        ],
        negative=rng.choice(np.flatnonzero(species == -1), size=int(sizes.sum())),
        classes=_species_names(raw, known),
    )
    return sample_bags("birdsong-mipl", pools, sizes, positives, r, seed, rng)


def _read_table(path: Path, columns: int) -> NDArray[Any]:
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as the HJA Birdsong text file: {error}.") from error
    if table.shape[1] != columns or not np.isfinite(table).all():
        raise StorageError(
            f"{path} is not the HJA Birdsong text file: expected {columns} numbers in each row."
        )
    return table


def _species_names(raw: Path, known: IntArray) -> list[str]:
    """Return the species' codes, or their numbers where the file of names does not list them."""
    path = raw / "hja_birdsong_class_names.txt"
    names = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            number, _, text = line.partition("\t")
            if number.strip().isdecimal() and text:
                names[int(number)] = text.split(" - ")[0].strip()
    return [names.get(int(s), f"species {s}") for s in known]
