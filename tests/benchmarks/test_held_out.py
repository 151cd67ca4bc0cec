"""The tables of held-out bags, on made-up runs; and that the page shows what was measured."""

import json
import sys

import numpy as np

from conftest import REPO
from mipl.data.candidates import add_false_positives
from mipl.records.store import Record

sys.path.insert(0, str(REPO / "benchmarks"))

import held_out
from pages import filled

M, K = 300, 5


class FakeBags:
    """Ids and candidate sets, of what a record's test bags are."""

    def __init__(self, labels):
        self.ids = np.array([f"bag{i}" for i in range(M)])
        self.candidates = add_false_positives(labels, K, 1, "held out")

    def content_digest(self):
        return "d"


def made_up(sharpness, noise, split=1):
    """Return a run whose probabilities are right but for ``sharpness``, from features with some noise."""
    rng = np.random.default_rng(split)
    labels = rng.integers(K, size=M)
    z = 2.0 * (labels[:, None] == np.arange(K)) + rng.normal(size=(M, K))  # the posterior is softmax(2 z)
    z = z + noise * rng.normal(size=(M, K))
    p = np.exp(2.0 * sharpness * z)
    spec = {"dataset": "birdsong-mipl", "method": "sam-cn", "recipe": "stable", "split": split, "r": 1}
    arrays = {
        "ids": FakeBags(labels).ids,
        "probabilities": p / p.sum(axis=1, keepdims=True),
        "labels": labels,
    }
    return Record({"spec": {**spec, "data_digest": "d"}, "given": {"gamma": sharpness}}, arrays)


def test_candidate_sets_find_the_temperature_that_labels_find():
    record = made_up(sharpness=3.0, noise=0.0)
    rows = {row["way"]: row for row in held_out.calibrated([record], FakeBags(record.arrays["labels"]), 20)}
    assert rows["plain"]["accuracy"] == rows["labels"]["accuracy"] == rows["candidates"]["accuracy"]
    assert 2.0 < rows["labels"]["temperature"] < 4.5
    assert 2.0 < rows["candidates"]["temperature"] < 4.5
    assert max(rows["labels"]["ece"], rows["candidates"]["ece"]) < rows["plain"]["ece"]


def test_the_better_settings_are_chosen_by_candidate_sets():
    grid = [[made_up(1.0, noise=1.5)], [made_up(1.0, noise=0.0)]]
    found = {row["rule"]: row for row in held_out.chosen(grid, FakeBags(grid[0][0].arrays["labels"]), 20)}
    assert found["no search"]["chosen"] == [20, 0]
    for rule in set(found) - {"no search"}:
        assert found[rule]["chosen"][1] >= 15
        assert found[rule]["accuracy"] > found["no search"]["accuracy"]


def test_a_run_of_other_bags_of_the_same_name_is_not_used():
    record = made_up(1.0, 0.0)
    assert held_out.is_of(record, FakeBags(record.arrays["labels"]))
    record.info["spec"]["data_digest"] = "other"
    assert not held_out.is_of(record, FakeBags(record.arrays["labels"]))


def test_runs_are_found_by_what_was_given():
    records = [made_up(1.0, 0.0, split) for split in (2, 1)] + [made_up(3.0, 0.0)]
    assert [r.spec["split"] for r in held_out.runs(records, "birdsong-mipl", "sam-cn", gamma=1.0)] == [1, 2]
    assert held_out.runs(records, "birdsong-mipl", "sam-cn") == []
    both = [held_out.runs(records, "birdsong-mipl", "sam-cn", gamma=gamma) for gamma in (1.0, 3.0)]
    assert [[r.spec["split"] for r in each] for each in held_out.same_splits(both)] == [[1], [1]]


def test_the_page_shows_what_was_measured():
    found = json.loads(held_out.RESULTS.read_text(encoding="utf-8"))
    page = held_out.PAGE.read_text(encoding="utf-8")
    assert filled(page, held_out.tables(found)) == page, "run python benchmarks/held_out.py --raw FOLDER"
