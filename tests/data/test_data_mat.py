import io
import json
import struct
import zlib

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, assert_same, attempt, many, real

from mipl.data.bags import Bags
from mipl.data.formats import mat, matlab5
from mipl.data.formats.mat import read_mat, write_mat
from mipl.errors import DataError, SettingError, StorageError

quick = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mat")


def cells(*rows):
    """Return rows of arrays as a cell array."""
    data = np.empty((len(rows), len(rows[0])), dtype=object)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            data[i, j] = value if isinstance(value, np.ndarray | str) else np.atleast_2d(value)
    return data


def authors(**changes):
    """Return two bags as the authors write them."""
    first = [np.arange(6.0).reshape(3, 2), np.uint8([1, 3]), np.uint8(3), np.uint8([3, 0, 3])]
    second = [np.arange(2.0).reshape(1, 2) / 3, np.uint8([2]), np.uint8(2), np.uint8([2])]
    for column, value in changes.items():
        second[int(column[1:])] = value
    return cells(first, second)


@pytest.fixture
def file(tmp_path):
    """Write variables to a file and return its path."""

    def write(variables, **options):
        path = tmp_path / "bags.mat"
        scipy.io.savemat(path, variables, **options)
        return path

    return write


def complete():
    return many(
        [2, 1, 3],
        candidates=[["a"], ["b"], ["a", "b"]],
        labels=["a", "b", "a"],
        ids=["x", "y", "z"],
        instance_labels=[[0, -1], [1], [0, 0, -1]],
        coordinates=[np.zeros((n, 2), dtype=int) for n in (2, 1, 3)],
        groups=["p", "p", "q"],
        weights=[[1, 0], [0, 1], [0.5, 0.5]],
        provenance={"from": "a test – é"},
    )


# ---- the authors' files --------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_the_authors_is_read(file, compressed):
    bags = read_mat(file({"data": authors()}, do_compression=compressed))
    assert bags.classes == (0, 1, 2)
    assert bags.ids.tolist() == ["1", "2"]
    assert bags.sizes.tolist() == [3, 1]
    assert bags.candidates.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert bags.labels.tolist() == [2, 1]
    assert bags.instance_labels.tolist() == [2, -1, 2, 1]
    assert bags.source.dtype == np.float64
    assert bags.source.flags.c_contiguous
    assert bags.source.tolist() == [[0, 1], [2, 3], [4, 5], [0, 1 / 3]]


def test_three_columns_have_no_instance_labels_and_other_variables_do_not_matter(file):
    others = {"weights": np.ones((1, 1)), "coordinates": "none", "more": {"a": {"b": 1}}}
    assert read_mat(file({"data": authors()[:, :3], **others})).instance_labels is None
    bags = read_mat(file({"data": authors(c2=np.zeros((0, 0)))[1:, :3]}))  # no true label at all
    assert bags.labels is None
    assert bags.k == 2


def test_labels_may_be_stored_as_any_kind_of_number_and_lie_either_way(file):
    wanted = read_mat(file({"data": authors()}))
    for dtype in ("float64", "float32", "int16", "int64"):
        data = authors()
        for i, j in np.ndindex(2, 3):
            data[i, j + 1] = data[i, j + 1].astype(dtype).T
        assert_same(read_mat(file({"data": data})), wanted)


def test_an_instance_label_above_all_bag_labels_is_none_of_the_classes(file):
    bags = read_mat(file({"data": authors(c3=np.uint8(9))}))
    assert bags.k == 3
    assert bags.instance_labels.tolist() == [2, -1, 2, -1]


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("float64", "float64"),
        ("float32", "float32"),
        ("uint8", "uint8"),
        ("int8", "float32"),
        ("uint16", "float32"),
        ("int32", "float64"),
        ("bool", "float32"),
    ],
)
def test_features_keep_their_type(file, stored, read):
    features = np.array([[0, 1], [1, 1]], dtype=stored)
    bags = read_mat(file({"data": cells([features, np.uint8(1), np.uint8(1)])}))
    assert bags.source.dtype == read
    assert np.array_equal(bags.source, features)


def test_doubles_that_matlab_stores_in_bytes_stay_doubles(tmp_path):
    """MATLAB keeps whole doubles in the smallest type on disk; taken for uint8 they would mean value/255."""
    buffer = io.BytesIO()
    scipy.io.savemat(
        buffer, {"data": cells([np.zeros((1, 4), dtype=np.uint8) + 7, np.uint8(1), np.uint8(1)])}
    )
    content = bytearray(buffer.getvalue())
    # the flags of the first cell: its class (9, uint8) becomes 6, double; the stored bytes stay
    flags = content.index(struct.pack("<III", 6, 8, 9))
    content[flags + 8] = 6
    path = tmp_path / "small.mat"
    path.write_bytes(content)
    assert scipy.io.loadmat(path, mat_dtype=True)["data"][0, 0].dtype == np.float64
    bags = read_mat(path)
    assert bags.source.dtype == np.float64
    assert bags.source.tolist() == [[7, 7, 7, 7]]


