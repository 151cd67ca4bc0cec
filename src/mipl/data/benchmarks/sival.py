"""``sival-mipl``: bags of image regions from SIVAL's C4.5 files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import rebuilt
from mipl.data.candidates import add_false_positives
from mipl.data.formats.c45 import read_c45
from mipl.errors import DataError, StorageError


def sival_mipl(raw: Path, r: int = 1, seed: int = 0) -> Bags:
    """Build SIVAL-MIPL: one bag of 30-d regions per image, with the labels of the regions.

    Args:
        raw: folder of one C4.5 file ``<class>.data`` per class. A row has two names (of the image and of
            the region), the features, and 1 for a region of the class's object or else 0.
        r: false positives per candidate set.
        seed: seed of the candidate sets.

    Raises:
        StorageError: a file is missing or damaged.
        DataError: an image is positive in two files.
    """
    files = sorted(raw.glob("*.data"))
    if len(files) < 2:
        raise StorageError(f"{raw} has {len(files)} files <class>.data: SIVAL has one per class, 25 in all.")
    arrays, instance_labels, labels, ids = [], [], [], []
    file_of: dict[str, str] = {}
    for label, path in enumerate(files):
        for image, (regions, positive) in read_c45(path).items():
            if not positive.any():
                continue  # a negative image of this class is a positive one of another
            if image in file_of:
                raise DataError(f"The image '{image}' is positive in {file_of[image]} and in {path.name}.")
            file_of[image] = path.name
            ids.append(image)
            arrays.append(regions)
            labels.append(label)
            instance_labels.append(np.where(positive, label, -1))
    truth = np.array(labels, dtype=np.int64)
    classes = [path.stem for path in files]
    return Bags.from_list(
        arrays,
        add_false_positives(truth, len(classes), r, "sival-mipl", seed),
        truth,
        classes,
        ids=ids,
        instance_labels=instance_labels,
        provenance=rebuilt("sival-mipl", r=r, seed=seed, classes=classes),
    )
