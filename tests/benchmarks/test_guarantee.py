"""Prediction sets and scaling by simulation, small: the harness of benchmarks/guarantee.py."""

import json
import sys

import numpy as np

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
    assert found["set_draws"] == 200
    by_labels = [row for row in found["sets"] if row["way"] == "labels"]
    assert found["band"][0] <= by_labels[0]["coverage"] <= found["band"][1]
    assert by_labels[1]["worst_class"] >= 0.9 - 0.02
