"""One record per named data set: builder, raw files, row of Table 1, recommended settings.

A new data set is one entry of ``DATASETS``, with its builder in :mod:`mipl.data.benchmarks`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mipl.data.bags import Bags
from mipl.data.benchmarks.birdsong import birdsong_mipl
from mipl.data.benchmarks.crc import CRC5, Report, crc5_mipl, crc_mipl
from mipl.data.benchmarks.embedded import digits_mipl, digits_vectors, noisy_digits
from mipl.data.benchmarks.labelme import labelme
from mipl.data.benchmarks.mnist import fmnist_mipl, mnist_mipl
from mipl.data.benchmarks.partial import birdsong_partial
from mipl.data.benchmarks.sival import sival_mipl
from mipl.data.benchmarks.sival6 import sival6_mipl
from mipl.data.formats.mat import read_mat
from mipl.data.statistics import BagStatistics
from mipl.errors import SettingError, StorageError, suggest


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Everything the library knows about a data set by its name."""

    name: str
    builder: Callable[..., Bags]  # called with those of raw, r, seed and report that apply
    title: str  # the name as the paper writes it
    raw_files: str = "not needed"  # contents of the folder of raw files
    folders: tuple[str, ...] = ()  # where the raw files may be below a common folder; none: embedded data
    takes_r: bool = True  # false positives are drawn; otherwise it has its own candidate sets
    takes_seed: bool = True  # something is drawn
    from_images: bool = False  # building takes minutes: show progress, cache the bags
    authors_name: str | None = None  # of the authors' .mat file, without _r1.mat or .mat
    authors_shape: tuple[int, int] | None = None  # of an image stored there as a vector
    table1: BagStatistics | None = None  # the paper's row; None for mean_candidates means 1 + r
    stands_in_for: str | None = None  # the paper's data set that this one replaces
    paper_width: int = 128  # L in the paper's experiments
    paper_epochs: int | None = None  # of DAM in the paper's experiments; None: the recipe's default

    @property
    def is_embedded(self) -> bool:
        """Whether it needs no raw files."""
        return not self.folders

    @property
    def is_stand_in(self) -> bool:
        """Whether it replaces a data set of the paper: embedded data replace any, others a certain one."""
        return self.is_embedded or self.stands_in_for is not None

    def authors_file(self, r: int | None = None) -> str | None:
        """Return the name of the authors' file (default r = 1), or None if the authors have none."""
        if self.authors_name is None:
            return None
        suffix = f"_r{1 if r is None else r}" if self.takes_r else ""
        return f"{self.authors_name}{suffix}.mat"

    def has_authors_file(self, raw: Path, r: int | None = None) -> bool:
        """Whether the authors' file is in ``raw``."""
        name = self.authors_file(r)
        return name is not None and (raw / name).is_file()

    def raw_folder(self, raw: Path) -> Path:
        """Return the folder of the raw files: the first of ``folders`` in ``raw``, or ``raw`` itself."""
        places = [raw / folder for folder in (self.name, *self.folders)]
        # Any folder of folders of images could be a data set of images: never fall back to ``raw`` for them.
        return next((place for place in places if place.is_dir()), places[1] if self.from_images else raw)

    def table1_row(self, r: int = 1) -> BagStatistics | None:
        """Return the paper's row of Table 1, or None if the data set is not one of the paper's."""
        if self.table1 is None or self.table1.mean_candidates is not None:
            return self.table1
        return dataclasses.replace(self.table1, mean_candidates=1.0 + r)

    def build(
        self,
        r: int | None = None,
        seed: int | None = None,
        raw: Path | None = None,
        report: Report | None = None,
    ) -> Bags:
        """Build the bags; see :func:`build`."""
        if not self.takes_r and r is not None:
            raise SettingError(f"{self.name} has its own candidate sets: -r does not apply to it.")
        settings: dict[str, Any] = {}
        if not self.is_embedded:
            settings["raw"] = raw = self._check_raw(raw)
            if self.has_authors_file(raw, r):
                return self._read_authors_file(raw / str(self.authors_file(r)), seed)
        if not self.takes_seed and seed is not None:
            raise SettingError(f"{self.name} is not random: leave the seed out.")
        if self.takes_r:
            settings["r"] = 1 if r is None else r
        if self.takes_seed:
            settings["seed"] = seed or 0
        if self.from_images:
            settings["report"] = report
        return self.builder(**settings)

    def _check_raw(self, raw: Path | None) -> Path:
        if raw is None:
            raise SettingError(f"{self.name} is built from raw files: say where they are with --raw DIR.")
        if not raw.is_dir():
            raise StorageError(f"{raw} is not a folder: give the folder of the raw files of {self.name}.")
        return raw

    def _read_authors_file(self, path: Path, seed: int | None) -> Bags:
        if seed is not None:
            raise SettingError(f"{path} is the authors' file, which has no seed: leave it out.")
        bags = read_mat(path, shape=self.authors_shape)
        provenance = {**bags.provenance, "dataset": self.name, "origin": "the authors' file"}
        return dataclasses.replace(bags, provenance=provenance)


def _crc(
    generator: str, title: str, authors_name: str, instances: int, most: int, fewest: int, mean: float, d: int
) -> Dataset:
    return Dataset(
        f"c-{generator}",
        functools.partial(crc_mipl, generator=generator),
        title,
        raw_files="images in seven folders, one per class",
        folders=("crc-mipl", "crc"),
        takes_r=False,
        from_images=True,
        authors_name=authors_name,
        table1=BagStatistics(7000, instances, most, fewest, mean, None, None, None, d, 7, 2.08),
        paper_width=512,
        paper_epochs=200,
    )


