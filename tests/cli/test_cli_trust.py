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
    shifted = [array + 20 for array in arrays[620:]]
    Bags.from_list(shifted, ids=[f"new{i}" for i in range(620, 720)]).save(folder / "shifted.npz")
    for name, drawn in (("reviews", 60), ("chosen", 0)):
        rows = [
            f"new{i},{NAMES[bags.labels[i]]},ann,,,{'random' if i < 620 + drawn else 'chosen'}"
            for i in range(620, 700)
        ]
        header = "bag_id,label,reviewer,time,comment,selected"
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")
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
    correct = seen.argmax(axis=1) == check.labels
    own = mipl.load(made).out_of_fold_proba().max(axis=1)
    point = at_max_error(seen.max(axis=1), correct, 0.3, 0.1, out_of_fold=own)
    assert result["operating_point"] == point.to_dict()
    assert point.threshold is not None
    rows = rows_of(tmp_path / "d.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["bag_id"] for row in rows] == new.ids.tolist()
    assert [row["predicted"] for row in rows] == [NAMES[j] for j in p.argmax(axis=1)]
    reported = p.max(axis=1) >= point.threshold
    assert [row["decision"] == "report" for row in rows] == reported.tolist()
    assert result["report"] == reported.sum() == len(rows) - result["review"]
    sets = mipl.load(made).calibration_.conformal.sets(p, 0.9, threshold=point.threshold)
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
        ("triage {f}/model {f}/new.npz --out {t}/d.csv --coverage 0.5 --set-share 1", "--set-share 1 is not"),
        ("watch {f}/model {f}/new.npz --out {t}/c.csv", "has no held-out bags to compare with"),
        ("watch {f}/model {f}/new.npz --reference {f}/train.npz", "trained on these bags"),
        ("watch {f}/model {f}/new.npz --reference {f}/cal.npz --level 2", "level is 2"),
        ("predict {f}/model {f}/new.npz --out {t}/p.csv --class-mix ash=1", "no share for birch, cedar, elm"),
        ("predict {f}/model {f}/new.npz --out {t}/p.csv --class-mix oak=1", "names the class 'oak'"),
        ("predict {f}/model {f}/new.npz --out {t}/p.csv --trained-mix ash=1", "is for --class-mix"),
        ("calibrate {f}/model {f}/new.npz --labels {f}/chosen.csv --out {t}/m", "drawn at random"),
        (
            "calibrate {f}/model {f}/cal.npz --labels {f}/reviews.csv --out {t}/m",
            "bags that are not in the data",
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
    assert known == "among reported and among reviewed bags: the true label is in the set"


def test_reviews_calibrate_decide_and_evaluate_by_the_random_bags_only(files, tmp_path, capsys):
    new, reviews = files / "new.npz", files / "reviews.csv"
    left_out = "60 bags drawn at random are used; 20 bags that were chosen for review"
    words = ["--labels", reviews, "--out", tmp_path / "m"]
    code, out, _ = run(capsys, "calibrate", files / "model", new, *words)
    assert code == 0
    assert left_out in out
    assert mipl.load(tmp_path / "m").calibration_.bags == 60
    words = ["--out", tmp_path / "d.csv", "--max-error", "0.4", "--json", "--calibrate-labels", reviews]
    code, out, _ = run(capsys, "triage", files / "model", new, "--calibrate", new, *words)
    assert code == 0
    result = json.loads(out)
    assert result["note"].startswith(left_out)
    assert result["operating_point"]["labelled"] == 45  # a quarter is reserved for prediction sets
    assert run(capsys, "predict", files / "model", new, "--out", tmp_path / "p.csv")[0] == 0
    page = tmp_path / "page"
    code, out, _ = run(capsys, "evaluate", tmp_path / "p.csv", reviews, "--bootstrap", "20", "--out", page)
    assert code == 0
    assert left_out in out
    assert "40 of 100 predicted bags have no label" in out
    found = json.loads((page / "evaluation.json").read_text())
    bags = Bags.load(new)[:60]
    p = mipl.load(files / "model").predict_proba(bags)
    assert found["bags"] == 60
    assert found["accuracy"] == pytest.approx((p.argmax(axis=1) == bags.labels).mean())
    html = (page / "index.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert "chosen for review" in html
    assert run(capsys, "evaluate", tmp_path / "p.csv", reviews, "--out", page)[0] == 0  # replaced
    code, _, err = run(capsys, "evaluate", tmp_path / "p.csv", reviews, "--out", files)
    assert (code, "not replaced" in err) == (2, True)


def test_evaluate_by_a_table_agrees_with_evaluate_by_the_bags(files, tmp_path, capsys):
    assert run(capsys, "predict", files / "model", files / "new.npz", "--out", tmp_path / "p.csv")[0] == 0
    new = Bags.load(files / "new.npz")
    lines = [f"{bag.id},{NAMES[bag.label]}" for bag in reversed(list(new))]
    (tmp_path / "labels.csv").write_text("\n".join(["bag_id,label", *lines]) + "\n")
    by_table, by_bags = (
        json.loads(run(capsys, "evaluate", tmp_path / "p.csv", labels, "--bootstrap", "0", "--json")[1])
        for labels in (tmp_path / "labels.csv", files / "new.npz")
    )
    assert by_table == by_bags
    counts = np.array(by_table["confusion"]["counts"])
    p = mipl.load(files / "model").predict_proba(new)
    for j, row in enumerate(by_table["classes"]):
        predicted, labelled = p.argmax(axis=1) == j, new.labels == j
        assert row["precision"] == pytest.approx(labelled[predicted].mean())
        assert row["recall"] == pytest.approx(predicted[labelled].mean())
        assert counts[j].tolist() == [(p.argmax(axis=1)[labelled] == c).sum() for c in range(4)]
    (tmp_path / "other.csv").write_text("bag_id,label\nx,ash\n")
    assert "of the same bags?" in run(capsys, "evaluate", tmp_path / "p.csv", tmp_path / "other.csv")[2]


def test_watch_is_silent_for_like_bags_and_alarms_for_others(files, tmp_path, capsys):
    made = tmp_path / "m"
    assert run(capsys, "calibrate", files / "model", files / "cal.npz", "--out", made)[0] == 0
    code, out, _ = run(capsys, "watch", made, files / "new.npz", "--out", tmp_path / "c.csv")
    assert code == 0
    assert "No alarm: 100 new bags compared with 80 held-out bags" in out
    assert [row["alarm"] for row in rows_of(tmp_path / "c.csv")] == ["0"] * 100
    code, out, _ = run(
        capsys, "watch", files / "model", files / "shifted.npz", "--reference", files / "cal.npz"
    )
    assert code == 3
    assert "ALARM at bag" in out
    result = json.loads(run(capsys, "watch", made, files / "shifted.npz", "--json")[1])
    assert (result["alarm"], result["reference_bags"]) == (True, 80)
    assert result["alarm_at"] < 30
    words = ["--coverage", "0.5", "--out", tmp_path / "d.csv"]
    code, out, _ = run(capsys, "triage", made, files / "shifted.npz", *words)
    assert "100 bags are unlike the held-out bags" in out
    rows = rows_of(tmp_path / "d.csv")
    assert all("unlike the held-out bags" in row["reason"] for row in rows)
    assert {row["typicality"] for row in rows} == {f"{1 / 81:.6g}"}


def test_probabilities_are_corrected_for_a_class_mix(files, tmp_path, capsys):
    words = ["predict", files / "model", files / "new.npz", "--out", tmp_path / "p.csv", "--json"]
    given = "ash=0.7,birch=0.1,cedar=0.1,elm=0.1"
    found = json.loads(run(capsys, *words, "--class-mix", given)[1])
    assert found["class_mix"]["ash"] == pytest.approx(0.7)
    model = mipl.load(files / "model")
    p = model.predict_proba(Bags.load(files / "new.npz")) * [0.7, 0.1, 0.1, 0.1]
    p /= model.out_of_fold_proba().mean(axis=0)
    p /= p.sum(axis=1, keepdims=True)
    assert [float(row["p(ash)"]) for row in rows_of(tmp_path / "p.csv")] == pytest.approx(p[:, 0].tolist())
    mix = json.loads(run(capsys, *words, "--class-mix", "estimate")[1])["class_mix"]
    assert sum(mix.values()) == pytest.approx(1)
    assert run(capsys, *words, "--class-mix", given, "--trained-mix", given)[0] == 0
    assert [float(row["p(ash)"]) for row in rows_of(tmp_path / "p.csv")] == pytest.approx(
        model.predict_proba(Bags.load(files / "new.npz"))[:, 0].tolist()
    )


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
