"""What the defaults do on few bags and on hopeless data: python benchmarks/small.py --raw FOLDER

FOLDER has hja-birdsong. Of digits-mipl-vectors and Birdsong-MIPL (r = 1), 40, 90 and 110 random bags are
trained on, as they are and without any signal: every class a candidate of every bag; candidate sets of other
bags; constant features. Counted is how often training warns and how often the mean confidence on new bags is
within ten points of chance, 1/k. Twenty seeds each.

Writes results/small.json, one row per training, and its table of results/defaults.md. `--before FILE` adds
the rows that an earlier version wrote, for comparison of what has a signal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mipl import make_classifier
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.errors import MiplNotice
from mipl.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from mipl.seeding import rng_for
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "small.json", REPO / "results" / "defaults.md"
SETS = {"digits-mipl-vectors": None, "birdsong-mipl": "hja-birdsong"}
SIZES = (40, 90, 110)
KINDS = ("signal", "every class a candidate", "sets of other bags", "constant features")
SEEDS = 20
NEW = 300  # bags that confidence and accuracy are measured on, at most
Row = dict[str, Any]


def changed(bags: Bags, kind: str, seed: int) -> Bags:
    """Return the bags without their signal, as ``kind`` has it."""
    assert bags.candidates is not None
    if kind == "every class a candidate":
        return dataclasses.replace(bags, candidates=np.ones_like(bags.candidates))
    if kind == "sets of other bags":
        sets = rng_for("sets", seed).permutation(bags.candidates)
        return dataclasses.replace(bags, candidates=sets, labels=None)
    if kind == "constant features":
        return dataclasses.replace(bags, source=np.ones_like(bags.source))
    return bags


def measured(dataset: str, raw: Path, size: int, kind: str, seed: int) -> Row:
    """Train once and return what came of it."""
    torch.set_num_threads(1)
    folder = SETS[dataset]
    bags = Source(dataset, 1, raw=None if folder is None else str(raw / folder)).open()
    order = rng_for("few bags", dataset, size, seed).permutation(len(bags))
    train, test = bags[np.sort(order[:size])], bags[np.sort(order[size:][:NEW])]
    assert test.labels is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make_classifier("sam-cn", random_state=seed).fit(changed(train, kind, seed))
    p = model.predict_proba(changed(test, kind, seed))
    return {
        "dataset": dataset,
        "size": size,
        "kind": kind,
        "seed": seed,
        "warned": any("learned nothing" in str(w.message) for w in caught if w.category is MiplNotice),
        "signal": (getattr(model, "out_of_fold_", None) or {}).get("signal"),
        "confidence": float(p.max(axis=1).mean()),
        "chance": 1.0 / bags.k,
        "accuracy": accuracy(p, test.labels),
        "ece": expected_calibration_error(p, test.labels),
        "nll": negative_log_likelihood(p, test.labels),
    }


def table(found: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = [
        "| data | bags | kind | warned | confidence within 10 points of chance | mean confidence | "
        "accuracy / ECE, NLL | before |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset in SETS:
        for kind in KINDS:
            for size in SIZES:
                own = _rows(found["rows"], dataset, size, kind)
                if not own:
                    continue
                near = sum(abs(row["confidence"] - row["chance"]) <= 0.1 for row in own)
                mean = 100 * np.mean([row["confidence"] for row in own])
                good, before = "–", "–"
                if kind == "signal":
                    good = _quality(own)
                    earlier = _rows(found.get("before", []), dataset, size, kind)
                    before = _quality(earlier) if earlier else "–"
                lines.append(
                    f"| {dataset} | {size} | {kind} | {sum(row['warned'] for row in own)} of {len(own)} | "
                    f"{near} of {len(own)} | {mean:.1f} | {good} | {before} |"
                )
    return "\n".join(lines)


def _rows(rows: list[Row], dataset: str, size: int, kind: str) -> list[Row]:
    return [row for row in rows if (row["dataset"], row["size"], row["kind"]) == (dataset, size, kind)]


def _quality(rows: list[Row]) -> str:
    accuracy_, ece, nll = (np.mean([row[name] for row in rows]) for name in ("accuracy", "ece", "nll"))
    return f"{100 * accuracy_:.1f} / {100 * ece:.1f}, {nll:.2f}"


def main() -> None:
    """Train what is asked for, then write rows and table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--before", type=Path, help="rows of an earlier version")
    parser.add_argument("--rows", type=Path, help="only write the rows to this file")
    given = parser.parse_args()
    cells = [
        (dataset, given.raw, size, kind, seed)
        for kind in given.kinds.split(",")
        for size in SIZES
        for dataset in SETS
        for seed in range(given.seeds)
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(measured, *zip(*cells, strict=True)))
    if given.rows is not None:
        given.rows.write_text(json.dumps(rows) + "\n", encoding="utf-8")
        return
    found: dict[str, Any] = {"command": "python benchmarks/small.py --raw FOLDER", "rows": rows}
    if given.before is not None:
        found["before"] = json.loads(given.before.read_text(encoding="utf-8"))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), {"small": table(found)}), encoding="utf-8")


if __name__ == "__main__":
    main()
