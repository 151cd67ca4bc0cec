import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from mipl.data.bags import Bags
from mipl.data.candidates import add_false_positives
from mipl.errors import DataError

ARRAYS = [np.zeros((1, 2))] * 3


def bags(candidates, **others):
    return Bags.from_list(ARRAYS, candidates, **others)


# ---- every way to write a candidate set ----------------------------------------------------------------


@given(
    sets=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=3, max_size=3),
    kind=st.sampled_from([list, tuple, set, frozenset, np.array, torch.tensor, iter, dict.fromkeys]),
    named=st.booleans(),
    as_names=st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_any_iterable_of_indices_or_names_is_a_set(sets, kind, named, as_names):
    names = ["e", "d", "c", "b", "a"]
    if as_names and kind is not torch.tensor:
        written = [kind([names[j] for j in sorted(entries)]) for entries in sets]
    else:
        written = [kind(sorted(entries)) for entries in sets]
        as_names = False
    got = bags(written, classes=names if named or as_names else range(5))
    for row, entries in zip(got.candidates, sets, strict=True):
        assert {j for j in range(5) if row[j]} == entries


@pytest.mark.parametrize("kind", [bool, int, float, np.uint8, object])
def test_a_matrix_of_zeros_and_ones_is_taken_as_it_is(kind):
    matrix = np.array([[1, 0], [0, 1], [1, 1]])
    assert bags(matrix.astype(kind)).candidates.tolist() == matrix.astype(bool).tolist()
    assert bags(matrix).classes == (0, 1)


def test_a_tensor_matrix_is_a_matrix():
    assert bags(torch.eye(3)).candidates.tolist() == np.eye(3, dtype=bool).tolist()


def test_a_bare_name_is_a_set_of_one_and_not_of_letters():
    got = bags(["cat", ["dog", "cat"], np.str_("dog")])
    assert got.classes == ("cat", "dog")
    assert got.candidates.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert bags([2, np.int64(0), np.array(1)]).candidates.tolist() == np.eye(3)[[2, 0, 1]].tolist()


def test_whole_floats_and_repeated_names_are_understood():
    assert bags([[0.0, np.float32(2)], [1], [0]]).candidates.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert bags([["a", "a"], ["b"], ["a"]]).candidates.sum() == 3


def test_classes_are_the_sorted_names_or_the_indices_up_to_the_largest():
    assert bags([["b"], ["c", "a"], ["b"]]).classes == ("a", "b", "c")
    assert bags([["b"], ["b"], ["b"]], labels=["b", "b", "a"], missing_truth=True).classes == ("a", "b")
    assert bags([[0], [3], [0]]).classes == (0, 1, 2, 3)
    assert bags(None, labels=[2, 0, 0]).classes == (0, 1, 2)
    assert bags(None).classes == ()
    assert bags(None).candidates is None


