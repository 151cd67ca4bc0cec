import pytest
from random_bags import assert_same, many

from mipl.data.benchmarks import digits_mipl
from mipl.data.sources import Source
from mipl.errors import SettingError, StorageError


def test_a_name_opens_a_data_set():
    source = Source("digits-mipl", r=2, seed=3)
    assert source.name == "digits-mipl"
    assert_same(source.open(), digits_mipl(2, 3))


def test_a_path_opens_a_file(tmp_path):
    many([1, 2]).save(tmp_path / "some.npz")
    source = Source(str(tmp_path / "some.npz"))
    assert source.name == "some.npz"
    assert_same(source.open(), many([1, 2]))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "bags.csv").write_text("bag_id\n", encoding="utf-8")
    with pytest.raises(StorageError, match=r"bags\.csv is not an \.npz file of bags"):
        Source(str(tmp_path / "bags.csv")).open()
    with pytest.raises(StorageError, match=r"no\.npz does not exist"):
        Source(str(tmp_path / "no.npz")).open()


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
