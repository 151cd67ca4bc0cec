"""Means over splits, from records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.records.store import Record


def summarise(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a row for each data set, r, kind of splits, method, recipe and settings or share given.

    Data sets of one name and different digests have rows of their own, and so have versions of a recipe and
    settings that differ although the same were given, because a default has changed between the runs.
    A row has the number of runs, mean and standard deviation of accuracy and ECE in percent (None for a
    single run), the worst split's accuracy, the highest confidence and the mean seconds of training. A run
    that was made alone and together with other splits counts once, alone.
    """
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: "together" not in record.spec):
        settings = dict(record.info.get("given", {})) | ({"share": record.share} if record.share < 1 else {})
        given = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        names = ("dataset", "r", "data_digest", "splits", "method", "recipe")
        used = [record.spec[name] for name in ("hyper_parameters", "recipe_settings")]
        key = (
            *(record.spec[name] for name in names),
            record.recipe_version,
            given,
            json.dumps(used, sort_keys=True),
        )
        alone = {name: value for name, value in record.spec.items() if name != "together"}
        groups.setdefault(key, {})[json.dumps(alone, sort_keys=True)] = record
    return [
        _row(key, list(members.values()))
        for key, members in sorted(groups.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _row(key: tuple[Any, ...], members: list[Record]) -> dict[str, Any]:
    dataset, r, digest, splits, method, recipe, version, given, _ = key
    accuracy = 100 * np.array([member.metrics["accuracy"] for member in members])
    ece = 100 * np.array([member.metrics["expected_calibration_error"] for member in members])
    return {
        "dataset": dataset,
        "r": r,
        "data_digest": digest,
        "splits": splits,
        "method": method,
        "recipe": recipe,
        "recipe_version": version,
        "given": given,
        "runs": len(members),
        "accuracy": float(accuracy.mean()),
        "accuracy_std": sample_std(accuracy),
        "accuracy_min": float(accuracy.min()),
        "ece": float(ece.mean()),
        "ece_std": sample_std(ece),
        "highest_confidence": float(max(member.arrays["probabilities"].max() for member in members)),
        "seconds": float(np.mean([member.info["seconds"]["fit"] for member in members])),
    }


def sample_std(values: NDArray[np.float64]) -> float | None:
    """Return the sample standard deviation, or None: a single value has none."""
    return float(values.std(ddof=1)) if len(values) > 1 else None
