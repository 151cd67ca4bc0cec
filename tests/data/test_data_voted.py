"""Bags with votes: matched, selected, saved, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import many

from mipl.annotators.model import GOLD
from mipl.data.bags import Bags
from mipl.data.sources import Source, save
from mipl.data.voted_bags import read_gold, with_votes
from mipl.data.votes import posterior_candidates, read_votes
from mipl.errors import DataError, SettingError, StorageError

LONG = "bag_id,annotator,label,case_id\nx,ann,b,1\nx,bob,a,1\ny,ann,a|c,2\nz,cid,,3\n"


@pytest.fixture
def read(tmp_path):
    def call(text, name="votes.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_votes(path)

    return call


def bags(**others):
    return many([1, 2, 1, 1], ids=["x", "y", "z", "w"], **others)


def triples(found):
    """Return the votes by names."""
    return {
        (str(found.ids[i]), "GOLD" if r == GOLD else found.annotators[r], found.classes[c])
        for i, r, c in found.votes.tolist()
    }


def test_votes_are_matched_by_id_and_class(read):
    votes = read(LONG)
    for given_ in (bags(), bags(candidates=[["c"], ["c"], ["b", "c"], ["c"]], classes=["c", "b", "a"])):
        found = with_votes(given_, votes)
        assert triples(found) == {("x", "ann", "b"), ("x", "bob", "a"), ("y", "ann", "a"), ("y", "ann", "c")}
        named = [{found.classes[c] for c in np.flatnonzero(row)} for row in found.candidates]
        assert named[:2] == [{"a", "b"}, {"a", "c"}]
        assert named[2:] == ([{"a", "b", "c"}] * 2 if given_.candidates is None else [{"b", "c"}, {"c"}])
        assert found.missing_truth


def test_labels_and_patients_come_along(read):
    text = "bag,rater,vote,label,case_id\nx,r,a,a,1\ny,r,a,b,1\nz,r,b,b,2\nw,r,b,b,3\n"
    found = with_votes(bags(), read(text))
    assert [found.classes[y] for y in found.labels] == ["a", "b", "b", "b"]
    assert found.groups.tolist() == ["1", "1", "2", "3"]


def test_gold_labels_are_votes_of_nobody(read, tmp_path):
    (tmp_path / "gold.csv").write_text("bag_id,label\nx,c\nw,a\n")
    found = with_votes(bags(), read(LONG), read_gold(tmp_path / "gold.csv"))
    assert {("x", "GOLD", "c"), ("w", "GOLD", "a")} <= triples(found)
    assert [found.classes[int(found.candidates[i].argmax())] for i in (0, 3)] == ["c", "a"]
    assert found.candidates[[0, 3]].sum() == 2


@given(index=st.lists(st.integers(0, 5), max_size=8), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_selection_has_the_votes_of_its_bags(index, seed):
    rows = np.random.default_rng(seed).integers(0, [6, 3, 2], size=(12, 3))
    whole = many([1] * 6, candidates=np.ones((6, 2), bool), classes=["a", "b"])
    whole = dataclasses.replace(whole, votes=rows, annotators=("r", "s", "t"))
    found = whole[np.array(index, dtype=int)]
    expected = [(new, r, c) for new, old in enumerate(index) for i, r, c in rows.tolist() if i == old]
    assert sorted(map(tuple, found.votes.tolist())) == sorted(expected)
    assert found.annotators == whole.annotators


def test_votes_are_saved_and_are_part_of_the_hash(read, tmp_path):
    found = with_votes(bags(), read(LONG))
    found.save(tmp_path / "bags.npz")
    loaded = Bags.load(tmp_path / "bags.npz")
    assert triples(loaded) == triples(found)
    assert loaded.digest() == found.digest()
    assert found.digest() != dataclasses.replace(found, votes=None).digest()
    assert found.digest() != dataclasses.replace(found, votes=found.votes[:-1]).digest()
    with pytest.raises(ValueError, match="read-only"):
        loaded.votes[...] = 0


@pytest.mark.parametrize("place", ["bags.mat", "bags.csv", "bags.parquet", "folder"])
def test_formats_without_a_place_for_votes_are_refused(place, read, tmp_path):
    with pytest.raises(DataError, match=r"cannot store who voted .* \.npz"):
        save(with_votes(bags(), read(LONG)), tmp_path / place)
    assert not (tmp_path / place).exists()


def test_crowd_kit_and_peerannot_are_read(read):
    kit = read("task,worker,label\n1,w7,0\n1,w8,1\n2,w7,1\n")
    peer = read(json.dumps({"1": {"w7": 0, "w8": 1}, "2": {"w7": 1}}), "answers.json")
    for votes in (kit, peer):
        assert (votes.ids, votes.annotators, votes.classes) == (("1", "2"), ("w7", "w8"), ("0", "1"))
        assert list(zip(votes.bag, votes.annotator, votes.label, strict=True)) == [
            (0, 0, 0),
            (0, 1, 1),
            (1, 0, 1),
        ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", "is not of the form"),
        ('{"1": 3}', "is not of the form"),
        ('{"1": {"a": {}}}', "not a text or number"),
        ('{"1": {"a": 1}, "1": {}}', "occurs twice"),
        ("{", "is damaged"),
        ("{}", "has no votes"),
    ],
)
def test_bad_json_is_refused_with_a_sentence(text, sentence, read):
    with pytest.raises((DataError, StorageError), match=sentence):
        read(text, "answers.json")


def test_what_does_not_fit_is_refused(read, tmp_path):
    votes = read(LONG)
    with pytest.raises(DataError, match="1 bags with votes are not in the data: z"):
        with_votes(bags()[[0, 1]], votes)
    with pytest.raises(DataError, match="'c', which is not a class"):
        with_votes(bags(candidates=[["a"]] * 4, classes=["a", "b"]), votes)
    (tmp_path / "gold.csv").write_text("bag_id,candidates\nx,c\n")
    with pytest.raises(DataError, match="no column 'label'"):
        read_gold(tmp_path / "gold.csv")
    with pytest.raises(SettingError, match="--gold adds known labels to --votes"):
        Source("digits-mipl", gold="gold.csv").open()
    found = with_votes(bags(), votes)
    for change, sentence in (
        ({"votes": np.zeros((2, 2), int)}, "have shape"),
        ({"votes": np.array([[9, 0, 0]])}, "the bag 9"),
        ({"votes": np.array([[0, 0, 7]])}, "the label 7"),
        ({"votes": np.array([[0, GOLD, 0], [0, GOLD, 1]])}, "two gold labels"),
        ({"annotators": ("a", "a", "b")}, "same name"),
    ):
        with pytest.raises(DataError, match=sentence):
            dataclasses.replace(found, **change)


def test_posterior_sets_need_a_vote_and_grow_with_their_mass(read):
    votes = read(LONG)
    with pytest.raises(DataError, match="'z' has no vote"):
        posterior_candidates(votes, 0.9)
    votes = read(
        "task,worker,label\n"
        + "".join(f"{i},w{r},{(i + r * i // 3) % 3}\n" for i in range(9) for r in range(3))
    )
    small, large = (posterior_candidates(votes, mass) for mass in (0.5, 0.999))
    assert (small <= large).all()
    assert small.any(axis=1).all()
    with pytest.raises(SettingError, match="mass"):
        posterior_candidates(votes, 0.0)
