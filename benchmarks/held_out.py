"""What candidate sets of held-out bags are good for: python benchmarks/held_out.py --raw FOLDER

From the records of finished runs alone. Of the test bags of every run one half, drawn at random, calibrates
or chooses, and the other half is measured; means over draws and splits. FOLDER has hja-birdsong and
crc-tiles, the raw files that the candidate sets of the test bags are drawn for again.

1. Temperature scaling with the true labels of that half, and with its candidate sets.
2. γ and the competitor of CDL, chosen by the candidate sets of that half, and what the choice gains.
3. Class noise: the trust variant beside plain training (all test bags; nothing is held out).

Writes results/trust/held_out.json and the tables of docs/trust.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.calibration import fit_scaling
from mipl.data.sources import Source
from mipl.metrics import (
    accuracy,
    area_under_risk_coverage,
    expected_calibration_error,
    first_near_best,
    set_log_likelihoods,
)
from mipl.records.store import Record, Store
from mipl.records.summary import sample_std
from mipl.seeding import rng_for
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "trust" / "held_out.json", REPO / "docs" / "trust.md"
FOLDERS = {"birdsong-mipl": "hja-birdsong", "crc5-sbn": "crc-tiles"}
CALIBRATED = ("sam-cn", "elimipl", "miplma")
# (method, what is given), in the order in which they would be taken without a search
GRID: tuple[tuple[str, dict[str, float]], ...] = (
    ("sam-cn", {}),
    ("sam-cc", {"gamma": 1.0}),
    ("sam-cn", {"gamma": 0.0}),
    ("sam-cn", {"gamma": 3.0}),
    ("sam-cc", {"gamma": 3.0}),
)
NOISES = (0.0, 0.3, 0.5)
METRICS = {"accuracy": accuracy, "ece": expected_calibration_error, "area": area_under_risk_coverage}
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def runs(records: Sequence[Record], dataset: str, method: str, **given: Any) -> list[Record]:
    """Return the runs of a method with just these settings given, one a split, of one recipe version."""
    fitting = [
        record
        for record in records
        if (record.spec["dataset"], record.spec["method"], record.spec["recipe"])
        == (dataset, method, "stable")
        and record.info.get("given", {}) == given
        and (record.spec["r"] or 1) == 1
    ]
    latest = max((record.recipe_version for record in fitting), default=0)
    found = {record.spec["split"]: record for record in fitting if record.recipe_version == latest}
    return [found[split] for split in sorted(found)]


def same_splits(each: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Return of every method the runs on splits that all of them have."""
    common = set.intersection(*({record.spec["split"] for record in found} for found in each))
    return [[record for record in found if record.spec["split"] in common] for found in each]


def is_of(record: Record, bags: Any) -> bool:
    """Tell whether a run is of these bags; recipe version 1 recorded the digest of the content alone."""
    digest = bags.content_digest() if record.recipe_version == 1 else bags.digest()
    return bool(digest == record.spec["data_digest"])


def candidates_of(record: Record, bags: Any) -> Bools:
    """Return the candidate sets of a run's test bags (m, k)."""
    assert is_of(record, bags), "the run is of other bags than the raw files give"
    place = {name: i for i, name in enumerate(bags.ids.tolist())}
    return np.asarray(bags.candidates[[place[name] for name in record.arrays["ids"].tolist()]])


def log_p(record: Record) -> Floats:
    return np.log(np.maximum(record.arrays["probabilities"].astype(np.float64), 1e-300))


def measured(log_probabilities: Floats, labels: NDArray[np.int64]) -> list[float]:
    p = np.exp(log_probabilities)
    return [metric(p / p.sum(axis=1, keepdims=True), labels) for metric in METRICS.values()]


