"""Means over splits, from records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mipl.records.store import Record


def summarise(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return per method: runs, mean and deviation of accuracy and ECE in percent, worst split, seconds."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.spec["method"], []).append(record)
    rows = []
    for method, members in groups.items():
        accuracy = 100 * np.array([member.metrics["accuracy"] for member in members])
        ece = 100 * np.array([member.metrics["expected_calibration_error"] for member in members])
        several = int(len(members) > 1)
        rows.append(
            {
                "method": method,
                "runs": len(members),
                "accuracy": float(accuracy.mean()),
                "accuracy_std": float(accuracy.std(ddof=several)),
                "accuracy_min": float(accuracy.min()),
                "ece": float(ece.mean()),
                "ece_std": float(ece.std(ddof=several)),
                "seconds": float(np.mean([member.info["seconds"]["fit"] for member in members])),
            }
        )
    return rows