def _crc5(generator: str, stands_in_for: str) -> Dataset:
    return Dataset(
        f"crc5-{generator}",
        functools.partial(crc5_mipl, generator=generator),
        f"crc5-{generator}",
        raw_files=f"images in {', '.join(CRC5)}",
        folders=("crc-tiles", "crc5"),
        takes_r=False,
        from_images=True,
        stands_in_for=stands_in_for,
        paper_width=512,
        paper_epochs=200,
    )


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("digits-mipl", digits_mipl, "digits-mipl"),
        Dataset(
            "mnist-mipl",
            mnist_mipl,
            "MNIST-MIPL",
            raw_files="MNIST's IDX files, plain or gzipped",
            folders=("mnist",),
            authors_name="MNIST_MIPL",
            authors_shape=(28, 28),
            table1=BagStatistics(500, 20664, 48, 35, 41.33, 0.091, 0.070, 0.080, 784, 5, None),
        ),
        Dataset(
            "fmnist-mipl",
            fmnist_mipl,
            "FMNIST-MIPL",
            raw_files="Fashion-MNIST's IDX files, plain or gzipped",
            folders=("fashion-mnist", "fmnist"),
            authors_name="FMNIST_MIPL",
            authors_shape=(28, 28),
            table1=BagStatistics(500, 20810, 48, 36, 41.62, 0.091, 0.070, 0.080, 784, 5, None),
        ),
        Dataset(
            "birdsong-mipl",
            birdsong_mipl,
            "Birdsong-MIPL",
            raw_files="HJA Birdsong's text files",
            folders=("hja-birdsong", "birdsong"),
            authors_name="Birdsong_MIPL",
            table1=BagStatistics(1300, 48425, 76, 25, 37.25, 0.100, 0.069, 0.083, 38, 13, None),
        ),
        Dataset(
            "sival-mipl",
            sival_mipl,
            "SIVAL-MIPL",
            raw_files="SIVAL as <class>.data files (C4.5)",
            folders=("sival",),
            authors_name="SIVAL_MIPL",
            table1=BagStatistics(1500, 47414, 32, 31, 31.61, 0.9062, 0.0312, 0.256, 30, 25, None),
        ),
        Dataset("digits-mipl-vectors", digits_vectors, "digits-mipl-vectors"),
        Dataset("digits-mipl-noisy", noisy_digits, "digits-mipl-noisy"),
        Dataset(
            "sival6-mipl",
            sival6_mipl,
            "sival6-MIPL",
            raw_files="six classes of SIVAL in sival6.npz",
            folders=("sival6",),
        ),
        Dataset(
            "labelme",
            labelme,
            "labelme",
            raw_files="LabelMe's crowd labels: votes.csv, labels.csv, features.npz",
            folders=("labelme",),
            takes_r=False,
            takes_seed=False,
        ),
        Dataset(
            "birdsong-partial",
            birdsong_partial,
            "birdsong-partial",
            raw_files="BirdSong.mat of the public partial-label collection",
            folders=("birdsong-partial",),
            takes_r=False,
            takes_seed=False,
        ),
        _crc("row", "C-Row", "CRC-MIPL-Row", 56000, 8, 8, 8, 9),
        _crc("sbn", "C-SBN", "CRC-MIPL-SBN", 63000, 9, 9, 9, 15),
        _crc("kmeans", "C-KMeans", "CRC-MIPL-KMeansSeg", 30178, 6, 3, 4.311, 6),
        _crc("sift", "C-SIFT", "CRC-MIPL-SIFT", 175000, 25, 25, 25, 128),
        _crc("r34-9", "C-R34-9", "C-R34-9", 63000, 9, 9, 9, 1000),
        _crc("r34-16", "C-R34-16", "C-R34-16", 112000, 16, 16, 16, 1000),
        _crc("r34-25", "C-R34-25", "C-R34-25", 175000, 25, 25, 25, 1000),
        _crc5("row", "c-row"),
        _crc5("sbn", "c-sbn"),
        _crc5("kmeans", "c-kmeans"),
        _crc5("sift", "c-sift"),
        _crc5("lite0-9", "c-r34-9"),
        _crc5("lite0-16", "c-r34-16"),
        _crc5("lite0-25", "c-r34-25"),
    )
}


def find_dataset(name: str) -> Dataset | None:
    """Return the record of a data set, or None for other bags.

    Args:
        name: a data set's name, perhaps followed by the noise that was added, as records of runs have it
            (``"sival-mipl class noise 0.2"``).
    """
    return DATASETS.get(name.partition(" ")[0])


def stand_in_for(name: str) -> Dataset | None:
    """Return the data set that replaces one of the paper's whose files are not public, or None."""
    return next((dataset for dataset in DATASETS.values() if dataset.stands_in_for == name), None)


def build(
    name: str,
    r: int | None = None,
    seed: int | None = None,
    raw: str | Path | None = None,
    report: Report | None = None,
) -> Bags:
    """Build a data set by name.

    Where ``raw`` contains the authors' ``.mat`` file of the data set, that file is read instead.

    Args:
        name: a key of ``DATASETS``.
        r: false positives per candidate set (default 1), for data sets without candidate sets of their own.
        seed: seed of what is drawn (default 0); the authors' files have none.
        raw: folder of the raw files; embedded data sets need none.
        report: called with the number of images that are done, for data sets from images.

    Raises:
        SettingError: there is no such data set, or an argument does not apply to it.
        StorageError: the raw files are missing or damaged.
    """
    if name not in DATASETS:
        raise SettingError(f"There is no data set '{name}'.{suggest(name, DATASETS)}")
    return DATASETS[name].build(r, seed, None if raw is None else Path(raw), report)
