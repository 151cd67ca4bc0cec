"""Votes on the command line: ``annotators``, ``fit --votes`` and ``data votes --mass``."""

import csv
import json

import numpy as np
import pytest
from command import run

from mipl.data.benchmarks import gaussian_bags
from mipl.data.votes import read_votes


@pytest.fixture
def crowd(tmp_path):
    """Bags in an .npz file, and a table of votes on them."""
    bags = gaussian_bags(bags=40, k=3, seed=0)
    bags.save(tmp_path / "bags.npz")
    rng = np.random.default_rng(0)
    lines = ["bag_id,annotator,label"]
    for i, label in enumerate(bags.labels):
        for name, share in (("ann", 0.95), ("bob", 0.8), ("guesser", 1 / 3)):
            vote = label if rng.random() < share else rng.integers(3)
            lines.append(f"{bags.ids[i]},{name},{bags.classes[vote]}")
    (tmp_path / "votes.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_annotators_of_votes_alone(crowd, capsys):
    code, said, _ = run(capsys, "annotators", "--votes", crowd / "votes.csv", "--out", crowd / "out")
    assert code == 0
    assert "guesser" in said
    assert "pairwise agreement" in said
    people = {row["annotator"]: row for row in table(crowd / "out" / "annotators.csv")}
    assert float(people["ann"]["accuracy"]) > float(people["guesser"]["accuracy"])
    assert float(people["ann"]["random"]) < float(people["guesser"]["random"])
    bags = table(crowd / "out" / "bags.csv")
    assert len(bags) == 40
    code, _, _ = run(capsys, "data", "convert", crowd / "bags.npz", "--labels", crowd / "out" / "bags.csv",
                     "--missing-truth", "--out", crowd / "new.npz")  # fmt: skip
    assert code == 0


@pytest.mark.filterwarnings("ignore:The model has learned nothing")
def test_annotators_and_fit_with_features(crowd, capsys):
    few = ["--set", "epochs=2", "--set", "ensemble=3", "--set", "weight_decay=0.01"]
    code, said, _ = run(
        capsys, "annotators", crowd / "bags.npz", "--votes", crowd / "votes.csv", *few, "--json"
    )
    assert code == 0
    found = json.loads(said)
    assert [row["annotator"] for row in found["annotators"]] == ["ann", "bob", "guesser"]
    assert found["agreement"]["votes"] == 120
    (crowd / "gold.csv").write_text(f"bag_id,label\n{gaussian_bags(bags=1).ids[0]},0\n")
    code, said, _ = run(capsys, "fit", crowd / "bags.npz", "--votes", crowd / "votes.csv", "--gold",
                        crowd / "gold.csv", *few, "--out", crowd / "model")  # fmt: skip
    assert code == 0
    assert "inside the votes" in said
    assert "3 annotators, with a confusion matrix each" in said


def test_candidate_sets_by_posterior_mass(crowd, capsys):
    votes = crowd / "votes.csv"
    code, _, _ = run(capsys, "data", "votes", votes, "--mass", "0.9", "--out", crowd / "labels.csv")
    assert code == 0
    assert len(table(crowd / "labels.csv")) == len(read_votes(votes).ids)
    code, _, err = run(
        capsys, "data", "votes", votes, "--mass", "0.9", "--min-votes", "2", "--out", crowd / "l.csv"
    )
    assert code == 2
    assert "leave out --min-votes" in err


def test_what_annotators_refuses(crowd, capsys):
    for words, sentence in (
        (("annotators",), "Give the table of votes with --votes"),
        (("annotators", "--votes", crowd / "votes.csv", "--gold", crowd / "g.csv"), "--gold needs DATA"),
        (
            ("annotators", crowd / "bags.npz", "--votes", crowd / "votes.csv", "--set", "votes=union",
             "--set", "epochs=1", "--set", "ensemble=3"),
            "leave out ensemble=1",
        ),
        (
            ("fit", crowd / "bags.npz", "--votes", crowd / "votes.csv", "--method", "elimipl",
             "--out", crowd / "m"),
            "cannot use votes",
        ),
        (("annotators", "--votes", crowd / "votes.csv", "--out", crowd), "is not replaced"),
    ):  # fmt: skip
        code, out, err = run(capsys, *words)
        assert code == 2
        assert sentence in err
        assert out == ""
