"""sival6-mipl and labelme: from made files of their form, and from the real ones."""

import json

import numpy as np
import pytest
from random_bags import assert_same, real

from mipl.cli import main
from mipl.data.datasets import DATASETS, build
from mipl.data.sources import Source
from mipl.data.splits import own_split
from mipl.errors import DataError, SettingError, StorageError
from mipl.records.store import Store

NAMES = ["rug", "scarf", "box", "doll", "shoe", "sponge"]


@pytest.mark.parametrize("name", ["sival6-mipl", "labelme"])
def test_both_are_named_with_their_raw_files_and_are_none_of_the_papers(name, capsys):
    assert name in DATASETS
    assert DATASETS[name].table1 is None
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[name] == {
        "name": name,
        "paper": False,
        "r": name != "labelme",
        "raw": DATASETS[name].raw_files,
    }
    with pytest.raises(SettingError, match=f"{name} is built from raw files: say where they are with --raw"):
        build(name)


# ---- sival6-mipl -----------------------------------------------------------------------------------------


def sival6_arrays():
    """A region's first feature is its number, its second its bag; regions are shuffled over the bags."""
    rng = np.random.default_rng(0)
    bag = rng.permutation(np.repeat(np.arange(360), rng.integers(2, 5, size=360))).astype(np.int32)
    X = np.zeros((len(bag), 30), dtype=np.float32)
    X[:, 0], X[:, 1] = np.arange(len(bag)), bag
    y = rng.permutation(np.repeat(np.arange(6), 60)).astype(np.int8)
    return {"X": X, "bag": bag, "y": y, "class_names": np.array(NAMES)}


def write_sival6(folder, **changes):
    arrays = {**sival6_arrays(), **changes}
    np.savez(folder / "sival6.npz", **{name: array for name, array in arrays.items() if array is not None})
    return folder


def test_sival6_gathers_the_regions_of_each_bag_in_order(tmp_path):
    arrays = sival6_arrays()
    bags = build("sival6-mipl", raw=write_sival6(tmp_path))
    assert bags.classes == tuple(NAMES)
    assert len(bags) == 360
    assert bags.labels.tolist() == arrays["y"].tolist()
    assert bags.source.dtype == np.float32
    assert bags.instance_labels is None
    for i, bag in enumerate(bags):
        assert bag.id == f"sival6-mipl-{i:04d}"
        assert bag.instances[:, 0].tolist() == [n for n, b in enumerate(arrays["bag"]) if b == i]
    assert bags.provenance["dataset"] == "sival6-mipl"
    assert own_split(bags) is None


