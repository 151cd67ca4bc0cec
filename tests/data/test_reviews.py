"""Tables of labels and reviews: what counts for measuring, and what is refused."""

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.data.bags import Bags
from mipl.data.reviews import (
    Review,
    TrueLabels,
    is_table_of_labels,
    read_reviews,
    true_labels,
    with_true_labels,
)
from mipl.errors import DataError


def table(path, text):
    path.write_text(text.replace(" ", ""), encoding="utf-8")
    return path


EXPORT = """bag_id,label,reviewer,time,comment,selected
a,ash,ann,1,,random
b,elm,ann,2,,chosen
a,ash,bob,3,,random
c,elm,bob,4,see,random
c,ash,bob,5,,random
"""


def test_random_reviews_count_and_the_latest_of_a_reviewer(tmp_path):
    path = table(tmp_path / "r.csv", EXPORT)
    reviews = read_reviews(path)
    assert [(r.bag_id, r.label, r.reviewer, r.time) for r in reviews] == [
        ("a", "ash", "ann", "1"),
        ("b", "elm", "ann", "2"),
        ("a", "ash", "bob", "3"),
        ("c", "ash", "bob", "5"),
    ]
    known = true_labels(reviews, path)
    assert known == TrueLabels({"a": "ash", "c": "ash"}, 1)
    assert known.note().startswith("2 bags drawn at random are used; 1 bag that was chosen for review")


def test_without_the_column_every_row_counts(tmp_path):
    path = table(tmp_path / "l.tsv", "slide_id\tlabel\na\tash\nb\telm\n")
    known = true_labels(read_reviews(path), path)
    assert known == TrueLabels({"a": "ash", "b": "elm"})
    assert known.note() is None


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.sampled_from("mn"), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None, max_examples=60)
def test_a_label_is_used_only_for_a_random_bag_without_disagreement(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("r") / "r.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", "label", "reviewer", "selected"])
        writer.writerows(
            (bag, label, who, "random" if drawn else "chosen") for bag, label, who, drawn in rows
        )
    latest = {(bag, who): (label, drawn) for bag, label, who, drawn in rows}
    random = {bag for (bag, _), (_, drawn) in latest.items() if drawn}
    opinions = {bag: {label for (b, _), (label, _) in latest.items() if b == bag} for bag in "abcd"}
    reviews = read_reviews(path)
    if not random or any(len(opinions[bag]) > 1 for bag in random):
        with pytest.raises(DataError, match="decide on one label" if random else "drawn at random"):
            true_labels(reviews, path)
    else:
        assert true_labels(reviews, path).labels == {bag: next(iter(opinions[bag])) for bag in random}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bag_id,label\na,ash\na,ash\n", "row 3 names the bag 'a' a second time"),
        ("bag_id,label\na,\n", "row 2 has nothing in column 'label': fill it in"),
        ("bag_id,label,selected\na,ash,maybe\n", "row 2 has 'maybe' in column 'selected'"),
        ("bag_id,labels\na,ash\n", "no column 'label'"),
        ("bag_id,label,predicted,confidence\na,ash,ash,1\n", "predictions of a model"),
        ("bag_id,label,selected\na,ash,chosen\n", "no bag that was drawn at random"),
        (
            "bag_id,label,reviewer\na,ash,ann\na,elm,bob\nb,elm,ann\n",
            r"disagree on 1 of 2 bags \(a\), for example 'a' is 'ash' or 'elm': decide on one label",
        ),
    ],
)
def test_bad_tables_are_refused(text, sentence, tmp_path):
    path = table(tmp_path / "r.csv", text)
    with pytest.raises(DataError, match=sentence):
        true_labels(read_reviews(path), path)


def test_which_tables_are_labels(tmp_path):
    assert is_table_of_labels(table(tmp_path / "a.csv", "bag_id,label\na,ash\n"))
    assert is_table_of_labels(table(tmp_path / "b.csv", "bag_id,label,age,reviewer\na,ash,3,ann\n"))
    cohort = table(tmp_path / "c.csv", "bag_id,candidates,label,patient\na,ash|elm,ash,p\n")
    assert not is_table_of_labels(cohort)
    assert is_table_of_labels(cohort, cohort=True)
    assert not is_table_of_labels(table(tmp_path / "d.csv", "bag_id,label,f0,f1\na,ash,1,2\n"), cohort=True)
    assert not is_table_of_labels(tmp_path / "bags.npz")
    assert not is_table_of_labels(tmp_path)


def test_labels_select_their_bags_in_the_order_of_the_bags(tmp_path):
    bags = Bags.from_list(
        [np.ones((1, 2))] * 3, [["ash"], ["ash", "elm"], ["elm"]], ids=["a", "b", "c"], groups=["p", "q", "q"]
    )
    known = with_true_labels(bags, TrueLabels({"c": "elm", "a": "elm"}), tmp_path, ("ash", "elm", "oak"))
    assert (known.ids.tolist(), known.labels.tolist(), known.classes) == (
        ["a", "c"],
        [1, 1],
        ("ash", "elm", "oak"),
    )
    assert known.candidates is None
    assert known.groups.tolist() == ["p", "q"]
    numbered = with_true_labels(bags, TrueLabels({"a": "1"}), tmp_path, (0, 1))
    assert (numbered.classes, numbered.labels.tolist()) == ((0, 1), [1])
    with pytest.raises(DataError, match="names 1 bags that are not in the data: d"):
        with_true_labels(bags, TrueLabels({"d": "elm"}), tmp_path, ("ash", "elm"))
    with pytest.raises(DataError, match="not among the classes"):
        with_true_labels(bags, TrueLabels({"a": "elms"}), tmp_path, ("ash", "elm"))
    assert Review("a", "ash").selected == "random"
