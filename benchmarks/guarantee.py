"""Prediction sets and scaling of trained models: python benchmarks/guarantee.py

1. Over draws of calibration and test bags: how often do prediction sets contain the true label, and how large
   are they, with labels and from candidate sets alone?
2. What do temperature and vector scaling do, with labels and from candidate sets?

The error guarantee of triage is simulated by benchmarks/sequence.py.

Writes results/trust/guarantee.json and the tables of docs/trust.md, in two to three minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import betabinom

from mipl.calibration import fit_conformal, fit_scaling
from mipl.data.benchmarks import digits_mipl
from mipl.data.candidates import add_false_positives
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier
from mipl.metrics import accuracy, area_under_risk_coverage, expected_calibration_error
from mipl.metrics import negative_log_likelihood as nll
from mipl.seeding import rng_for
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "trust" / "guarantee.json", REPO / "docs" / "trust.md"
Floats = NDArray[np.float64]
# (method, settings): the model of the guarantee and of the sets, and one known not to be sure enough
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mam-cn": ("mam-cn", {"epochs": 100}),
    "sigmoid head": ("sam-mdl", {"epochs": 100, "head": "sigmoid"}),
}
COVERAGE = 0.9


def coverage_of_sets(
    p: Floats, labels: NDArray[np.int64], *, way: str, class_conditional: bool, n: int, draws: int
) -> dict[str, float]:
    """Return how often prediction sets of other bags hold the truth, over draws of n calibration bags."""
    rows, k = np.arange(len(p)), p.shape[1]
    held, worst_class, size = [], np.zeros((draws, k, 2)), []
    for number in range(draws):
        order = rng_for("sets", number).permutation(len(p))
        own, test = order[:n], order[n:]
        known = np.eye(k, dtype=np.bool_)[labels]
        if way != "labels":
            known = add_false_positives(labels, k, 1, "sets", number)
        conformal = fit_conformal(p[own], known[own], way, rng_for("drawn", number))
        sets = conformal.sets(p[test], COVERAGE, class_conditional=class_conditional)
        inside = sets[rows[: len(test)], labels[test]]
        held.append(inside.mean())
        size.append(sets.sum(axis=1).mean())
        worst_class[number, :, 0] = np.bincount(labels[test], inside, minlength=k)
        worst_class[number, :, 1] = np.bincount(labels[test], minlength=k)
    by_class = worst_class.sum(axis=0)
    return {
        "coverage": float(np.mean(held)),
        "worst_class": float((by_class[:, 0] / by_class[:, 1]).min()),
        "size": float(np.mean(size)),
    }


def band(n: int, test: int, draws: int, alpha: float = 1 - COVERAGE) -> tuple[float, float]:
    """Return where the mean coverage over draws lies in all but 3 of 1000 cases, if no scores tie.

    The covered ones of ``test`` new bags are then Beta-binomial, with n + 1 − l and l = ⌊α(n + 1)⌋.
    """
    out = int(np.floor(round(alpha * (n + 1), 9)))
    law = betabinom(test, n + 1 - out, out)
    mean, deviation = law.mean() / test, law.std() / test / np.sqrt(draws)
    return float(mean - 3 * deviation), float(mean + 3 * deviation)


def confusable(p: Floats, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return sets of the truth and the wrong label that the model finds most probable."""
    truth = np.eye(p.shape[1], dtype=np.bool_)[labels]
    return truth | (np.where(truth, -1.0, p).argmax(axis=1)[:, None] == np.arange(p.shape[1]))