def halves(m: int, draws: int, *names: str | int) -> Any:
    for number in range(draws):
        order = rng_for("held out", *names, number).permutation(m)
        yield order[: m // 2], order[m // 2 :]


def calibrated(records: Sequence[Record], bags: Any, draws: int) -> list[dict[str, Any]]:
    """Return what temperatures do to the other half, means over draws and splits."""
    values: dict[str, list[list[float]]] = {}
    temperatures: dict[str, list[float]] = {}
    for record in records:
        logs, labels, sets = log_p(record), record.arrays["labels"], candidates_of(record, bags)
        known = {"labels": np.eye(logs.shape[1], dtype=np.bool_)[labels], "candidates": sets}
        for own, rest in halves(len(labels), draws, record.spec["split"]):
            values.setdefault("plain", []).append(measured(logs[rest], labels[rest]))
            for way, allowed in known.items():
                scaling = fit_scaling(logs[own], allowed[own], "temperature")
                temperatures.setdefault(way, []).append(scaling.temperature or 0.0)
                values.setdefault(way, []).append(measured(scaling.apply(logs[rest]), labels[rest]))
    return [
        {
            "way": way,
            "splits": len(records),
            "temperature": float(np.median(temperatures[way])) if way in temperatures else None,
            **dict(zip(METRICS, np.mean(rows, axis=0).tolist(), strict=True)),
        }
        for way, rows in values.items()
    ]


def chosen(grid: Sequence[Sequence[Record]], bags: Any, draws: int) -> list[dict[str, Any]]:
    """Return for every rule what it chose and what that gives on the other half.

    ``grid`` (settings × splits). Rules: the first of the grid, without a search; the highest likelihood of
    the candidate sets; the first within a standard error of it; the highest covering rate; the highest
    accuracy on the same half, which needs its true labels.
    """
    rules: dict[str, list[tuple[int, list[float]]]] = {}
    for split in zip(*grid, strict=True):
        logs, labels = [log_p(record) for record in split], split[0].arrays["labels"]
        sets, rows = candidates_of(split[0], bags), np.arange(len(labels))
        likely = np.stack([set_log_likelihoods(normalised(each), sets) for each in logs])  # (settings, m)
        top = np.stack([each.argmax(axis=1) for each in logs])
        covered, right = sets[rows, top].astype(float), (top == labels).astype(float)
        for own, rest in halves(len(labels), draws, split[0].spec["split"]):
            picks = {
                "no search": 0,
                "set likelihood": int(likely[:, own].mean(axis=1).argmax()),
                "set likelihood, one error": first_near_best(likely[:, own]),
                "covering rate": int(covered[:, own].mean(axis=1).argmax()),
                "covering rate, one error": first_near_best(covered[:, own]),
                "true labels": int(right[:, own].mean(axis=1).argmax()),
            }
            for rule, pick in picks.items():
                rules.setdefault(rule, []).append((pick, measured(logs[pick][rest], labels[rest])))
    return [
        {
            "rule": rule,
            "chosen": np.bincount([pick for pick, _ in found], minlength=len(grid)).tolist(),
            **dict(zip(METRICS, np.mean([row for _, row in found], axis=0).tolist(), strict=True)),
        }
        for rule, found in rules.items()
    ]


def normalised(logs: Floats) -> Floats:
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=1)[:, None])