def test_given_classes_set_the_order_of_columns():
    got = bags([["b"], ["c", "a"], [0]], classes=["c", "b", "a"], labels=[1, "a", "c"])
    assert got.candidates.tolist() == [[0, 1, 0], [1, 0, 1], [1, 0, 0]]
    assert got.labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([["a"], ["b"], [0]], "Class names and class indices are mixed"),
        ([["a", 1], ["b"], ["b"]], "Class names and class indices are mixed"),
        ([["a"], ["b"]], "There are 2 candidate sets for 3 bags: give one for each bag"),
        ([["a"]] * 4, "There are 4 candidate sets for 3 bags"),
        ([[0], [], [1]], "Bag '1' has no candidate label"),
        ([[0], [1], None], "A class of bag '2' is written as None: use its name"),
        ([[0], [1], [None]], "A class of bag '2' is written as None"),
        ([[0], [True], [1]], "A class of bag '1' is written as True"),
        ([[0], [np.True_], [1]], r"A class of bag '1' is written as np.True_"),
        ([[0], [0.5], [1]], "A class of bag '1' is written as 0.5"),
        ([[0], [float("nan")], [1]], "A class of bag '1' is written as nan"),
        ([[0], [[0, 1]], [1]], r"A class of bag '1' is written as \[0, 1\]"),
        ([[0], b"\x01", [1]], r"A class of bag '1' is written as b'\\x01'"),
        ([[0], [b"a"], [1]], "A class of bag '1' is written as b'a'"),
        ([[0], [-1], [1]], "Bag '1' has the class -1: an index must be from 0 to 1"),
        ([[0], [20240131], [1]], "The class 20240131 as an index means 20240132 classes"),
        ("abc", "The candidates are 'abc': give a 0/1 array"),
        (5, "The candidates are 5: give a 0/1 array"),
        ([[1, 0, 0], [0, 1, 1], [0, 0, 1]], "look like a 0/1 matrix written as lists.*np.array"),
        (np.zeros((3, 2, 2), dtype=int), "A class of bag '0' is written as array"),
        (np.ones((2, 3)), "The candidate matrix is 2×3, but there are 3 bags and 3 classes"),
        (np.array([[0, 1], [0, 2], [1, 0]]), "other than 0 and 1 in the row of bag '1'"),
        (np.array([[0, 1], [0, np.nan], [1, 0]]), "other than 0 and 1 in the row of bag '1'"),
        (np.array([["0", "1"]] * 3), "other than 0 and 1 in the row of bag '0'"),
        (np.array([[0, 1], [0, 0], [1, 0]]), "Bag '1' has no candidate label"),
        (np.zeros((3, 0)), "Bag '0' has no candidate label"),
    ],
    ids=repr,
)
def test_candidates_that_cannot_be_understood_are_refused(candidates, message):
    with pytest.raises(DataError, match=message) as caught:
        bags(candidates)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("candidates", "others", "message"),
    [
        ([[0], [3], [1]], {"classes": range(3)}, "Bag '1' has the class 3: an index must be from 0 to 2"),
        ([[0], [3], [1]], {"classes": ["a", "b", "c"], "ids": "xyz"}, "Bag 'y' has the class 3"),
        ([["cat"], ["dgo"], ["dog"]], {"classes": ["cat", "dog"]}, "Bag '1' names the class 'dgo'.*'dog'"),
        ([["0"], ["1"], ["1"]], {"classes": range(2)}, "Bag '0' names the class '0'"),
        (np.ones((3, 2)), {"classes": ["a", "b", "c"]}, "matrix is 3×2, but there are 3 bags and 3 classes"),
        (np.ones((3, 2)), {"labels": ["a", "b", "b"]}, "candidates are a matrix and the labels are names"),
        ([["a"], ["b"], ["b"]], {"labels": [0, 1, 1]}, "Class names and class indices are mixed"),
        ([["a"], ["b"], ["b"]], {"labels": ["a", "c", "b"]}, "Bag '1' has the true label 'c' outside"),
    ],
    ids=repr,
)
def test_candidates_that_do_not_fit_the_classes_are_refused(candidates, others, message):
    with pytest.raises(DataError, match=message):
        bags(candidates, **others)


# ---- false positives -----------------------------------------------------------------------------------


@given(k=st.integers(1, 9), data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_set_is_the_true_label_and_exactly_r_others(k, data):
    r = data.draw(st.integers(0, k - 1))
    labels = np.array(data.draw(st.lists(st.integers(0, k - 1), max_size=20)), dtype=np.int64)
    sets = add_false_positives(labels, k, r, "test", data.draw(st.integers(0, 99)))
    assert sets.shape == (len(labels), k)
    assert sets.dtype == np.bool_
    for row, label in zip(sets, labels, strict=True):
        assert row[label]
        assert row.sum() == r + 1


@pytest.mark.parametrize(("k", "r"), [(5, 1), (5, 2), (5, 3), (13, 1), (2, 1), (4, 3)])
def test_every_choice_of_false_positives_is_equally_likely(k, r):
    labels = np.arange(6000 * k) % k
    sets = add_false_positives(labels, k, r, "uniform", 0)
    for label in range(k):
        choices = dict.fromkeys(itertools.combinations([j for j in range(k) if j != label], r), 0)
        for row in sets[labels == label]:
            choices[tuple(j for j in np.flatnonzero(row).tolist() if j != label)] += 1
        if len(choices) > 1:
            assert chisquare(list(choices.values())).pvalue > 1e-4


def test_false_positives_follow_the_seed_and_nothing_else():
    labels = np.arange(200) % 5
    first = add_false_positives(labels, 5, 2, "name", 7)
    assert np.array_equal(first, add_false_positives(labels, 5, 2, "name", 7))
    assert not np.array_equal(first, add_false_positives(labels, 5, 2, "name", 8))
    assert not np.array_equal(first, add_false_positives(labels, 5, 2, "other", 7))


@pytest.mark.parametrize("r", [-1, 3, 4])
def test_more_false_positives_than_other_classes_are_refused(r):
    with pytest.raises(DataError, match=f"r = {r} false positives cannot be drawn for 3 classes"):
        add_false_positives(np.zeros(4, dtype=np.int64), 3, r, "test")
