import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import assert_same, many, real

from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl
from mipl.data.sources import WRITERS, Source, save
from mipl.errors import SettingError, StorageError


def test_a_name_opens_a_data_set():
    source = Source("digits-mipl", r=2, seed=3)
    assert source.name == "digits-mipl"
    assert source.title == "digits-mipl r=2"
    assert Source("digits-mipl").false_positives == 1
    assert_same(source.open(), digits_mipl(2, 3))


def test_a_path_opens_a_file(tmp_path):
    many([1, 2]).save(tmp_path / "some.npz")
    source = Source(str(tmp_path / "some.npz"))
    assert source.name == source.title == "some.npz"
    assert_same(source.open(), many([1, 2]))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "bags.doc").write_text("bag_id\n", encoding="utf-8")
    with pytest.raises(StorageError, match=r"bags\.doc is not an \.npz, \.mat, \.csv"):
        Source(str(tmp_path / "bags.doc")).open()
    with pytest.raises(StorageError, match=r"no\.npz does not exist"):
        Source(str(tmp_path / "no.npz")).open()
    with pytest.raises(SettingError, match=r"ends in \.doc: end in \.npz"):
        save(many([1]), tmp_path / "out.doc")


def test_a_word_that_is_neither_gets_a_suggestion():
    with pytest.raises(
        StorageError, match=r"'digits' is neither a file nor a data set. Did you mean 'digits-mipl'"
    ):
        Source("digits").open()


def test_a_data_set_of_raw_files_asks_for_them(tmp_path):
    with pytest.raises(SettingError, match="mnist-mipl is built from raw files"):
        Source("mnist-mipl").open()
    with pytest.raises(StorageError, match="has neither train-images-idx3-ubyte nor"):
        Source("mnist-mipl", raw=str(tmp_path)).open()
    with pytest.raises(StorageError, match="is not a folder"):
        Source("mnist-mipl", raw=str(tmp_path / "none")).open()


# ---- any format to any other ----------------------------------------------------------------------------


def cohort():
    rng = np.random.default_rng(0)
    sizes = [3, 1, 4]
    return Bags.from_list(
        [rng.standard_normal((n, 2)).astype(np.float32) for n in sizes],
        [["a", "b"], ["b"], ["c", "a"]],
        ["a", "b", "c"],
        ids=["x1", "x2", "x3"],
        coordinates=[np.arange(2 * n).reshape(n, 2) for n in sizes],
        groups=["p", "p", "q"],
    )


PLACES = [*(f"bags{suffix}" for suffix in WRITERS), "folder"]


@pytest.mark.parametrize("second", PLACES)
@pytest.mark.parametrize("first", PLACES)
def test_conversion_keeps_the_bags(first, second, tmp_path):
    bags = cohort()
    a, b = tmp_path / "a" / first, tmp_path / "b" / second
    save(bags, a)

    def opened(place):
        return ["--labels", str(place / "labels.csv")] if place.suffix == "" else []

    assert main(["data", "convert", str(a), "--out", str(b), *opened(a), "--json"]) == 0
    labels = str(b / "labels.csv") if b.suffix == "" else None
    got = Source(str(b), labels=labels).open()
    assert got.digest() == bags.digest()
    assert got.ids.tolist() == bags.ids.tolist()
    assert got.groups.tolist() == bags.groups.tolist()
    for bag, wanted in zip(got, bags, strict=True):
        np.testing.assert_array_equal(bag.coordinates, wanted.coordinates)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), place=st.sampled_from([p for p in PLACES if p != "folder"]))
def test_random_bags_survive_every_file(seed, place, tmp_path_factory):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=int(rng.integers(1, 6)))
    labels = rng.integers(0, 3, size=len(sizes))
    bags = Bags.from_list(
        [(10.0 ** rng.integers(-30, 30) * rng.standard_normal((n, 3))).astype(np.float32) for n in sizes],
        [{f"c{label}", f"c{int(rng.integers(3))}"} for label in labels],
        [f"c{label}" for label in labels],
        ["c0", "c1", "c2"] if place.endswith((".npz", ".mat")) else None,
    )
    path = tmp_path_factory.mktemp("bags") / place
    save(bags, path)
    assert Source(str(path)).open().digest() == bags.digest()


# ---- the command line -----------------------------------------------------------------------------------


