"""What the recipe is worth: python benchmarks/recipe.py [--raw FOLDER]

From the records of finished runs:
1. Ablation: `stable` with one setting changed at a time.
2. Collapses: how many runs of the six methods predicted one class only, lost a class, or failed the signal
   test, under `stable` and under `paper`.
3. Cost: accuracy and time of both recipes on the same splits.

With --raw, a folder that has hja-birdsong and mnist, also trained anew (half an hour):
4. Noise: candidate sets that belong to other bags. The warning appears, and confidence stays near chance.

Writes results/recipe.json, and from it the tables of docs/training.md and results/recipe.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl import make_classifier
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.data.splits import stratified_split
from mipl.experiments.runner import is_present
from mipl.metrics import expected_calibration_error
from mipl.records.store import Record, Store
from mipl.reports.claims import OURS
from mipl.reports.runs import METRICS
from mipl.seeding import rng_for
from mipl.training.checks import MiplNotice
from mipl.training.signal import ENOUGH
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "results" / "recipe.json"
PAGES = {  # and the tables that are on them
    REPO / "docs" / "training.md": ("ablation",),
    REPO / "results" / "recipe.md": ("collapses", "cost", "noise"),
}
CELLS: list[tuple[str, int | None]] = [("birdsong-mipl", 3), ("crc5-lite0-16", None), ("fmnist-mipl", 3)]
OUT: dict[str, dict[str, Any]] = {  # a setting, and its value in the ablation
    "nothing": {},
    "`warmup`": {"warmup": 0.0},
    "`background`": {"background": 0.0},
    "`instance_dropout`": {"instance_dropout": 0.0},
    "`ensemble` (one network)": {"ensemble": 1},
    "`components`": {"components": 0},
    "`clip_norm`": {"clip_norm": None},
    "`weight_decay` (fixed at 0.001)": {"weight_decay": 0.001},
    "`pretrain` (and all for images)": {"pretrain": 0},
}
NOISE = (("birdsong-mipl", "sam-cn"), ("mnist-mipl", "sam-cn"), ("mnist-mipl", "mam-cn"))


def ablation(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return for every setting and cell accuracy and ECE without it, and the change on the same runs."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        spec, given = record.spec, record.info.get("given", {})
        if spec["recipe"] == "stable" and spec["method"] in OURS and record.share == 1 and is_present(record):
            key = (spec["dataset"], spec["r"], json.dumps(given, sort_keys=True))
            found[*key, spec["method"], spec["split"]] = [record.metrics[name] for name in METRICS.values()]
    rows = []
    for name, given in OUT.items():
        for cell in CELLS:
            without = (*cell, json.dumps(given, sort_keys=True))
            runs = [key[3:] for key in found if key[:3] == without]
            both = [run for run in runs if (*cell, "{}", *run) in found]
            if both:
                own = np.array([found[*without, *run] for run in both])  # (runs, 2)
                whole = np.array([found[*cell, "{}", *run] for run in both])
                change = own - whole
                row = {"out": name, "dataset": cell[0], "r": cell[1], "runs": len(both)}
                for column, metric in enumerate(METRICS):
                    row[metric] = {
                        "mean": float(own[:, column].mean()),
                        "worst": float((own.max if metric == "ece" else own.min)(axis=0)[column]),
                        "change": float(change[:, column].mean()),
                        "error": _error(change[:, column]),
                        "deviation": _deviation(own[:, column]),
                        "deviation_with": _deviation(whole[:, column]),
                    }
                rows.append(row)
    return rows


def collapses(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return for every recipe, data set and r the number of runs of the six, and of those that collapsed.

    One answer: nine of ten test bags are predicted to be of one class. A class lost: one with test bags is
    never predicted. Warned: the signal score is below the threshold.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        spec, given = record.spec, record.info.get("given", {})
        default = set(given) <= {"batch_size"} and spec["method"] in OURS and "noise" not in spec["dataset"]
        if default and record.share == 1 and is_present(record):
            groups.setdefault((spec["recipe"], spec["dataset"], spec["r"]), []).append(record)
    rows = []
    for (recipe, dataset, r), runs in sorted(
        groups.items(), key=lambda item: (item[0][0] == "paper", item[0][1], item[0][2] or 0)
    ):
        given_to = [record.arrays["probabilities"].argmax(axis=1) for record in runs]
        k = runs[0].arrays["probabilities"].shape[1]
        shares = [np.bincount(answers, minlength=k) / len(answers) for answers in given_to]
        lost = [
            bool(((share == 0) & (np.bincount(record.arrays["labels"], minlength=k) > 0)).any())
            for share, record in zip(shares, runs, strict=True)
        ]
        rows.append(
            {
                "recipe": recipe, "dataset": dataset, "r": r, "runs": len(runs), "k": k,
                "methods": len({record.spec["method"] for record in runs}),
                "batch_sizes": sorted({record.spec["recipe_settings"]["batch_size"] for record in runs}),
                "one_answer": sum(float(share.max()) >= 0.9 for share in shares),
                "class_lost": sum(lost),
                "warned": sum(max(record.info.get("signal", [np.inf])) < ENOUGH for record in runs),
                "accuracy": float(np.mean([record.metrics["accuracy"] for record in runs])),
                "worst": min(record.metrics["accuracy"] for record in runs),
            }
        )  # fmt: skip
    return rows


def cost(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return accuracy and processor seconds of both recipes, means over the runs that both have."""
    found: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        spec = record.spec
        if (
            spec["method"] in OURS
            and not record.info.get("given")
            and record.share == 1
            and is_present(record)
        ):
            key = spec["dataset"], spec["r"], spec["method"], spec["split"]
            found.setdefault(key, {})[spec["recipe"]] = record
    cells: dict[tuple[Any, ...], list[dict[str, Record]]] = {}
    for key, both in found.items():
        if len(both) == 2:
            cells.setdefault(key[:2], []).append(both)
    return [
        {
            "dataset": cell[0],
            "r": cell[1],
            "runs": len(pairs),
            **{
                f"{recipe}_{name}": float(np.mean([value(pair[recipe]) for pair in pairs]))
                for recipe in ("paper", "stable")
                for name, value in (
                    ("accuracy", lambda record: record.metrics["accuracy"]),
                    ("seconds", lambda record: record.info["seconds"]["fit_processor"]),
                )
            },
        }
        for cell, pairs in sorted(cells.items())
    ]


