import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, assert_is, assert_same, expected, many
from sklearn.model_selection import train_test_split

from mipl.data.bag import Bag
from mipl.data.bags import Bags, as_bags
from mipl.errors import DataError

quick = settings(deadline=None, max_examples=60)
PAIR = [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)]


def keys(m):
    """Draw whatever selects several of m bags."""
    return st.one_of(
        st.slices(m),
        st.lists(st.booleans(), min_size=m, max_size=m).map(lambda mask: np.array(mask, dtype=bool)),
        st.lists(st.integers(-m, m - 1), max_size=2 * m) if m else st.just([]),
        st.lists(st.integers(-m, m - 1), max_size=2 * m).map(lambda index: np.array(index, dtype=np.int32))
        if m
        else st.just(np.zeros(0, dtype=np.int64)),
    )


def selected(items, key):
    """Select from a list as NumPy would."""
    return [items[i] for i in np.arange(len(items))[key if isinstance(key, slice) else _index(key)]]


def _index(key):
    index = np.asarray(key)
    return index if index.dtype == bool else index.astype(np.int64)


# ---- what goes in comes out ----------------------------------------------------------------------------


@given(given_=arguments())
@quick
def test_each_bag_is_given_back_exactly(given_):
    bags = Bags.from_list(**given_)
    assert len(bags) == len(given_["arrays"])
    assert bags.shape == (len(bags),)
    assert bags.feature_shape == given_["arrays"][0].shape[1:]
    for i in range(len(bags)):
        assert_is(bags[i], expected(given_, i))
        assert len(bags[i]) == len(given_["arrays"][i])
    for bag, i in zip(bags, range(len(bags)), strict=True):
        assert_is(bag, expected(given_, i))
    if "weights" in given_:
        assert np.array_equal(bags.weights, given_["weights"])
    assert bags.provenance == given_["provenance"]


@given(given_=arguments(), data=st.data())
@quick
def test_selecting_bags_is_selecting_from_a_list(given_, data):
    bags, m = Bags.from_list(**given_), len(given_["arrays"])
    key = data.draw(keys(m))
    chosen = selected([expected(given_, i) for i in range(m)], key)
    part = bags[key]
    assert len(part) == len(chosen)
    for bag, wanted in zip(part, chosen, strict=True):
        assert_is(bag, wanted)
    again = data.draw(keys(len(chosen)))
    for bag, wanted in zip(part[again], selected(chosen, again), strict=True):
        assert_is(bag, wanted)
    if "weights" in given_:
        assert np.array_equal(part.weights, given_["weights"][key])


@given(given_=arguments(), data=st.data())
@quick
def test_flat_instances_and_offsets_agree_with_a_loop(given_, data):
    bags = Bags.from_list(**given_)[data.draw(keys(len(given_["arrays"])))]
    start = 0
    for i, bag in enumerate(bags):
        assert bags.offsets[i] == start
        assert np.array_equal(bags.instances[start : start + len(bag)], bag.instances)
        start += len(bag)
    assert bags.offsets[-1] == len(bags.instances) == start
    assert bags.instances.dtype == given_["arrays"][0].dtype
    assert np.array_equal(bags.source[bags.rows()], bags.instances)
    if len(bags):
        last = np.array([len(bags) - 1])
        assert np.array_equal(bags.source[bags.rows(last)], bags[-1].instances)


@given(given_=arguments(), data=st.data())
@quick
def test_packing_changes_nothing_but_the_source(given_, data):
    bags = Bags.from_list(**given_)[data.draw(st.slices(len(given_["arrays"])))]
    packed = bags.packed()
    assert_same(packed, bags)
    assert len(packed.source) == packed.sizes.sum()
    assert packed.digest() == bags.digest()
    assert packed.packed() is packed


def test_negative_integers_and_scalars_of_other_libraries_count_as_integers():
    bags = many([2, 1, 3])
    for key in (-1, np.int64(2), np.array(2), torch.tensor(2)):
        assert isinstance(bags[key], Bag)
        assert bags[key].id == "2"


@pytest.mark.parametrize("key", [3, -4, np.int64(3)])
def test_an_integer_out_of_range_is_an_index_error(key):
    with pytest.raises(IndexError):
        many([2, 1, 3])[key]


@pytest.mark.parametrize(
    "key",
    [[True, False], np.zeros((3, 1), dtype=bool), True, None, 1.0, [0.5], [[0, 1]], "0", [0, 7], [None]],
    ids=repr,
)
def test_a_key_that_selects_nothing_sensible_is_an_index_error(key):
    with pytest.raises(IndexError):
        many([2, 1, 3])[key]


