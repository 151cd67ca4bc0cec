"""The guarantee by simulation, small: the same harness that benchmarks/sequence.py runs in full."""

import json
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import sequence
from pages import filled


@pytest.fixture(scope="module")
def tested():
    return sequence.recorded(REPO / "results" / "records")


@pytest.mark.parametrize(("error", "delta"), sequence.PAIRS)
@pytest.mark.parametrize("name", ["crc5-lite0-16", "flat", "wavy"])
def test_the_guarantee_holds_and_the_naive_choice_breaks_it(name, error, delta, tested):
    toys = {"flat": sequence.flat, "wavy": sequence.wavy}
    population = toys[name](error) if name in toys else tested[name].population
    draws = 150
    share = {
        rule: sequence.violations(population, error, delta, rule=rule, n=200, draws=draws)["violated"]
        for rule in sequence.RULES
    }
    for rule in ("guaranteed", "divided δ"):
        kept = binomtest(round(share[rule] * draws), draws, delta, alternative="greater")
        assert kept.pvalue > 0.001, rule
    if name == "flat":
        for rule in ("naive", "uncorrected"):
            broken = binomtest(round(share[rule] * draws), draws, delta, alternative="greater")
            assert broken.pvalue < 0.01, rule


def test_more_is_reported_than_with_a_divided_delta(tested):
    population = tested["crc5-lite0-16"].population
    share = {
        rule: sequence.violations(population, 0.05, 0.1, rule=rule, n=300, draws=40)["coverage"]
        for rule in ("guaranteed", "divided δ")
    }
    assert share["guaranteed"] > share["divided δ"] + 0.05


def test_reviews_of_easy_bags_break_the_guarantee_and_an_audit_does_not():
    found = sequence.reviewed(sequence.flat(0.1), 0.1, 0.1, chosen_by="ease", draws=60)
    assert (
        binomtest(round(60 * found["all reviews"]["violated"]), 60, 0.1, alternative="greater").pvalue < 0.01
    )
    assert (
        binomtest(round(60 * found["audit only"]["violated"]), 60, 0.1, alternative="greater").pvalue > 0.001
    )


def test_the_toys_are_what_they_say():
    wavy = sequence.wavy(0.1)
    assert ((wavy.error >= 0) & (wavy.error <= 1)).all()
    risks = np.array([wavy.risk(t) for t in wavy.confidence])
    assert (risks > 0.1).mean() == pytest.approx(0.5, abs=0.1)
    assert [sequence.flat(0.1).risk(t) for t in (0.5, 0.9)] == pytest.approx([0.105, 0.105])
    assert sequence.flat(0.1).risk(1.5) == 0.0


def test_sets_by_decision_are_in_their_band_and_marginal_ones_are_not(tested):
    each = tested["crc5-lite0-16"]
    threshold = float(np.quantile(each.out_of_fold, 0.4))
    rows = sequence.sets_by_decision(each.p, each.labels, threshold, n=150, draws=60)
    found = {row["sets"]: row for row in rows}
    for group in ("reported", "reviewed"):
        low, high = found["by decision"][group]["band"]
        assert low <= found["by decision"][group]["coverage"] <= high
    assert found["marginal"]["reviewed"]["coverage"] < found["marginal"]["reviewed"]["band"][0]


def test_the_page_shows_what_was_measured():
    found = json.loads(sequence.RESULTS.read_text(encoding="utf-8"))
    page = sequence.PAGE.read_text(encoding="utf-8")
    assert filled(page, sequence.tables(found)) == page, "run python benchmarks/sequence.py"
    assert (found["draws"], found["set_draws"]) == (1000, 200)
    for row in [*found["guarantee"], *found["reviews"]]:
        if row.get("rule", row.get("used")) in ("guaranteed", "divided δ", "audit only"):
            draws = found["review_draws" if "used" in row else "draws"]
            spread = (row["delta"] * (1 - row["delta"]) / draws) ** 0.5
            assert row["violated"] <= row["delta"] + 3 * spread, row
    for row in found["decisions"]:
        if row["sets"] == "by decision":
            for group in ("reported", "reviewed"):
                low, high = row[group]["band"]
                assert low <= row[group]["coverage"] <= high, row