def noise(raw: Path) -> list[dict[str, Any]]:
    """Return what becomes of bags whose candidate sets are those of others."""
    rows = []
    for dataset, method in NOISE:
        for r in (1, 3):
            bags = opened(dataset, r, raw)
            train, test = stratified_split(bags, 1)
            assert bags.candidates is not None
            sets = rng_for("noise", r).permutation(bags.candidates[train])
            known = dataclasses.replace(bags[train], candidates=sets, labels=None, missing_truth=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model = make_classifier(method).fit(known)
            p, labels = model.predict_proba(bags[test]), bags[test].labels
            assert labels is not None
            rows.append(
                {
                    "dataset": dataset, "method": method, "r": r, "signal": model.history_["signal"][0],
                    "warned": any("has learned nothing" in str(w.message) for w in caught
                                  if issubclass(w.category, MiplNotice)),
                    "accuracy": float((p.argmax(axis=1) == labels).mean()), "chance": 1.0 / bags.k,
                    "confidence": float(p.max(axis=1).mean()), "ece": expected_calibration_error(p, labels),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def opened(dataset: str, r: int, raw: Path) -> Bags:
    folder = {"birdsong-mipl": "hja-birdsong", "mnist-mipl": "mnist"}[dataset]
    return Source(dataset, r, raw=str(raw / folder)).open()


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables in Markdown, by the name of their place on a page."""
    heads = [dataset if r is None else f"{dataset} r = {r}" for dataset, r in CELLS]
    cells = {(row["out"], row["dataset"], row["r"]): row for row in found["ablation"]}
    ablated = [f"| out | {' | '.join(heads)} |", "|---" * (1 + len(CELLS)) + "|"]
    for name in OUT:
        line = [_change(cells.get((name, *cell)), name == "nothing") for cell in CELLS]
        if set(line) != {"–"}:
            ablated.append(f"| {name} | {' | '.join(line)} |")
    fallen = [
        "| recipe | data set | r | methods | bags per step | runs | one answer | a class lost | warned | "
        "accuracy, mean and worst |",
        "|---" * 10 + "|",
    ]
    for row in found["collapses"]:
        sizes, r = ", ".join(map(str, row["batch_sizes"])), "" if row["r"] is None else row["r"]
        fallen.append(
            f"| {row['recipe']} | {row['dataset']} | {r} | {row['methods']} | {sizes} | "
            f"{row['runs']} | {row['one_answer']} | {row['class_lost']} | {row['warned']} | "
            f"{_percent(row['accuracy'])}, {_percent(row['worst'])} |"
        )
    for recipe in ("stable", "paper"):
        own = [row for row in found["collapses"] if row["recipe"] == recipe]
        sums = [sum(row[name] for row in own) for name in ("runs", "one_answer", "class_lost", "warned")]
        fallen.append(f"| **{recipe}** | all | | | | {' | '.join(map(str, sums))} | |")
    price = [
        "| data set | r | runs | `paper`: accuracy | seconds | `stable`: accuracy | seconds |",
        "|---" * 7 + "|",
    ]
    price += [
        f"| {row['dataset']} | {row['r']} | {row['runs']} | {_percent(row['paper_accuracy'])} | "
        f"{row['paper_seconds']:.0f} | {_percent(row['stable_accuracy'])} | {row['stable_seconds']:.0f} |"
        for row in found["cost"]
    ]
    noisy = [
        "| data set | r | method | signal score | warned | accuracy (chance) | confidence | ECE |",
        "|---" * 8 + "|",
    ]
    noisy += [
        f"| {row['dataset']} | {row['r']} | {row['method']} | {row['signal']:.1f} | "
        f"{'yes' if row['warned'] else '**no**'} | "
        f"{_percent(row['accuracy'])} ({_percent(row['chance'])}) | {_percent(row['confidence'])} | "
        f"{_percent(row['ece'])} |"
        for row in found["noise"]
    ]
    made = {"ablation": ablated, "collapses": fallen, "cost": price, "noise": noisy}
    return {name: "\n".join(lines) for name, lines in made.items()}


def shown(page: Path, found: dict[str, Any]) -> str:
    """Return the text of a page with its tables of what was found."""
    made = tables(found)
    return filled(page.read_text(encoding="utf-8"), {name: made[name] for name in PAGES[page]})


def _deviation(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _error(values: NDArray[np.float64]) -> float:
    return _deviation(values) / float(np.sqrt(len(values)))


def _change(row: dict[str, Any] | None, whole: bool) -> str:
    if row is None:
        return "–"
    if whole:
        return f"{' / '.join(_percent(row[metric]['mean']) for metric in METRICS)} ({row['runs']} runs)"
    each = [f"{100 * row[metric]['change']:+.1f} ± {100 * row[metric]['error']:.1f}" for metric in METRICS]
    return " / ".join(each)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, help="folder of hja-birdsong and mnist, to measure noise")
    parser.add_argument("--records", type=Path, default=REPO / "results" / "records")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    records = list(Store(given.records))
    trained: list[dict[str, Any]] = []
    if given.raw is not None:
        trained = noise(given.raw)
    elif given.out.is_file():
        trained = json.loads(given.out.read_text(encoding="utf-8"))["noise"]
    found = {
        "command": "python benchmarks/recipe.py --raw FOLDER",
        "ablation": ablation(records),
        "collapses": collapses(records),
        "cost": cost(records),
        "noise": trained,
    }
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        for page in PAGES:
            page.write_text(shown(page, found), encoding="utf-8")
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