def test_a_selection_of_no_bag_is_a_store_of_no_bag(tmp_path):
    bags = many([2, 1, 3], candidates=[[0], [1], [0, 1]], labels=[0, 1, 1])
    none = bags[[]]
    assert len(none) == 0
    assert repr(none) == "Bags(0 bags)"
    assert none.instances.shape == (0, 3)
    assert list(none) == []
    none.save(tmp_path / "none.npz")
    assert_same(Bags.load(tmp_path / "none.npz"), none)


def test_a_selection_shares_the_instances_and_does_not_copy_them():
    bags = many([2, 1, 3, 4])
    assert np.shares_memory(bags[1:3].source, bags.source)
    assert np.shares_memory(bags[[3, 0]][0].instances, bags.source)


def test_a_bag_chosen_twice_can_be_read_but_not_kept_under_one_id():
    twice = many([2, 1])[[1, 1]]
    assert [bag.id for bag in twice] == ["1", "1"]
    with pytest.raises(DataError, match="The id '1' is used by 2 bags"):
        twice.packed()


def test_scikit_learn_splits_bags_without_copying_them():
    bags = many([1, 2, 3, 4, 5])
    train, test = train_test_split(bags, test_size=2, random_state=0)
    assert isinstance(train, Bags)
    assert sorted([*train.ids, *test.ids]) == ["0", "1", "2", "3", "4"]
    assert np.shares_memory(train.source, bags.source)


def test_numbers_of_other_kinds_become_float32_and_uint8_stays():
    for values in ([[1, 2]], np.array([[1, 2]]), torch.tensor([[1, 2]]), np.array([[True, False]])):
        assert Bags.from_list([values]).source.dtype == np.float32
    assert Bags.from_list([np.array([[1, 2]], dtype=np.uint8)]).source.dtype == np.uint8
    assert Bags.from_list([np.array([[1, 2.5]], dtype=object)]).source.tolist() == [[1.0, 2.5]]
    assert Bags.from_list([torch.ones(1, 2, requires_grad=True)]).source.dtype == np.float32


def test_floats_of_foreign_byte_order_or_width_become_what_torch_can_read():
    swapped = Bags.from_list([np.array([[1.5, 2.5]], dtype=">f4"), np.array([[3.5, 4.5]], dtype=">f4")])
    assert swapped.source.dtype == np.dtype("=f4")
    assert swapped.source.tolist() == [[1.5, 2.5], [3.5, 4.5]]
    assert Bags.from_list([np.ones((1, 2), dtype=np.longdouble)]).source.dtype == np.float32
    assert Bags.from_list([np.ones((1, 1), np.float16), np.ones((1, 1))]).source.dtype == np.float64


def test_iterables_that_can_be_read_only_once_are_enough():
    bags = Bags.from_list(
        (array for array in PAIR),
        candidates=(iter(names) for names in [["b", "a"], ["c"]]),
        labels=iter(["a", "c"]),
        ids=iter(["x", "y"]),
        groups=iter([1, 2]),
    )
    assert bags.classes == ("a", "b", "c")
    assert bags.candidates.tolist() == [[True, True, False], [False, False, True]]
    assert bags.labels.tolist() == [0, 2]
    assert bags.groups.tolist() == ["1", "2"]
    assert bags.with_candidates(iter([iter(["c", "a"]), "c"])).candidates.sum() == 3
    assert Bags.from_list(PAIR).with_candidates(iter([iter("a"), iter("b")])).classes == ("a", "b")


def test_repr_shows_the_counts():
    bags = many([2, 1, 1200], candidates=[["a"], ["a", "b"], ["b"]])
    assert repr(bags) == (
        "Bags(3 bags, 1,203 instances (1–1200 per bag) of 3 features, 2 classes, "
        "1.33 candidates per bag, no labels)"
    )
    images = Bags.from_list([np.zeros((2, 4, 5))], labels=[0])
    assert repr(images) == "Bags(1 bag, 2 instances (2–2 per bag) of 4×5 features, 1 class, labelled)"


# ---- nobody changes bags -------------------------------------------------------------------------------

ARRAYS = [
    field.name
    for field in dataclasses.fields(Bags)
    if ("Array" in field.type or "NDArray" in field.type) and field.name != "votes"
]


