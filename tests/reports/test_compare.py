"""Comparison of methods from records, predictions of other tools, and the page."""

import csv
import json

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import t as student

from cli.command import run
from mipl import make_classifier
from mipl.data.benchmarks import gaussian_bags
from mipl.data.splits import split_digest, stratified_split
from mipl.errors import DataError, SettingError
from mipl.experiments.external import add_predictions
from mipl.metrics import evaluate
from mipl.metrics.statistics import corrected_difference, holm
from mipl.records.spec import RunSpec
from mipl.records.store import Store
from mipl.registry import active_settings
from mipl.reports.compare import as_json_values, compare, write_page
from mipl.training.recipe import RECIPE_VERSION

BAGS = gaussian_bags(bags=80, k=3)
SKILL = {"sam-cn": 2.5, "proden": 2.0, "rc": 0.5}


def predictions(split, skill, seed):
    """Return the test bags of a split and made-up probabilities for them."""
    train, test = stratified_split(BAGS, split)
    rng = np.random.default_rng([split, seed])
    z = rng.normal(size=(len(test), BAGS.k)) + skill * np.eye(BAGS.k)[BAGS.labels[test]]
    return train, test, softmax(z, axis=1)


def put(folder, method, split, skill, dataset="made-up", given=None):
    train, test, p = predictions(split, skill, len(method))
    settings, recipe = make_classifier(method, **(given or {})).parts()
    own, common = active_settings(settings), active_settings(recipe.in_effect(vectors=True))
    spec = RunSpec(
        dataset, None, BAGS.digest(), method, "stable", own, common, split, "stratified", 0,
        split_digest=split_digest(BAGS, (train, test)), recipe_version=RECIPE_VERSION,
    )  # fmt: skip
    info = {
        "metrics": evaluate(p, BAGS.labels[test]),
        "data": {"train_bags": len(train), "test_bags": len(test)},
        "seconds": {"fit": 1.0},
        "given": given or {},
    }
    arrays = {"ids": BAGS.ids[test], "probabilities": p.astype(np.float32), "labels": BAGS.labels[test]}
    Store(folder).put(spec, info, {**arrays, "classes": np.array([str(c) for c in BAGS.classes])})


@pytest.fixture
def folder(tmp_path):
    """Runs of three methods on four splits; the third method misses the last one."""
    for split in range(1, 5):
        for method, skill in SKILL.items():
            if (method, split) != ("rc", 4):
                put(tmp_path / "runs", method, split, skill)
    return tmp_path / "runs"


def write_csv(path, split=1, skill=1.0, names=None, rows=slice(None)):
    _, test, p = predictions(split, skill, 99)
    names = [str(c) for c in BAGS.classes] if names is None else names
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", *(f"p({name})" for name in names)])
        lines = [[bag, *row] for bag, row in zip(BAGS.ids[test].tolist(), p.tolist(), strict=True)]
        writer.writerows(reversed(lines[rows]))
    return path


def test_the_corrected_interval_is_that_of_nadeau_and_bengio():
    d = np.array([1.0, 2.0, 0.5, 1.5, 3.0])
    found = corrected_difference(d, 0.3 / 0.7)
    error = np.sqrt((1 / 5 + 0.3 / 0.7) * d.var(ddof=1))
    np.testing.assert_allclose([found.low, found.high], student.interval(0.95, 4, d.mean(), error))
    assert found.p == pytest.approx(2 * student.sf(d.mean() / error, 4))
    assert corrected_difference([1.0], 0.4).low == -np.inf
    assert corrected_difference([0.0, 0.0], 0.4).p == 1
    with pytest.raises(DataError, match="finite"):
        corrected_difference([np.nan, 1.0], 0.4)


def test_holm_is_the_procedure_by_hand():
    # sorted 0.01, 0.02, 0.03: 3·0.01, max(0.03, 2·0.02), max(0.04, 0.03)
    np.testing.assert_allclose(holm([0.02, 0.01, np.nan, 0.03]), [0.04, 0.03, np.nan, 0.04])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])


def test_methods_are_compared_on_the_splits_that_both_have(folder):
    found = compare(Store(folder), "sam-cn")
    (data,) = found.datasets
    rows = {row.method: row for row in data.rows}
    assert [rows[name].splits for name in SKILL] == [4, 4, 3]
    assert rows["sam-cn"].difference == {}
    records = {(r.spec["method"], r.spec["split"]): r.metrics["accuracy"] for r in Store(folder)}
    expected = 100 * np.mean([records["rc", s] - records["sam-cn", s] for s in (1, 2, 3)])
    assert rows["rc"].difference["accuracy"].mean == pytest.approx(expected)
    assert rows["rc"].difference["accuracy"].splits == 3
    assert found.rankings[0].over == "3 splits"
    assert found.rankings[0].test.ranks.argmax() == list(found.rankings[0].methods).index("rc")
    assert any("share bags" in note for note in found.notes)


def test_ranks_are_over_data_sets_where_there_are_several(folder):
    for dataset in ("second", "third"):
        for method, skill in SKILL.items():
            put(folder, method, 1, skill, dataset)
    found = compare(Store(folder))
    assert found.rankings[0].over == "3 data sets"
    assert found.reference == "sam-cn"
    assert len(found.datasets) == 3


