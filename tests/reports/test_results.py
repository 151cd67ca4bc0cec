import dataclasses
import json

import numpy as np
import pytest

from mipl.cli import main
from mipl.paper.printed import paper_results
from mipl.records.spec import RunSpec
from mipl.records.store import Store
from mipl.reports.results import HEADER, markdown, result_rows

SPEC = RunSpec("birdsong-mipl", 1, "d", "dam-cn", "stable", {}, {}, 1, "stratified", 0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    arrays = {"ids": np.array(["a"]), "probabilities": np.array([[0.9, 0.1]]), "labels": np.array([0])}
    for changes, accuracy, given in (
        ({}, 0.8, {}),
        ({"split": 2}, 0.9, {}),
        ({"r": 2}, 0.7, {}),
        ({"method": "mine"}, 0.6, {"head": "sigmoid"}),
        ({"dataset": "c-row", "r": None}, 0.5, {}),
    ):
        metrics = {"accuracy": accuracy, "expected_calibration_error": 0.05}
        info = {"metrics": metrics, "given": given, "seconds": {"fit": 3.0}}
        store.put(dataclasses.replace(SPEC, **changes), info, arrays)
    return store


def test_rows_are_kept_apart_and_the_papers_are_beside_them(store):
    rows = {
        (row["dataset"], row["r"], row["method"]): row
        for row in result_rows(store, published=paper_results())
    }
    assert len(rows) == 4
    ours = rows["birdsong-mipl", 1, "dam-cn"]
    assert (ours["runs"], ours["accuracy"], ours["paper_accuracy"]) == (2, pytest.approx(85), 80.38)
    assert ours["highest_confidence"] == pytest.approx(0.9)
    assert rows["birdsong-mipl", 2, "dam-cn"]["paper_accuracy"] == 78.0
    assert rows["birdsong-mipl", 1, "mine"]["paper_accuracy"] is None
    assert rows["birdsong-mipl", 1, "mine"]["given"] == "head=sigmoid"


def test_runs_of_an_earlier_recipe_are_not_mixed_in(store):
    rows = result_rows(store, lambda record: record.spec["split"] == SPEC.split)
    (now, before) = [row for row in rows if (row["method"], row["r"]) == ("dam-cn", 1)]
    assert (now["recipe"], now["runs"], before["recipe"], before["runs"]) == (
        "stable", 1, "stable, earlier", 1,
    )  # fmt: skip


def test_earlier_runs_of_different_settings_are_not_joined(store):
    arrays = {"ids": np.array(["a"]), "probabilities": np.array([[0.9, 0.1]]), "labels": np.array([0])}
    metrics = {"accuracy": 0.2, "expected_calibration_error": 0.05}
    other = dataclasses.replace(SPEC, split=3, recipe_settings={"lr": 0.5})
    store.put(other, {"metrics": metrics, "seconds": {"fit": 3.0}}, arrays)
    rows = [
        row for row in result_rows(store, lambda record: False) if (row["method"], row["r"]) == ("dam-cn", 1)
    ]
    assert sorted((row["runs"], round(row["accuracy"])) for row in rows) == [(1, 20), (2, 85)]


def test_a_digest_is_shown_only_where_a_name_has_several(store):
    arrays = {"ids": np.array(["a"]), "probabilities": np.array([[0.9, 0.1]]), "labels": np.array([0])}
    metrics = {"accuracy": 0.2, "expected_calibration_error": 0.05}
    other = dataclasses.replace(SPEC, data_digest="0123456789", split=3)
    store.put(other, {"metrics": metrics, "seconds": {"fit": 3.0}}, arrays)
    rows = result_rows(store)
    titles = {(row["dataset"], row["r"]): set() for row in rows}
    for row in rows:
        titles[row["dataset"], row["r"]].add(row["title"])
    assert titles["birdsong-mipl", 1] == {"birdsong-mipl [d]", "birdsong-mipl [01234567]"}
    assert titles["birdsong-mipl", 2] == {"birdsong-mipl"}
    assert titles["c-row", None] == {"c-row"}
    runs = {
        (row["data_digest"], row["method"]): (row["runs"], row["accuracy"]) for row in rows if row["r"] == 1
    }
    assert runs["d", "dam-cn"] == (2, pytest.approx(85))
    assert runs["0123456789", "dam-cn"] == (1, pytest.approx(20))


def test_markdown_has_a_line_for_each_row(store):
    lines = markdown(result_rows(store)).splitlines()
    assert len(lines) == 6
    assert all(line.count("|") == len(HEADER) + 1 for line in lines)
    assert "| c-row |  | dam-cn | stable | 1 stratified | 50.0 | 50.0 |" in lines[-1] + lines[-2] + lines[2]


def test_the_command_line_filters(store, capsys):
    folder = str(store.root)
    assert main(["results", folder, "--dataset", "birdsong-mipl", "--methods", "dam-cn", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["results", folder, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| data set |")
    assert main(["results", folder]) == 0
    assert main(["results", f"{folder}/none"]) == 2
