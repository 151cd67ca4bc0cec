"""Votes: LabelMe's crowd, simulated annotators, and candidate sets that do not come by chance.

Every cell of the tables is one training. Cells are written to results/annotators.json as they are finished,
and a cell that is there is not computed again, so the benchmark can be stopped and resumed at any time:

    python benchmarks/annotators.py --raw DIR --bags DIR --minutes 60

``--raw`` is the folder that holds ``labelme/``; ``--bags`` a folder of built bags, ``NAME-r.npz``. The
tables go to docs/votes.md; cells that are not measured yet are left empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mipl.annotators import VoteTable, dawid_skene
from mipl.calibration import calibrate
from mipl.calibration.candidate_model import chance_p_value
from mipl.data.bags import Bags
from mipl.data.formats.npz import load_npz
from mipl.data.splits import own_split, stratified_split
from mipl.data.voted_bags import with_votes
from mipl.data.votes import read_votes
from mipl.errors import MiplNotice
from mipl.estimators import make_classifier
from mipl.files import atomic_file
from mipl.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from mipl.seeding import rng_for
from pages import filled

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "annotators.json", ROOT / "docs" / "votes.md"
Json = dict[str, Any]
SEEDS, SPLITS = range(5), (1, 2, 3)
TREATMENTS: dict[str, tuple[str, Json]] = {  # name -> method and settings
    "majority": ("sam-mdl", {"votes": "majority"}),
    "dawid-skene": ("sam-mdl", {"votes": "dawid-skene"}),
    "union": ("sam-cn", {"votes": "union"}),
    "trust": ("sam-cn", {"votes": "union", "trust": "estimate"}),
    "annotators, one network": ("sam-cn", {"ensemble": 1}),
    "annotators": ("sam-cn", {}),
}
LABELME = ("annotators", "union", "dawid-skene", "majority", "annotators, one network")
SIMULATED = ("annotators", "union", "majority", "dawid-skene", "trust")
SCENARIOS = ("3 experts", "5, of whom 2 random", "5 with one confusion", "3 who miss 30%")
DATA = ("sival6-mipl-1", "birdsong-mipl-1", "crc5-lite0-16-None")
SETS = ("crc5-row-None", "crc5-kmeans-None", "sival6-mipl-1", "crc5-lite0-16-None")
SMALL = {"ensemble": 3, "epochs": 30, "weight_decay": 0.001}  # of the models whose calibration is compared
COVERAGE = 0.9


def matrices(scenario: str, k: int) -> np.ndarray[Any, Any]:
    """Return the confusion matrices (a, k, k) of a scenario."""

    def right(share: float) -> np.ndarray[Any, Any]:
        return np.where(np.eye(k, dtype=bool), share, (1.0 - share) / (k - 1))

    if scenario == "3 experts":
        return np.stack([right(0.9)] * 3)
    if scenario == "5, of whom 2 random":
        return np.stack([right(0.85)] * 3 + [np.full((k, k), 1.0 / k)] * 2)
    if scenario == "5 with one confusion":
        shared = 0.9 * (0.65 * np.eye(k) + 0.35 * np.roll(np.eye(k), 1, axis=1)) + 0.1 / k
        return np.stack([shared] * 5)
    return np.stack([right(0.7)] * 3)


def simulated(bags: Bags, scenario: str, number: int) -> Bags:
    """Return bags with three votes each, of the scenario's annotators, drawn given the true labels."""
    assert bags.labels is not None
    confusion = matrices(scenario, bags.k)
    rng = rng_for("annotators", scenario, number)
    rows = [
        (i, r, rng.choice(bags.k, p=confusion[r, label]))
        for i, label in enumerate(bags.labels.tolist())
        for r in rng.permutation(len(confusion))[:3]
    ]
    votes = np.array(rows, dtype=np.int64)
    union = np.zeros((len(bags), bags.k), dtype=np.bool_)
    union[votes[:, 0], votes[:, 2]] = True
    return dataclasses.replace(
        bags,
        candidates=union,
        missing_truth=True,
        votes=votes,
        annotators=tuple(f"annotator {r}" for r in range(len(confusion))),
    )


def trained(train: Bags, test: Bags, treatment: str, seed: int) -> tuple[Json, Any]:
    """Train a treatment; return its values on the test bags, and the model."""
    method, settings = TREATMENTS[treatment]
    started = time.process_time()
    model = make_classifier(method, random_state=seed, **settings).fit(train)
    p, labels = model.predict_proba(test), test.labels
    assert labels is not None
    found: Json = {
        "accuracy": accuracy(p, labels),
        "ece": expected_calibration_error(p, labels),
        "nll": negative_log_likelihood(p, labels),
        "right": np.packbits(p.argmax(axis=1) == labels).tobytes().hex(),
        "bags": len(labels),
        "weight_decay": model.recipe_.weight_decay,
        "cpu_seconds": round(time.process_time() - started, 1),
    }
    if model.posterior_ is not None:
        found["train_right"] = float((model.posterior_.argmax(axis=1) == train.labels).mean())
        found["temperature"] = model.out_of_fold_["temperature"]
        found["log_likelihood"] = model.out_of_fold_["set_log_likelihood"]
    return found, model


