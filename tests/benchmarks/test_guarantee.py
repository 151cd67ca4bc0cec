"""The guarantee by simulation, small: the same harness that benchmarks/guarantee.py runs in full."""

import json
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import guarantee
from pages import filled


def predictions(m=120, k=4, seed=0):
    """Probabilities of a model that errs on about a fifth, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=m)
    z = rng.normal(size=(m, k)) + 2 * (labels[:, None] == np.arange(k))
    p = np.exp(1.5 * z)
    return p / p.sum(axis=1, keepdims=True), labels


def populations(error):
    p, labels = predictions()
    pool = guarantee.Population(p.max(axis=1), (p.argmax(axis=1) != labels).astype(float))
    return {"pool": pool, "flat": guarantee.flat(error), "wavy": guarantee.wavy(error)}


@pytest.mark.parametrize(("error", "delta"), guarantee.PAIRS)
@pytest.mark.parametrize("name", ["pool", "flat", "wavy"])
def test_the_guarantee_holds_and_the_naive_choice_breaks_it(name, error, delta):
    population, draws = populations(error)[name], 150
    share = {
        rule: guarantee.violations(population, error, delta, rule=rule, n=200, draws=draws)["violated"]
        for rule in guarantee.RULES
    }
    kept = binomtest(round(share["guaranteed"] * draws), draws, delta, alternative="greater")
    assert kept.pvalue > 0.001
    if name != "pool":
        for rule in ("naive", *(["uncorrected"] if name == "flat" else [])):
            broken = binomtest(round(share[rule] * draws), draws, delta, alternative="greater")
            assert broken.pvalue < 0.01, rule


def test_the_guarantee_reports_something_where_there_is_something_to_report():
    found = guarantee.violations(populations(0.2)["pool"], 0.2, 0.05, rule="guaranteed", n=200, draws=20)
    assert found["coverage"] > 0.3


def test_the_toys_are_what_they_say():
    wavy = guarantee.wavy(0.1)
    assert ((wavy.error >= 0) & (wavy.error <= 1)).all()
    risks = np.array([wavy.risk(t) for t in wavy.confidence])
    assert (risks > 0.1).mean() == pytest.approx(0.5, abs=0.1)
    assert [guarantee.flat(0.1).risk(t) for t in (0.5, 0.9)] == pytest.approx([0.105, 0.105])
    assert guarantee.flat(0.1).risk(1.5) == 0.0


def test_sets_cover_in_the_band_and_the_ways_are_in_order():
    p, labels = predictions()
    found = {
        way: guarantee.coverage_of_sets(p, labels, way=way, class_conditional=False, n=60, draws=60)
        for way in ("labels", "worst", "drawn", "best")
    }
    low, high = guarantee.band(60, 60, 60)
    assert low <= found["labels"]["coverage"] <= high
    assert found["worst"]["coverage"] >= found["labels"]["coverage"] >= found["best"]["coverage"]
    assert found["worst"]["size"] >= found["labels"]["size"] >= found["best"]["size"]


def test_confusable_candidates_mislead_the_temperature():
    p, labels = predictions()
    rows = {row["way"]: row for row in guarantee.scalings(p, labels, n=60, draws=4)}
    assert rows["temperature, confusable candidates"]["nll"] > rows["plain"]["nll"]
    assert rows["temperature, labels"]["accuracy"] == rows["plain"]["accuracy"]


def test_the_page_shows_what_was_measured():
    found = json.loads(guarantee.RESULTS.read_text(encoding="utf-8"))
    page = guarantee.PAGE.read_text(encoding="utf-8")
    assert filled(page, guarantee.tables(found)) == page, "run python benchmarks/guarantee.py"
    written = guarantee.RESULTS.with_name("README.md").read_text(encoding="utf-8")
    assert written == guarantee.summary(found) + "\n"
    assert (found["draws"], found["set_draws"]) == (1000, 200)
    for row in found["guarantee"]:
        if row["rule"] == "guaranteed":
            spread = (row["delta"] * (1 - row["delta"]) / found["draws"]) ** 0.5
            assert row["violated"] <= row["delta"] + 3 * spread
    by_labels = [row for row in found["sets"] if row["way"] == "labels"]
    assert found["band"][0] <= by_labels[0]["coverage"] <= found["band"][1]
    assert by_labels[1]["worst_class"] >= 0.9 - 0.02
