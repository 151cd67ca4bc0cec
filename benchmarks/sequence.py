"""The error guarantee and prediction sets of triage, by simulation: python benchmarks/sequence.py

From populations whose error is known at every threshold: adversarial toys, and the test bags of recorded
runs, drawn with replacement. No model is trained.

1. Over draws of labelled bags: how often is the true error above ε? With fixed-sequence testing, with the
   divided δ of models without out-of-fold confidences, and with two naive rules.
2. The same if reviews of bags that were chosen, not drawn, are used.
3. Over draws of calibration and test bags: how often do prediction sets contain the true label, among
   reported and among reviewed bags?

Writes results/trust/sequence.json and the tables of docs/trust.md, in about two minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import betabinom, binom

from mipl.calibration import fit_conformal
from mipl.records.store import Store
from mipl.seeding import rng_for
from mipl.triage import at_max_error
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "trust" / "sequence.json", REPO / "docs" / "trust.md"
Floats = NDArray[np.float64]
PAIRS = ((0.05, 0.1), (0.1, 0.1), (0.2, 0.05))  # (ε, δ)
RECORDED = {"crc5-lite0-16": 1, "crc5-sift": 1}  # data set: split of the recorded run
REVIEWED = "crc5-lite0-16"  # the recorded population of reviews
METHOD = "sam-cn"
LABELLED = 300  # bags of a draw
COVERAGE = 0.9  # of prediction sets
REPORTED = 0.6  # of the reference bags, for prediction sets
TRAINING = 200  # training bags of a toy population
REVIEW_DRAWS = 400
NEW, AUDIT, CHOSEN = 1000, 200, 560  # bags of a batch; drawn at random, and chosen, for review


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """u equally frequent kinds of bag: the model's confidence in each, and how often it is wrong on it."""

    confidence: Floats  # (u,)
    error: Floats  # (u,)
    out_of_fold: Floats  # (m,) confidences of training bags, which fix thresholds in advance

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.bool_]]:
        """Return confidences and right or wrong (n,) of independent bags."""
        kind = rng.integers(len(self.confidence), size=n)
        return self.confidence[kind], rng.random(n) >= self.error[kind]

    def risk(self, threshold: float) -> float:
        """Return the true error of what is reported from ``threshold`` on; 0 where nothing ever is."""
        above = self.confidence >= threshold
        return float(self.error[above].mean()) if above.any() else 0.0


def flat(error: float, kinds: int = 200) -> Population:
    """Confidence says nothing, and at every threshold the error is a little too large."""
    return _toy(np.linspace(0.5, 1, kinds), np.full(kinds, 1.05 * error))


def wavy(error: float, kinds: int = 200) -> Population:
    """The error among the reported swings about ε: thresholds that keep it and that break it take turns."""
    place = np.arange(1, kinds + 1) / kinds  # the share reported
    among = error * (1 + 0.05 * np.cos(6 * np.pi * place))
    return _toy(1 - 0.5 * place, np.diff(np.concatenate([[0], among * place])) * kinds)


def _toy(confidence: Floats, error: Floats) -> Population:
    """Return a population whose training bags are TRAINING independent draws of the same confidences."""
    kind = rng_for("training bags of a toy").integers(len(confidence), size=TRAINING)
    return Population(confidence, error, confidence[kind])


def guaranteed(
    c: Floats, right: NDArray[np.bool_], error: float, delta: float, out_of_fold: Floats
) -> float | None:
    return at_max_error(c, right, error, delta, out_of_fold=out_of_fold).threshold


def divided(c: Floats, right: NDArray[np.bool_], error: float, delta: float, _: Floats) -> float | None:
    """The rule for models without out-of-fold confidences: δ divided by the number of thresholds."""
    return at_max_error(c, right, error, delta).threshold


def naive(c: Floats, right: NDArray[np.bool_], error: float, delta: float, _: Floats) -> float | None:
    """The largest coverage whose error on the calibration bags is at most ε."""
    threshold, count, wrong = _searched(c, right)
    return _largest(threshold, wrong <= error * count)


def uncorrected(c: Floats, right: NDArray[np.bool_], error: float, delta: float, _: Floats) -> float | None:
    """The largest coverage whose exact bound at level δ is at most ε, as if only that one had been tried."""
    threshold, count, wrong = _searched(c, right)
    return _largest(threshold, binom.cdf(wrong, count, error) <= delta)


RULES: dict[str, Callable[..., float | None]] = {
    "guaranteed": guaranteed,
    "divided δ": divided,
    "naive": naive,
    "uncorrected": uncorrected,
}