def noisy(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return accuracy, ECE and area under class noise, plain and with a trust, on the splits of both."""
    rows = []
    for noise in NOISES:
        dataset = "birdsong-mipl" + (f" class noise {noise:g}" if noise else "")
        ways: dict[str, dict[str, Any]] = {"plain": {}, "trust estimated": {"trust": "estimate"}}
        if noise:
            ways["trust given, one for all sizes"] = {"trust": 1.0 - noise}
        each = same_splits([runs(records, dataset, "sam-cn", **given) for given in ways.values()])
        for way, found in zip(ways, each, strict=True):
            if not found:
                continue
            values = np.array([measured(log_p(record), record.arrays["labels"]) for record in found])
            gain = values[:, 0] - [record.metrics["accuracy"] for record in each[0]]  # split by split
            sure = [record.arrays["probabilities"].max(axis=1).mean() for record in found]
            trust = [record.info["trust"] for record in found if "trust" in record.info]
            names = trust[0] if trust else ()
            rows.append(
                {
                    "noise": noise,
                    "way": way,
                    "splits": len(found),
                    "accuracy_std": sample_std(values[:, 0]),
                    "gain": float(gain.mean()),
                    "gain_error": float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else None,
                    "confidence": float(np.mean(sure)),
                    **dict(zip(METRICS, values.mean(axis=0).tolist(), strict=True)),
                    "trust": {name: float(np.mean([own[name] for own in trust])) for name in names},
                }
            )
    return rows


def measure(records: Sequence[Record], opened: dict[str, Any], draws: int) -> dict[str, Any]:
    """Return all that the tables need; data sets without runs are left out."""
    own = {name: [each for each in records if is_of(each, bags)] for name, bags in opened.items()}
    birds = own["birdsong-mipl"]
    grid = same_splits([runs(birds, "birdsong-mipl", method, **given) for method, given in GRID])
    plain = {name: [runs(own[name], name, method) for method in CALIBRATED] for name in opened}
    return {
        "command": "python benchmarks/held_out.py --raw FOLDER",
        "draws": draws,
        "calibrated": [
            {"dataset": dataset, "method": method, **row}
            for dataset, bags in opened.items()
            for method, found in zip(CALIBRATED, same_splits(plain[dataset]), strict=True)
            for row in calibrated(found, bags, draws)
        ],
        "grid": [f"{method}, γ = {given.get('gamma', 1.0):g}" for method, given in GRID],
        "each": [
            dict(
                zip(
                    METRICS,
                    np.mean([measured(log_p(r), r.arrays["labels"]) for r in each], axis=0),
                    strict=True,
                )
            )
            for each in grid
            if each
        ],
        "chosen": chosen(grid, opened["birdsong-mipl"], draws) if all(grid) else [],
        "noise": noisy(records),
    }


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of docs/trust.md in Markdown, by the name of their place."""
    names = {"plain": "plain", "labels": "temperature (true)", "candidates": "temperature (candidates)"}
    scaled = ["| data set | method | splits | scaling | T | accuracy | ECE | area |", "|---" * 8 + "|"]
    for row in found["calibrated"]:
        t = "–" if row["temperature"] is None else f"{row['temperature']:.2f}"
        start = f"| {row['dataset']} | {row['method']} | {row['splits']} | {names[row['way']]} | {t} | "
        scaled.append(start + _numbers(row))
    search = ["| settings | accuracy | ECE | area |", "|---" * 4 + "|"]
    search += [f"| {name} | {_numbers(row)}" for name, row in zip(found["grid"], found["each"], strict=False)]
    search += ["", f"| rule | {' | '.join(found['grid'])} | accuracy | ECE | area |"]
    search.append("|---" * (4 + len(found["grid"])) + "|")
    for row in found["chosen"]:
        shares = " | ".join(f"{100 * n / sum(row['chosen']):.0f}%" for n in row["chosen"])
        search.append(f"| {row['rule']} | {shares} | {_numbers(row)}")
    noise = [
        "| class noise | training | splits | trust of pairs, of single labels | accuracy | gain ± error |"
    ]
    noise[0] += " confidence | ECE | area |"
    noise.append("|---" * 9 + "|")
    for row in found["noise"]:
        trust = row["trust"]
        cells = [f"{trust[name]:.2f}" if name in trust else "–" for name in ("trust_2", "trust_1")]
        gain = _plus_minus(row["gain"], row["gain_error"], "+") if row["way"] != "plain" else "–"
        noise.append(
            f"| {row['noise']:g} | {row['way']} | {row['splits']} | {', '.join(cells)} | "
            f"{_plus_minus(row['accuracy'], row['accuracy_std'])} | {gain} | "
            f"{100 * row['confidence']:.1f} | {100 * row['ece']:.1f} | {row['area']:.3f} |"
        )
    return {"calibrated": "\n".join(scaled), "gamma": "\n".join(search), "noise": "\n".join(noise)}


def _plus_minus(mean: float, error: float | None, sign: str = "") -> str:
    """Return a mean in percent with its error, where there is one."""
    return f"{100 * mean:{sign}.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _numbers(row: dict[str, Any]) -> str:
    return f"{100 * row['accuracy']:.1f} | {100 * row['ece']:.1f} | {row['area']:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True, help="folder of hja-birdsong and crc-tiles")
    parser.add_argument("--records", type=Path, default=REPO / "results" / "records")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    opened = {
        name: Source(name, 1 if name == "birdsong-mipl" else None, raw=str(given.raw / folder)).open()
        for name, folder in FOLDERS.items()
    }
    found = measure(list(Store(given.records)), opened, given.draws)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
