import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import many, real
from scipy.io import savemat

from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.data.splits import official_split, own_split, stratified_fold, stratified_split
from mipl.errors import DataError, SettingError, StorageError


def labelled(labels):
    return many([1] * len(labels), labels=labels, classes=range(5))


# ---- stratified ----------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(0, 4), min_size=16, max_size=60),
    number=st.integers(0, 99),
    share=st.sampled_from([0.7, 0.5, 0.8]),
)
@settings(deadline=None, max_examples=80)
def test_the_parts_are_disjoint_complete_and_stratified(labels, number, share):
    bags = labelled(labels)
    train, test = stratified_split(bags, number, share)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(bags)))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    for label in set(labels):
        count = labels.count(label)
        assert abs(sum(labels[i] == label for i in train) - share * count) <= 0.5
    again = stratified_split(bags, number, share)
    assert again[0].tolist() == train.tolist()
    assert again[1].tolist() == test.tolist()


def test_digits_are_divided_35_to_15_in_every_class():
    bags = digits_mipl()
    seen = set()
    for number in range(10):
        train, test = stratified_split(bags, number)
        assert np.bincount(bags.labels[train]).tolist() == [35] * 5
        assert np.bincount(bags.labels[test]).tolist() == [15] * 5
        seen.add(tuple(test.tolist()))
    assert len(seen) == 10


def test_a_split_depends_on_the_labels_alone():
    train, _ = stratified_split(gaussian_bags(30, seed=0), 3)
    other, _ = stratified_split(gaussian_bags(30, d=2, r=2, seed=1), 3)
    assert train.tolist() == other.tolist()


def test_every_bag_is_as_often_in_the_test_part():
    bags = labelled([0, 1] * 10)
    counts = np.zeros(20)
    for number in range(300):
        counts[stratified_split(bags, number)[1]] += 1
    assert counts.sum() == 300 * 6
    assert np.abs(counts - 90).max() < 40  # five standard deviations


def test_bags_without_labels_are_divided_at_random():
    train, test = stratified_split(many([1] * 10), 0)
    assert (len(train), len(test)) == (7, 3)
    assert train.tolist() != list(range(7))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_that_leaves_a_part_empty_is_refused(share):
    with pytest.raises(SettingError, match=f"train = {share} is not a fraction between 0 and 1"):
        stratified_split(labelled([0] * 10), 0, share)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2, 3]])
def test_too_few_bags_are_refused(labels):
    with pytest.raises(DataError, match=f"{len(labels)} bags are too few to split"):
        stratified_split(labelled(labels), 0)


def test_no_bag_is_too_few():
    with pytest.raises(DataError, match="0 bags are too few to split"):
        stratified_split(labelled([0])[[]], 0)


# ---- folds ---------------------------------------------------------------------------------------------


@given(labels=st.lists(st.integers(0, 4), min_size=6, max_size=60), folds=st.integers(2, 6))
@settings(deadline=None, max_examples=60)
def test_every_bag_is_tested_in_one_fold_and_folds_are_stratified(labels, folds):
    bags, tested = labelled(labels), []
    for number in range(1, folds + 1):
        train, test = stratified_fold(bags, number, folds)
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(bags)))
        assert test.tolist() == stratified_fold(bags, number, folds)[1].tolist()
        for label in set(labels):
            assert abs(sum(labels[i] == label for i in test) - labels.count(label) / folds) < 1
        tested += test.tolist()
    assert sorted(tested) == list(range(len(bags)))


def test_folds_are_shuffled():
    _, test = stratified_fold(labelled([0] * 30), 1, 3)
    assert test.tolist() != list(range(0, 30, 3))


@pytest.mark.parametrize(("number", "folds"), [(0, 3), (4, 3), (1, 1), (1, 0)])
def test_a_fold_that_is_none_is_refused(number, folds):
    with pytest.raises(SettingError, match=f"There is no fold {number} of {folds}"):
        stratified_fold(labelled([0] * 10), number, folds)


def test_more_folds_than_bags_are_refused():
    with pytest.raises(DataError, match="2 bags are too few for 3 folds"):
        stratified_fold(labelled([0, 1]), 3, 3)


# ---- official ------------------------------------------------------------------------------------------


def write(folder, train, test, number=1, **options):
    savemat(folder / f"index{number}.mat", {"trainIndex": train, "testIndex": test}, **options)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.float64])
