"""Open bags by name, from a file or from a folder, and write them by suffix."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from mipl.data.bags import Bags
from mipl.data.datasets import DATASETS, build
from mipl.data.formats.h5 import open_folder, patient_bags, write_folder
from mipl.data.formats.labels import apply_label_table
from mipl.data.formats.mat import read_mat, write_mat
from mipl.data.formats.npz import load_npz, save_npz
from mipl.data.formats.partial_mat import is_partial_mat, read_partial_mat
from mipl.data.formats.tidy import read_tidy, write_tidy
from mipl.data.noise import drop_instances, remove_true_label
from mipl.data.voted_bags import read_gold, with_votes
from mipl.data.votes import read_votes
from mipl.errors import SettingError, StorageError, suggest
from mipl.files import check_folder, check_place
from mipl.machine import memory

MAPPED_ABOVE = 0.25  # fraction of the memory above which an .npz file of bags is memory-mapped


def _any_mat(path: Path) -> Bags:
    return read_partial_mat(path) if is_partial_mat(path) else read_mat(path)


def _any_npz(path: Path) -> Bags:
    """Read bags; instances that would fill much of the memory stay in the file."""
    if path.exists() and path.stat().st_size > MAPPED_ABOVE * memory():
        with contextlib.suppress(StorageError):  # images and compressed files cannot be mapped
            return load_npz(path, mapped=True)
    return load_npz(path)


TABLES = (".csv", ".tsv", ".parquet")
READERS = {".npz": _any_npz, ".mat": _any_mat}
WRITERS = {
    ".npz": save_npz,
    ".mat": write_mat,
    ".csv": write_tidy,
    ".tsv": write_tidy,
    ".parquet": write_tidy,
}
KINDS = "an .npz, .mat, .csv, .tsv or .parquet file of bags, a folder of feature files, or a data set by name"


@dataclasses.dataclass(frozen=True)
class Source:
    """The DATA argument of the command line with its options; each process opens it for itself."""

    data: str  # a file, a folder, or a name such as digits-mipl
    r: int | None = None  # false positives, for a data set by name; None: 1
    seed: int | None = None  # for a data set by name; None: 0
    raw: str | None = None  # folder of raw files, for a data set by name
    labels: str | tuple[str, ...] | None = None  # tables of candidate sets, labels and patients
    skip_missing: bool = False  # leave out slides of the table that have no file
    built: str | None = None  # .npz file of the bags of a data set by name, if they were built before
    class_noise: float = 0.0  # fraction of the bags whose true label is removed from their candidates
    attribute_noise: float = 0.0  # fraction of the instances of every bag that are dropped
    ignore: tuple[str, ...] = ()  # columns of a table that are not features
    missing_truth: bool = False  # allow true labels outside their candidate sets
    votes: str | None = None  # table of annotators' votes
    gold: str | None = None  # table of labels that are known to be true
    bag: str = "slide"  # "patient": all slides of a patient are one bag

    @property
    def name(self) -> str:
        """The name of the data set, file or folder, with votes and the noise that is added."""
        name = self.data if self.data in DATASETS else Path(self.data).resolve().name
        name += "" if self.votes is None else " with votes"
        return name + "".join(f" {kind} noise {fraction:g}" for kind, fraction in self._noise() if fraction)

    @property
    def false_positives(self) -> int | None:
        """r, or None for bags with candidate sets of their own."""
        if self.data not in DATASETS or not DATASETS[self.data].takes_r:
            return None
        return 1 if self.r is None else self.r

    @property
    def title(self) -> str:
        """The name, with r if there is one."""
        return self.name if self.false_positives is None else f"{self.name} r={self.false_positives}"

    def open(self) -> Bags:
        """Read or build the bags."""
        self._check_options()
        bags = self._open()
        if self.votes is not None:
            gold = None if self.gold is None else read_gold(Path(self.gold))
            bags = with_votes(bags, read_votes(Path(self.votes)), gold)
        if self.missing_truth and not bags.missing_truth:
            bags = dataclasses.replace(bags, missing_truth=True)
        if self.class_noise:
            bags = remove_true_label(bags, self.class_noise)
        return drop_instances(bags, self.attribute_noise) if self.attribute_noise else bags

    def _noise(self) -> tuple[tuple[str, float], ...]:
        return (("class", self.class_noise), ("attribute", self.attribute_noise))

    def _check_options(self) -> None:
        """Raise an error for options that this kind of data would ignore."""
        path = Path(self.data)
        built = self.data in DATASETS
        for option, value in (("-r", self.r), ("--raw", self.raw), ("--data-seed", self.seed)):
            if value is not None and not built and path.exists():
                raise SettingError(
                    f"{option} {value} is for a data set by name, but {path} is a file or folder: "
                    "leave the option out."
                )
        if self.gold is not None and self.votes is None:
            raise SettingError(
                "--gold adds known labels to --votes: give both, or candidate sets with --labels."
            )
        if self.skip_missing and (built or path.is_file()):
            raise SettingError(f"--skip-missing is for a folder of slides, which {self.data} is not.")
        if self.bag not in ("slide", "patient"):
            raise SettingError(f"--bag {self.bag} must be slide or patient.")
        if self.bag == "patient" and built:
            raise SettingError(f"--bag patient is for files and folders of slides, which {self.data} is not.")
        if self.ignore and (built or path.suffix.lower() not in TABLES):
            raise SettingError(
                f"--ignore is for a table ({', '.join(TABLES)}), which {self.data} is not: leave it out."
            )

    def _open(self) -> Bags:
        path = Path(self.data)
        given = (self.labels,) if isinstance(self.labels, str) else self.labels or ()
        tables = [Path(label) for label in given]
        if self.built is not None and Path(self.built).is_file():
            bags = _any_npz(Path(self.built))
        elif self.data in DATASETS:
            bags = build(self.data, self.r, self.seed, None if self.raw is None else Path(self.raw))
        elif path.is_dir():
            return open_folder(
                path,
                tables,
                skip_missing=self.skip_missing,
                missing_truth=self.missing_truth,
                by_patient=self.bag == "patient",
            )
        elif path.suffix.lower() in TABLES:
            bags = read_tidy(path, ignore=self.ignore, missing_truth=self.missing_truth)
        elif path.suffix in READERS:
            bags = READERS[path.suffix](path)
        elif path.suffix.lower() in (".xls", ".xlsx") and path.exists():
            raise StorageError(f"{path} is an Excel workbook: save the sheet of bags as .csv.")
        elif path.exists():
            raise StorageError(f"{path} is not {KINDS}.")
        else:
            raise StorageError(
                f"'{self.data}' is neither a file nor a data set.{suggest(self.data, DATASETS)}"
            )
        if tables:
            bags = apply_label_table(bags, tables, missing_truth=self.missing_truth)
        return patient_bags(bags) if self.bag == "patient" else bags


def check_out(path: Path) -> None:
    """Raise an error if :func:`save` could not write ``path``."""
    if path.suffix not in WRITERS and path.suffix:
        raise SettingError(f"{path} ends in {path.suffix}: end in {', '.join(WRITERS)}, or give a folder.")
    if path.suffix:
        check_place(path)
    else:
        check_folder(path, "labels.csv")


def save(bags: Bags, path: Path) -> None:
    """Write bags to a file by its suffix, or to a folder of feature files for a path without one."""
    check_out(path)
    if path.suffix:
        WRITERS[path.suffix](bags, path)
    else:
        write_folder(bags, path)
