"""The tables of the recipe, counted on made-up runs; and that the pages show what was measured."""

import json
import sys

import numpy as np
import pytest

from conftest import REPO
from mipl import make_classifier
from mipl.experiments.runner import is_present
from mipl.records.store import Record
from mipl.registry import in_force
from mipl.training.recipe import RECIPE_VERSION

sys.path.insert(0, str(REPO / "benchmarks"))

import recipe

K, M = 5, 100
LABELS = np.arange(M) % K


def run(
    answers=LABELS,
    method="sam-cn",
    split=1,
    name="stable",
    dataset="birdsong-mipl",
    r=3,
    seconds=1.0,
    **given,
):
    """Return the record of a run that gave these answers."""
    parts = make_classifier(method, recipe=name, **given).parts()
    spec = {
        "dataset": dataset, "r": r, "method": method, "recipe": name, "split": split,
        "hyper_parameters": in_force(parts[0]), "recipe_settings": in_force(parts[1]),
        "recipe_version": RECIPE_VERSION,
    }  # fmt: skip
    right = float((answers == LABELS).mean())
    info = {
        "spec": spec, "given": given, "seconds": {"fit_processor": seconds},
        "metrics": {"accuracy": right, "expected_calibration_error": 1.0 - right},  # sure of every answer
    }  # fmt: skip
    return Record(info, {"probabilities": np.eye(K)[answers], "labels": LABELS})


def test_a_run_of_another_recipe_is_not_of_the_present():
    assert is_present(run())
    assert is_present(run(background=0.0))
    assert is_present(run(name="paper"))
    older = run()
    del older.info["spec"]["recipe_version"]  # as every record of version 1
    assert not is_present(older)
    earlier = run()
    del earlier.info["spec"]["recipe_settings"]["background"]
    assert not is_present(earlier)
    unknown = run()
    unknown.info["given"] = {"pixel_dropout": 0.1}
    assert not is_present(unknown)
    dropped = run()
    dropped.info["spec"]["recipe_settings"]["views"] = 0.5  # not given, and no more
    assert not is_present(dropped)


def test_a_setting_is_compared_on_the_same_runs():
    worse = np.where(np.arange(M) < 30, (LABELS + 1) % K, LABELS)
    records = [run(split=1), run(split=2), run(worse, split=1, background=0.0), run(split=9, background=0.0)]
    rows = {row["out"]: row for row in recipe.ablation(records)}
    assert rows["nothing"]["runs"] == 2
    assert rows["`background`"]["runs"] == 1  # split 9 has no run with everything
    assert abs(rows["`background`"]["accuracy"]["change"] + 0.3) < 1e-9
    assert abs(rows["`background`"]["ece"]["change"] - 0.3) < 1e-9
    assert rows["`background`"]["accuracy"]["worst"] == 0.7
    assert abs(rows["`background`"]["ece"]["worst"] - 0.3) < 1e-9
    assert set(rows["nothing"]["ece"].values()) == {0.0}
    assert set(rows) == {"nothing", "`background`"}
    records = [run(split=1), run(worse, split=2), run(split=1, background=0.0), run(split=2, background=0.0)]
    own = {row["out"]: row for row in recipe.ablation(records)}["`background`"]["accuracy"]
    assert own["deviation"] == 0.0
    assert own["deviation_with"] == pytest.approx(0.3 / 2**0.5)


def test_collapses_are_counted():
    constant, merged = np.zeros(M, int), np.where(LABELS == 1, 0, LABELS)
    warned = run(split=4)
    warned.info["signal"] = [1.2]
    records = [
        run(), run(constant, split=2), run(merged, split=3), warned, run(batch_size=32),
        run(constant, name="paper"), run(gamma=3.0), run(method="miplma"), run(lr=0.5),
    ]  # fmt: skip
    stable, paper = recipe.collapses(records)
    assert (stable["recipe"], paper["recipe"]) == ("stable", "paper")
    assert stable["runs"] == 5  # other methods and other settings are not counted
    assert (stable["one_answer"], stable["class_lost"], stable["warned"]) == (1, 2, 1)
    assert stable["batch_sizes"] == [8, 32]
    assert stable["worst"] == 0.2
    assert (paper["runs"], paper["one_answer"]) == (1, 1)


def test_the_cost_is_of_the_runs_that_both_recipes_have():
    records = [run(seconds=5.0), run(seconds=9.0, split=2), run(seconds=50.0, name="paper")]
    (row,) = recipe.cost(records)
    assert (row["runs"], row["stable_seconds"], row["paper_seconds"]) == (1, 5.0, 50.0)


def test_the_pages_show_what_was_measured():
    found = json.loads(recipe.RESULTS.read_text(encoding="utf-8"))
    assert {name for names in recipe.PAGES.values() for name in names} == set(recipe.tables(found))
    for page in recipe.PAGES:
        assert recipe.shown(page, found) == page.read_text(encoding="utf-8"), (
            "run python benchmarks/recipe.py"
        )
