"""Means over splits, computed from records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from mipl.records.store import Record


class SummaryRow(TypedDict):
    """The runs of one method with the same settings on one data set."""

    dataset: str
    r: int | None
    data_digest: str
    splits: str
    method: str
    recipe: str
    recipe_version: int
    given: str  # settings that differ from the defaults
    runs: int
    accuracy: float  # mean, in percent
    accuracy_std: float | None  # None for a single run
    accuracy_min: float
    ece: float  # mean, in percent
    ece_std: float | None
    highest_confidence: float
    seconds: float  # mean time of training


class _Group(NamedTuple):
    """What the runs of one row have in common."""

    dataset: str
    r: int | None
    data_digest: str
    splits: str
    method: str
    recipe: str
    recipe_version: int
    given: str
    settings: str  # all of them: a default may have changed between runs for which the same were given


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Return one row per data set, r, kind of splits, method, recipe, settings, seed and training fraction.

    Different data of the same name have separate rows, and so have versions of a recipe.
    """
    groups: dict[_Group, dict[str, Record]] = {}  # by hash: a run that is listed twice counts once
    for record in records:
        groups.setdefault(_group(record), {})[record.info["hash"]] = record
    ordered = sorted(groups.items(), key=lambda item: tuple(map(str, item[0])))
    return [_row(group, list(members.values())) for group, members in ordered]


def _group(record: Record) -> _Group:
    spec = record.spec
    given = dict(record.info.get("given", {})) | ({"share": record.share} if record.share < 1 else {})
    if spec["seed"]:  # runs of one split with several seeds are no runs of several splits
        given["seed"] = spec["seed"]
    return _Group(
        dataset=spec["dataset"],
        r=spec["r"],
        data_digest=spec["data_digest"],
        splits=spec["splits"],
        method=spec["method"],
        recipe=spec["recipe"],
        recipe_version=record.recipe_version,
        given=", ".join(f"{name}={value}" for name, value in sorted(given.items())),
        settings=json.dumps([spec["hyper_parameters"], spec["recipe_settings"]], sort_keys=True),
    )


def _row(group: _Group, members: list[Record]) -> SummaryRow:
    accuracy = 100 * np.array([member.metrics["accuracy"] for member in members])
    ece = 100 * np.array([member.metrics["expected_calibration_error"] for member in members])
    return {
        "dataset": group.dataset,
        "r": group.r,
        "data_digest": group.data_digest,
        "splits": group.splits,
        "method": group.method,
        "recipe": group.recipe,
        "recipe_version": group.recipe_version,
        "given": group.given,
        "runs": len(members),
        "accuracy": float(accuracy.mean()),
        "accuracy_std": sample_std(accuracy),
        "accuracy_min": float(accuracy.min()),
        "ece": float(ece.mean()),
        "ece_std": sample_std(ece),
        "highest_confidence": float(max(member.arrays["probabilities"].max() for member in members)),
        # predictions of another tool have no time of training
        "seconds": float(np.mean([member.info["seconds"].get("fit", np.nan) for member in members])),
    }


def sample_std(values: NDArray[np.float64]) -> float | None:
    """Return the sample standard deviation, or None for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else None
