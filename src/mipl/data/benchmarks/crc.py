"""``c-…`` and ``crc5-…``: bags from images of colorectal tissue, by an image generator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import rebuilt
from mipl.data.candidates import add_confusable
from mipl.errors import DataError

Report = Callable[[int, str], None]  # called with the number of images done and the last one's id

# How often annotators would confuse one tissue with another: a substitute for crowd labels, with 2.1
# candidates per tile on average.
CRC5 = {
    "H": {"AC": 0.10, "S": 0.50, "T": 0.35, "V": 0.15},  # healthy
    "AC": {"H": 0.10, "S": 0.15, "T": 0.40, "V": 0.45},  # adenocarcinoma
    "S": {"H": 0.45, "AC": 0.10, "T": 0.35, "V": 0.20},  # serrated
    "T": {"H": 0.15, "AC": 0.20, "S": 0.25, "V": 0.50},  # tubular
    "V": {"H": 0.10, "AC": 0.30, "S": 0.15, "T": 0.55},  # villous
}
CRC_CLASSES = 7
CRC_FALSE_POSITIVES = 1.08  # per bag on average, as in the crowd's candidate sets


def crc_mipl(raw: Path, seed: int = 0, *, generator: str, report: Report | None = None) -> Bags:
    """Build ``c-<generator>`` from images in seven folders, one per class.

    The crowd's own candidate sets can only come from the authors' files. Here each other class is a
    candidate with the same probability, 2.08 candidates per bag on average as in the crowd's sets.

    Args:
        raw: folder of one folder of images per class.
        seed: seed of the candidate sets.
        generator: name of the image generator (:mod:`mipl.data.images`).
        report: called after each image.

    Raises:
        DataError: the folders are not those of the data set.
    """
    classes = _class_folders(raw)
    if len(classes) != CRC_CLASSES:
        raise _wrong_folders(f"c-{generator}", "seven folders, one for each class", raw, classes)
    confusion = np.full((CRC_CLASSES, CRC_CLASSES), CRC_FALSE_POSITIVES / (CRC_CLASSES - 1))
    return _tissue_bags("c", raw, classes, confusion, seed, generator, report)


def crc5_mipl(raw: Path, seed: int = 0, *, generator: str, report: Report | None = None) -> Bags:
    """Build ``crc5-<generator>`` from images in the folders H, AC, S, T and V.

    Candidates are drawn with the probabilities of ``CRC5``. Arguments and errors are those of
    :func:`crc_mipl`.
    """
    classes = _class_folders(raw)
    if classes != sorted(CRC5):
        raise _wrong_folders(f"crc5-{generator}", f"the folders {', '.join(CRC5)}", raw, classes)
    confusion = np.array([[CRC5[truth].get(other, 0.0) for other in classes] for truth in classes])
    return _tissue_bags("crc5", raw, classes, confusion, seed, generator, report)


def _class_folders(raw: Path) -> list[str]:
    """Return the sorted names of the folders of images; none if there are images outside a folder."""
    from mipl.data.images import list_images

    labels = {image.label for image in list_images(raw)}
    return [] if None in labels else sorted(str(label) for label in labels)


def _wrong_folders(name: str, expected: str, raw: Path, found: list[str]) -> DataError:
    return DataError(f"{name} is built from {expected} of images: {raw} has {', '.join(found) or 'none'}.")


def _tissue_bags(
    family: str,
    raw: Path,
    classes: list[str],
    confusion: NDArray[np.float64],
    seed: int,
    generator: str,
    report: Report | None,
) -> Bags:
    from mipl.data.images import image_bags

    images = list(image_bags(raw, generator, report=report))
    labels = np.array([classes.index(str(image.label)) for image in images], dtype=np.int64)
    return Bags.from_list(
        [image.instances.features for image in images],
        add_confusable(labels, confusion, family, seed),  # the same candidate sets for every generator
        labels,
        classes,
        ids=[image.id for image in images],
        coordinates=[image.instances.coordinates for image in images],
        provenance=rebuilt(
            f"{family}-{generator}",
            seed=seed,
            classes=classes,
            generator=generator,
            candidates="drawn from a confusion table",
        ),
    )
