"""explain and export as a user types them."""

import csv
import json

import numpy as np
import onnxruntime
import pytest
from command import assert_refused, run

import mipl
from conftest import REPO
from mipl.cli import main
from mipl.data.bags import Bags


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Slides with patches on a grid, a model of them, one without attention, and a Gaussian process."""
    folder, rng = tmp_path_factory.mktemp("show"), np.random.default_rng(0)
    spots = np.stack(np.meshgrid(np.arange(5), np.arange(4)), -1).reshape(-1, 2) * 224
    labels = rng.integers(3, size=90)
    arrays = [6 * rng.normal(size=(20, 4)) + 2 * y for y in labels]
    sets = [{int(y), int(rng.integers(3))} for y in labels]
    for name, part in {"train": slice(0, 50), "new": slice(70, 90)}.items():
        Bags.from_list(
            arrays[part],
            sets[part],
            labels[part],
            ["ash", "birch", "cedar"],
            ids=[f"slide-{i}" for i in range(90)[part]],
            coordinates=[spots] * len(labels[part]),
        ).save(folder / f"{name}.npz")
    Bags.from_list(arrays[:5]).save(folder / "bare.npz")
    for name, method in (("model", "mam-cn"), ("pooled", "proden"), ("process", "miplgp")):
        words = ["--method", method, "--out", str(folder / name), "--set", "epochs=1", "--json"]
        assert main(["fit", str(folder / "train.npz"), *words]) == 0
    return folder


def test_explain_writes_and_lists_the_instances(files, tmp_path, capsys):
    words = ["explain", files / "model", files / "new.npz", "--bag", "slide-72", "--bag", "slide-80"]
    code, out, err = run(capsys, *words, "--out", tmp_path / "e", "--top", "3")
    assert (code, err) == (0, "")
    new = Bags.load(files / "new.npz")
    attention = mipl.load(files / "model").attention_weights(new[[2, 10]])
    top = int(attention[0].argmax())
    x, y = new[2].coordinates[top].tolist()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert lines[0] == ["1", str(top), f"{x:g}", f"{y:g}", f"{100 * attention[0].max():.2f}%"]
    assert len(lines) == 6
    assert "slide-80: " in out
    with (tmp_path / "e" / "slide-80.csv").open(newline="") as file:
        assert [float(row["attention"]) for row in csv.DictReader(file)] == pytest.approx(
            attention[1].tolist()
        )
    code, out, _ = run(capsys, *words, "--out", tmp_path / "e", "--top", "3", "--json")
    assert code == 0
    result = json.loads(out)
    assert [bag["bag_id"] for bag in result["bags"]] == ["slide-72", "slide-80"]
    assert [row["rank"] for row in result["bags"][0]["top"]] == [1, 2, 3]
    assert all((tmp_path / "e" / name).is_file() for bag in result["bags"] for name in bag["files"])


def test_bags_without_coordinates_are_listed_without_them(files, tmp_path, capsys):
    code, out, _ = run(
        capsys, "explain", files / "model", files / "bare.npz", "--bag", "3", "--out", tmp_path / "e"
    )
    assert code == 0
    lines = [line for line in out.splitlines() if "│" in line]
    assert len(lines) == 10
    assert all(line.count("│") == 4 for line in lines)


def test_a_card_alone_needs_no_data(files, tmp_path, capsys):
    code, out, _ = run(capsys, "export", files / "process", "--card", tmp_path / "card.md")
    assert code == 0
    assert out.strip() == f"Model card written to {tmp_path / 'card.md'}"
    assert "None: no labelled bags were given" in (tmp_path / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("explain {f}/model {f}/new.npz --bag slide-7 --out {t}/e", "no bag 'slide-7' in the data. Did you"),
        (
            "explain {f}/pooled {f}/new.npz --bag slide-75 --out {t}/e",
            "proden has no attention over instances",
        ),
        ("explain {f}/model {f}/new.npz --bag slide-75 --out {f}", "holds no explain.json"),
        ("explain {f} {f}/new.npz --bag slide-75 --out {t}/e", "is not a model folder"),
        ("export {f}/model", "Nothing to write"),
        ("export {f}/model --onnx {t}/m.onnx --data {f}/new.npz", "give --card FILE too"),
        ("export {f}/process --onnx {t}/m.onnx", "miplgp is not a neural network"),
        ("export {f}/process --onnx {t}/m.onnx --card {t}/c.md", "miplgp is not a neural network"),
        ("export {f}/model --card {t}/c.md --data {f}/train.npz", "was trained on these bags"),
        ("export {f}/model --card {t}/c.md --data {f}/bare.npz", "no true labels"),
        ("export {f}/model --onnx {f}/new.npz/m.onnx", "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, files, tmp_path, capsys):
    assert_refused(capsys, words, sentence, files, tmp_path)


def test_the_commands_of_the_docs_page_run(files, tmp_path, capsys, monkeypatch):
    page = (REPO / "docs" / "share.md").read_text(encoding="utf-8")
    commands = [line[2:].split() for line in page.splitlines() if line.startswith("$ mipl ")]
    assert {command[1] for command in commands} == {"explain", "export"}
    for name in ("model", "new.npz"):
        (tmp_path / name).symlink_to(files / name)
    monkeypatch.chdir(tmp_path)
    results = []
    for command in commands:
        code, out, err = run(capsys, *command[1:], "--json")
        assert (code, err) == (0, ""), command
        results.append(json.loads(out))
    explained, graph, card = results
    assert [bag["bag_id"] for bag in explained["bags"]] == ["slide-75", "slide-80"]
    assert max(graph["onnx"]["differences"].values()) < 1e-4
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    bag = Bags.load("new.npz")[0].instances.astype(np.float32)
    (p,) = session.run(["probabilities"], {"instances": bag})
    np.testing.assert_allclose(p, mipl.load("model").predict_proba([bag])[0], atol=1e-5)
    assert card["card"]["measured"]
    assert "On new.npz: 20 bags with true labels" in (tmp_path / "card.md").read_text(encoding="utf-8")