def test_list_and_info(capsys, tmp_path):
    assert main(["data", "list", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"sival-mipl", "c-r34-25", "crc5-lite0-9"} < set(names)
    assert main(["data", "list"]) == 0
    assert main(["data", "info", "digits-mipl"]) == 0
    assert "rebuilt from raw data" in capsys.readouterr().out
    save(cohort(), tmp_path / "bags.csv")
    assert main(["data", "info", str(tmp_path / "bags.csv"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["here"]["bags"] == 3
    assert shown["paper"] is None
    assert shown["groups"] == 2


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist-mipl", "mnist"), ("fmnist-mipl", "fashion-mnist"), ("birdsong-mipl", "hja-birdsong")],
)
def test_a_rebuilt_set_is_like_the_papers(name, folder, r, tmp_path, capsys):
    out = str(tmp_path / "built.npz")
    assert main(["data", "build", name, "--raw", str(real(folder)), "-r", str(r), "--out", out]) == 0
    capsys.readouterr()
    assert main(["data", "info", out, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    here, paper = shown["here"], shown["paper"]
    assert here["bags"] == paper["bags"]
    assert here["classes"] == paper["classes"]
    assert here["dimension"] == paper["dimension"]
    assert here["mean_candidates"] == paper["mean_candidates"]
    assert here["mean_instances"] == pytest.approx(paper["mean_instances"], rel=0.015)
    assert here["min_instances"] == pytest.approx(paper["min_instances"], abs=1)
    assert here["max_instances"] == pytest.approx(paper["max_instances"], rel=0.15)
    for field in ("max_positives", "min_positives"):
        assert here[field] == pytest.approx(paper[field], abs=0.001)
    assert here["mean_positives"] == pytest.approx(paper["mean_positives"], abs=0.002)
    assert shown["provenance"]["seed"] == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["build", "crc5-row", "--out", "o.npz"], "say where they are with --raw"),
        (["build", "crc5-rwo", "--out", "o.npz"], "Did you mean 'crc5-row'"),
        (["build", "digits-mipl", "--out", "o.xyz"], "ends in .xyz"),
        (["build", "digits-mipl", "--out", "/proc/none/o.npz"], "cannot be written"),
        (["convert", "none.csv", "--out", "o.npz"], "none.csv"),
        (["convert", "digits-mipl", "--out", "o.csv"], "vectors"),
        (["info", "none.mat"], "none.mat"),
        (["fetch", "sival-mipl", "--out", "o"], "No direct address"),
        (["votes", "none.csv", "--out", "o.csv"], "none.csv cannot be read"),
        (["images", "none", "--generator", "row", "--out", "o"], "none is not a folder"),
        (["images", ".", "--generator", "rwo", "--out", "o"], "Did you mean 'row'"),
        (["images", ".", "--generator", "row", "--weights", "w", "--out", "o"], "has no setting 'weights'"),
    ],
)
def test_errors_are_one_sentence(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *command]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_votes_to_a_model(tmp_path, capsys):
    bags = cohort()
    save(Bags.from_list([bag.instances for bag in bags], ids=bags.ids), tmp_path / "bags.npz")
    votes = tmp_path / "votes.csv"
    rows = [("x1", "a"), ("x1", "b"), ("x2", "b"), ("x2", "b"), ("x3", "c"), ("x3", "a")]
    lines = [f"{bag},rater{i % 2},{label}" for i, (bag, label) in enumerate(rows)]
    votes.write_text("bag_id,annotator,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    labels = str(tmp_path / "labels.csv")
    assert main(["data", "votes", str(votes), "--out", labels, "--weights"]) == 0
    assert "1.67 candidates" in capsys.readouterr().out
    fit = ["fit", str(tmp_path / "bags.npz"), "--labels", labels, "--out", str(tmp_path / "m")]
    assert main([*fit, "--set", "epochs=2", "--json"]) == 0
    got = Source(str(tmp_path / "bags.npz"), labels=labels).open()
    assert got.weights.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0.5, 0, 0.5]]


def test_images_to_bags(tmp_path, capsys):
    import cv2

    rng = np.random.default_rng(0)
    for name in ("x", "y"):
        (tmp_path / "tiles" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, size=(32, 32, 3), dtype=np.uint8)
            cv2.imwrite(str(tmp_path / "tiles" / name / f"{i}.png"), pixels)
    (tmp_path / "tiles" / "x" / "bad.png").write_bytes(b"no image")
    out = str(tmp_path / "bags")
    command = ["data", "images", str(tmp_path / "tiles"), "--generator", "row", "--out", out]
    assert main(command) == 2
    assert "bad.png cannot be read as an image" in capsys.readouterr().err
    assert main([*command, "--skip-unreadable"]) == 0
    shown = capsys.readouterr()
    assert "bad.png" in shown.err
    assert "in " + out in shown.out
    bags = Source(out, labels=f"{out}/labels.csv").open()
    assert len(bags) == 6
    assert bags.feature_shape == (9,)
    assert set(bags.sizes) == {8}
