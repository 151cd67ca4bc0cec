"""Other methods of the field beside the default: python benchmarks/field.py --raw FOLDER --store DIR

FOLDER has the raw files of the data sets (hja-birdsong, crc-tiles, birdsong-partial). Runs that have a record
in DIR, in results/field or in results/records are not repeated, so that the command can be stopped and
repeated; bags that were built are read from beside DIR.

1. Aggregators: SAM, ABMIL (plain and gated), TransMIL and DSMIL with MDL and CDL-CN, one network each.
2. UAMIPL, as its paper defines it and as its authors' script computes it, beside FastMIPL.
3. Partial-label learning proper: bags of one instance.

Writes results/field, the runs packed, and the tables of results/field.md.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from defaults import Case, jobs_of
from mipl.data.bags import Bags
from mipl.experiments.engines import run_jobs
from mipl.experiments.runner import Job, is_present, split_of
from mipl.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from mipl.records.pack import write_pack
from mipl.records.store import Record, Store
from mipl.seeding import rng_for
from pages import filled

REPO = Path(__file__).resolve().parents[1]
PACK, PAGE = REPO / "results" / "field", REPO / "results" / "field.md"
DEFAULTS = REPO / "results" / "records"  # the runs of benchmarks/defaults.py
SPLITS = (1, 2, 3)
BIRDSONG = Case("birdsong-mipl", 1, "hja-birdsong", SPLITS, {"sam-cn": 0.0}, 0.0)
PATCHES = Case("crc5-lite0-16", None, "crc-tiles", SPLITS, {"sam-cn": 0.0}, 0.0)
SINGLES = Case("birdsong-partial", None, "birdsong-partial", SPLITS, {"sam-cn": 0.0}, 0.0)
Settings = dict[str, Any]
Variant = tuple[str, str, Settings]  # title, method, settings
AGGREGATORS: tuple[Variant, ...] = tuple(
    (f"{title}, {loss_title}", f"{attention}-{loss}", settings)
    for loss, loss_title in (("mdl", "MDL"), ("cn", "CDL-CN"))
    for title, attention, settings in (
        ("SAM", "sam", {"ensemble": 1}),
        ("ABMIL", "abmil", {}),
        ("gated ABMIL", "abmil-gated", {}),
        ("TransMIL", "sam", {"aggregator": "transmil"}),
        ("DSMIL", "sam", {"aggregator": "dsmil"}),
    )
)
EVIDENTIAL: tuple[Variant, ...] = (
    ("FastMIPL", "fastmipl", {}),
    ("UAMIPL", "uamipl", {}),
    ("UAMIPL, as the script", "uamipl", {"way": "script"}),
    ("FastMIPL, paper's settings", "fastmipl", {"recipe": "paper"}),
    ("UAMIPL, paper's settings", "uamipl", {"recipe": "paper"}),
    ("UAMIPL, paper's settings, as the script", "uamipl", {"recipe": "paper", "way": "script"}),
)
PARTIAL: tuple[Variant, ...] = tuple(
    (name, name, {}) for name in ("sam-cn", "proden", "lws", "pop", "rc", "cc")
)
TABLES: dict[str, tuple[Sequence[Case], Sequence[Variant]]] = {
    "aggregators": ((BIRDSONG, PATCHES), AGGREGATORS),
    "evidential": ((BIRDSONG,), EVIDENTIAL),
    "partial": ((SINGLES,), PARTIAL),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """A method on one split, in percent and nats."""

    accuracy: float
    ece: float
    nll: float
    seconds: float | None = None


def planned(
    name: str, raw: Path, store: Path, opened: dict[str, Bags]
) -> Iterable[tuple[Case, Variant, list[Job]]]:
    """Yield the runs of a table, one case and method after the other."""
    cases, variants = TABLES[name]
    for case in cases:
        if case.title not in opened:
            opened[case.title] = case.source(raw, store).open()
        for variant in variants:
            _, method, settings = variant
            yield case, variant, jobs_of(case, opened[case.title], method, settings, raw, store)


def measured(record: Record) -> Measured:
    """Return what a table has of a run."""
    metrics = record.metrics
    seconds = record.info["seconds"]["fit_processor"]
    return Measured(
        100 * metrics["accuracy"],
        100 * metrics["expected_calibration_error"],
        metrics["negative_log_likelihood"],
        seconds,
    )


def regression(bags: Bags) -> list[Measured]:
    """Return logistic regression on mean features, with a random candidate of each bag as its label."""
    assert bags.labels is not None
    means = np.stack([bag.instances.mean(axis=0) for bag in bags])
    draws = rng_for("candidate", "field").random(bags.candidate_sets.shape)
    label = (bags.candidate_sets + 1e-3 * draws).argmax(axis=1)
    found = []
    for split in SPLITS:
        train, test = split_of(bags, "stratified", split)
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(means[train], label[train])
        p = np.zeros((len(test), bags.k))
        p[:, model.classes_] = model.predict_proba(means[test])
        truth = bags.labels[test]
        found.append(
            Measured(
                100 * accuracy(p, truth),
                100 * expected_calibration_error(p, truth),
                negative_log_likelihood(p, truth),
            )
        )
    return found


def row(data: str, title: str, runs: Sequence[Measured]) -> str:
    """Return a row of a table: means over the splits, the standard deviation of the accuracy."""
    if not runs:
        return f"| {data} | {title} | 0 | – | – | – | – |"
    accuracies = [run.accuracy for run in runs]
    spread = f" ± {np.std(accuracies, ddof=1):.1f}" if len(runs) > 1 else ""
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return (
        f"| {data} | {title} | {len(runs)} | {np.mean(accuracies):.1f}{spread} "
        f"| {np.mean([run.ece for run in runs]):.1f} | {np.mean([run.nll for run in runs]):.2f} "
        f"| {f'{np.mean(seconds):.0f} s' if seconds else '–'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--only", choices=list(TABLES), action="append", help="repeatable")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pages", action="store_true", help="make no run, only write the page")
    given = parser.parse_args()
    opened: dict[str, Bags] = {}
    packs = (*Store(DEFAULTS), *Store(PACK))
    known = {record.info["hash"]: record for record in packs if is_present(record)}
    plan = {name: list(planned(name, given.raw, given.store, opened)) for name in TABLES}
    for name in given.only or list(TABLES):
        jobs = [job for _, _, some in plan[name] for job in some if job.spec.hash not in known]
        for job, reason in [] if given.pages else run_jobs(jobs, "local", given.jobs):
            print(f"{job.title} failed: {reason}")
    known |= {record.info["hash"]: record for record in Store(given.store) if is_present(record)}
    wanted = {job.spec.hash for some in plan.values() for *_, jobs in some for job in jobs}
    write_pack([known[name] for name in sorted(wanted & known.keys())], PACK)
    tables = {}
    for name, some in plan.items():
        lines = [
            "| data | method | splits | accuracy | ECE | NLL | training |",
            "|---|---|---|---|---|---|---|",
        ]
        for case, (title, _, _), jobs in some:
            runs = [measured(known[job.spec.hash]) for job in jobs if job.spec.hash in known]
            lines.append(row(case.title, title, runs))
        if name == "partial":
            lines.append(row(SINGLES.title, "logistic regression", regression(opened[SINGLES.title])))
        tables[name] = "\n".join(lines)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
