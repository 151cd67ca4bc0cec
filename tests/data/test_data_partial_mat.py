import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import attempt, real

from mipl.data.formats.partial_mat import read_partial_mat
from mipl.errors import DataError, StorageError


def three(**changes):
    """Return the three variables of a file with four examples."""
    variables = {
        "X": np.arange(8.0).reshape(4, 2) / 3,
        "Y_P": np.uint8([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]]),
        "Y": np.uint8([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]),
        **changes,
    }
    return {name: value for name, value in variables.items() if value is not None}


@pytest.fixture
def file(tmp_path):
    def write(variables, **options):
        path = tmp_path / "partial.mat"
        scipy.io.savemat(path, variables, **options)
        return path

    return write


@pytest.mark.parametrize("compressed", [False, True])
def test_three_matrices_become_bags_of_one_instance(file, compressed):
    bags = read_partial_mat(file({"other": np.ones(3), **three()}, do_compression=compressed))
    assert bags.sizes.tolist() == [1, 1, 1, 1]
    assert bags.ids.tolist() == ["1", "2", "3", "4"]
    assert bags.classes == (0, 1, 2)
    assert bags.candidates.tolist() == three()["Y_P"].astype(bool).tolist()
    assert bags.labels.tolist() == [0, 1, 2, 2]
    assert bags.instances.dtype == np.float64
    assert (bags.instances == three()["X"]).all()
    assert bags[2].instances.tolist() == [three()["X"][2].tolist()]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_whole_numbers_stand_for_themselves(file, dtype):
    bags = read_partial_mat(file(three(X=np.arange(8).reshape(4, 2).astype(dtype))))
    assert bags.instances.dtype == np.float32  # as uint8 they would stand for value/255
    assert bags.instances.tolist() == np.arange(8.0).reshape(4, 2).tolist()


def test_single_precision_and_logical_sets_are_read(file):
    bags = read_partial_mat(
        file(three(X=np.float32(three()["X"]), Y_P=three()["Y_P"] > 0, Y=three()["Y"] * 1.0))
    )
    assert bags.instances.dtype == np.float32
    assert bags.labels.tolist() == [0, 1, 2, 2]


def test_without_true_labels_there_are_none(file):
    assert read_partial_mat(file(three(Y=None))).labels is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"X": None}, "there is no variable 'X'"),
        ({"Y_P": None}, "there is no variable 'Y_P'"),
        ({"X": "text"}, "'X' is text: it should be a matrix"),
        ({"X": np.ones((4, 2)) * 1j}, "'X' is complex numbers: it should be a matrix"),
        ({"X": np.ones((4, 2, 2))}, "'X' is 4×2×2 numbers (float64): it should be a matrix"),
        ({"X": np.ones((0, 2))}, "'X' is 0×2 numbers (float64): it should be a matrix"),
        ({"X": np.array([[np.nan, 1]] * 4)}, "Bag '1' has a NaN"),
        ({"Y_P": scipy.sparse.csc_matrix(np.eye(4, 3))}, "'Y_P' is a sparse matrix"),
        ({"Y_P": {"a": 1}}, "'Y_P' is a struct"),
        ({"Y_P": np.ones((3, 4))}, "'Y_P' has 3 rows, but 'X' has 4: give one row per example."),
        ({"Y_P": np.full((4, 3), 2)}, "'Y_P' has something other than 0 and 1 in row 1."),
        ({"Y_P": np.full((4, 3), np.nan)}, "'Y_P' has something other than 0 and 1 in row 1."),
        ({"Y_P": np.zeros((4, 3)), "Y": None}, "Bag '1' has no candidate label"),
        ({"Y_P": np.ones((1, 10_001))}, "'Y_P' has 10001 columns"),
        ({"Y": np.ones((4, 2))}, "'Y' has the shape (4, 2), but 'Y_P' (4, 3)."),
        ({"Y": np.eye(4, 3) * 2}, "'Y' has something other than 0 and 1 in row 1."),
        ({"Y": np.ones((4, 3))}, "'Y' has 3 true labels in row 1: there should be exactly one."),
        ({"Y": np.eye(4, 3)}, "'Y' has 0 true labels in row 4"),
        ({"Y": np.eye(3)[[2, 1, 0, 2]]}, "Bag '1' has the true label '2' outside its candidate set"),
    ],
)
def test_what_is_not_partial_label_data_is_refused_with_a_sentence(file, changes, sentence):
    path = file(three(**changes))
    with pytest.raises(DataError) as caught:
        read_partial_mat(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_other_files_are_refused_with_a_sentence(tmp_path):
    path = tmp_path / "partial.mat"
    with pytest.raises(StorageError, match="cannot be read"):
        read_partial_mat(path)
    path.write_text("x" * 200)
    with pytest.raises(StorageError, match=r"is not a \.mat file"):
        read_partial_mat(path)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match=r"is not a \.mat file"):
        read_partial_mat(path)
    with h5py.File(path, "w") as stored:
        stored["X"] = np.ones((4, 2))
    with pytest.raises(StorageError, match=r"MATLAB 7\.3"):
        read_partial_mat(path)


@pytest.mark.parametrize("compressed", [False, True])
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_damaged_files_are_refused_and_nothing_else_happens(tmp_path_factory, compressed, data):
    path = tmp_path_factory.mktemp("damaged") / "partial.mat"
    scipy.io.savemat(path, three(), do_compression=compressed)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
    bags, complaint = attempt(read_partial_mat, path)
    assert (bags is None) == bool(complaint)
    assert "\n" not in complaint


def test_birdsong_partial_is_what_its_sources_say():
    bags = read_partial_mat(real("birdsong-partial") / "BirdSong.mat")
    assert len(bags) == 4998
    assert bags.feature_shape == (38,)
    assert bags.k == 13
    assert round(float(bags.candidates.sum(axis=1).mean()), 2) == 2.18
    counts = [602, 810, 501, 494, 82, 277, 32, 345, 139, 120, 190, 1280, 126]
    assert np.bincount(bags.labels).tolist() == counts


def test_birdsong_partial_has_the_species_of_a_recording_as_candidates():
    bags = read_partial_mat(real("birdsong-partial") / "BirdSong.mat")
    table = np.loadtxt(
        real("hja-birdsong") / "hja_birdsong_instance_labels.txt", delimiter=",", skiprows=1, dtype=int
    )
    recording, species = table[table[:, 1] > 0].T
    assert (bags.labels == species - 1).all()
    for one in np.unique(recording):
        heard = np.isin(np.arange(1, 14), species[recording == one])
        assert (bags.candidates[recording == one] == heard).all()
