"""calibrate and triage as a user types them."""

import csv
import json
import shutil

import numpy as np
import pytest
from command import assert_refused, run

import mipl
from conftest import REPO
from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.metrics import accuracy_at_top, area_under_risk_coverage, calibration_error_at_top
from mipl.triage import COLUMNS, at_max_error

NAMES = ["ash", "birch", "cedar", "elm"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return an imperfect model and bags for calibration, measurement and decisions, also without labels."""
    folder = tmp_path_factory.mktemp("trust")
    bags = gaussian_bags(bags=720, k=4)
    rng = np.random.default_rng(0)
    arrays = [bag.instances + 5 * rng.normal(size=bag.instances.shape) for bag in bags]
    for name, part in {
        "train": slice(0, 240),
        "cal": slice(240, 320),
        "check": slice(320, 620),
        "new": slice(620, 720),
    }.items():
        known = (bags.candidates[part], bags.labels[part], NAMES)
        Bags.from_list(arrays[part], *known, ids=[f"{name}{i}" for i in range(len(bags))[part]]).save(
            folder / f"{name}.npz"
        )
    Bags.from_list(arrays[620:]).save(folder / "bare.npz")
    words = ["--out", str(folder / "model"), "--set", "epochs=12", "--json"]
    assert main(["fit", str(folder / "train.npz"), *words]) == 0
    return folder


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_calibrate_then_predict_and_triage(files, tmp_path, capsys):
    model, made = files / "model", tmp_path / "m"
    code, out, _ = run(capsys, "calibrate", model, files / "cal.npz", "--out", made)
    assert code == 0
    assert "temperature by labels: T = " in out
    assert "Prediction sets from 40 bags: the true label is in the set" in out
    code, out, _ = run(capsys, "predict", made, files / "new.npz", "--out", tmp_path / "p.csv", "--json")
    assert code == 0
    new = Bags.load(files / "new.npz")
    p = mipl.load(made).predict_proba(new)
    assert [float(row["confidence"]) for row in rows_of(tmp_path / "p.csv")] == p.max(axis=1).tolist()
    assert (p != mipl.load(model).predict_proba(new)).any()

    words = [
        "triage",
        made,
        files / "new.npz",
        "--out",
        tmp_path / "d.csv",
        "--calibrate",
        files / "check.npz",
    ]
    code, out, _ = run(capsys, *words, "--max-error", "0.3", "--delta", "0.1", "--json")
    assert code == 0
    result = json.loads(out)
    check = Bags.load(files / "check.npz")
    seen = mipl.load(made).predict_proba(check)
    point = at_max_error(seen.max(axis=1), seen.argmax(axis=1) == check.labels, 0.3, 0.1)
    assert result["operating_point"] == point.to_dict()
    assert point.threshold is not None
    rows = rows_of(tmp_path / "d.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["bag_id"] for row in rows] == new.ids.tolist()
    assert [row["predicted"] for row in rows] == [NAMES[j] for j in p.argmax(axis=1)]
    reported = p.max(axis=1) >= point.threshold
    assert [row["decision"] == "report" for row in rows] == reported.tolist()
    assert result["report"] == reported.sum() == len(rows) - result["review"]
    sets = mipl.load(made).calibration_.conformal.sets(p, 0.9)
    assert [row["prediction_set"].split("|") for row in rows] == [
        [NAMES[j] for j in range(4) if row[j] or j == top]
        for row, top in zip(sets, p.argmax(axis=1), strict=True)
    ]
    assert result["sets"]["mean_size"] == np.mean([len(row["prediction_set"].split("|")) for row in rows])


def test_metrics_of_the_labelled_bags_are_reported(files, tmp_path, capsys):
    words = ["triage", files / "model", files / "new.npz", "--out", tmp_path / "d.csv", "--threshold", "0.5"]
    words += ["--calibrate", files / "check.npz"]
    summary = json.loads(run(capsys, *words, "--json")[1])["labelled"]
    check = Bags.load(files / "check.npz")
    p = mipl.load(files / "model").predict_proba(check)
    assert summary["area_under_risk_coverage"] == area_under_risk_coverage(p, check.labels)
    assert [row["share"] for row in summary["top"]] == [tenth / 10 for tenth in range(1, 11)]
    assert summary["top"][2]["accuracy"] == accuracy_at_top(p, check.labels, 0.3)
    assert summary["top"][2]["ece"] == calibration_error_at_top(p, check.labels, 0.3)
    assert "Area under risk–coverage" in run(capsys, *words)[1]


def test_calibration_by_candidates_alone(files, tmp_path, capsys):
    words = ["--by", "candidates", "--kind", "vector", "--candidate", "drawn", "--json"]
    code, out, _ = run(
        capsys, "calibrate", files / "model", files / "cal.npz", "--out", tmp_path / "m", *words
    )
    assert code == 0
    result = json.loads(out)
    assert (result["by"], result["kind"], result["temperature"]) == ("candidates", "vector", None)
    assert "if the model's probabilities of the candidates" in result["sets_promise"]
    assert mipl.load(tmp_path / "m").calibration_.by == "candidates"


def test_without_a_threshold_every_bag_is_reviewed(files, tmp_path, capsys):
    words = ["triage", files / "model", files / "new.npz", "--out", tmp_path / "d.csv"]
    code, out, _ = run(capsys, *words, "--calibrate", files / "check.npz", "--max-error", "0")
    assert code == 0
    assert "0 of 100 bags reported, 100 for review." in out
    assert "No threshold meets this" in out
    rows = rows_of(tmp_path / "d.csv")
    assert {row["decision"] for row in rows} == {"review"}
    assert {row["reason"] for row in rows} == {"no threshold meets the rule"}
    assert all(row["prediction_set"] for row in rows)  # from the labelled bags


def test_a_fraction_of_the_data_is_reserved_for_calibration(files, tmp_path, capsys):
    words = ["triage", files / "model", files / "new.npz", "--out", tmp_path / "d.csv", "--calibrate", "0.4"]
    code, out, _ = run(capsys, *words, "--coverage", "0.5", "--class-conditional", "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["bags"], result["report"], result["operating_point"]["labelled"]) == (60, 30, 40)
    assert result["sets"]["class_conditional"]
    assert len(rows_of(tmp_path / "d.csv")) == 60


def test_without_labels_a_threshold_or_a_coverage_decides(files, tmp_path, capsys):
    words = ["triage", files / "model", files / "bare.npz", "--out", tmp_path / "d.csv"]
    code, out, _ = run(capsys, *words, "--coverage", "0.25")
    assert code == 0
    assert "25 of 100 bags reported" in out
    assert {row["prediction_set"] for row in rows_of(tmp_path / "d.csv")} == {""}
    code, out, _ = run(capsys, *words, "--threshold", "0.6", "--json")
    rows = rows_of(tmp_path / "d.csv")
    assert [row["decision"] == "report" for row in rows] == [float(row["confidence"]) >= 0.6 for row in rows]
    assert json.loads(out)["operating_point"]["bound"] is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("calibrate {f}/model {f}/train.npz --out {t}/m", "was trained on these bags"),
        ("calibrate {f}/model {f}/bare.npz --out {t}/m", "have no true labels"),
        ("calibrate {f}/model {f}/bare.npz --by candidates --out {t}/m", "no candidate sets"),
        ("calibrate {f}/model {f}/cal.npz --by label --out {t}/m", "Did you mean 'labels'?"),
        ("calibrate {f}/model {f}/cal.npz --kind platt --out {t}/m", "no kind of scaling 'platt'"),
        ("calibrate {f}/model {f}/cal.npz --set-share 2 --out {t}/m", "give a fraction between 0 and 1"),
        ("calibrate {f}/model {f}/cal.npz --out {f}", "holds no model.json, so it is not replaced"),
        ("calibrate {f} {f}/cal.npz --out {t}/m", "is not a model folder"),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv", "Give exactly one rule"),
        (
            "triage {f}/model {f}/new.npz --out {t}/d.csv --coverage 0.5 --threshold 0.5",
            "Give exactly one rule",
        ),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 0.1", "needs bags with true labels"),
        (
            "triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 0.1 --calibrate {f}/train.npz",
            "was trained on these bags",
        ),
        ("triage {f}/model {f}/train.npz --out {t}/d.csv --max-error 0.1 --calibrate 0.5", "was trained on"),
        (
            "triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 0.1 --calibrate {f}/bare.npz",
            "have no true labels",
        ),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 2 --calibrate 0.5", "below 1"),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 0.1 --calibrate 1.5", "neither data nor"),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --coverage 1.5", "coverage is 1.5"),
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --threshold -1", "threshold is -1"),
        (
            "triage {f}/model {f}/new.npz --out {t}/d.csv --coverage 0.5 --set-coverage 1",
            "prediction sets is 1",
        ),
        ("triage {f}/model {f}/new.npz --out {f}/new.npz/d.csv --coverage 0.5", "cannot be written"),
        (
            "triage {f}/model {f}/new.npz --out {t}/d.csv --max-error 0.1 --delta 0 --calibrate 0.5",
            "delta is 0",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, files, tmp_path, capsys):
    assert_refused(capsys, words, sentence, files, tmp_path)


def test_labelled_bags_are_preferred_to_candidates_for_sets(files, tmp_path, capsys):
    words = ["--by", "candidates", "--kind", "none", "--out", tmp_path / "m", "--json"]
    assert run(capsys, "calibrate", files / "model", files / "cal.npz", *words)[0] == 0
    words = [
        "triage",
        tmp_path / "m",
        files / "new.npz",
        "--out",
        tmp_path / "d.csv",
        "--threshold",
        "0.5",
        "--json",
    ]
    promise = json.loads(run(capsys, *words)[1])["sets"]["promise"]
    assert "if it was among the candidates" in promise
    known = json.loads(run(capsys, *words, "--calibrate", files / "check.npz")[1])["sets"]["promise"]
    assert known == "the true label is in the set"


def test_the_commands_of_the_docs_page_run(files, tmp_path, capsys, monkeypatch):
    page = (REPO / "docs" / "trust.md").read_text(encoding="utf-8")
    commands = [line[2:].split() for line in page.splitlines() if line.startswith("$ mipl ")]
    assert len(commands) >= 3
    shutil.copytree(files, tmp_path / "work")
    shutil.copy(files / "cal.npz", tmp_path / "work" / "bags.npz")
    monkeypatch.chdir(tmp_path / "work")
    for command in commands:
        short = ["--set", "epochs=2"] if command[1] == "fit" else []
        code, _, err = run(capsys, *command[1:], *short)
        assert code == 0, (command, err)


def test_the_calibration_bags_are_refused_for_the_error_bound(files, tmp_path, capsys):
    assert (
        run(capsys, "calibrate", files / "model", files / "cal.npz", "--out", tmp_path / "m", "--json")[0]
        == 0
    )
    words = ["triage", tmp_path / "m", files / "new.npz", "--out", tmp_path / "d.csv", "--max-error", "0.1"]
    code, _, err = run(capsys, *words, "--calibrate", files / "cal.npz")
    assert code == 2
    assert "was calibrated on these bags" in err