def scalings(p: Floats, labels: NDArray[np.int64], *, n: int, draws: int) -> list[dict[str, Any]]:
    """Return what the scalings do to other bags, means over draws of n calibration bags."""
    log_p, k = np.log(p), p.shape[1]
    metrics = {
        "accuracy": accuracy,
        "ece": expected_calibration_error,
        "nll": nll,
        "area": area_under_risk_coverage,
    }
    values: dict[str, list[list[float]]] = {}
    temperatures: dict[str, list[float]] = {}
    for number in range(draws):
        order = rng_for("scalings", number).permutation(len(p))
        own, test = order[:n], order[n:]
        truth = np.eye(k, dtype=np.bool_)[labels]
        uniform = add_false_positives(labels, k, 1, "scalings", number)
        ways: dict[str, tuple[Any, str]] = {
            "plain": (None, ""),
            "temperature, labels": (truth, "temperature"),
            "temperature, uniform candidates": (uniform, "temperature"),
            "temperature, confusable candidates": (confusable(p, labels), "temperature"),
            "vector, labels": (truth, "vector"),
            "vector, uniform candidates": (uniform, "vector"),
        }
        for name, (sets, kind) in ways.items():
            scaled = log_p[test]
            if sets is not None:
                scaling = fit_scaling(log_p[own], sets[own], kind)
                scaled = scaling.apply(scaled)
                if scaling.temperature is not None:
                    temperatures.setdefault(name, []).append(scaling.temperature)
            row = [metric(np.exp(scaled), labels[test]) for metric in metrics.values()]
            values.setdefault(name, []).append(row)
    return [
        {
            "way": name,
            "temperature": float(np.median(temperatures[name])) if name in temperatures else None,
            **dict(zip(metrics, np.mean(rows, axis=0).tolist(), strict=True)),
        }
        for name, rows in values.items()
    ]


def held_out() -> tuple[dict[str, Floats], NDArray[np.int64]]:
    """Train each model once on half of digits-mipl; return probabilities (125, k) and labels of the rest."""
    bags = digits_mipl()
    train, test = stratified_split(bags, 1, 0.5)
    assert bags.labels is not None
    return {
        name: make_classifier(method, **settings).fit(bags[train]).predict_proba(bags[test])
        for name, (method, settings) in MODELS.items()
    }, bags.labels[test]


def measure(held: dict[str, Floats], labels: NDArray[np.int64], set_draws: int) -> dict[str, Any]:
    """Return everything that the page shows."""
    p = next(iter(held.values()))
    n = len(p) // 2
    sets = [
        {
            "way": way,
            "class_conditional": per_class,
            **coverage_of_sets(p, labels, way=way, class_conditional=per_class, n=n, draws=set_draws),
        }
        for per_class in (False, True)
        for way in ("labels", "worst", "drawn", "best")
    ]
    return {
        "command": "python benchmarks/guarantee.py",
        "models": {name: {"method": method, **settings} for name, (method, settings) in MODELS.items()},
        "held_out": len(p),
        "set_draws": set_draws,
        "sets": sets,
        "band": band(n, len(p) - n, set_draws),
        "scaling": {name: scalings(q, labels, n=n, draws=set_draws) for name, q in held.items()},
    }


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of docs/trust.md in Markdown, by the name of their place."""
    sets = ["| scores from | sets | truth inside | worst class | labels per set |", "|---|---|---|---|---|"]
    for row in found["sets"]:
        kind = "class-conditional" if row["class_conditional"] else "marginal"
        values = f"{100 * row['coverage']:.1f}% | {100 * row['worst_class']:.1f}% | {row['size']:.2f}"
        sets.append(f"| {row['way']} | {kind} | {values} |")
    low, high = (f"{100 * edge:.1f}%" for edge in found["band"])
    sets += [
        "",
        f"In theory the mean coverage of marginal sets from labels is between {low} and {high} (three "
        "standard deviations).",
    ]
    scaling = ["| model | scaling | T | accuracy | ECE | NLL | area |", "|---|---|---|---|---|---|---|"]
    for model, rows in found["scaling"].items():
        for row in rows:
            t = "–" if row["temperature"] is None else f"{row['temperature']:.2f}"
            values = (
                f"{100 * row['accuracy']:.1f} | {100 * row['ece']:.1f} | {row['nll']:.2f} | {row['area']:.3f}"
            )
            scaling.append(f"| {model} | {row['way']} | {t} | {values} |")
    return {"sets": "\n".join(sets), "scaling": "\n".join(scaling)}


def summary(found: dict[str, Any]) -> str:
    """Return results/trust/README.md."""
    return "\n\n".join(
        [
            "# Trust, measured",
            f"`{found['command']}` writes this page, the numbers (guarantee.json) and the tables of "
            "[docs/trust.md](../../docs/trust.md), which says what they mean.",
            *tables(found).values(),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set-draws", type=int, default=200, help="of calibration and test bags")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    held, labels = held_out()
    found = measure(held, labels, given.set_draws)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
        RESULTS.with_name("README.md").write_text(summary(found) + "\n", encoding="utf-8")
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