def test_images_are_made_on_request_only(file):
    data = cells([np.arange(24.0).reshape(2, 12), np.uint8(1), np.uint8(1)])
    path = file({"data": data})
    assert read_mat(path).feature_shape == (12,)
    images = read_mat(path, shape=(3, 4))
    assert images.feature_shape == (3, 4)
    assert images[0].instances[1].tolist() == np.arange(12.0, 24.0).reshape(3, 4).tolist()
    for shape in ((5, 5), (-3, -4), (0, 12)):
        with pytest.raises(SettingError, match=r"bags\.mat: 12 features cannot be given the shape"):
            read_mat(path, shape=shape)


def test_real_files_of_matlab_hold_what_scipy_says():
    paths = [real("birdsong-partial") / "BirdSong.mat", *sorted(real("mnist-mipl-splits").glob("*.mat"))]
    for path in paths:
        got = matlab5.read_variables(path, ("X", "Y", "Y_P", "trainIndex", "testIndex"))
        wanted = scipy.io.loadmat(path, mat_dtype=True)
        assert set(got) == {name for name in wanted if not name.startswith("__")}
        for name, value in got.items():
            assert value.dtype == wanted[name].dtype
            assert np.array_equal(value, wanted[name])


@pytest.mark.parametrize("order", ["<", ">"])
def test_files_of_big_endian_machines_are_read(tmp_path, order):
    def element(kind, content):
        return struct.pack(order + "II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    def array(kind, shape, content, name=b""):
        flags = element(6, struct.pack(order + "II", kind, 0))
        return element(14, flags + element(5, struct.pack(order + "2i", *shape)) + element(1, name) + content)

    features = array(6, (2, 1), element(9, struct.pack(order + "2d", 0.5, 1.5)))
    # a small element: length and kind in one word
    one = array(9, (1, 1), struct.pack(order + "I", 1 << 16 | 2) + b"\1\0\0\0")
    data = array(1, (1, 3), features + one + one, b"data")
    mark = b"IM" if order == "<" else b"MI"
    path = tmp_path / "bags.mat"
    for body in (data, struct.pack(order + "II", 15, len(zlib.compress(data))) + zlib.compress(data)):
        path.write_bytes(b"MATLAB 5.0".ljust(124) + struct.pack(order + "H", 0x100) + mark + body)
        bags = read_mat(path)
        assert bags.source.tolist() == [[0.5], [1.5]]
        assert bags.labels.tolist() == [0]


# ---- round trip ----------------------------------------------------------------------------------------


@given(given_=arguments(), data=st.data())
@quick
def test_written_bags_are_read_exactly(folder, given_, data):
    bags = Bags.from_list(**given_)[data.draw(st.slices(len(given_["arrays"])))]
    write_mat(bags, folder / "bags.mat")
    loaded = read_mat(folder / "bags.mat")
    assert_same(loaded, bags)
    assert loaded.digest() == bags.digest()


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
def test_the_authors_find_what_they_look_for(tmp_path, dtype):
    images = [np.full((n, 2, 3), n, dtype=dtype) for n in (2, 1)]
    bags = Bags.from_list(images, [[0, 2], [1]], [2, 1], instance_labels=[[2, -1], [1]])
    write_mat(bags, tmp_path / "bags.mat")
    data = scipy.io.loadmat(tmp_path / "bags.mat", mat_dtype=True)["data"]
    assert data.shape == (2, 4)
    for i, bag in enumerate(bags):
        assert data[i, 0].dtype == dtype
        assert data[i, 0].tolist() == bag.instances.reshape(len(bag), 6).tolist()
        assert list(data[i, 1].flatten() - 1) == np.flatnonzero(bag.candidates).tolist()
        assert list(data[i, 2].flatten() - 1) == [bag.label]
        assert data[i, 3].flatten().tolist() == (bag.instance_labels + 1).tolist()
    assert read_mat(tmp_path / "bags.mat").feature_shape == (2, 3)
    assert read_mat(tmp_path / "bags.mat", shape=(6,)).feature_shape == (6,)


def test_many_classes_and_class_noise_survive(tmp_path):
    bags = many([1, 2], candidates=[[0], [299]], labels=[0, 1], missing_truth=True)
    write_mat(bags, tmp_path / "bags.mat")
    loaded = read_mat(tmp_path / "bags.mat")
    assert_same(loaded, bags)
    assert loaded.missing_truth


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match=r"bags\.npz should end in \.mat"):
        write_mat(many([1]), tmp_path / "bags.npz")
    with pytest.raises(DataError, match=r"provenance cannot be written to .*bags\.mat"):
        write_mat(many([1], provenance={"what": object()}), tmp_path / "bags.mat")
    monkeypatch.setattr(mat, "LARGEST", 100)
    with pytest.raises(DataError, match=r"larger than the 4 GB limit of .*bags\.mat"):
        write_mat(many([100]), tmp_path / "bags.mat")
    assert list(tmp_path.iterdir()) == []


