import dataclasses

import numpy as np
import pytest
import torch

from mipl.data.bags import Bags
from mipl.errors import DataError

PAIR = [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), "Bag 'bad' is empty: every bag needs at least one instance"),
        ([], "Bag 'bad' is empty"),
        (np.zeros((0, 4)), "Bag 'bad' is empty"),
        (np.zeros(3), r"Bag 'bad' has shape \(3,\): a bag is instances × features"),
        (np.float64(3), r"Bag 'bad' has shape \(\)"),
        (np.zeros((2, 4)), r"Bag 'bad' has instances of shape \(4,\), but bag 'good' has \(3,\)"),
        (np.zeros((2, 3, 1)), r"Bag 'bad' has instances of shape \(3, 1\), but bag 'good' has \(3,\)"),
        (np.zeros((2, 0)), r"Bag 'bad' has instances of shape \(0,\)"),
        ([[0, 0, 0], [0, NAN, 0]], "Bag 'bad' has a NaN, infinite or too large value in instance 1"),
        ([[0, 0, INF]], "Bag 'bad' has a NaN, infinite or too large value in instance 0"),
        ([[0, 0, -INF]], "Bag 'bad' has a NaN, infinite or too large value in instance 0"),
        (np.array([[0, 0, INF]], np.float16), "Bag 'bad' has a NaN, infinite or too large value"),
        ([[0, 0, 1e39]], "Bag 'bad' has a NaN, infinite or too large value in instance 0"),
        ([[0, 0, 10**50]], "Bag 'bad' has a NaN, infinite or too large value in instance 0"),
        ([[0, 0, 10**400]], "Bag 'bad' is not an array of numbers"),
        ([[0, 0, None]], "Bag 'bad' has a NaN, infinite or too large value in instance 0"),
        ([[0, 0, 0], [0, 0]], "Bag 'bad' is not an array of numbers, instances × features"),
        (np.array([[0, 0, "x"]], dtype=object), "Bag 'bad' is not an array of numbers"),
        (np.array([[0, 0, {}]], dtype=object), "Bag 'bad' is not an array of numbers"),
        ([["0", "0", "0"]], "Bag 'bad' is not an array of numbers.*<U1"),
        (np.zeros((2, 3)) * 1j, "Bag 'bad' is not an array of numbers.*complex128"),
        (np.zeros((2, 3), dtype="M8[s]"), "Bag 'bad' is not an array of numbers.*datetime64"),
        (np.zeros((2, 3), dtype=np.uint8), "Bag 'bad' is of type uint8, but bag 'good' of type float32"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "Bag 'bad' is not an array of numbers.*BFloat16"),
        (None, r"Bag 'bad'"),
        ("text", r"Bag 'bad' is not an array of numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_instances_that_cannot_be_learned_from_name_their_bag(array, message):
    with pytest.raises(DataError, match=message):
        Bags.from_list([np.zeros((1, 3), np.float32), array], ids=["good", "bad"])


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"ids": ["a"]}, "There are 1 ids for 2 bags"),
        ({"ids": ["a", "a"]}, "The id 'a' is used by 2 bags: ids must be distinct"),
        ({"ids": [1, "1"]}, "The id '1' is used by 2 bags"),
        ({"labels": [0]}, "There are 1 labels for 2 bags: give one for each bag, or none at all"),
        ({"labels": 0}, "The labels are 0: give a list"),
        ({"labels": "ab"}, "The labels are 'ab': give a list"),
        ({"labels": [0, None]}, "A class of bag '1' is written as None"),
        ({"labels": [0, NAN]}, "A class of bag '1' is written as nan"),
        ({"labels": [0, 5], "classes": range(3)}, "Bag '1' has the class 5: an index must be from 0 to 2"),
        ({"labels": [0, -1]}, "Bag '1' has the class -1"),
        ({"labels": ["cat", "dgo"], "classes": ["cat", "dog"]}, "Bag '1' names the class 'dgo'.*'dog'"),
        ({"candidates": [[0], [1]], "labels": [0, 0]}, "Bag '1' has the true label '0' outside its"),
        ({"candidates": [[0], []]}, "Bag '1' has no candidate label: give at least one"),
        ({"groups": ["p"]}, r"groups have shape \(1,\), but 2 bags"),
        ({"instance_labels": [[0, 0]]}, "There are instance labels for 1 bags, but 2 bags"),
        ({"instance_labels": [[0], [0]]}, r"instance labels of bag '0' have shape \(1,\): its 2 instances"),
        ({"instance_labels": [[-1, 3], [0]], "labels": [0, 2]}, "Bag '0' has the instance label 3"),
        ({"instance_labels": [[-1, 1], [-2]], "labels": [0, 2]}, "Bag '1' has the instance label -2"),
        ({"instance_labels": [["a", "b"], ["a"]]}, "instance labels of bag '0' are of type <U1"),
        ({"instance_labels": [[-1, -1], [0.5]]}, "instance labels of bag '1' are of type float64"),
        ({"instance_labels": [[-1, -1], None]}, "instance labels of bag '1' are of type object"),
        ({"instance_labels": [[-1, -1], [[1], [1, 2]]]}, "instance labels are not one array"),
        ({"coordinates": [np.zeros((2, 2))]}, "There are coordinates for 1 bags, but 2 bags"),
        (
            {"coordinates": [np.zeros((2, 2)), np.zeros((2, 2))]},
            r"coordinates of bag '1' have shape \(2, 2\)",
        ),
        (
            {"coordinates": [np.zeros((2, 2)), np.zeros((1, 3))]},
            r"coordinates of bag '1' have shape \(1, 3\)",
        ),
        ({"coordinates": [np.zeros(2), np.zeros(1)]}, r"coordinates of bag '0' have shape \(2,\)"),
        ({"coordinates": [np.zeros((2, 2)), [["a", "b"]]]}, "coordinates of bag '1' are of type <U1"),
        ({"coordinates": [np.zeros((2, 2)), [[0, NAN]]]}, "Bag '1' has a NaN or infinite coordinate"),
        ({"weights": [[1, 0]], "classes": ["a", "b"]}, r"weights have shape \(1, 2\), but 2 bags"),
        ({"weights": [[1, 0], [1]], "classes": [0, 1]}, "weights are not a table of numbers"),
        ({"weights": [[1, 0], ["x", 1]], "classes": [0, 1]}, "weights are not a table of numbers"),
        ({"weights": [[1, 0], [0.5, 0.4]], "classes": [0, 1]}, "weights of bag '1' are not a distribution"),
        ({"weights": [[1, 0], [1.5, -0.5]], "classes": [0, 1]}, "weights of bag '1' are not a distribution"),
        ({"weights": [[1, 0], [NAN, 1]], "classes": [0, 1]}, "weights of bag '1' are not a distribution"),
        (
            {"weights": [[1, 0], [0.5, 0.5]], "candidates": [[0], [1]]},
            "Bag '1' has initial weight on a label that is not a candidate",
        ),
        ({"classes": ["a", "a"]}, "The class 'a' is named twice"),
        ({"classes": ["a", 1]}, r"The classes \['a', 1\] are neither names nor"),
        ({"classes": "ab"}, "The classes are 'ab': give a list of names"),
        ({"classes": [None]}, "A class is written as None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_the_bags_is_refused_in_one_sentence(others, message):
    with pytest.raises(DataError, match=message) as caught:
        Bags.from_list(PAIR, **others)
    assert "\n" not in str(caught.value)


def test_a_true_label_outside_its_candidates_is_allowed_by_the_flag():
    bags = Bags.from_list(PAIR, [[0], [1]], [0, 0], missing_truth=True)
    assert bags.missing_truth
    assert bags[1].label == 0
    assert not bags[1].candidates[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": np.zeros((3, 3), dtype=np.int64)}, "instances are of type int64"),
        ({"source": np.zeros((3, 3), dtype=object)}, "instances are of type object"),
        ({"source": np.zeros(3)}, "instances have no features"),
        ({"source": np.zeros((3, 0))}, "instances have no features"),
        ({"source": np.zeros((2, 3))}, "A bag extends beyond the instances"),
        ({"starts": np.array([0, -1])}, "A bag extends beyond the instances"),
        ({"starts": np.array([0])}, r"starts have shape \(1,\)"),
        ({"sizes": np.array([3, 0])}, "Bag '1' is empty"),
        ({"sizes": np.array([2.0, 1.0])}, "sizes cannot be of type float64"),
        ({"labels": np.array([0.0, 1.0])}, "labels cannot be of type float64"),
        ({"labels": np.array([0, 2])}, "Bag '1' has a label outside the 2 classes"),
        ({"candidates": np.ones((2, 2))}, "candidates cannot be of type float64"),
        ({"candidates": np.ones((2, 3), dtype=bool)}, r"candidates have shape \(2, 3\)"),
        ({"ids": np.array([0, 1])}, "ids cannot be of type int64"),
        ({"instance_labels": np.zeros(2, dtype=int)}, r"instance labels have shape \(2,\), but there are 3"),
        ({"coordinates": np.zeros(3)}, r"coordinates have shape \(3,\), but there are 3 instances"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_store_built_by_hand_is_checked_too(change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(Bags.from_list(PAIR, classes=["a", "b"]), **change)