@pytest.mark.parametrize("r", [1, 2, 3])
def test_sival6_has_r_false_positives_that_follow_the_seed(r, tmp_path):
    write_sival6(tmp_path)
    bags = build("sival6-mipl", r, 4, tmp_path)
    assert (bags.candidates.sum(axis=1) == r + 1).all()
    assert bags.candidates[np.arange(360), bags.labels].all()
    false = bags.candidates.copy()
    false[np.arange(360), bags.labels] = False
    # uniform over the other classes: each of 30 pairs has 60 · r/5 in expectation, at most five deviations
    pairs = np.array([false[bags.labels == c].sum(axis=0) for c in range(6)])[~np.eye(6, dtype=bool)]
    assert np.abs(pairs - 12 * r).max() < 5 * np.sqrt(60 * (r / 5) * (1 - r / 5))
    assert_same(build("sival6-mipl", r, 4, tmp_path), bags)
    other = build("sival6-mipl", r, 5, tmp_path)
    assert (other.candidates != bags.candidates).any()
    np.testing.assert_array_equal(other.instances, bags.instances)
    assert Source("sival6-mipl", raw=str(tmp_path)).false_positives == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bag": None}, r"sival6\.npz is not an \.npz file with X \(n × 30\), bag \(n\), y \(360\), class_n"),
        ({"X": np.zeros((9, 29))}, r"has X \(9 × 29\): expected an \.npz file with X \(n × 30\)"),
        ({"X": np.zeros(30)}, r"has X \(30\): expected"),
        ({"X": np.full((9, 30), np.nan)}, "has a NaN or infinite value in X"),
        ({"X": np.zeros((9, 30))}, "has 9 rows in X but"),
        ({"X": np.zeros((9, 30), dtype=int)}, "has X of type int64"),
        ({"y": np.zeros(300, dtype=int)}, r"has y \(300\): expected"),
        ({"y": np.repeat(np.arange(6), 60) + 1}, "each whole number from 0 to 5 in y"),
        ({"y": np.repeat(np.arange(6.0), 60)}, "each whole number from 0 to 5 in y"),
        ({"class_names": np.array(NAMES[:5])}, r"has class_names \(5\)"),
        ({"class_names": np.array(["a"] * 6)}, "6 distinct names in class_names"),
        ({"class_names": np.arange(6)}, "6 distinct names in class_names"),
        ({"class_names": np.array(NAMES, dtype=object)}, "allow_pickle=False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_sival6_file_that_is_not_one_is_refused(changes, message, tmp_path):
    write_sival6(tmp_path, **changes)
    with pytest.raises(StorageError, match=message) as caught:
        build("sival6-mipl", raw=tmp_path)
    assert str(tmp_path / "sival6.npz") in str(caught.value)


def test_a_bag_of_sival6_without_regions_is_refused(tmp_path):
    bag = sival6_arrays()["bag"]
    write_sival6(tmp_path, bag=np.where(bag == 7, 8, bag))
    with pytest.raises(StorageError, match="each whole number from 0 to 359 in bag"):
        build("sival6-mipl", raw=tmp_path)


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "array"])
def test_a_damaged_sival6_file_ends_with_one_sentence(damage, tmp_path, capsys):
    path = write_sival6(tmp_path) / "sival6.npz"
    if damage == "missing":
        path.unlink()
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros((3, 30)))
    else:
        path.write_bytes(b"no archive" if damage == "text" else path.read_bytes()[:20_000])
    out = tmp_path / "bags.npz"
    assert main(["data", "build", "sival6-mipl", "--raw", str(tmp_path), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"mipl: {path} ")
    assert "X (n × 30), bag (n), y (360), class_names (6)" in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_real_sival6():
    bags = build("sival6-mipl", 3, raw=real("sival6"))
    assert (len(bags), bags.sizes.sum(), bags.feature_shape) == (360, 11_410, (30,))
    assert set(bags.sizes.tolist()) == {31, 32}
    assert np.bincount(bags.labels).tolist() == [60] * 6
    assert bags.classes[0] == "bluescrunge"
    stored = np.load(real("sival6") / "sival6.npz", allow_pickle=False)
    for i in (0, 59, 60, 359):
        np.testing.assert_array_equal(bags[i].instances, stored["X"][stored["bag"] == i])
        assert bags[i].label == stored["y"][i]


# ---- labelme ---------------------------------------------------------------------------------------------


def write_labelme(folder, votes=None, labels=None, train=1000, valid=500):
    """Write files of LabelMe's form: feature 0 is the bag's number, feature 1 its label; rows are shuffled.

    Training bag i has the label i % 8 and votes for i % 8 and, if i is odd, i % 8 + 1; every tenth bag has
    one vote, for another label.
    """
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", train), ("valid", valid)):
        parts[part] = np.zeros((count, 512), dtype=np.float32)
        parts[part][:, 0], parts[part][:, 1] = np.arange(count), np.arange(count) % 8
    np.savez(folder / "features.npz", **parts)
    if labels is None:
        labels = [f"{part}-{i:04d},c{i % 8}" for part in parts for i in range(len(parts[part]))]
    if votes is None:
        votes = []
        for i in range(1000):
            given = {(i + 3) % 8} if i % 10 == 0 else {i % 8, (i + i % 2) % 8}
            votes += [f"train-{i:04d},a{j},c{label}" for j, label in enumerate(sorted(given))]
    for name, header, rows in (
        ("labels", "bag_id,label", labels),
        ("votes", "bag_id,annotator,label", votes),
    ):
        text = "\n".join([header, *(rows[j] for j in rng.permutation(len(rows)))]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_labelme(tmp_path_factory.mktemp("labelme"))


def test_labelme_has_the_union_of_the_votes_and_all_classes_without_any(scenes):
    bags = build("labelme", raw=scenes)
    assert bags.classes == tuple(f"c{j}" for j in range(8))
    assert (len(bags), bags.feature_shape, set(bags.sizes.tolist())) == (1500, (512,), {1})
    assert bags.missing_truth
    for i, bag in enumerate(bags):
        part, number = ("train", i) if i < 1000 else ("valid", i - 1000)
        assert bag.id == f"{part}-{number:04d}"
        assert bag.instances[0, :2].tolist() == [number, number % 8]
        assert bag.label == number % 8
        given = {(i + 3) % 8} if i % 10 == 0 else {i % 8, (i + i % 2) % 8}
        assert set(np.flatnonzero(bag.candidates).tolist()) == (given if part == "train" else set(range(8)))


def test_labelme_has_one_split_of_its_own(scenes, tmp_path):
    bags = build("labelme", raw=scenes)
    bags.save(tmp_path / "bags.npz")
    for opened in (bags, Source(str(tmp_path / "bags.npz")).open()):
        train, test = own_split(opened)
        assert train.tolist() == list(range(1000))
        assert test.tolist() == list(range(1000, 1500))


def test_labelme_takes_neither_r_nor_a_seed(scenes):
    assert not DATASETS["labelme"].takes_r
    assert Source("labelme").false_positives is None
    with pytest.raises(SettingError, match="labelme has its own candidate sets: -r does not apply"):
        build("labelme", 1, raw=scenes)
    with pytest.raises(SettingError, match="labelme is not random: leave the seed out"):
        build("labelme", seed=1, raw=scenes)


LABELS = [
    f"{part}-{i:04d},c{i % 8}" for part, count in (("train", 1000), ("valid", 500)) for i in range(count)
]
VOTES = [f"train-{i:04d},a,c{i % 8}" for i in range(1000)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"train": 999},
            StorageError,
            r"features\.npz has train \(999 × 512\): expected .* train \(1000 × 512",
        ),
        ({"labels": LABELS[1:]}, StorageError, r"labels\.csv has no row of bag 'train-0000': expected the"),
        (
            {"labels": [*LABELS, "x,c1"]},
            StorageError,
            r"labels\.csv names bag 'x': expected the bags train-00",
        ),
        ({"labels": [*LABELS, LABELS[0]]}, DataError, "names the bag 'train-0000' a second time"),
        ({"labels": [*LABELS[1:], "train-0000,"]}, DataError, "no label for bag 'train-0000'"),
        (
            {"labels": [row.partition(",")[0] + "," for row in LABELS]},
            StorageError,
            "gives every bag a label",
        ),
        ({"votes": VOTES[:-1]}, StorageError, r"votes\.csv has no row of bag 'train-0999'"),
        ({"votes": [*VOTES, "valid-0000,a,c1"]}, StorageError, r"votes\.csv names bag 'valid-0000'"),
        ({"votes": [*VOTES[1:], "train-0000,a,"]}, DataError, "Bag 'train-0000' has no candidate left"),
        ({"votes": [*VOTES, "train-0000,b,c9"]}, StorageError, "has 9 classes in votes.csv and labels.csv: "),
    ],
)
def test_labelme_files_that_do_not_belong_together_are_refused(changes, error, message, tmp_path):
    with pytest.raises(error, match=message):
        build("labelme", raw=write_labelme(tmp_path, **changes))


