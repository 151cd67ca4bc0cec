import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, assert_same, attempt, many

from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.formats.npz import FORMAT
from mipl.errors import DataError, StorageError

quick = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("npz")


def complete():
    return many(
        [2, 1, 3],
        candidates=[["a"], ["b"], ["a", "b"]],
        labels=["a", "b", "a"],
        ids=["x", "y", "z"],
        instance_labels=[[0, -1], [1], [0, 0, -1]],
        coordinates=[np.zeros((n, 2)) for n in (2, 1, 3)],
        groups=["p", "p", "q"],
        weights=[[1, 0], [0, 1], [0.5, 0.5]],
    )


# ---- round trip ----------------------------------------------------------------------------------------


@given(given_=arguments(), data=st.data())
@quick
def test_saved_bags_are_loaded_exactly(folder, given_, data):
    bags = Bags.from_list(**given_)[data.draw(st.slices(len(given_["arrays"])))]
    bags.save(folder / "bags.npz")
    loaded = Bags.load(str(folder / "bags.npz"))
    assert_same(loaded, bags)
    assert loaded.digest() == bags.digest()
    assert len(loaded.source) == bags.sizes.sum()  # of a selection, only its own instances are written
    with pytest.raises(ValueError, match="read-only"):
        loaded.source[...] = 0


def test_class_noise_survives_a_file(folder):
    noisy = many([1, 1], candidates=[[0], [1]], labels=[0, 0], missing_truth=True)
    noisy.save(folder / "noisy.npz")
    assert Bags.load(folder / "noisy.npz").missing_truth


def test_the_file_holds_plain_arrays_only(folder):
    complete().save(folder / "plain.npz")
    with np.load(folder / "plain.npz", allow_pickle=False) as stored:
        for name in stored.files:
            assert stored[name].dtype != object
        assert json.loads(str(stored["meta"]))["format"] == FORMAT


def test_a_compressed_file_is_read_too(folder):
    complete().save(folder / "plain.npz")
    with np.load(folder / "plain.npz") as stored:
        np.savez_compressed(folder / "small.npz", **stored)
    assert_same(Bags.load(folder / "small.npz"), complete())


def test_saving_makes_the_folder_and_replaces_the_old_file(tmp_path):
    path = tmp_path / "new" / "bags.npz"
    many([1, 2]).save(path)
    many([3]).save(path)
    assert Bags.load(path).sizes.tolist() == [3]
    assert [file.name for file in path.parent.iterdir()] == ["bags.npz"]


# ---- what cannot be saved ------------------------------------------------------------------------------