# ---- malformed files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"bags": authors()}, "there is no variable 'data'"),
        (
            {"data": np.ones((2, 3))},
            r"'data' is 2×3 numbers \(float64\): it should be cells, one row per bag",
        ),
        ({"data": "text"}, "'data' is text"),
        ({"data": {"a": 1}}, "'data' is a struct"),
        ({"data": scipy.sparse.eye(3)}, "'data' is a sparse matrix"),
        ({"data": authors()[:, :2]}, "'data' is 2×2 cells: .* three or four columns"),
        ({"data": cells([1, 1, 1, 1, 1])}, "'data' is 1×5 cells"),
        ({"data": authors()[:0]}, "'data' has no rows"),
        ({"data": authors(c0="text")}, "Bag '2' has as features text: they should be a matrix of numbers"),
        ({"data": authors(c0=authors())}, "Bag '2' has as features cells"),
        ({"data": authors(c0=np.ones((1, 2)) * 1j)}, "Bag '2' has as features complex numbers"),
        ({"data": authors(c0=np.ones((1, 2, 2)))}, "Bag '2' has as features 1×2×2 numbers"),
        ({"data": authors(c0=np.zeros((0, 2)))}, "Bag '2' is empty"),
        ({"data": authors(c0=np.ones((1, 3)))}, r"Bag '2' has instances of shape \(3,\), but bag '1'"),
        ({"data": authors(c0=np.uint8([[1, 2]]))}, "Bag '2' is of type uint8, but bag '1' of type float64"),
        ({"data": authors(c0=np.array([[1, np.nan]]))}, "Bag '2' has a NaN"),
        ({"data": authors(c0=np.array([[1, 1e39]]))}, "Bag '2' has a NaN, infinite or too large"),
        ({"data": authors(c1=np.zeros((0, 0)))}, "Bag '2' has no candidate label: give at least one"),
        (
            {"data": authors(c1=np.uint8([0, 2]))},
            "Bag '2' has the candidate label 0: .* integers of at least 1",
        ),
        ({"data": authors(c1=np.array([1.5]))}, "Bag '2' has the candidate label 1.5"),
        ({"data": authors(c1=np.array([np.nan]))}, "Bag '2' has the candidate label nan"),
        ({"data": authors(c1=np.array([np.inf]))}, "Bag '2' has the candidate label inf"),
        ({"data": authors(c1=np.array([-1]))}, "Bag '2' has the candidate label -1"),
        ({"data": authors(c1=np.array([10**6]))}, r"Bag '2' has the candidate label 1e\+06"),
        ({"data": authors(c1="cat")}, "Bag '2' has as candidate label text"),
        ({"data": authors(c1=np.array([True]))}, "Bag '2' has as candidate label 1×1 logical"),
        ({"data": authors(c2=np.zeros((0, 0)))}, "Bag '2' has 0 numbers as true label: there should be 1"),
        ({"data": authors(c2=np.uint8([1, 2]))}, "Bag '2' has 2 numbers as true label"),
        ({"data": authors(c2=np.uint8(0))}, "Bag '2' has the true label 0"),
        ({"data": authors(c2=np.uint8(1))}, "Bag '2' has the true label '0' outside its candidate set"),
        (
            {"data": authors(c3=np.uint8([1, 2]))},
            "Bag '2' has 2 numbers as instance label: there should be 1",
        ),
        ({"data": authors(c3=np.array([-1]))}, "Bag '2' has the instance label -1: .* at least 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_content_is_refused_with_the_number_of_the_bag(file, variables, message):
    for options in ({}, {"do_compression": True}):
        with pytest.raises(DataError, match=rf"bags\.mat: {message}") as caught:
            read_mat(file(variables, **options))
        assert "\n" not in str(caught.value)


def test_other_kinds_of_files_are_told_apart(tmp_path):
    path = tmp_path / "bags.mat"
    with h5py.File(path, "w", userblock_size=512) as hdf:
        hdf["data"] = np.zeros(3)
    plain = path.read_bytes()
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + plain[128:])
    with pytest.raises(StorageError, match=r"bags\.mat is a MATLAB 7.3 file \(HDF5\).*'-v7'"):
        read_mat(path)
    with h5py.File(path, "w") as hdf:
        hdf["data"] = np.zeros(3)
    with pytest.raises(StorageError, match=r"MATLAB 7\.3"):
        read_mat(path)
    scipy.io.savemat(path, {"data": np.ones((2, 2))}, format="4")
    with pytest.raises(StorageError, match=r"bags\.mat is not a \.mat file of MATLAB 5 to 7"):
        read_mat(path)
    for content in (b"", b"bag_id,candidates\n", b"\0" * 1000, b"PK\3\4" * 50):
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"is not a \.mat file"):
            read_mat(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"no\.mat cannot be read: No such file"):
        read_mat(tmp_path / "no.mat")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_mat(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda meta: meta.update(format="x"), StorageError, "its format is 'x'; this version reads"),
        (
            lambda meta: meta.pop("ids"),
            StorageError,
            "'mipl' is not as write_mat writes it .*Remove that variable",
        ),
        (lambda meta: meta.update(ids=["x", "y"]), DataError, "'mipl' names 2 bags, but 'data' has 3 rows"),
        (lambda meta: meta.update(ids=["x", "y", "x"]), DataError, "The id 'x' is used by 2 bags"),
        (lambda meta: meta.update(classes=["a"]), DataError, "there is a label 2, but .* names 1 classes"),
        (lambda meta: meta.update(groups=["p"]), DataError, "groups have shape"),
        (
            lambda meta: meta.update(feature_shape=[2, 2]),
            DataError,
            "3 features cannot be given the shape",
        ),
        (lambda meta: meta.update(feature_shape="no"), StorageError, "'mipl' is not as write_mat writes it"),
        (
            lambda meta: meta["dtypes"].update(data="cat"),
            StorageError,
            "'mipl' is not as write_mat writes it",
        ),
        (lambda meta: meta["dtypes"].update(weights="float9"), StorageError, "'mipl' is not as write_mat"),
    ],
    ids=range(10),
)
def test_what_write_mat_adds_is_checked(tmp_path, change, error, message):
    path = tmp_path / "bags.mat"
    write_mat(complete(), path)
    content = scipy.io.loadmat(path)
    meta = json.loads(content["mipl"][0])
    change(meta)
    scipy.io.savemat(
        path,
        {name: content[name] for name in ("data", "weights", "coordinates")} | {"mipl": json.dumps(meta)},
    )
    with pytest.raises(error, match=rf"bags\.mat: .*{message}"):
        read_mat(path)
    for wrong in ("not JSON", "[1]", np.ones((2, 2))):
        scipy.io.savemat(path, {"data": content["data"], "mipl": wrong})
        with pytest.raises(
            StorageError, match=r"bags\.mat: the variable 'mipl' is not as write_mat writes it"
        ):
            read_mat(path)


