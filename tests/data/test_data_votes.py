import csv
import itertools
import time

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import attempt, many

from mipl.data.formats.labels import apply_label_table
from mipl.data.formats.table import write_labels
from mipl.data.votes import agreement, candidates, read_votes, weights
from mipl.errors import DataError, SettingError, StorageError

quick = settings(deadline=None, max_examples=80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("votes")


@pytest.fixture
def read(tmp_path):
    """Read votes from the text of a table."""

    def call(text, name="votes.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return read_votes(path)

    return call


LONG = "bag_id,annotator,label\nx,ann,b\nx,bob,a\ny,ann,a\nx,cid,b\ny,bob,a\nz,cid,c\n"
WIDE = "bag_id,ann,bob,cid\nx,b,a,b\ny,a,a,\nz,,,c\n"

names = st.sampled_from(["a", "b", "c", "10", "2", "Ü, x"])


@st.composite
def voted(draw, several=True):
    """Draw {(bag, annotator): set of labels}, with at least one vote."""
    m, n = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    sets = st.frozensets(names, max_size=2 if several else 1)
    votes = {(f"bag {i}", f"ann {j}"): draw(sets) for i in range(m) for j in range(n)}
    votes["bag 0", "ann 0"] = votes["bag 0", "ann 0"] or frozenset("a")
    return votes


def write(path, votes, wide):
    """Write votes as a table; where there is no vote, a long one has a row without a label."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        bags, annotators = (list(dict.fromkeys(pair[i] for pair in votes)) for i in (0, 1))
        if wide:
            writer.writerow(["slide_id", *annotators])
            writer.writerows([bag, *("|".join(sorted(votes[bag, a])) for a in annotators)] for bag in bags)
        else:
            writer.writerow(["rater", "vote", "bag", "remark"])
            writer.writerows([a, "|".join(sorted(labels)), bag, "?"] for (bag, a), labels in votes.items())
    return read_votes(path)


def slow_counts(votes, ids, classes):
    return [
        [sum(name in labels for (b, _), labels in votes.items() if b == bag) for name in classes]
        for bag in ids
    ]


def slow_agreement(votes):
    """What `agreement` should say, pair by pair."""
    bags, annotators = (list(dict.fromkeys(pair[i] for pair in votes)) for i in (0, 1))
    equal = pairs = unanimous = several = 0
    majority = {a: [] for a in annotators}
    for bag in bags:
        given_ = {a: votes[bag, a] for a in annotators if votes[bag, a]}
        for a, b in itertools.combinations(given_, 2):
            for one, other in itertools.product(given_[a], given_[b]):
                pairs += 1
                equal += one == other
        if len(given_) > 1:
            several += 1
            unanimous += len(frozenset().union(*given_.values())) == 1
        for a in given_:
            others = [label for b in given_ if b != a for label in given_[b]]
            ranked = sorted(((others.count(label), label) for label in set(others)), reverse=True)
            if ranked and (len(ranked) == 1 or ranked[0][0] > ranked[1][0]):
                majority[a].append(ranked[0][1] in given_[a])
    total = sum(map(len, votes.values()))
    used = [bag for bag in bags if any(votes[bag, a] for a in annotators)]
    return {
        "bags": len(bags),
        "annotators": len(annotators),
        "votes": total,
        "votes_per_bag": total / len(bags),
        "unanimous": unanimous / several if several else None,
        "pairwise_agreement": equal / pairs if pairs else None,
        "candidates_per_bag": sum(len(frozenset().union(*(votes[b, a] for a in annotators))) for b in bags)
        / len(used),
        "annotator_agreement": {a: sum(hits) / len(hits) if hits else None for a, hits in majority.items()},
    }


# ---- reading -------------------------------------------------------------------------------------------


def test_a_long_and_a_wide_table_say_the_same(read):
    for votes in (read(LONG), read(WIDE), read(WIDE.replace(",", "\t"), "votes.tsv")):
        assert votes.ids == ("x", "y", "z")
        assert votes.annotators == ("ann", "bob", "cid")
        assert votes.classes == ("a", "b", "c")
        assert votes.counts.tolist() == [[1, 2, 0], [2, 0, 0], [0, 0, 1]]


@given(drawn=voted(), wide=st.booleans())
@quick
def test_votes_are_counted_as_a_loop_counts_them(folder, drawn, wide):
    votes = write(folder / "votes.csv", drawn, wide)
    assert votes.ids == tuple(dict.fromkeys(bag for bag, _ in drawn))
    assert votes.annotators == tuple(dict.fromkeys(a for _, a in drawn))
    assert votes.classes == tuple(sorted(frozenset().union(*drawn.values())))
    assert votes.counts.tolist() == slow_counts(drawn, votes.ids, votes.classes)
    cast = {
        (votes.ids[i], votes.annotators[j], votes.classes[c])
        for i, j, c in zip(votes.bag, votes.annotator, votes.label, strict=True)
    }
    assert cast == {(*pair, label) for pair, labels in drawn.items() for label in labels}


def test_columns_of_labels_and_patients_are_no_annotators(read):
    votes = read("bag_id,ann,label,case_id,,bob\nx,a,a,p,0,b\ny,a,a,p,1,\n")
    assert votes.annotators == ("ann", "bob")
    assert votes.counts.tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bag_id,annotator,label\nx,ann,a\n\nx,ann,a\n",
            "row 4 is a second vote of 'ann' on bag 'x', after row 2: keep one",
        ),
        ("bag_id,annotator,label\nx,ann,a|b\nx,ann,b\n", "row 3 is a second vote of 'ann' on bag 'x'"),
        ("bag_id,ann\nx,a\nx,b\n", "row 3 names the bag 'x' a second time"),
        ("bag_id,annotator,label\nx,,a\n", "row 2 has nothing in column 'annotator'"),
        ("bag_id,annotator,label\n,ann,a\n", "row 2 has nothing in column 'bag_id'"),
        ("bag,ann\n,a\n", "row 2 has nothing in column 'bag'"),
        ("bag_id,annotator\nx,ann\n", "has a column 'annotator', but no column 'label' or 'vote'"),
        ("bag_id,annotator,rater,label\nx,ann,ann,a\n", "has the columns 'annotator' and 'rater'"),
        ("bag_id,slide_id,ann\nx,x,a\n", "has the columns 'bag_id' and 'slide_id'"),
        ("id,ann\nx,a\n", "has no column 'bag_id': its header is id, ann"),
        ("bag_id,label\nx,a\n", "has no annotators: add a column 'annotator', or one column per"),
        ("bag_id,ann\nx,\n", "has no votes"),
        ("bag_id,annotator,label\n", "has no votes"),
        ("bag_id,ann\nx\n", "row 2 has 1 fields"),
        ("", "has no column 'bag_id'"),
    ],
    ids=repr,
)
def test_a_table_that_holds_no_votes_is_refused_by_row(read, text, message):
    with pytest.raises(DataError, match=rf"votes\.csv.*{message}"):
        read(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"no\.csv cannot be read: No such file"):
        read_votes(tmp_path / "no.csv")


pieces = st.sampled_from(
    ["bag_id", "annotator", "label", ",", "\n", '"', "|", "x", "y", "ann", "a", "b", " ", "\0"]
)


@given(
    text=st.one_of(st.lists(pieces, max_size=40).map("".join), st.text(max_size=60)),
    header=st.sampled_from(["", "bag_id,annotator,label\n", "bag,ann,bob\n"]),
)
@settings(deadline=None, max_examples=200)
def test_arbitrary_text_is_votes_or_a_clear_error(folder, text, header):
    path = folder / "any.csv"
    path.write_bytes((header + text).encode("utf-8", "surrogatepass"))
    votes, complaint = attempt(read_votes, path)
    assert "any.csv" in complaint or votes.counts.sum() == len(votes.bag) > 0
    if votes is not None:
        agreement(votes)
        attempt(candidates, votes, 2)


@given(content=st.binary(max_size=60), suffix=st.sampled_from(["csv", "tsv", "xlsx", "parquet"]))
@settings(deadline=None, max_examples=80)
def test_arbitrary_bytes_are_votes_or_a_clear_error(folder, content, suffix):
    path = folder / f"bytes.{suffix}"
    path.write_bytes(content)
    votes, complaint = attempt(read_votes, path)
    assert f"bytes.{suffix}" in complaint or votes.ids


# ---- candidate sets and weights ------------------------------------------------------------------------


def test_the_union_the_majority_and_a_share(read):
    votes = read("bag_id,a1,a2,a3,a4,a5\nx,a,a,a,b,c\ny,b,b,c,c,\n")
    assert candidates(votes).tolist() == [[1, 1, 1], [0, 1, 1]]
    assert candidates(votes, min_votes=2).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert candidates(votes, min_share=0.5).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert candidates(votes, min_share=0.2).tolist() == [[1, 1, 1], [0, 1, 1]]  # 1 of 5 is a share of 0.2


@given(drawn=voted(), least=st.integers(1, 3), share=st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0]))
@quick
def test_candidates_and_weights_are_those_of_a_loop(folder, drawn, least, share):
    votes = write(folder / "votes.csv", drawn, wide=True)
    counts = slow_counts(drawn, votes.ids, votes.classes)
    wanted = [[n >= least and n / max(sum(row), 1) >= share for n in row] for row in counts]
    empty = [bag for bag, row in zip(votes.ids, wanted, strict=True) if not any(row)]
    if empty:
        with pytest.raises(
            DataError, match=rf"Bag '{empty[0]}' has no candidate left \({len(empty)} such bags\)"
        ):
            candidates(votes, least, share)
        return
    chosen = candidates(votes, least, share)
    assert chosen.dtype == np.bool_
    assert chosen.tolist() == wanted
    shares = weights(votes, chosen)
    assert shares.dtype == np.float32
    for row, kept, w in zip(counts, wanted, shares, strict=True):
        total = sum(n for n, keep in zip(row, kept, strict=True) if keep)
        assert w.tolist() == pytest.approx(
            [n / total if keep else 0 for n, keep in zip(row, kept, strict=True)]
        )


def test_a_bag_without_candidate_says_what_to_lower(read):
    votes = read("bag_id,a1,a2,a3\nx,a,a,b\ny,a,b,c\nz,,b,\n")
    with pytest.raises(
        DataError,
        match=r"'y' has no candidate left \(2 such bags\): at most 1 of its 3 .*min_votes = 2",
    ):
        candidates(votes, min_votes=2)
    votes = read("bag_id,a1\nx,a\ny,\n")
    with pytest.raises(DataError, match=r"Bag 'y' has no candidate left \(1 such bags\): it has no vote"):
        candidates(votes)


@pytest.mark.parametrize(
    "setting", [{"min_votes": 0}, {"min_share": -0.1}, {"min_share": 1.1}, {"min_share": np.nan}]
)
def test_a_threshold_out_of_range_is_refused(read, setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        candidates(read(LONG), **setting)


def test_weights_need_candidates_that_have_votes(read):
    votes = read(LONG)
    with pytest.raises(DataError, match=r"shape \(2, 2\), but 3 bags and 3 classes"):
        weights(votes, np.ones((2, 2), dtype=bool))
    with pytest.raises(DataError, match="No vote for bag 'y' is for one of its candidates"):
        weights(votes, np.array([[1, 0, 0], [0, 1, 1], [0, 0, 1]], dtype=bool))


def test_votes_become_bags_by_way_of_a_table(read, tmp_path):
    votes = read(LONG)
    chosen = candidates(votes)
    path = tmp_path / "labels.csv"
    write_labels(path, votes.ids, chosen, votes.classes, weights=weights(votes, chosen))
    bags = apply_label_table(many([1, 1, 1], ids=["z", "x", "y"]), path)
    assert bags.classes == ("a", "b", "c")
    assert bags.candidates.tolist() == [[0, 0, 1], [1, 1, 0], [1, 0, 0]]
    assert bags.weights == pytest.approx(np.array([[0, 0, 1], [1 / 3, 2 / 3, 0], [1, 0, 0]]))


# ---- agreement -----------------------------------------------------------------------------------------


@given(drawn=voted())
@quick
def test_agreement_is_that_of_a_loop_over_pairs(folder, drawn):
    got = agreement(write(folder / "votes.csv", drawn, wide=True))
    got.pop("alpha")
    for name, value in slow_agreement(drawn).items():
        assert got.pop(name) == (value if value is None else pytest.approx(value)), name
    assert not got


@given(drawn=voted(several=False), wide=st.booleans())
@quick
def test_alpha_is_that_of_the_reference(folder, drawn, wide):
    votes = write(folder / "votes.csv", drawn, wide)
    table = np.full((len(votes.annotators), len(votes.ids)), np.nan)
    table[votes.annotator, votes.bag] = votes.label
    pairable = votes.counts[votes.counts.sum(axis=1) > 1]
    if (pairable.sum(axis=0) > 0).sum() < 2:
        assert agreement(votes)["alpha"] is None
    else:
        wanted = krippendorff.alpha(reliability_data=table, level_of_measurement="nominal")
        assert agreement(votes)["alpha"] == pytest.approx(wanted, abs=1e-12)


@given(drawn=voted())
@quick
def test_alpha_with_several_votes_of_one_annotator_is_that_of_the_counts(folder, drawn):
    votes = write(folder / "votes.csv", drawn, wide=True)
    alpha = agreement(votes)["alpha"]
    if alpha is not None:
        assert alpha == pytest.approx(
            krippendorff.alpha(value_counts=votes.counts, level_of_measurement="nominal")
        )


def test_agreement_of_a_known_table(read):
    got = agreement(read(WIDE))
    assert got["unanimous"] == 0.5  # y, of x and y
    assert got["pairwise_agreement"] == 0.5  # x: 1 of 3 pairs, y: 1 of 1
    assert got["candidates_per_bag"] == pytest.approx(4 / 3)
    assert got["annotator_agreement"] == {"ann": 1.0, "bob": 0.5, "cid": None}


def test_ten_thousand_bags_of_twenty_annotators_take_a_moment(tmp_path):
    label = np.char.add("class ", np.random.default_rng(0).integers(0, 9, (10_000, 20)).astype(str))
    path = tmp_path / "votes.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", *range(20)])
        writer.writerows([i, *row] for i, row in enumerate(label.tolist()))
    votes = read_votes(path)
    start = time.process_time()
    agreement(votes)
    weights(votes, candidates(votes))
    assert time.process_time() - start < 1.0
