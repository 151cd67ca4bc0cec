import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import attempt, real

from mipl.data.formats.idx import read_idx
from mipl.errors import StorageError


def idx(array):
    """Write the format's definition down once more: magic, dimensions, sides, bytes."""
    content = bytearray([0, 0, 0x08, array.ndim])
    for side in array.shape:
        content += side.to_bytes(4, "big")
    for value in array.ravel().tolist():
        content.append(value)
    return bytes(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("idx")


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    seed=st.integers(0, 99),
    zipped=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_an_array_of_bytes_is_read_back(folder, shape, seed, zipped):
    array = np.random.default_rng(seed).integers(0, 256, size=shape).astype(np.uint8)
    name = f"file-{zipped}"
    (folder / (f"{name}.gz" if zipped else name)).write_bytes(
        gzip.compress(idx(array)) if zipped else idx(array)
    )
    read = read_idx(folder, name)
    assert read.dtype == np.uint8
    assert read.shape == shape
    assert np.array_equal(read, array)


def test_the_plain_file_comes_first(tmp_path):
    (tmp_path / "file").write_bytes(idx(np.ones(1, np.uint8)))
    (tmp_path / "file.gz").write_bytes(gzip.compress(idx(np.zeros(1, np.uint8))))
    assert read_idx(tmp_path, "file").tolist() == [1]


def test_a_missing_file_is_named_with_its_folder(tmp_path):
    with pytest.raises(StorageError, match=rf"{tmp_path} has neither file nor file\.gz: give the folder"):
        read_idx(tmp_path, "file")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x00\x08", b"text in a file", b"\x00\x00\x0d\x01\x00\x00\x00\x00", b"\x00\x00\x08\x00\x07"],
    ids=repr,
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(StorageError, match="file is not an IDX file of bytes: its first bytes are"):
        read_idx(tmp_path, "file")


def test_a_file_with_impossible_sides_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"\x00\x00\x08\x04" + b"\xff" * 16)
    with pytest.raises(StorageError, match="file is truncated or too long"):
        read_idx(tmp_path, "file")
    (tmp_path / "file").write_bytes(b"\x00\x00\x08\xff" + b"\x00\x00\x00\x01" * 255 + b"x")
    with pytest.raises(StorageError, match="file is not an IDX file of bytes"):
        read_idx(tmp_path, "file")


def test_every_truncation_is_refused(tmp_path):
    whole = idx(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
    for length in range(len(whole)):
        (tmp_path / "file").write_bytes(whole[:length])
        with pytest.raises(StorageError, match=f"{tmp_path / 'file'}"):
            read_idx(tmp_path, "file")
    (tmp_path / "file").write_bytes(whole + b"\x00")
    with pytest.raises(StorageError, match="truncated or too long"):
        read_idx(tmp_path, "file")


def test_a_damaged_archive_is_refused(tmp_path):
    whole = gzip.compress(idx(np.arange(200, dtype=np.uint8)))
    (tmp_path / "file.gz").write_bytes(idx(np.arange(200, dtype=np.uint8)))
    with pytest.raises(StorageError, match=r"file\.gz cannot be read"):
        read_idx(tmp_path, "file")
    for length in range(1, len(whole)):
        (tmp_path / "file.gz").write_bytes(whole[:length])
        with pytest.raises(StorageError, match=r"file\.gz"):
            read_idx(tmp_path, "file")
    for place in range(len(whole)):
        (tmp_path / "file.gz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        read, complaint = attempt(read_idx, tmp_path, "file")  # some bits of the header do no harm
        assert "file.gz" in complaint or read.tolist() == list(range(200))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_test_files_are_read(name):
    images = read_idx(real(name), "t10k-images-idx3-ubyte")
    labels = read_idx(real(name), "t10k-labels-idx1-ubyte")
    assert images.shape == (10000, 28, 28)
    assert set(labels.tolist()) == set(range(10))