@given(data=st.data(), compressed=st.booleans())
@settings(deadline=None, max_examples=80)
def test_a_truncated_file_is_refused(folder, data, compressed):
    scipy.io.savemat(folder / "whole.mat", {"data": authors()}, do_compression=compressed)
    whole = (folder / "whole.mat").read_bytes()
    (folder / "cut.mat").write_bytes(whole[: data.draw(st.integers(129, len(whole) - 1))])
    with pytest.raises(StorageError, match=r"cut\.mat is truncated or damaged"):
        read_mat(folder / "cut.mat")
    (folder / "cut.mat").write_bytes(whole[: data.draw(st.integers(0, 128))])
    with pytest.raises((StorageError, DataError), match=r"cut\.mat"):
        read_mat(folder / "cut.mat")


@given(data=st.data(), kind=st.sampled_from(["ours", "theirs", "compressed"]))
@settings(deadline=None, max_examples=300)
def test_a_damaged_file_is_refused_or_still_holds_bags(folder, data, kind):
    """scipy.io.loadmat ends the interpreter on some of these."""
    path = folder / f"{kind}.mat"
    if not path.exists():
        write_mat(complete(), path)
        if kind != "ours":
            scipy.io.savemat(path, {"data": authors()}, do_compression=kind == "compressed")
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (folder / "damaged.mat").write_bytes(bytes(damaged))
    bags, complaint = attempt(read_mat, folder / "damaged.mat")
    assert "damaged.mat" in complaint or len(bags) in (2, 3)


@given(content=st.binary(max_size=200), headed=st.booleans())
@settings(deadline=None, max_examples=150)
def test_arbitrary_bytes_are_refused(folder, content, headed):
    (folder / "bytes.mat").write_bytes((b"MATLAB 5.0".ljust(124) + b"\0\1IM") * headed + content)
    assert "bytes.mat" in attempt(read_mat, folder / "bytes.mat")[1]