def test_an_index_file_is_read_from_one_on(tmp_path, compressed, dtype):
    write(
        tmp_path,
        np.array([[5, 1, 2]], dtype),
        np.array([[4], [3]], dtype),
        number=7,
        do_compression=compressed,
    )
    train, test = official_split(many([1] * 5), tmp_path, 7)
    assert train.tolist() == [0, 1, 4]
    assert test.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ([1, 2, 3], [4, 6]),  # out of range
        ([1, 2, 3], [4, 0]),  # counted from zero
        ([1, 2, 3], [3, 4]),  # in both parts, and one in none
        ([1, 2, 3], [4]),  # one in none
        ([1, 2, 3], [4, 5, 5]),  # twice
        ([1, 2, 3, 4, 5], []),
        ([], [1, 2, 3, 4, 5]),
        ([], []),
    ],
)
def test_an_index_file_of_other_bags_is_refused(tmp_path, train, test):
    write(tmp_path, train, test)
    with pytest.raises(DataError, match=r"index1\.mat does not fit these 5 bags"):
        official_split(many([1] * 5), tmp_path, 1)


def test_a_missing_index_file_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"has neither index3\.mat nor splits_3\.csv: give the folder"):
        official_split(many([1] * 5), tmp_path, 3)


def test_a_mat_file_of_something_else_is_refused(tmp_path):
    savemat(tmp_path / "index1.mat", {"trainIndex": [1, 2]})
    savemat(tmp_path / "index2.mat", {"trainIndex": ["a"], "testIndex": ["b"]})
    (tmp_path / "index3.mat").write_text("1,2,3\n", encoding="utf-8")
    (tmp_path / "index4.mat").write_bytes(b"")
    for number in range(1, 5):
        with pytest.raises(StorageError, match=rf"index{number}\.mat is not"):
            official_split(many([1] * 5), tmp_path, number)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_index_file_is_refused(tmp_path, compressed):
    write(tmp_path, np.arange(1, 30), np.arange(30, 41), do_compression=compressed)
    whole = (tmp_path / "index1.mat").read_bytes()
    for length in range(0, len(whole) - 1, 7):
        (tmp_path / "index2.mat").write_bytes(whole[:length])
        with pytest.raises(StorageError, match=r"index2\.mat is (not|truncated)"):
            official_split(many([1] * 40), tmp_path, 2)


def test_the_real_official_splits_are_350_to_150_and_stratified():
    folder = real("mnist-mipl-splits")
    bags = labelled([0])[[0] * 500]  # 500 bags: only their number counts
    classes = np.arange(500) // 100
    seen = set()
    for number in range(1, 11):
        train, test = official_split(bags, folder, number)
        assert (len(train), len(test)) == (350, 150)
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(500))
        assert np.bincount(classes[train]).tolist() == [70] * 5
        seen.add(tuple(train.tolist()))
    assert len(seen) == 10


# ---- a data set's own split ------------------------------------------------------------------------------


def with_own_split(ids):
    return many([1] * len(ids), ids=ids, provenance={"own_split": {"train": "a-", "test": "b-"}})


def test_a_data_set_without_a_split_of_its_own_has_none():
    assert own_split(labelled([0, 1])) is None


def test_the_own_split_follows_the_ids_through_selections_and_files(tmp_path):
    bags = with_own_split(["b-1", "a-1", "ab-1", "a-b-2", "b-2"])
    train, test = own_split(bags)
    assert (train.tolist(), test.tolist()) == ([1, 3], [0, 4])  # what is in neither part is left out
    train, test = own_split(bags[[4, 3, 1]])
    assert (train.tolist(), test.tolist()) == ([1, 2], [0])
    bags.save(tmp_path / "bags.npz")
    assert [part.tolist() for part in own_split(Bags.load(tmp_path / "bags.npz"))] == [[1, 3], [0, 4]]


@pytest.mark.parametrize(("kept", "counts"), [([0, 1], "2 training and 0 test"), ([2], "0 training and 1")])
def test_an_own_split_with_an_empty_part_is_refused(kept, counts):
    bags = with_own_split(["a-1", "a-2", "b-1"])
    with pytest.raises(DataError, match=f"The bags have {counts}"):
        own_split(bags[kept])
