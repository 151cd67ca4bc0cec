"""The runs behind a number: which are wanted, which are there, and the command that makes the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.data.datasets import find_dataset
from mipl.records.store import Record
from mipl.records.summary import sample_std

KINDS = ("stratified", "official")  # splits that a table may use
METRICS = {"accuracy": "accuracy", "ece": "expected_calibration_error"}
METHOD_NAMES = {"demipl": "DEMIPL", "elimipl": "ELIMIPL", "miplma": "MIPLMA", "promipl": "ProMIPL"}
POOLING_NAMES = {"mean": "Mean", "maxmin": "MaxMin"}
METHOD_NAMES |= {"fastmipl": "FastMIPL", "miplgp": "MIPLGP", "proden": "PRODEN", "lws": "LWS"}

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Want:
    """A method on a data set, over splits; ``given`` are settings that differ from the method's own."""

    dataset: str
    r: int | None
    method: str
    given: Settings = ()
    share: float = 1.0  # of the training bags
    extras: tuple[str, ...] = ()  # that its records must hold
    first: bool = False  # whether the first split is enough


@dataclass(frozen=True)
class Mean:
    """A metric over the splits of a :class:`Want`, in percent."""

    mean: float
    std: float | None  # None for a single split
    runs: int


class Runs:
    """The records that a table or figure may use, found by what they are."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        recipe: str = "stable",
        epochs: int | None = None,
        quick_epochs: int | None = None,
        splits: Sequence[int] = tuple(range(1, 11)),
        where: str = "RECORDS",
    ) -> None:
        self.recipe, self.splits, self.where = recipe, tuple(splits), where
        self.epochs, self.quick_epochs = epochs, quick_epochs  # the second on the embedded data
        self.used: dict[str, Record] = {}
        self.missing: dict[Want, None] = {}
        self._found: dict[Want, list[Record]] = {}
        for record in records:
            spec, given = record.spec, dict(record.info.get("given", {}))
            if (
                spec["recipe"] == recipe
                and spec["seed"] == 0
                and spec["split"] in self.splits
                and spec["splits"] in KINDS
            ):
                given_sorted = tuple(sorted(given.items()))
                want = Want(spec["dataset"], spec["r"], spec["method"], given_sorted, record.share)
                self._found.setdefault(want, []).append(record)

    def has(self, dataset: str, r: int | None) -> bool:
        """Tell whether there is any run on a data set."""
        return any((want.dataset, want.r) == (dataset, r) for want in self._found)

    def settings(self, want: Want) -> dict[str, Any]:
        """Return every setting that the runs of a want are made with, the epochs among them."""
        epochs = self.quick_epochs if is_embedded(want.dataset) else self.epochs
        return {**({} if epochs is None else {"epochs": epochs}), **dict(want.given)}

    def of(self, want: Want, *, needed: bool = True) -> list[Record]:
        """Return the records of a want by split, and remember them as used, or a needed want as missing."""
        given = tuple(sorted(self.settings(want).items()))
        found = self._found.get(Want(want.dataset, want.r, want.method, given, want.share), [])
        found = [record for record in found if record.holds(want.extras)]
        if not found:
            if needed:
                self.missing[want] = None
            return []
        # Obsolete runs are never averaged with current ones. Bags built with another seed are other data, and
        # the authors' splits are other splits: the mean is of what most runs have.
        latest = max(record.recipe_version for record in found)
        found = [record for record in found if record.recipe_version == latest]
        kinds = [(record.spec["data_digest"], record.spec["splits"]) for record in found]
        most = max(sorted(set(kinds)), key=kinds.count)
        ordered = sorted(found, key=lambda record: len(record.spec.get("together", ())), reverse=True)
        # A split that was trained alone and together with others counts once.
        by_split = {
            int(r.spec["split"]): r for r in ordered if (r.spec["data_digest"], r.spec["splits"]) == most
        }
        chosen = [by_split[split] for split in sorted(by_split)][: 1 if want.first else None]
        self.used |= {record.info["hash"]: record for record in chosen}
        return chosen

    def mean(self, want: Want, metric: str, *, needed: bool = True) -> Mean | None:
        """Return the mean of ``accuracy`` or ``ece`` over splits, or None where there is no run."""
        found = self.of(want, needed=needed)
        if not found:
            return None
        values = 100 * np.array([record.metrics[METRICS[metric]] for record in found])
        return Mean(float(values.mean()), sample_std(values), len(found))

    def gain(self, want: Want, base: Want, metric: str) -> float | None:
        """Return how much better the runs of ``want`` are, in points, on the splits that ``base`` has too."""
        ours, theirs = (
            {
                (
                    record.recipe_version,
                    *(record.spec[name] for name in ("data_digest", "splits", "split")),
                ): record
                for record in self.of(each)
            }
            for each in (want, base)
        )
        changes = [
            record.metrics[METRICS[metric]] - theirs[split].metrics[METRICS[metric]]
            for split, record in ours.items()
            if split in theirs
        ]
        if not changes:
            return None
        return 100 * float(np.mean(changes)) * (1 if metric == "accuracy" else -1)

    def predictions(self, want: Want) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return probabilities (m, k) and labels (m,) of the test bags of all splits together."""
        found = self.of(want)
        if not found:
            return None
        p, y = ([record.arrays[name] for record in found] for name in ("probabilities", "labels"))
        return np.concatenate(p), np.concatenate(y)

    def commands(self) -> list[str]:
        """Return the commands that make the missing runs, those on one data set in one."""
        groups: dict[Want, list[str]] = {}
        for want in self.missing:
            groups.setdefault(replace(want, method=""), []).append(want.method)
        return [self.command(replace(key, method=",".join(names))) for key, names in groups.items()]

    def command(self, want: Want) -> str:
        """Return the command that makes the runs of a want."""
        numbers = sorted(self.splits)[: 1 if want.first else None]
        together = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
        dataset, *noise = want.dataset.split(" ")
        words = ["mipl run", dataset]
        words += [f"-r {want.r}"] if want.r is not None else []
        words += ["--raw DIR"] if not is_embedded(dataset) else []
        words += [f"--{noise[0]}-noise {noise[2]}"] if noise else []
        words += [f"--methods {want.method}"]
        words += [f"--set {name}={value}" for name, value in self.settings(want).items()]
        words += [f"--share {want.share:g}"] if want.share < 1 else []
        words += [f"--with {','.join(want.extras)}"] if want.extras else []
        words += [f"--recipe {self.recipe}"] if self.recipe != "stable" else []
        words += [f"--splits {numbers[0]}-{numbers[-1]}" if together else f"--splits {_comma(numbers)}"]
        return " ".join([*words, f"--out {self.where}"])