def test_settings_are_named_where_runs_differ_in_them(tmp_path):
    for split in (1, 2):
        put(tmp_path, "sam-cn", split, 2.0, given={"epochs": 5, "ensemble": 1})
        put(tmp_path, "sam-cn", split, 2.0, given={"epochs": 5, "ensemble": 3})
        put(tmp_path, "rc", split, 1.0, given={"epochs": 5})
    found = compare(Store(tmp_path), "rc")
    names = {row.method for row in found.datasets[0].rows}
    assert names == {"sam-cn (ensemble=1)", "sam-cn (ensemble=3)", "rc"}
    assert "All runs have epochs=5." in found.notes
    with pytest.raises(DataError, match="No run is of the method 'sam-cn'"):
        compare(Store(tmp_path), "sam-cn")  # which of the two?


def test_methods_and_data_sets_without_a_counterpart_are_named(folder):
    put(folder, "sam-cn", 1, 1.0, "alone")
    put(folder, "sam-cn", 1, 1.0, "second")
    put(folder, "proden", 1, 1.0, "second")
    found = compare(Store(folder), "sam-cn")
    assert len(found.datasets) == 2
    assert "1 data sets with runs of one method only are left out." in found.notes
    assert found.rankings == []  # two methods on two data sets


def test_nothing_to_compare_is_said(folder, tmp_path):
    put(tmp_path / "one", "sam-cn", 1, 1.0)
    with pytest.raises(DataError, match="There is nothing to compare: 1 runs of 1 methods"):
        compare(Store(tmp_path / "one"))
    with pytest.raises(DataError, match=r"No run is of the method 'samcn'. Did you mean 'sam-cn'"):
        compare(Store(folder), "samcn")


def test_predictions_of_another_tool_are_one_more_method(folder, tmp_path):
    path = write_csv(tmp_path / "other.csv", split=2, names=["2", "1", "0"][::-1])
    add_predictions(folder, path, "other tool", 2)
    added = next(record for record in Store(folder) if record.is_external)
    _, test, p = predictions(2, 1.0, 99)
    np.testing.assert_allclose(added.arrays["probabilities"], p, atol=1e-6)
    assert added.metrics["accuracy"] == pytest.approx(np.mean(p.argmax(axis=1) == BAGS.labels[test]))
    (data,) = compare(Store(folder), "sam-cn").datasets
    assert {row.method: row.splits for row in data.rows}["other tool"] == 1
    add_predictions(folder, path, "other tool", 2)  # again: replaced
    assert sum(record.is_external for record in Store(folder)) == 1


@pytest.mark.parametrize(
    ("changes", "method", "split", "error", "message"),
    [
        ({}, "sam-cn", 1, SettingError, "sam-cn is a method of mipl: give the predictions another name"),
        ({}, " ", 1, SettingError, "must be a name"),
        ({}, "other", 9, SettingError, "has no run of split 9: run a method on it"),
        ({}, "other", 2, DataError, r"does not predict the test bags of split 2: \d+ of \d+ are missing"),
        ({"rows": slice(3, None)}, "other", 1, DataError, "split 1: 3 of 24 are missing"),
        ({"names": ["0", "1", "x"]}, "other", 1, DataError, "no column for 2; columns for unknown x"),
    ],
)
def test_predictions_that_cannot_be_compared_are_refused(
    changes, method, split, error, message, folder, tmp_path
):
    path = write_csv(tmp_path / "other.csv", **changes)
    with pytest.raises(error, match=message):
        add_predictions(folder, path, method, split)
    assert not any(record.is_external for record in Store(folder))


def test_the_page_is_self_contained_and_escapes_names(folder, tmp_path):
    add_predictions(folder, write_csv(tmp_path / "other.csv"), "<b>other</b>", 1)
    found = compare(Store(folder), "sam-cn")
    write_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;other&lt;/b&gt;" in page
    assert "<b>other</b>" not in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    json.dumps(as_json_values(found), allow_nan=False)


def test_the_command_line_adds_and_compares(folder, tmp_path, capsys):
    path = write_csv(tmp_path / "other.csv")
    code, out, _ = run(capsys, "results", "add", path, "--method", "other", "--split", 1, "--out", folder)
    assert code == 0
    assert "other, split 1: 24 bags, accuracy" in out
    page = tmp_path / "page.html"
    code, out, _ = run(
        capsys, "compare", folder, "--methods", "sam-cn,rc,other,proden", "--out", page, "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["page"] == str(page)
    assert {row["method"] for row in found["data_sets"][0]["methods"]} >= {"other"}
    assert page.exists()
    code, out, _ = run(capsys, "compare", folder, "--reference", "other")
    assert code == 0
    assert "difference to other" in out
    code, out, _ = run(capsys, "results", folder)  # the group shows by default
    assert code == 0
    assert "other" in out
    code, _, err = run(capsys, "compare", folder, "--out", tmp_path / "page.txt")
    assert code == 2
    assert "end it in .html" in err
