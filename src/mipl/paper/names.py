"""The methods and data sets of the paper, and their names as the paper writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mipl.data.datasets import find_dataset
from mipl.records.store import Record

SetKey = tuple[str, int | None]  # a data set and its number of false positives r
Sets = tuple[SetKey, ...]
Settings = tuple[tuple[str, Any], ...]

# Attention -> the earlier method that uses it, the baseline of the two CDL methods with that attention.
BASELINE = {"dam": "demipl", "sam": "elimipl", "mam": "miplma"}
CDL_METHODS = tuple(f"{attention}-{loss}" for attention in BASELINE for loss in ("cc", "cn"))
FAMILIES = tuple((base, f"{attention}-cc", f"{attention}-cn") for attention, base in BASELINE.items())
NINE_METHODS = tuple(method for family in FAMILIES for method in family)
OTHER_METHODS = ("miplgp", "promipl", "fastmipl")
EARLIER_METHODS = (*OTHER_METHODS, *BASELINE.values())
TABLE_METHODS = (*OTHER_METHODS, *NINE_METHODS)  # in the order of the paper's tables
RANKED_METHODS = TABLE_METHODS[1:]  # without MIPLGP, which has no value on four data sets

BENCHMARKS = tuple(
    (f"{name}-mipl", r) for r in (1, 2, 3) for name in ("mnist", "fmnist", "birdsong", "sival")
)
CRC = tuple((f"c-{name}", None) for name in ("row", "sbn", "kmeans", "sift", "r34-9", "r34-16", "r34-25"))
ALL_SETS: Sets = (*BENCHMARKS, *CRC)
QUICK_SET: Sets = (("digits-mipl-vectors", 1),)  # embedded: every table can be tried without files

METRIC_TITLES = {"accuracy": "Accuracy", "ece": "Expected calibration error"}
METHOD_NAMES = {
    "demipl": "DEMIPL", "elimipl": "ELIMIPL", "miplma": "MIPLMA", "promipl": "ProMIPL",
    "fastmipl": "FastMIPL", "miplgp": "MIPLGP", "proden": "PRODEN", "lws": "LWS",
}  # fmt: skip
POOLING_NAMES = {"mean": "Mean", "maxmin": "MaxMin"}


def baseline_of(method: str) -> str | None:
    """Return the baseline of a CDL method, or None for any other method."""
    return BASELINE[method[:3]] if method in CDL_METHODS else None


def set_title(dataset: str, r: int | None = None) -> str:
    """Return the name of a data set as the paper writes it; stand-ins keep their own name."""
    record = find_dataset(dataset)
    name = dataset if record is None else dataset.replace(record.name, record.title, 1)
    return name if r is None else f"{name}, r = {r}"


def method_title(method: str, given: Mapping[str, Any] | Settings = ()) -> str:
    """Return the name of a method as the paper writes it, with the settings that are not its defaults."""
    name, settings = METHOD_NAMES.get(method, method.upper()), dict(given)
    if pooling := settings.pop("pooling", None):
        name = f"{name} {POOLING_NAMES[pooling]}"
    listed = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return f"{name} ({listed})" if listed else name


def is_stand_in(dataset: str) -> bool:
    """Return whether a data set replaces one of the paper's that is not available."""
    record = find_dataset(dataset)
    return record is not None and record.is_stand_in


def is_embedded(dataset: str) -> bool:
    """Return whether a data set needs no files."""
    record = find_dataset(dataset)
    return record is not None and record.is_embedded


def mark_of(records: Iterable[Record]) -> str:
    """Return ‡ for a stand-in, † for bags rebuilt from raw data, and "" for the authors' own bags."""
    marks = set()
    for record in records:
        origin = record.info.get("data", {}).get("provenance", {}).get("origin", "")
        authors = origin == "the authors' file"
        marks.add("‡" if is_stand_in(record.spec["dataset"]) else "" if authors else "†")
    return "".join(sorted(marks, reverse=True))