def test_a_name_that_does_not_end_in_npz_is_refused(tmp_path):
    with pytest.raises(StorageError, match=r"bags\.csv should end in \.npz"):
        many([1]).save(tmp_path / "bags.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [np.int64(1), {1, 2}, object()], ids=["NumPy number", "set", "object"])
def test_provenance_that_is_not_json_is_refused_and_nothing_written(tmp_path, value):
    bags = many([1], provenance={"what": value})
    with pytest.raises(DataError, match=r"provenance cannot be written to .*bags\.npz"):
        bags.save(tmp_path / "bags.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match=r"bags\.npz cannot be written"):
        many([1]).save(tmp_path / "file" / "bags.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(StorageError, match=r"folder\.npz cannot be written"):
        many([1]).save(tmp_path / "folder.npz")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder.npz"]


FULL_DISK = """
import resource, sys
import numpy as np
from mipl.data.bags import Bags
from mipl.errors import StorageError

large = Bags.from_list([np.zeros((1000, 100))])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    large.save(sys.argv[1])
except StorageError as error:
    print(error)
"""


def test_when_the_disk_is_full_the_old_file_is_kept(tmp_path):
    pytest.importorskip("resource")
    path = tmp_path / "bags.npz"
    complete().save(path)
    before = path.read_bytes()
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.startswith(f"{path} cannot be written: File too large.")
    assert "unchanged" in run.stdout
    assert run.stderr == ""
    assert path.read_bytes() == before
    assert_same(Bags.load(path), complete())
    assert list(tmp_path.iterdir()) == [path]


# ---- what cannot be loaded -----------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"no\.npz does not exist: check the path"):
        Bags.load(tmp_path / "no.npz")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        Bags.load(tmp_path)


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path):
    path = tmp_path / "bags.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 3)))
    with pytest.raises(StorageError, match=r"bags\.npz is not a file of bags: create one with Bags\.save"):
        Bags.load(path)
    for content in (b"", b"bag_id,candidates\n", b"PK\x03\x04 and no more", b"\x80\x04N."):
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"bags\.npz is damaged or is not an \.npz of bags"):
            Bags.load(path)
    np.savez(path, images=np.zeros(3))
    with pytest.raises(StorageError, match=r"bags\.npz is not a file of bags"):
        Bags.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta", "text")
    with pytest.raises(StorageError, match=r"bags\.npz"):
        Bags.load(path)


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "bags.npz"
    complete().save(path)
    with np.load(path) as stored:
        content = dict(stored)
    np.savez(path, **{**content, "coordinates": np.array([{}, [], None, 1, 2, 3], dtype=object)})
    with pytest.raises(
        StorageError, match=r"bags\.npz is damaged or is not an \.npz of bags.*[Oo]bject arrays"
    ):
        Bags.load(path)


def change_meta(**changes):
    def change(content):
        content["meta"] = np.array(json.dumps({**json.loads(str(content["meta"])), **changes}))

    return change


def change_array(name, value):
    def change(content):
        content[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (change_meta(format="mipl-bags-9"), StorageError, "has the format 'mipl-bags-9'; this version reads"),
        (change_meta(format=None), StorageError, "has the format None"),
        (change_meta(classes=["a", "a"]), DataError, "The class 'a' is named twice"),
        (change_meta(classes=["a", 1]), DataError, "neither names nor"),
        (change_meta(classes=5), DataError, "The classes are 5"),
        (change_meta(classes=["a"]), DataError, r"candidates have shape \(3, 2\)"),
        (change_meta(provenance=5), StorageError, "is damaged or is not"),
        (change_array("meta", np.array("not json")), StorageError, "is damaged or is not"),
        (change_array("meta", np.array("[1, 2]")), StorageError, "is damaged or is not"),
        (change_array("meta", np.array("{}")), StorageError, "has the format None"),
        (change_array("offsets", np.array(3)), StorageError, "is damaged or is not"),
        (change_array("offsets", np.array([0, 2, 3, 9])), DataError, "A bag extends beyond"),
        (change_array("offsets", np.array([0, 2, 2, 6])), DataError, "Bag 'y' is empty"),
        (change_array("offsets", np.array([0.0, 2, 3, 6])), DataError, "cannot be of type float64"),
        (change_array("offsets", np.zeros((4, 2), dtype=int)), DataError, "shape"),
        (change_array("ids", np.array(["x", "y", "x"])), DataError, "The id 'x' is used by 2 bags"),
        (change_array("ids", np.array(["x", "y"])), DataError, r"ids have shape \(2,\)"),
        (change_array("ids", np.array([1, 2, 3])), DataError, "ids cannot be of type int64"),
        (change_array("instances", np.full((6, 3), np.nan)), DataError, "Bag 'x' has a NaN"),
        (change_array("instances", np.zeros((6, 3), dtype=int)), DataError, "instances are of type int64"),
        (change_array("instances", np.zeros((6, 3), dtype=">f4")), DataError, "instances are of type >f4"),
        (change_array("instances", np.array("text")), DataError, "The instances have"),
        (change_array("labels", np.array([0.0, 1.0, 0.0])), DataError, "labels cannot be of type float64"),
        (change_array("labels", np.array([0, 1, 7])), DataError, "Bag 'z' has a label outside the 2 classes"),
        (change_array("labels", np.array([0, 0, 0])), DataError, "Bag 'y' has the true label 'a' outside"),
        (change_array("candidates", np.zeros((3, 2), dtype=bool)), DataError, "Bag 'x' has no candidate"),
        (change_array("weights", np.ones((3, 2))), DataError, "weights of bag 'x' are not a distribution"),
        (change_array("groups", np.array(["p"])), DataError, r"groups have shape \(1,\)"),
        (change_array("coordinates", np.zeros((5, 2))), DataError, r"coordinates have shape \(5, 2\)"),
        (change_array("instance_labels", np.full(6, 2)), DataError, "Bag 'x' has the instance label 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_with_wrong_content_is_refused_by_name(tmp_path, change, error, message):
    path = tmp_path / "bags.npz"
    complete().save(path)
    with np.load(path) as stored:
        content = dict(stored)
    change(content)
    np.savez(path, **content)
    with pytest.raises(error, match=rf"bags\.npz.*{message}"):
        Bags.load(path)


@pytest.mark.parametrize("name", ["meta", "instances", "offsets", "ids"])
def test_a_file_without_one_of_its_parts_is_refused(tmp_path, name):
    path = tmp_path / "bags.npz"
    complete().save(path)
    with np.load(path) as stored:
        content = dict(stored)
    del content[name]
    np.savez(path, **content)
    with pytest.raises(StorageError, match=r"bags\.npz"):
        Bags.load(path)


@given(data=st.data())
@settings(deadline=None, max_examples=80)
def test_a_truncated_file_is_refused(folder, data):
    complete().save(folder / "whole.npz")
    whole = (folder / "whole.npz").read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    (folder / "cut.npz").write_bytes(whole[:cut])
    with pytest.raises(StorageError, match=r"cut\.npz"):
        Bags.load(folder / "cut.npz")


@given(data=st.data(), compressed=st.booleans())
@settings(deadline=None, max_examples=150)
def test_a_damaged_file_is_refused_or_still_holds_the_bags(folder, data, compressed):
    bags = gaussian_bags(bags=4, d=2)
    bags.save(folder / "whole.npz")
    if compressed:
        with np.load(folder / "whole.npz") as stored:
            np.savez_compressed(folder / "whole.npz", **stored)
    damaged = bytearray((folder / "whole.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (folder / "damaged.npz").write_bytes(bytes(damaged))
    loaded, complaint = attempt(Bags.load, folder / "damaged.npz")
    assert "damaged.npz" in complaint or np.array_equal(loaded.instances, bags.instances)
