"""Simulations of the guarantees in docs/trust.md: python benchmarks/guarantee.py

1. Over draws of labelled bags from a population whose error is known at every threshold: how often is the
   true error above ε? With fixed-sequence testing, with the divided δ of models without out-of-fold
   confidences, and with two naive rules.
2. The same if reviews of bags that were chosen, not drawn, are used for the guarantee.
3. Over draws of calibration and test bags: how often do prediction sets contain the true label, and how large
   are they, with labels and from candidate sets alone; among reported and among reviewed bags?
4. What do temperature and vector scaling do, with labels and from candidate sets?

Writes results/trust/guarantee.json and the tables of docs/trust.md, in three to four minutes on one core.
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

from mipl.calibration import fit_conformal, fit_scaling
from mipl.data.benchmarks import digits_mipl
from mipl.data.candidates import add_false_positives
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier
from mipl.metrics import accuracy, area_under_risk_coverage, expected_calibration_error
from mipl.metrics import negative_log_likelihood as nll
from mipl.seeding import rng_for
from mipl.triage import at_max_error
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "trust" / "guarantee.json", REPO / "docs" / "trust.md"
Floats = NDArray[np.float64]
PAIRS = ((0.05, 0.1), (0.1, 0.1), (0.2, 0.05))  # (ε, δ)
# (method, settings): the model of the guarantee and of the sets, and one known not to be sure enough
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mam-cn": ("mam-cn", {"epochs": 100}),
    "sigmoid head": ("sam-mdl", {"epochs": 100, "head": "sigmoid"}),
}
COVERAGE = 0.9
REPORTED = 0.6  # of the training bags, for prediction sets by decision
TRAINING = 200  # training bags of a toy population
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


def artefact(error: float, kinds: int = 200) -> Population:
    """The 20% most confident bags are often wrong, the others seldom: at every threshold too many errors."""
    confidence = np.linspace(0.5, 1, kinds)
    return _toy(confidence, np.where(np.arange(kinds) >= 0.8 * kinds, 4 * error, 0.3 * error))


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


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """Predictions of the models of MODELS for bags of digits-mipl that they were not trained on."""

    p: dict[str, Floats]  # (125, k) by model
    out_of_fold: Floats  # confidences of the first model's training bags
    labels: NDArray[np.int64]  # (125,)

    @classmethod
    def train(cls) -> Held:
        """Train each model once on half of digits-mipl."""
        bags = digits_mipl()
        train, test = stratified_split(bags, 1, 0.5)
        assert bags.labels is not None
        models = {
            name: make_classifier(method, **settings).fit(bags[train])
            for name, (method, settings) in MODELS.items()
        }
        first = next(iter(models.values())).out_of_fold_proba()
        assert first is not None
        p = {name: model.predict_proba(bags[test]) for name, model in models.items()}
        return cls(p, first.max(axis=1), bags.labels[test])

    @classmethod
    def saved(cls, path: Path | None) -> Held:
        """Read the predictions of an earlier call from an .npz file, or train the models and write it."""
        if path is None:
            return cls.train()
        if not path.is_file():
            held = cls.train()
            np.savez(path, out_of_fold=held.out_of_fold, labels=held.labels, **held.p)
        with np.load(path, allow_pickle=False) as stored:
            return cls({name: stored[name] for name in MODELS}, stored["out_of_fold"], stored["labels"])


def measure(held: Held, draws: int, set_draws: int) -> dict[str, Any]:
    """Return everything that the page shows."""
    p, labels = next(iter(held.p.values())), held.labels
    digits = Population(p.max(axis=1), (p.argmax(axis=1) != labels).astype(np.float64), held.out_of_fold)
    guarantee = []
    for error, delta in PAIRS:
        for name, population in {"digits-mipl": digits, "flat": flat(error), "wavy": wavy(error)}.items():
            for rule in RULES:
                found = violations(population, error, delta, rule=rule, n=300, draws=draws)
                guarantee.append({"population": name, "error": error, "delta": delta, "rule": rule, **found})
    reviews = []
    for error, delta in PAIRS:
        for chosen_by, population in {"doubt": artefact(error), "ease": flat(error)}.items():
            ways = reviewed(population, error, delta, chosen_by=chosen_by, draws=draws)
            for used, found in ways.items():
                reviews.append(
                    {"error": error, "delta": delta, "chosen_by": chosen_by, "used": used, **found}
                )
    threshold = float(np.quantile(held.out_of_fold, 1 - REPORTED))
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
        "draws": draws,
        "guarantee": guarantee,
        "set_draws": set_draws,
        "sets": sets,
        "band": band(n, len(p) - n, set_draws),
        "reviews": reviews,
        "decisions": sets_by_decision(p, labels, threshold, n=n, draws=set_draws),
        "scaling": {name: scalings(q, labels, n=n, draws=set_draws) for name, q in held.p.items()},
    }


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of docs/trust.md in Markdown, by the name of their place."""
    lines = ["| ε | δ | bags from | " + " | ".join(RULES) + " |", "|---|---|---|" + "---|" * len(RULES)]
    cells: dict[tuple[Any, ...], list[str]] = {}
    for row in found["guarantee"]:
        cell = f"{100 * row['violated']:.1f}% ({100 * row['coverage']:.0f}%)"
        cells.setdefault((row["error"], row["delta"], row["population"]), []).append(cell)
    lines += [f"| {e} | {d} | {name} | {' | '.join(row)} |" for (e, d, name), row in cells.items()]
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
    reviews = ["| chosen by | ε | δ | all reviews | audit only |", "|---|---|---|---|---|"]
    pairs: dict[tuple[Any, ...], list[str]] = {}
    for row in found["reviews"]:
        cell = f"{100 * row['violated']:.1f}% ({100 * row['coverage']:.0f}%)"
        pairs.setdefault((row["chosen_by"], row["error"], row["delta"]), []).append(cell)
    reviews += [f"| {by} | {e} | {d} | {' | '.join(row)} |" for (by, e, d), row in sorted(pairs.items())]
    decisions = [
        "| sets | among reported | band | among reviewed | band | labels per set |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["decisions"]:
        cells = []
        for group in ("reported", "reviewed"):
            low, high = row[group]["band"]
            cells.append(f"{100 * row[group]['coverage']:.1f}% | {100 * low:.1f}–{100 * high:.1f}%")
        decisions.append(f"| {row['sets']} | {' | '.join(cells)} | {row['size']:.2f} |")
    return {
        name: "\n".join(rows)
        for name, rows in {
            "guarantee": lines,
            "reviews": reviews,
            "sets": sets,
            "decisions": decisions,
            "scaling": scaling,
        }.items()
    }


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
    parser.add_argument("--draws", type=int, default=1000, help="of calibration bags, for the guarantee")
    parser.add_argument(
        "--set-draws", type=int, default=200, help="of calibration and test bags, for the rest"
    )
    parser.add_argument(
        "--predictions", type=Path, help=".npz file that keeps the trained models' predictions"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = measure(Held.saved(given.predictions), given.draws, given.set_draws)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
        RESULTS.with_name("README.md").write_text(summary(found) + "\n", encoding="utf-8")
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