def set_title(dataset: str, r: int | None = None) -> str:
    """Return a data set's name as the paper writes it; stand-ins keep their own."""
    record = find_dataset(dataset)
    name = dataset if record is None else dataset.replace(record.name, record.title, 1)
    return name if r is None else f"{name}, r = {r}"


def method_title(method: str, given: Mapping[str, Any] | Settings = ()) -> str:
    """Return a method's name as the paper writes it, with the settings that are not its own."""
    name, given = METHOD_NAMES.get(method, method.upper()), dict(given)
    if pooling := given.pop("pooling", None):
        name = f"{name} {POOLING_NAMES[pooling]}"
    said = ", ".join(f"{key} = {value}" for key, value in given.items())
    return f"{name} ({said})" if said else name


def is_stand_in(dataset: str) -> bool:
    """Tell whether a data set stands in for one of the paper's and is none of them."""
    record = find_dataset(dataset)
    return record is not None and record.is_stand_in


def is_embedded(dataset: str) -> bool:
    """Tell whether a data set needs no files."""
    record = find_dataset(dataset)
    return record is not None and record.is_embedded


def mark_of(records: Iterable[Record]) -> str:
    """Return ‡ for a stand-in, † for bags rebuilt from raw data, nothing for the authors' own."""
    marks = set()
    for record in records:
        origin = record.info.get("data", {}).get("provenance", {}).get("origin", "")
        authors = origin == "the authors' file"
        marks.add("‡" if is_stand_in(record.spec["dataset"]) else "" if authors else "†")
    return "".join(sorted(marks, reverse=True))


def _comma(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