@pytest.mark.parametrize("name", ["votes.csv", "labels.csv", "features.npz"])
def test_labelme_names_the_file_that_is_missing(name, tmp_path):
    write_labelme(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(
        StorageError, match=f"has no {name}: labelme is built from votes.csv, labels.csv, feat"
    ):
        build("labelme", raw=tmp_path)


def test_a_run_on_labelme_trains_on_the_training_bags_alone(scenes, tmp_path, capsys):
    words = ["run", "labelme", "--raw", str(scenes), "--methods", "dam-mdl", "--jobs", "1", "--json"]
    words += ["--set", "epochs=1", "--with", "training"]
    assert main([*words, "--out", str(tmp_path / "runs")]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    (record,) = Store(tmp_path / "runs")
    assert (record.spec["dataset"], record.spec["r"]) == ("labelme", None)
    assert (record.spec["splits"], record.spec["split"]) == ("official", 1)
    assert (record.info["data"]["train_bags"], record.info["data"]["test_bags"]) == (1000, 500)
    assert record.arrays["ids"].tolist() == [f"valid-{i:04d}" for i in range(500)]
    bags = build("labelme", raw=scenes)
    np.testing.assert_array_equal(record.arrays["training_candidates"], bags.candidates[:1000])
    assert main(["results", str(tmp_path / "runs"), "--markdown"]) == 0
    assert "| labelme |  | dam-mdl (epochs=1) | stable | 1 official |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", [("--splits", "2"), ("--splits", "1-3"), ("--official", ".")], ids=" ".join
)
def test_a_run_on_labelme_refuses_other_splits(option, scenes, tmp_path, capsys):
    words = ["run", "labelme", "--raw", str(scenes), "--out", str(tmp_path / "runs"), *option]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err == "mipl: labelme has one split of its own, number 1: leave --splits and --official out.\n"
    assert not (tmp_path / "runs").exists()


def test_the_real_labelme():
    bags = build("labelme", raw=real("labelme"))
    train, test = own_split(bags)
    assert (len(train), len(test), bags.k, bags.feature_shape) == (1000, 500, 8, (512,))
    sets = bags.candidates[train]
    rows = (real("labelme") / "votes.csv").read_text(encoding="utf-8").splitlines()[1:]
    voted = {(bag, label) for bag, _, label in (row.split(",") for row in rows)}
    pairs = np.argwhere(sets)
    assert {(str(bags.ids[train[i]]), bags.classes[j]) for i, j in pairs} == voted
    assert len(voted) == 1365
    assert sets[np.arange(1000), bags.labels[train]].mean() == pytest.approx(0.889, abs=0.0005)
    assert bags.candidates[test].all()


def test_features_of_the_real_labelme_belong_to_its_labels():
    from sklearn.linear_model import LogisticRegression

    bags = build("labelme", raw=real("labelme"))
    train, test = own_split(bags)
    model = LogisticRegression(max_iter=200).fit(bags.instances[test], bags.labels[test])
    assert model.score(bags.instances[train], bags.labels[train]) > 0.85
