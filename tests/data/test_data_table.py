import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import attempt, many

from mipl.data.formats.table import apply_label_table, read_predictions, read_table, write_predictions
from mipl.errors import DataError, StorageError

THREE = {"ids": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture
def table(tmp_path):
    """Write a table, as text or bytes, and return its path."""

    def write(content):
        path = tmp_path / "labels.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def three(**others):
    return many([1, 2, 1], **THREE, **others)


# ---- candidate sets and labels in ----------------------------------------------------------------------


def test_candidates_and_labels_are_matched_by_id_not_by_order(table):
    bags = apply_label_table(three(), table("bag_id,candidates,label\nz,b|c,c\nx,a|b,a\ny,c,c\n"))
    assert bags.classes == ("a", "b", "c")
    assert bags.ids.tolist() == ["x", "y", "z"]
    assert bags.candidates.tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 1]]
    assert bags.labels.tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "content",
    [
        "bag_id,candidates\nx,a\ny,a|b\nz,b\n",
        "\ufeffbag_id,candidates\nx,a\ny,a|b\nz,b\n",
        "bag_id,candidates\r\nx,a\r\ny,a|b\r\nz,b\r\n",
        "bag_id,candidates\rx,a\ry,a|b\rz,b",
        "bag_id,candidates\n\nx,a\n\ny,a|b\nz,b\n\n\n",
        " bag_id , candidates \n x , a \ny, a | b |\nz,|b|b\n",
        '"bag_id","candidates"\n"x","a"\n"y","a|b"\n"z","b"\n',
        "candidates,note,bag_id\na,,x\na|b,?,y\nb,,z\n",
        "bag_id,candidates,label\nx,a,\ny,a|b,\nz,b, \n",
    ],
    ids=["plain", "mark", "windows", "old mac", "blank", "spaces", "quoted", "order", "no labels"],
)
def test_a_table_may_be_written_in_many_ways(table, content):
    bags = apply_label_table(three(), table(content))
    assert bags.classes == ("a", "b")
    assert bags.candidates.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert bags.labels is None


def test_names_may_hold_commas_quotes_and_letters_of_any_script(table):
    content = 'bag_id,candidates\n"x, 1","cat, wild|""big"" dog"\ny,кот|狗\n'
    bags = apply_label_table(many([1, 1], ids=["x, 1", "y"]), table(content))
    assert bags.classes == ('"big" dog', "cat, wild", "кот", "狗")


def test_the_bags_own_classes_are_kept(table):
    bags = three(labels=["c", "b", "a"], instance_labels=[[0], [1, -1], [2]])
    got = apply_label_table(bags, table("bag_id,candidates\nx,a\ny,b\nz,b\n"))
    assert got.classes == ("a", "b", "c")
    assert got.candidates.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert got.labels is None
    assert got.instance_labels.tolist() == [0, 1, -1, 2]


def test_whole_numbers_mean_the_bags_numbered_classes(table):
    bags = three(classes=range(12), instance_labels=[[10], [1, -1], [2]])
    got = apply_label_table(bags, table("bag_id,candidates,label\nx,10|2,2\ny,2,2\nz,0,0\n"))
    assert got.classes == tuple(range(12))
    assert [np.flatnonzero(row).tolist() for row in got.candidates] == [[2, 10], [2], [0]]
    assert got.labels.tolist() == [2, 2, 0]
    assert got.instance_labels.tolist() == [10, 1, -1, 2]
    with pytest.raises(DataError, match=r"labels\.csv: Bag 'y' names the class '12'"):
        apply_label_table(bags, table("bag_id,candidates\nx,10|2\ny,12\nz,0\n"))


def test_names_take_the_place_of_numbered_classes(table):
    bags = three(classes=range(4), labels=[0, 1, 2], instance_labels=[[3], [1, -1], [2]])
    got = apply_label_table(bags, table("bag_id,candidates\nx,a\ny,b\nz,b\n"))
    assert got.classes == ("a", "b")
    assert got.labels is None
    assert got.instance_labels is None


