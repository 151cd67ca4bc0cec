"""The command line as a user types it; every error is one sentence and exit code 2."""

import csv
import json
import resource
import subprocess
import sys

import numpy as np
import pytest
from command import assert_refused, run

from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import TrainingError
from mipl.experiments import engines, runner


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bags in a file, named classes, and a model trained on them."""
    folder = tmp_path_factory.mktemp("cli")
    bags = gaussian_bags()
    named = Bags.from_list(
        [bag.instances for bag in bags],
        bags.candidates,
        bags.labels,
        ["ash", "birch", "cedar"],
        ids=[f"tree{i}" for i in range(60)],
    )
    named.save(folder / "bags.npz")
    arrays = [bag.instances for bag in named]
    Bags.from_list(arrays, ids=named.ids).save(folder / "bare.npz")
    Bags.from_list([a[:, :3] for a in arrays], ids=named.ids).save(folder / "narrow.npz")
    code = main(
        ["fit", str(folder / "bags.npz"), "--out", str(folder / "model"), "--set", "epochs=12", "--json"]
    )
    assert code == 0
    return folder


def test_fit_predict_evaluate(files, tmp_path, capsys):
    code, out, _ = run(capsys, "predict", files / "model", files / "bags.npz", "--out", tmp_path / "p.csv")
    assert code == 0
    assert "60 bags predicted" in out
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert list(rows[0]) == ["bag_id", "predicted", "confidence", "p(ash)", "p(birch)", "p(cedar)"]
    for row in rows:
        p = {name: float(row[f"p({name})"]) for name in ("ash", "birch", "cedar")}
        assert row["predicted"] == max(p, key=p.get)
        assert float(row["confidence"]) == max(p.values())
        assert sum(p.values()) == pytest.approx(1, abs=1e-9)
    code, out, _ = run(capsys, "evaluate", tmp_path / "p.csv", files / "bags.npz", "--json")
    values = json.loads(out)
    bags = Bags.load(files / "bags.npz")
    truth = dict(zip(bags.ids.tolist(), (bags.classes[i] for i in bags.labels), strict=True))
    assert values["accuracy"] == np.mean([truth[row["bag_id"]] == row["predicted"] for row in rows])
    assert values["accuracy_low"] <= values["accuracy"] <= values["accuracy_high"]
    code, out, _ = run(capsys, "evaluate", tmp_path / "p.csv", files / "bags.npz", "--bootstrap", "5")
    assert code == 0
    (row,) = [line for line in out.splitlines() if "calibration error if calibrated" in line]
    assert f"{values['calibration_error_if_calibrated']:.4f}" in row
    assert "–" not in row  # no interval
    code, out, _ = run(capsys, "evaluate", tmp_path / "p.csv", files / "bags.npz", "--bootstrap", "0")
    assert code == 0
    assert "expected calibration error" in out


def test_labels_from_a_table(files, tmp_path, capsys):
    bags = Bags.load(files / "bags.npz")
    names = np.array(bags.classes)
    with (tmp_path / "labels.csv").open("w") as file:
        file.write("bag_id,candidates\n")
        for bag in reversed(list(bags)):
            file.write(f"{bag.id},{'|'.join(names[bag.candidates])}\n")
    words = ["--labels", tmp_path / "labels.csv", "--set", "epochs=12", "--out", tmp_path / "m", "--json"]
    code, out, _ = run(capsys, "fit", files / "bare.npz", *words)
    assert code == 0
    assert json.loads(out)["classes"] == ["ash", "birch", "cedar"]
    run(capsys, "predict", tmp_path / "m", files / "bare.npz", "--out", tmp_path / "table.csv")
    run(capsys, "predict", files / "model", files / "bare.npz", "--out", tmp_path / "npz.csv")
    assert (tmp_path / "table.csv").read_text() == (tmp_path / "npz.csv").read_text()


def test_methods_lists_and_shows(capsys):
    code, out, _ = run(capsys, "methods", "--json")
    assert {"dam-cc", "mam-ifl", "sam-mdl"} <= {entry["name"] for entry in json.loads(out)}
    code, out, _ = run(capsys, "methods", "mam-cn", "--json")
    shown = json.loads(out)
    settings = {row["name"]: row for row in shown["settings"]}
    assert settings["attention"]["stable"] == settings["attention"]["paper"] == "mam"
    assert (settings["tau_decay"]["stable"], settings["tau_decay"]["paper"]) == (0.5, 0.95)
    assert shown["advice"]
    assert shown["cost"]
    assert {"stable", "paper"} <= set(shown["recipes"][0])
    assert all(row["doc"] for row in shown["settings"] + shown["recipes"])
    code, out, _ = run(capsys, "methods", "mam-cn")
    assert code == 0
    assert "Min-Ling Zhang" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fit {f}/nothing.npz --out {t}/m", "nothing.npz does not exist"),
        ("fit digit-mipl --out {t}/m", "neither a file nor a data set. Did you mean 'digits-mipl'?"),
        ("fit mnist-mipl --out {t}/m", "say where they are with --raw"),
        ("fit mnist-mipl --raw {t} --out {t}/m", "neither train-images-idx3-ubyte nor"),
        ("fit {f}/bare.npz --out {t}/m", "no candidate sets"),
        ("fit {f}/bags.npz --out {t}/m --method sam", "no method 'sam'. Did you mean 'sam-"),
        ("fit {f}/bags.npz --out {t}/m --set epoch=3", "no setting 'epoch'. Did you mean 'epochs'?"),
        (
            "fit {f}/bags.npz --out {t}/m --set epochs=many",
            "epochs = 'many' must be an integer of at least 1",
        ),
        ("fit {f}/bags.npz --out {t}/m --set epochs", "not of the form key=value"),
        ("fit {f}/bags.npz --out {t}/m --recipe papr", "no recipe 'papr'. Did you mean 'paper'?"),
        ("fit {f}/bags.npz --out {f}", "holds no model.json, so it is not replaced"),
        ("fit {f}/bags.npz --out {f}/bags.npz/m", "cannot be written"),
        ("fit {f}/bags.npz --out /proc/m", "cannot be written"),
        ("fit {f}/bags.npz --out {t}/m --labels {t}/none.csv", "none.csv cannot be read"),
        ("fit {f}/text.npz --out {t}/m", "text.npz is damaged or is not"),
        ("fit {f}/cut.npz --out {t}/m", "cut.npz is damaged or is not"),
        ("fit {f}/labels.csv --out {t}/m", "labels.csv"),
        ("predict {f} {f}/bags.npz --out {t}/p.csv", "is not a model folder"),
        ("predict {f}/model {f}/narrow.npz --out {t}/p.csv", "trained on (5,)"),
        ("predict {f}/model {f}/bags.npz --out {f}/model", "cannot be written"),
        ("evaluate {f}/p.csv {f}/bare.npz", "has no true labels"),
        ("evaluate {f}/p.csv digits-mipl", "predicts the bag 'tree0', which is not in digits-mipl"),
        ("evaluate {f}/labels.csv {f}/bags.npz", "has no column 'confidence'"),
        ("run {f}/bare.npz --out {t}/runs", "no true labels"),
        ("run {f}/bags.npz --out {t}/runs --splits ten", "--splits ten is not a list of numbers"),
        ("run {f}/bags.npz --out {t}/runs --methods sam-cm", "no method 'sam-cm'"),
        ("run {f}/bags.npz --out {t}/runs --official {t}", "has neither index1.mat nor splits_1.csv"),
        ("run {f}/bags.npz --out {t}/runs --share 0", "not a fraction above 0"),
        (
            "run {f}/bags.npz --out {t}/runs --with feature",
            "records have no such content. Did you mean",
        ),
        ("methods sam-nc", "no method 'sam-nc'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, files, tmp_path, capsys):
    (files / "text.npz").write_text("not a zip")
    (files / "cut.npz").write_bytes((files / "bags.npz").read_bytes()[:500])
    (files / "labels.csv").write_text("bag_id,candidates\n")
    if not (files / "p.csv").exists():
        run(capsys, "predict", files / "model", files / "bags.npz", "--out", files / "p.csv")
    assert_refused(capsys, words, sentence, files, tmp_path)


@pytest.mark.parametrize("words", ["", "fit", "fit x --out y --nonsense", "demo --folds 1"])
def test_usage_errors_exit_with_2(words, capsys):
    code, _, _ = run(capsys, *words.split())
    assert code == 2


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("tree0,oak", "names the class 'oak', which is not among the classes"),
        ("tree0,", "Bag 'tree0' has no candidate label"),
        ("tree0,ash,birch", "row 2 has 3 fields, but the header has 2"),
    ],
)
def test_a_bad_label_table_names_the_row_or_the_bag(row, sentence, files, tmp_path, capsys):
    ids = Bags.load(files / "bags.npz").ids.tolist()
    lines = ["bag_id,candidates", row, *(f"{bag},ash|birch" for bag in ids[1:])]
    (tmp_path / "l.csv").write_text("\n".join(lines))
    words = ["fit", files / "bags.npz", "--labels", tmp_path / "l.csv", "--out", tmp_path / "m"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert sentence in err


def test_notices_are_one_line(tmp_path, capsys):
    gaussian_bags(r=0).save(tmp_path / "sure.npz")
    code, _, err = run(
        capsys,
        "fit",
        tmp_path / "sure.npz",
        "--out",
        tmp_path / "m",
        "--set",
        "ensemble=1",
        "--set",
        "epochs=1",
        "--json",
    )
    assert code == 0
    assert err == "mipl: note: Every bag has one candidate: this is ordinary supervision.\n"


def test_a_full_disk_keeps_the_old_model(files, tmp_path):
    """The limit on file sizes makes the real write fail in the middle, as a full disk does."""
    words = ["fit", str(files / "bags.npz"), "--out", str(tmp_path / "m"), "--set", "epochs=1"]
    assert main([*words, "--json"]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [sys.executable, "-m", "mipl.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_run_writes_records_and_resumes(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "run_local", run_here)
    words = [
        "run",
        files / "bags.npz",
        "--methods",
        "sam-cn,mam-mdl",
        "--set",
        "epochs=2",
        "--out",
        tmp_path,
        "--json",
    ]
    code, out, _ = run(capsys, *words, "--splits", "1")
    assert code == 0
    first = {path.name: (path / "record.json").stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(first) == 2
    code, out, _ = run(capsys, *words, "--splits", "1-2")
    summary = json.loads(out)
    assert {row["method"]: row["runs"] for row in summary["summary"]} == {"sam-cn": 2, "mam-mdl": 2}
    for name, written in first.items():
        assert (tmp_path / name / "record.json").stat().st_mtime_ns == written
    code, out, _ = run(capsys, *words, "--splits", "1", "--share", "0.5", "--with", "features, training")
    found = [(row["given"], row["runs"]) for row in json.loads(out)["summary"]]
    assert found == [("epochs=2, share=0.5", 1)] * 2
    code, out, err = run(capsys, *words, "--splits", "1", "--recipe", "paper", "--set", "lr=1e30")
    assert code == 1
    assert "became NaN" in err


def run_here(jobs, workers, show=False):
    """Run the jobs of the local engine in this process, because a new one takes seconds to import torch."""
    failures = []
    for job in engines.without_record(jobs):
        try:
            runner.run(job)
        except TrainingError as error:
            failures.append((job, str(error)))
    return failures


def test_demo_prints_the_models_and_writes_the_page(tmp_path, capsys, monkeypatch):
    from mipl.experiments import demo

    short = tuple(variant._replace(settings={**variant.settings, "epochs": 1}) for variant in demo.VARIANTS)
    monkeypatch.setattr(demo, "VARIANTS", short)
    monkeypatch.setattr(demo, "run_local", run_here)
    code, out, _ = run(capsys, "demo", "--out", tmp_path / "d", "--folds", "2")
    assert code == 0
    assert "Sigmoid head + MDL" in out
    assert "Linear head + CDL" in out
    assert "Ensemble + CDL" in out
    page = (tmp_path / "d" / "index.html").read_text()
    assert "250" in page
    assert page.count("<svg") >= 9
