"""The runs behind a number: which are needed, which have a record, and the command for the missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.paper.names import Settings, is_embedded
from mipl.records.store import Record
from mipl.records.summary import sample_std

SPLIT_KINDS = ("stratified", "official")  # splits that a table may use
METRICS = {"accuracy": "accuracy", "ece": "expected_calibration_error"}


@dataclass(frozen=True)
class RunQuery:
    """The runs of a method on a data set, over splits."""

    dataset: str
    r: int | None
    method: str
    given: Settings = ()  # settings that differ from the method's defaults
    share: float = 1.0  # fraction of the training bags that is used
    extras: tuple[str, ...] = ()  # that the records must have, of EXTRAS
    first_split: bool = False  # whether the first split is enough


@dataclass(frozen=True)
class Mean:
    """A metric over the splits of a :class:`RunQuery`, in percent."""

    mean: float
    std: float | None  # None for a single split
    runs: int


class RunIndex:
    """The records that a table or figure may use.

    It remembers which records were used and which queries found none.

    Args:
        records: the finished runs.
        recipe: the recipe of the runs to use.
        epochs: the epochs that were set for the runs; None: each method's default.
        quick_epochs: the same for runs on embedded data.
        splits: the numbers of the splits to use.
        folder: the folder of the records, for the commands of missing runs.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        recipe: str = "stable",
        epochs: int | None = None,
        quick_epochs: int | None = None,
        splits: Sequence[int] = tuple(range(1, 11)),
        folder: str = "RECORDS",
    ) -> None:
        self.recipe, self.splits, self.folder = recipe, tuple(splits), folder
        self.epochs, self.quick_epochs = epochs, quick_epochs
        self.used: dict[str, Record] = {}  # by hash
        self.missing: dict[RunQuery, None] = {}
        self._records: dict[RunQuery, list[Record]] = {}
        for record in records:
            spec = record.spec
            if (
                spec["recipe"] == recipe
                and spec["seed"] == 0
                and spec["split"] in self.splits
                and spec["splits"] in SPLIT_KINDS
            ):
                given = tuple(sorted(record.info.get("given", {}).items()))
                query = RunQuery(spec["dataset"], spec["r"], spec["method"], given, record.share)
                self._records.setdefault(query, []).append(record)

    def has(self, dataset: str, r: int | None) -> bool:
        """Return whether there is any run on a data set."""
        return any((query.dataset, query.r) == (dataset, r) for query in self._records)

    def settings(self, query: RunQuery) -> dict[str, Any]:
        """Return the settings of the runs of a query, including the epochs."""
        epochs = self.quick_epochs if is_embedded(query.dataset) else self.epochs
        return {**({} if epochs is None else {"epochs": epochs}), **dict(query.given)}

    def find(self, query: RunQuery, *, required: bool = True) -> list[Record]:
        """Return the records of a query in the order of the splits, and remember them as used.

        If there is none, remember a ``required`` query as missing.
        """
        given = tuple(sorted(self.settings(query).items()))
        found = self._records.get(RunQuery(query.dataset, query.r, query.method, given, query.share), [])
        found = [record for record in found if record.has_extras(query.extras)]
        if not found:
            if required:
                self.missing[query] = None
            return []
        # A mean never combines versions of a recipe, data (as of another data seed) or kinds of splits: it
        # uses the latest version, then the data and the kind of splits that most records have.
        latest = max(record.recipe_version for record in found)
        found = [record for record in found if record.recipe_version == latest]
        kinds = [(record.spec["data_digest"], record.spec["splits"]) for record in found]
        most = max(sorted(set(kinds)), key=kinds.count)
        by_split = {
            int(record.spec["split"]): record
            for record, kind in zip(found, kinds, strict=True)
            if kind == most
        }
        chosen = [by_split[split] for split in sorted(by_split)][: 1 if query.first_split else None]
        self.used |= {record.info["hash"]: record for record in chosen}
        return chosen

    def mean(self, query: RunQuery, metric: str, *, required: bool = True) -> Mean | None:
        """Return the mean of ``accuracy`` or ``ece`` over splits, or None if there is no run."""
        found = self.find(query, required=required)
        if not found:
            return None
        values = 100 * np.array([record.metrics[METRICS[metric]] for record in found])
        return Mean(float(values.mean()), sample_std(values), len(found))

    def gain(self, query: RunQuery, base: RunQuery, metric: str) -> float | None:
        """Return the mean improvement over ``base`` in percentage points, on the splits that both have."""
        name = METRICS[metric]
        ours, theirs = ({_split_key(record): record for record in self.find(q)} for q in (query, base))
        changes = [
            record.metrics[name] - theirs[key].metrics[name] for key, record in ours.items() if key in theirs
        ]
        if not changes:
            return None
        return 100 * float(np.mean(changes)) * (1 if metric == "accuracy" else -1)

    def predictions(self, query: RunQuery) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return probabilities (m, k) and labels (m,) of the test bags of all splits, or None."""
        found = self.find(query)
        if not found:
            return None
        p, y = ([record.arrays[name] for record in found] for name in ("probabilities", "labels"))
        return np.concatenate(p), np.concatenate(y)

    def commands(self) -> list[str]:
        """Return the commands that make the missing runs, one per data set and settings."""
        groups: dict[RunQuery, list[str]] = {}
        for query in self.missing:
            groups.setdefault(replace(query, method=""), []).append(query.method)
        return [self.command(replace(key, method=",".join(names))) for key, names in groups.items()]

    def command(self, query: RunQuery) -> str:
        """Return the command that makes the runs of a query."""
        dataset, *noise = query.dataset.split(" ")  # as in "sival-mipl class noise 0.2"
        words = ["mipl run", dataset]
        words += [f"-r {query.r}"] if query.r is not None else []
        words += ["--raw DIR"] if not is_embedded(dataset) else []
        words += [f"--{noise[0]}-noise {noise[2]}"] if noise else []
        words += [f"--methods {query.method}"]
        words += [f"--set {name}={value}" for name, value in self.settings(query).items()]
        words += [f"--share {query.share:g}"] if query.share < 1 else []
        words += [f"--with {','.join(query.extras)}"] if query.extras else []
        words += [f"--recipe {self.recipe}"] if self.recipe != "stable" else []
        words += [f"--splits {_ranges(sorted(self.splits)[: 1 if query.first_split else None])}"]
        return " ".join([*words, f"--out {self.folder}"])


def _split_key(record: Record) -> tuple[Any, ...]:
    """Return what the runs of two methods must have in common to be compared."""
    return record.recipe_version, *(record.spec[name] for name in ("data_digest", "splits", "split"))


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as "1-3" if they are consecutive, else as "1,3"."""
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