def test_initial_weights_of_other_candidates_are_dropped(table):
    bags = three(candidates=[["a"], ["b"], ["b"]], weights=[[1, 0], [0, 1], [0, 1]])
    assert apply_label_table(bags, table("bag_id,candidates\nx,b\ny,a\nz,b\n")).weights is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("bag_id,candidates\nx,a\ny,b\n", r"1 bags have no row in .*labels\.csv: z\."),
        ("bag_id,candidates\n", r"3 bags have no row in .*labels\.csv: x, y, z\."),
        ("bag_id,candidates\nx,a\ny,b\nz,b\nw,a\n", r"1 rows name no bag, in .*labels\.csv: w\."),
        ("bag_id,candidates\nx,a\ny,b\nz,b\nx,b\n", r"labels\.csv, row 5 names the bag 'x' a second time"),
        ("bag_id,candidates\n\nx,a\n\nx,b\n", r"labels\.csv, row 5 names the bag 'x' a second time"),
        ("bag_id,candidates\nx,a\ny,b,c\nz,b\n", r"labels\.csv, row 3 has 3 fields, but the header has 2"),
        ("bag_id,candidates\nx,a\n\ny\nz,b\n", r"labels\.csv, row 4 has 1 fields, but the header has 2"),
        ("bag_id,candidates\nx,a\ny,\nz,b\n", r"labels\.csv: Bag 'y' has no candidate label"),
        ("bag_id,candidates\nx,\ny,\nz, | \n", r"labels\.csv: Bag 'x' has no candidate label"),
        ("bag_id,candidates,label\nx,a,a\ny,b,\nz,b,b\n", r"labels\.csv has no label for bag 'y'"),
        ("bag_id,candidates,label\nx,a,\ny,b,b\nz,b,b\n", r"labels\.csv has no label for bag 'x'"),
        (
            "bag_id,candidates,label\nx,a,a\ny,b,a\nz,b,b\n",
            r"labels\.csv: Bag 'y' has the true label 'a' outside",
        ),
        ("bag,candidates\nx,a\n", r"labels\.csv has no column 'bag_id': its header is bag, candidates"),
        ("bag_id,label\nx,a\n", r"labels\.csv has no column 'candidates'"),
        ("", r"labels\.csv has no column 'bag_id': its header is empty"),
        ("bag_id,candidates,label,label\nx,a,a,a\n", r"labels\.csv names a column twice in its header"),
    ],
    ids=repr,
)
def test_a_table_that_does_not_fit_is_refused_by_name(table, content, message):
    with pytest.raises(DataError, match=message) as caught:
        apply_label_table(three(), table(content))
    assert "\n" not in str(caught.value)


def test_an_unknown_class_gets_a_suggestion(table):
    bags = three(classes=["cat", "dog"])
    with pytest.raises(DataError, match=r"labels\.csv: Bag 'y' names the class 'dgo'.*Did you mean 'dog'\?"):
        apply_label_table(bags, table("bag_id,candidates\nx,cat\ny,dgo\nz,dog\n"))
    with pytest.raises(DataError, match=r"labels\.csv: Bag 'z' names the class 'cow'"):
        apply_label_table(bags, table("bag_id,candidates,label\nx,cat,cat\ny,dog,dog\nz,dog,cow\n"))


def test_only_five_missing_bags_are_listed(table):
    with pytest.raises(DataError, match=r"8 bags have no row in .*: 0, 1, 2, 3, 4, …\."):
        apply_label_table(many([1] * 8), table("bag_id,candidates\n"))


@pytest.mark.parametrize(
    "content",
    [
        b"bag_id,candidates\nx,\xff\xfe\n",
        b'bag_id,candidates\nx,"a\n',
        b'bag_id,candidates\nx,"a"b\n',
        b"\xff\xfeb\0",
    ],
    ids=repr,
)
def test_a_file_that_is_not_csv_in_utf8_is_refused(table, content):
    with pytest.raises(StorageError, match=r"labels\.csv is not a CSV file in UTF-8"):
        apply_label_table(three(), table(content))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"no\.csv cannot be read: No such file"):
        apply_label_table(three(), tmp_path / "no.csv")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        apply_label_table(three(), tmp_path)


def test_a_true_label_outside_is_allowed_where_the_bags_allow_it(table):
    path = table("bag_id,candidates,label\nx,a,a\ny,b,a\nz,b,b\n")
    assert apply_label_table(three(missing_truth=True), path).labels.tolist() == [0, 0, 1]


pieces = st.sampled_from(
    [
        "bag_id",
        "candidates",
        "label",
        ",",
        "\n",
        "\r\n",
        "\r",
        '"',
        "|",
        "x",
        "y",
        "z",
        "a",
        "b",
        "0",
        " ",
        "\ufeff",
    ]
)