@given(given_=arguments(complete=True))
@settings(deadline=None, max_examples=10)
def test_writing_to_any_array_raises(given_):
    bags = Bags.from_list(**given_)
    bags = dataclasses.replace(bags, geometry=np.ones((len(bags), 4)))
    bags = dataclasses.replace(bags, sample_weight=np.ones(len(bags)))
    for store in (bags, bags[::-1], pickle.loads(pickle.dumps(bags)), copy.deepcopy(bags), bags.packed()):
        for name in ARRAYS:
            with pytest.raises(ValueError, match="read-only"):
                getattr(store, name)[...] = 0
        for name in ("instances", "candidates", "instance_labels", "coordinates"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(store[0], name)[...] = 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            store.labels = None
    assert len(ARRAYS) == 12


@given(given_=arguments(complete=True))
@settings(deadline=None, max_examples=20)
def test_changing_the_arguments_afterwards_changes_no_bag(given_):
    kept = copy.deepcopy(given_)
    bags = Bags.from_list(**given_)
    digest = bags.digest()
    for name in ("arrays", "instance_labels", "coordinates"):
        for array in given_[name]:
            array[...] = 0
    for name in ("candidates", "labels", "weights"):
        given_[name][...] = 0
    for name in ("ids", "groups", "classes", "arrays"):
        given_[name].reverse()
    given_["provenance"].clear()
    assert bags.digest() == digest
    assert_same(bags, Bags.from_list(**kept))


@given(given_=arguments(complete=True))
@settings(deadline=None, max_examples=20)
def test_making_bags_changes_no_argument(given_):
    kept = copy.deepcopy(given_)
    bags = Bags.from_list(**given_)
    bags.with_candidates(given_["candidates"]).packed().digest()
    assert_same(Bags.from_list(**given_), Bags.from_list(**kept))


def test_a_copy_from_another_process_is_the_same():
    bags = many([2, 1, 3], candidates=[["a"], ["b"], ["a", "b"]], groups="xyz")[[2, 0]]
    assert_same(pickle.loads(pickle.dumps(bags)), bags)


# ---- digest --------------------------------------------------------------------------------------------


CLASSES = (("a", "b"), (0, 1), ("0", "1"))


@st.composite
def tiny(draw):
    """Draw arguments from a space so small that two draws are often equal."""
    sizes = draw(st.sampled_from([(1, 2), (2, 1), (3,), (1, 1, 1)]))
    values = draw(st.sampled_from([(0, 0, 0), (0, 0, 1), (1, 0, 0)]))
    dtype = draw(st.sampled_from(["float32", "uint8"]))
    m = len(sizes)
    return {
        "arrays": np.split(np.array(values, dtype=dtype)[:, None], np.cumsum(sizes)[:-1]),
        "candidates": draw(st.sampled_from([None, np.ones((m, 2), bool), np.eye(2, dtype=bool)[[0] * m]])),
        "labels": draw(st.sampled_from([None, [0] * m])),
        "weights": draw(st.sampled_from([None, np.tile(np.float32([1, 0]), (m, 1))])),
        "classes": draw(st.sampled_from(CLASSES)),
        "ids": draw(st.sampled_from([None, "abc"[:m], ["ab", "c", "d"][:m], ["a", "bc", "d"][:m]])),
        "groups": draw(st.sampled_from([None, "a" * m, "ab"[: m - 1] + "a"])),
        "missing_truth": draw(st.booleans()),
    }


def content(given_):
    def plain(value):
        return None if value is None else np.asarray(value).tolist()

    arrays = given_["arrays"]
    return (
        [array.tolist() for array in arrays],
        str(arrays[0].dtype),
        given_["classes"],
        *(plain(given_[name]) for name in ("candidates", "labels", "weights")),
    )


def about(given_):
    """Return what names the bags and says which of them belong together."""
    ids = given_["ids"] or map(str, range(len(given_["arrays"])))
    groups = given_["groups"]
    return [*ids], groups and [*groups], given_["missing_truth"]


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_digests_are_equal_exactly_when_the_bags_are(data):
    one = data.draw(tiny())
    changed = data.draw(st.sampled_from(["all", "none", "classes", "ids", "groups", "missing_truth"]))
    drawn = data.draw(tiny().filter(lambda other: len(other["arrays"]) == len(one["arrays"])))
    other = drawn if changed == "all" else {**one, changed: drawn[changed]} if changed != "none" else one
    first, second = Bags.from_list(**one), Bags.from_list(**other)
    same = content(one) == content(other)
    assert (first.content_digest() == second.content_digest()) == same
    assert (first.digest() == second.digest()) == (same and about(one) == about(other))


def test_the_digest_leaves_out_what_changes_no_result():
    bags = many([2, 1, 3], candidates=[[0], [1], [0, 1]])
    marked = many(
        [2, 1, 3],
        candidates=[[0], [1], [0, 1]],
        instance_labels=[[0, -1], [1], [0, 1, 1]],
        coordinates=[np.zeros((size, 2)) for size in (2, 1, 3)],
        provenance={"a": 1},
    )
    assert bags.digest() == marked.digest()
    assert bags[[2, 0]].digest() == bags[[2, 0]].packed().digest()
    assert bags[[2, 0]].digest() != bags[[0, 2]].digest()


# ---- other candidates, fewer instances, other doors ----------------------------------------------------


def test_other_candidates_keep_the_rest():
    bags = many(
        [2, 1],
        candidates=[["a"], ["b"]],
        labels=["a", "b"],
        instance_labels=[[0, -1], [1]],
        weights=[[1, 0], [0, 1]],
    )
    other = bags.with_candidates([["a", "b"], ["b"]])
    assert other.candidates.tolist() == [[True, True], [False, True]]
    assert other.labels.tolist() == [0, 1]
    assert other.instance_labels.tolist() == [0, -1, 1]
    assert other.weights is None
    assert bags.candidates.tolist() == [[True, False], [False, True]]


def test_other_classes_drop_every_label_that_meant_the_old_ones():
    bags = many([2, 1], labels=["a", "b"], instance_labels=[[0, -1], [1]])
    other = bags.with_candidates([["z"], ["y"]], classes=["z", "y"])
    assert other.classes == ("z", "y")
    assert other.labels is None
    assert other.instance_labels is None


def test_other_candidates_without_the_true_label_are_refused():
    with pytest.raises(DataError, match=r"Bag '1' has the true label 'b' outside its candidate set \(1 such"):
        many([2, 1], labels=["a", "b"]).with_candidates([["a"], ["a"]])


@given(given_=arguments(complete=True), seed=st.integers(0, 999))
@settings(deadline=None, max_examples=30)
def test_keeping_instances_agrees_with_a_loop(given_, seed):
    rng = np.random.default_rng(seed)
    bags = Bags.from_list(**given_)[::-1]
    kept = [rng.permutation(size)[: rng.integers(1, size + 1)] for size in bags.sizes]
    fewer = bags.keep_instances(kept)
    for bag, old, keep in zip(fewer, bags, kept, strict=True):
        assert_is(
            bag,
            {
                "id": old.id,
                "instances": np.array([old.instances[i] for i in keep]),
                "instance_labels": np.array([old.instance_labels[i] for i in keep]),
                "coordinates": np.array([old.coordinates[i] for i in keep]),
                "candidates": old.candidates,
                "label": old.label,
                "group": old.group,
            },
        )


@pytest.mark.parametrize(
    "kept", [[[0], [-1]], [[0], [1]], [[0], [True]], [[0], []], [[0], [[0]]], [[0], [0.0]]], ids=repr
)
def test_an_instance_to_keep_that_the_bag_has_not_is_refused(kept):
    with pytest.raises(DataError, match="Bag '1' has 1 instances: give at least one position from 0 to 0"):
        many([2, 1, 3])[:2].keep_instances(kept)


def test_instances_to_keep_are_given_for_every_bag():
    with pytest.raises(DataError, match="given for 1 bags, but there are 2 bags"):
        many([2, 1]).keep_instances([[0]])


def test_bags_are_made_from_whatever_a_user_has(tmp_path):
    bags = many([2, 1, 3], ids="xyz")
    bags.save(tmp_path / "bags.npz")
    assert as_bags(bags) is bags
    for given_ in (tmp_path / "bags.npz", str(tmp_path / "bags.npz"), [bags[0], bags[1], bags[2]]):
        assert_same(as_bags(given_), bags)
    assert as_bags([bag.instances for bag in bags]).content_digest() == bags.content_digest()
    assert as_bags(np.zeros((2, 4, 3))).sizes.tolist() == [4, 4]
    assert as_bags(bags, [[0], [1], [0]]).candidates.tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (np.zeros((4, 3)), r"single array of instances was given: put each bag's array in a list"),
        (None, "not None"),
        (5, "not 5"),
        ([], "There is no bag"),
    ],
    ids=repr,
)
def test_what_is_no_bags_is_refused(given_, message):
    with pytest.raises(DataError, match=message):
        as_bags(given_)


def test_candidate_sets_are_there_or_an_error_says_so():
    bags = Bags.from_list([np.zeros((2, 3))], [[0, 1]])
    assert bags.candidate_sets is bags.candidates
    with pytest.raises(DataError, match="The bags have no candidate sets: add a column 'candidates'"):
        _ = Bags.from_list([np.zeros((2, 3))]).candidate_sets