def _searched(c: Floats, right: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return for every distinct confidence, from the top, how many are reported, and how many wrong."""
    threshold, group = np.unique(-c, return_inverse=True)
    return -threshold, np.cumsum(np.bincount(group)), np.cumsum(np.bincount(group, ~right))


def _largest(threshold: Floats, passes: NDArray[np.bool_]) -> float | None:
    return float(threshold[np.flatnonzero(passes)[-1]]) if passes.any() else None


def violations(
    population: Population, error: float, delta: float, *, rule: str, n: int, draws: int
) -> dict[str, float]:
    """Return the share of draws whose true error is above ε, and the mean share of bags reported."""
    above, covered = 0, 0.0
    for number in range(draws):
        c, right = population.draw(n, rng_for("guarantee", number))
        threshold = RULES[rule](c, right, error, delta, population.out_of_fold)
        if threshold is not None:
            above += population.risk(threshold) > error
            covered += float((population.confidence >= threshold).mean())
    return {"violated": above / draws, "coverage": covered / draws}


def reviewed(
    population: Population, error: float, delta: float, *, chosen_by: str, draws: int
) -> dict[str, dict[str, float]]:
    """Return violations and coverage if all reviews count, and if only those of an audit do.

    Of NEW bags, AUDIT are drawn at random for review. Of the others, CHOSEN are reviewed because they are the
    most doubtful, or because a person finds them easy, as bags that are predicted right more often are.
    """
    rules = {"all reviews": [0, 0.0], "audit only": [0, 0.0]}
    for number in range(draws):
        rng = rng_for("reviews", chosen_by, number)
        c, right = population.draw(NEW, rng)
        rest = np.arange(AUDIT, NEW)  # the first are independent draws
        if chosen_by == "doubt":
            chosen = rest[np.argsort(c[rest], kind="stable")[:CHOSEN]]
        else:
            chosen = rest[np.argsort(rng.random(len(rest)) ** np.where(right[rest], 0.25, 1.0))[-CHOSEN:]]
        for name, used in (
            ("all reviews", np.append(np.arange(AUDIT), chosen)),
            ("audit only", np.arange(AUDIT)),
        ):
            point = at_max_error(c[used], right[used], error, delta, out_of_fold=population.out_of_fold)
            if point.threshold is not None:
                rules[name][0] += population.risk(point.threshold) > error
                rules[name][1] += float((population.confidence >= point.threshold).mean())
    return {name: {"violated": v / draws, "coverage": s / draws} for name, (v, s) in rules.items()}


def sets_by_decision(
    p: Floats, labels: NDArray[np.int64], threshold: float, *, n: int, draws: int
) -> list[dict[str, Any]]:
    """Return the coverage of sets among reported and among reviewed bags, marginal and by decision."""
    rows, truth = np.arange(len(p)), np.eye(p.shape[1], dtype=np.bool_)[labels]
    above = p.max(axis=1) >= threshold
    held: dict[tuple[str, str], list[float]] = {}
    laws: dict[str, list[tuple[float, float]]] = {"reported": [], "reviewed": []}
    sizes: dict[str, list[float]] = {"marginal": [], "by decision": []}
    for number in range(draws):
        order = rng_for("sets by decision", number).permutation(len(p))
        own, test = order[:n], order[n:]
        conformal = fit_conformal(p[own], truth[own])
        for kind, at in (("marginal", None), ("by decision", threshold)):
            sets = conformal.sets(p[test], COVERAGE, threshold=at)
            inside = sets[rows[: len(test)], labels[test]]
            sizes[kind].append(float(sets.sum(axis=1).mean()))
            for group, chosen in (("reported", above[test]), ("reviewed", ~above[test])):
                if chosen.any():
                    held.setdefault((kind, group), []).append(float(inside[chosen].mean()))
        for group, of_group in (("reported", above), ("reviewed", ~above)):
            if of_group[test].any():
                laws[group].append(_law(int(of_group[own].sum()), int(of_group[test].sum())))
    found = []
    for kind in sizes:
        row: dict[str, Any] = {"sets": kind, "size": float(np.mean(sizes[kind]))}
        for group, law in laws.items():
            mean = float(np.mean([m for m, _ in law]))
            margin = 3 * float(np.sqrt(np.sum([v for _, v in law]))) / len(law)
            row[group] = {
                "coverage": float(np.mean(held[kind, group])),
                "band": [mean - margin, mean + margin],
            }
        found.append(row)
    return found


def _law(n: int, test: int) -> tuple[float, float]:
    """Return mean and variance of the coverage of ``test`` bags by sets from n bags, without ties."""
    out = int(np.floor(round((1 - COVERAGE) * (n + 1), 9)))
    if not out:  # too few bags: every class is in the set
        return 1.0, 0.0
    law = betabinom(test, n + 1 - out, out)
    return float(law.mean() / test), float(law.var() / test**2)


@dataclasses.dataclass(frozen=True, eq=False)
class Tested:
    """Test predictions of a recorded run; half of the bags take the place of out-of-fold predictions."""

    p: Floats  # (m, k) of the other half
    labels: NDArray[np.int64]  # (m,)
    out_of_fold: Floats  # confidences of the first half

    @property
    def population(self) -> Population:
        wrong = (self.p.argmax(axis=1) != self.labels).astype(np.float64)
        return Population(self.p.max(axis=1), wrong, self.out_of_fold)


def recorded(folder: Path) -> dict[str, Tested]:
    """Return the test predictions of the runs of RECORDED with default settings, latest recipe version."""
    found: dict[str, tuple[int, Tested]] = {}
    for record in Store(folder):
        spec = record.spec
        name, version = spec["dataset"], record.recipe_version
        wanted = (spec["method"], spec["split"], spec["recipe"]) == (METHOD, RECORDED.get(name), "stable")
        if not wanted or record.info.get("given") or record.share < 1 or spec["seed"] != 0:
            continue
        if name not in found or version > found[name][0]:
            p = record.arrays["probabilities"].astype(np.float64)
            order = rng_for("reference bags", name).permutation(len(p))
            first, rest = order[: len(p) // 2], order[len(p) // 2 :]
            tested = Tested(p[rest], record.arrays["labels"][rest].astype(np.int64), p[first].max(axis=1))
            found[name] = version, tested
    return {name: found[name][1] for name in RECORDED}


def measure(tested: dict[str, Tested], draws: int, set_draws: int) -> dict[str, Any]:
    """Return everything that the page shows."""
    guarantee, reviews = [], []
    for error, delta in PAIRS:
        populations = {name: each.population for name, each in tested.items()}
        for name, population in {**populations, "flat": flat(error), "wavy": wavy(error)}.items():
            for rule in RULES:
                found = violations(population, error, delta, rule=rule, n=LABELLED, draws=draws)
                guarantee.append({"population": name, "error": error, "delta": delta, "rule": rule, **found})
        for name, population in {REVIEWED: populations[REVIEWED], "flat": flat(error)}.items():
            for chosen_by in ("doubt", "ease"):
                ways = reviewed(population, error, delta, chosen_by=chosen_by, draws=REVIEW_DRAWS)
                pair = {"population": name, "chosen_by": chosen_by, "error": error, "delta": delta}
                reviews += [{**pair, "used": used, **found} for used, found in ways.items()]
    decisions = []
    for name, each in tested.items():
        threshold, n = float(np.quantile(each.out_of_fold, 1 - REPORTED)), len(each.p) // 2
        rows = sets_by_decision(each.p, each.labels, threshold, n=n, draws=set_draws)
        decisions += [{"population": name, "calibration_bags": n, **row} for row in rows]
    return {
        "command": "python benchmarks/sequence.py",
        "recorded": {
            name: {"method": METHOD, "split": RECORDED[name], "bags": len(tested[name].p)} for name in tested
        },
        "labelled": LABELLED,
        "draws": draws,
        "guarantee": guarantee,
        "review_draws": REVIEW_DRAWS,
        "reviews": reviews,
        "set_draws": set_draws,
        "decisions": decisions,
    }


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of docs/trust.md in Markdown, by the name of their place."""
    guarantee = ["| ε | δ | bags from | " + " | ".join(RULES) + " |", "|---|---|---|" + "---|" * len(RULES)]
    cells: dict[tuple[Any, ...], list[str]] = {}
    for row in found["guarantee"]:
        cells.setdefault((row["error"], row["delta"], row["population"]), []).append(_cell(row))
    guarantee += [f"| {e} | {d} | {name} | {' | '.join(row)} |" for (e, d, name), row in cells.items()]
    reviews = ["| bags from | chosen by | ε | δ | all reviews | audit only |", "|---|---|---|---|---|---|"]
    pairs: dict[tuple[Any, ...], list[str]] = {}
    for row in found["reviews"]:
        key = row["population"], row["chosen_by"], row["error"], row["delta"]
        pairs.setdefault(key, []).append(_cell(row))
    for (name, by, e, d), row in sorted(pairs.items()):
        reviews.append(f"| {name} | {by} | {e} | {d} | {' | '.join(row)} |")
    decisions = [
        "| bags from | sets | among reported | band | among reviewed | band | labels per set |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["decisions"]:
        groups = []
        for group in ("reported", "reviewed"):
            low, high = row[group]["band"]
            groups.append(f"{100 * row[group]['coverage']:.1f}% | {100 * low:.1f}–{100 * high:.1f}%")
        decisions.append(
            f"| {row['population']} | {row['sets']} | {' | '.join(groups)} | {row['size']:.2f} |"
        )
    lines = {"guarantee": guarantee, "reviews": reviews, "decisions": decisions}
    return {name: "\n".join(rows) for name, rows in lines.items()}


def _cell(row: dict[str, Any]) -> str:
    return f"{100 * row['violated']:.1f}% ({100 * row['coverage']:.0f}%)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=REPO / "results" / "records")
    parser.add_argument("--draws", type=int, default=1000, help="of labelled bags")
    parser.add_argument("--set-draws", type=int, default=200, help="of calibration and test bags")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = measure(recorded(given.records), given.draws, given.set_draws)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