@given(text=st.one_of(st.lists(pieces, max_size=40).map("".join), st.text(max_size=60)), headed=st.booleans())
@settings(deadline=None, max_examples=200)
def test_arbitrary_text_is_a_table_or_a_clear_error(folder, text, headed):
    path = folder / "any.csv"
    path.write_bytes(("bag_id,candidates,label\n" * headed + text).encode("utf-8", "surrogatepass"))
    for bags in (three(), three(classes=["a", "b"]), three(classes=[0, 1])):
        got, complaint = attempt(apply_label_table, bags, path)
        assert "any.csv" in complaint or got.candidates.any(axis=1).all()
    got, complaint = attempt(read_predictions, path)
    assert "any.csv" in complaint or len(got[0])


@given(content=st.binary(max_size=60))
@settings(deadline=None, max_examples=100)
def test_arbitrary_bytes_are_a_table_or_a_clear_error(folder, content):
    path = folder / "bytes.csv"
    path.write_bytes(content)
    rows, complaint = attempt(read_table, path, ("bag_id",))
    assert "bytes.csv" in complaint or b"bag_id" in content
    assert rows is None or all("bag_id" in row for row in rows.values())


@given(
    cells=st.lists(
        st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=3, max_size=3), max_size=5
    )
)
@settings(deadline=None, max_examples=100)
def test_what_a_csv_writer_writes_is_read_back(folder, cells):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerows([["bag_id", "one", "two"], *cells])
    path = folder / "written.csv"
    path.write_bytes(buffer.getvalue().encode())
    rows = read_table(path, ("bag_id",), strip=False)
    assert [list(row.values()) for row in rows.values()] == cells
    assert list(rows) == list(range(2, 2 + len(cells)))
    stripped = read_table(path, ("bag_id",))
    assert [list(row.values()) for row in stripped.values()] == [
        [cell.strip() for cell in row] for row in cells
    ]


# ---- predictions out and in ----------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8"), max_size=5)


@given(
    ids=st.lists(names, min_size=1, max_size=6, unique=True),
    classes=st.one_of(
        st.lists(names, min_size=2, max_size=4, unique=True), st.integers(2, 4).map(lambda k: list(range(k)))
    ),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(deadline=None, max_examples=100)
def test_predictions_are_read_back_exactly(folder, ids, classes, seed, dtype):
    p = np.random.default_rng(seed).dirichlet(np.full(len(classes), 0.1), size=len(ids)).astype(dtype)
    path = folder / "predictions.csv"
    write_predictions(path, ids, classes, p)
    read_ids, read_classes, read_p = read_predictions(path)
    assert read_ids == ids
    assert read_classes == [str(name) for name in classes]
    assert read_p.dtype == np.float64
    assert np.array_equal(read_p, p.astype(np.float64))


def test_predictions_name_the_label_and_its_confidence(tmp_path):
    path = tmp_path / "new" / "predictions.csv"
    write_predictions(path, ["x", "y"], ["cat, wild", "dog"], np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert path.read_bytes().decode() == (
        'bag_id,label,confidence,"p(cat, wild)",p(dog)\r\n'
        'x,dog,0.75,0.25,0.75\r\ny,"cat, wild",0.5,0.5,0.5\r\n'
    )
    assert [file.name for file in path.parent.iterdir()] == ["predictions.csv"]


HEADER = "bag_id,label,confidence,p(a),p(b)\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER, "labels.csv has no prediction: it holds only a header"),
        (HEADER + "x,a,1,1\n", "labels.csv, row 2 has 4 fields, but the header has 5"),
        (HEADER + "x,a,1,1,0\n\ny,a,1,one,0\n", "labels.csv, row 4 has a probability that is not a number"),
        (HEADER + "x,a,1,1,\n", "labels.csv, row 2 has a probability that is not a number"),
        (HEADER + "x,a,1,nan,0\n", "labels.csv, row 2 has a probability that is not between 0 and 1"),
        (HEADER + "x,a,1,1,0\ny,a,1,-1,2\n", "labels.csv, row 3 has a probability that is not between"),
        (HEADER + "x,a,1,1,0\nx,a,1,1,0\n", "labels.csv, row 3 names the bag 'x' a second time"),
        ("bag_id,label,confidence,p(a)\nx,a,1,1\n", "labels.csv has 1 columns of probabilities"),
        ("bag_id,label,confidence\nx,a,1\n", "labels.csv has 0 columns of probabilities"),
        ("bag_id,label,p(a),p(b)\nx,a,1,0\n", "labels.csv has no column 'confidence'"),
        ("bag_id,label,confidence,p(a),p(a)\nx,a,1,1,0\n", "labels.csv names a column twice"),
    ],
    ids=repr,
)
def test_predictions_that_are_none_are_refused_by_row(table, content, message):
    with pytest.raises(DataError, match=message):
        read_predictions(table(content))