def labelme_cells(raw: Path, bags: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of each training on LabelMe."""
    data = load_npz(bags / "labelme-None.npz")
    split = own_split(data)
    assert split is not None
    rows, test = split
    train = with_votes(data[rows], read_votes(raw / "labelme" / "votes.csv"))
    for seed in SEEDS:
        for name in LABELME:
            yield f"{name}|{seed}", lambda n=name, s=seed: trained(train, data[test], n, s)[0]


def simulated_cells(bags: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of each training with simulated annotators."""
    for name in DATA:
        for split in SPLITS:
            for scenario in SCENARIOS:
                for treatment in SIMULATED:
                    cell = f"{name}|{scenario}|{treatment}|{split}"
                    place = (bags / f"{name}.npz", scenario, treatment, split)
                    yield cell, lambda a=place: simulated_cell(*a)


def simulated_cell(path: Path, scenario: str, treatment: str, split: int) -> Json:
    """Train one treatment with simulated votes; compare the matrices with the simulated ones."""
    bags = load_npz(path)
    rows, test = stratified_split(bags, split)
    train = simulated(bags[rows], scenario, split)
    found, model = trained(train, bags[test], treatment, split)
    truth = matrices(scenario, bags.k)
    estimated = None
    if model.annotators_ is not None:
        estimated = model.annotators_.confusion[0].numpy()
    elif treatment == "dawid-skene":
        assert train.votes is not None
        estimated = dawid_skene(VoteTable.of(train.votes, len(train), len(truth), bags.k))[1].numpy()
    if estimated is not None:
        found["matrix_error"] = float(np.abs(estimated - truth).mean())
    return found


def set_cells(bags: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tests of chance on all built sets, and the comparisons of calibrations."""
    for path in sorted(bags.glob("*.npz")):
        yield f"chance|{path.stem}", lambda p=path: chance_cell(p)
    for name in SETS:
        for split in SPLITS:
            yield f"calibration|{name}|{split}", lambda n=name, s=split: set_cell(bags / f"{n}.npz", s)


def chance_cell(path: Path) -> Json:
    with np.load(path, allow_pickle=False) as content:
        sets = content["candidates"]
    return {"p_value": chance_p_value(sets), "bags": len(sets)}


def set_cell(path: Path, split: int) -> Json:
    """Train a small ensemble on a third, calibrate it on a third in three ways, measure on the last third."""
    bags = load_npz(path)
    rows, others = stratified_split(bags, split, 1 / 3)
    inner, outer = stratified_split(bags[others], split, 1 / 2)
    own, test = bags[others[inner]], bags[others[outer]]
    model = make_classifier("sam-cn", random_state=split, **SMALL).fit(bags[rows])
    found: Json = {}
    ways: dict[str, Json] = {
        "labels": {"by": "labels"},
        "chance": {"by": "candidates", "candidate": "drawn"},
        "estimate": {"by": "candidates", "candidate": "drawn", "false_candidates": "estimate"},
    }
    for way, settings in ways.items():
        calibrated = calibrate(model, own, seed=split, **settings)
        p, labels = calibrated.predict_proba(test), test.labels
        conformal = calibrated.calibration_.conformal
        sets = conformal.sets(p, COVERAGE)
        found[way] = {
            "temperature": calibrated.calibration_.scaling.temperature,
            "accuracy": accuracy(p, labels),
            "ece": expected_calibration_error(p, labels),
            "nll": negative_log_likelihood(p, labels),
            "coverage": float(sets[np.arange(len(labels)), labels].mean()),
            "size": float(sets.sum(axis=1).mean()),
        }
    return found


# ---- tables ---------------------------------------------------------------------------------------------


def tables(found: Json) -> dict[str, str]:
    """Return the tables of docs/votes.md in Markdown, by the name of their place."""
    return {
        "labelme": labelme_table(found.get("labelme", {})),
        "simulated": simulated_table(found.get("simulated", {})),
        "chance": chance_table(found.get("sets", {})),
        "calibration": calibration_table(found.get("sets", {})),
    }


def cell_mean(rows: list[Json], name: str, scale: float = 100.0, digits: int = 1) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    return f"{scale * np.mean(values):.{digits}f}" if values else ""


def right_bits(row: Json) -> np.ndarray[Any, Any]:
    return np.unpackbits(np.frombuffer(bytes.fromhex(row["right"]), dtype=np.uint8))[: row["bags"]]


def labelme_table(cells: Json) -> str:
    lines = [
        "| treatment | seeds | accuracy | ECE | NLL | training images right | accuracy above union |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in LABELME:
        seeds = [seed for seed in SEEDS if f"{name}|{seed}" in cells]
        rows = [cells[f"{name}|{seed}"] for seed in seeds]
        both = [seed for seed in seeds if f"union|{seed}" in cells]
        above = ""
        if both and name != "union":
            pairs = [right_bits(cells[f"{name}|{s}"]) - 1.0 * right_bits(cells[f"union|{s}"]) for s in both]
            each = np.mean(pairs, axis=0)  # by image
            error = 1.96 * each.std(ddof=1) / np.sqrt(len(each))
            above = f"{100 * each.mean():+.1f} ± {100 * error:.1f}"
        values = [
            cell_mean(rows, "accuracy"),
            cell_mean(rows, "ece"),
            cell_mean(rows, "nll", 1.0, 2),
            cell_mean(rows, "train_right"),
        ]
        lines.append(f"| {name} | {len(rows) or 'not measured'} | {' | '.join(values)} | {above} |")
    return "\n".join(lines)


def simulated_table(cells: Json) -> str:
    heading = " | ".join(SIMULATED)
    lines = [f"| data | annotators | splits | {heading} | matrices |", "|---" * (len(SIMULATED) + 4) + "|"]
    for name in DATA:
        for scenario in SCENARIOS:
            by = {
                t: [cells[c] for s in SPLITS if (c := f"{name}|{scenario}|{t}|{s}") in cells]
                for t in SIMULATED
            }
            values = [
                f"{cell_mean(rows, 'accuracy')} / {cell_mean(rows, 'ece')}, {cell_mean(rows, 'nll', 1.0, 2)}"
                if rows
                else ""
                for rows in by.values()
            ]
            measured = min(map(len, by.values()))
            error = " / ".join(
                cell_mean(by[t], "matrix_error", 1.0, 3) or "–" for t in ("annotators", "dawid-skene")
            )
            title = name.removesuffix("-None")
            lines.append(
                f"| {title} | {scenario} | {measured or 'not measured'} | {' | '.join(values)} | {error} |"
            )
    return "\n".join(lines)


def chance_table(cells: Json) -> str:
    lines = ["| sets | bags | p |", "|---|---|---|"]
    for name, row in cells.items():
        if name.startswith("chance|"):
            p = "no test" if row["p_value"] is None else f"{row['p_value']:.2f}"
            lines.append(f"| {name.split('|')[1].removesuffix('-None')} | {row['bags']} | {p} |")
    return "\n".join(lines)


def calibration_table(cells: Json) -> str:
    lines = [
        "| data | splits | calibrated by | T | ECE | NLL | coverage at 90% | labels per set |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        rows = [cells[c] for s in SPLITS if (c := f"calibration|{name}|{s}") in cells]
        for way in ("labels", "chance", "estimate"):
            own = [row[way] for row in rows]
            values = [
                cell_mean(own, "temperature", 1.0, 2),
                cell_mean(own, "ece"),
                cell_mean(own, "nll", 1.0, 2),
                cell_mean(own, "coverage"),
                cell_mean(own, "size", 1.0, 2),
            ]
            title = f"| {name.removesuffix('-None')} | {len(rows) or 'not measured'} | {way} |"
            lines.append(f"{title} {' | '.join(values)} |")
    return "\n".join(lines)


# ---- the command ----------------------------------------------------------------------------------------


def measure(section: str, cells: Iterator[tuple[str, Any]], found: Json, out: Path, until: float) -> None:
    """Compute the cells that are missing, and write the file after each."""
    known = found.setdefault(section, {})
    for name, compute in cells:
        if name in known or time.monotonic() > until:
            continue
        known[name] = compute()
        with atomic_file(out) as temporary:
            temporary.write_text(
                json.dumps(found, indent=1, allow_nan=False, sort_keys=True) + "\n", encoding="utf-8"
            )
        print(section, name, {key: v for key, v in known[name].items() if key != "right"}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, help="folder that holds labelme/")
    parser.add_argument("--bags", type=Path, help="folder of built bags; without it only the page is written")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=("labelme", "simulated", "sets"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found: Json = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    until = time.monotonic() + 60 * given.minutes
    warnings.simplefilter("ignore", MiplNotice)
    if given.bags is not None:
        sections = {"simulated": simulated_cells(given.bags), "sets": set_cells(given.bags)}
        if given.raw is not None:
            sections = {"labelme": labelme_cells(given.raw, given.bags), **sections}
        for section, cells in sections.items():
            if given.only in (None, section):
                measure(section, cells, found, given.out, until)
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
