import csv
import datetime
import io
import sys

import numpy as np
import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import attempt, many

from mipl.data.bags import Bags
from mipl.data.formats.labels import apply_label_table
from mipl.data.formats.table import (
    read_label_table,
    read_predictions,
    read_table,
    write_labels,
    write_predictions,
)
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
        ("bag_id,candidates\nx,a\ny,b\n", r"1 bag has no row in .*labels\.csv: z\."),
        ("bag_id,candidates\n", r"3 bags have no row in .*labels\.csv: x, y, z\."),
        ("bag_id,candidates\nx,a\ny,b\nz,b\nw,a\n", r"1 row names no bag, in .*labels\.csv: w\."),
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
        ("bag_id,candidates,label,label\nx,a,a,a\n", r"labels\.csv has two columns 'label' in its header"),
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


# ---- other kinds of files ------------------------------------------------------------------------------


def write_any(path, rows):
    """Write rows of text, the first of them the header, as the kind of file that the name asks for."""
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
    elif path.suffix == ".parquet":
        columns = {name: [row[j] for row in rows[1:]] for j, name in enumerate(rows[0])}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


KINDS = ["csv", "tsv", "xlsx", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    rows = [["bag_id", "candidates", "note"], ["x", "a|b", "5, 6"], ["y", " b ", ""], ["z", "кот", '"q"']]
    path = write_any(tmp_path / f"labels.{kind}", rows)
    got = read_table(path, ("bag_id",))
    assert list(got) == ([1, 2, 3] if kind == "parquet" else [2, 3, 4])
    assert [list(row.values()) for row in got.values()] == [
        ["x", "a|b", "5, 6"],
        ["y", "b", ""],
        ["z", "кот", '"q"'],
    ]
    assert apply_label_table(three(), path).candidates.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    with pytest.raises(
        DataError, match=rf"labels\.{kind} has no column 'weight': its header is bag_id, cand"
    ):
        read_table(path, ("weight",))


@pytest.mark.parametrize("kind", ["tsv", "xlsx", "parquet"])
def test_an_error_names_the_row_that_a_user_sees(tmp_path, kind):
    path = write_any(
        tmp_path / f"labels.{kind}", [["bag_id", "candidates"], ["x", "a"], ["y", "b"], ["x", "b"]]
    )
    with pytest.raises(
        DataError, match=f"row {3 if kind == 'parquet' else 4} names the bag 'x' a second time"
    ):
        read_label_table(path)


def test_numbers_in_a_workbook_are_written_as_people_do(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["bag_id", "label", "share", "yes", "day", "none", None, None])
    sheet.append([1, 3.0, 0.25, True, datetime.date(2020, 1, 2), None])
    sheet.append([None, " ", None])
    sheet.append(["007", -2, 1e20, False])
    book.create_sheet("other").append(["not", "read"])
    book.save(tmp_path / "labels.xlsx")
    rows = read_table(tmp_path / "labels.xlsx", ("bag_id",))
    assert {number: list(row.values()) for number, row in rows.items()} == {
        2: ["1", "3", "0.25", "1", "2020-01-02 00:00:00", ""],
        4: ["007", "-2", "100000000000000000000", "0", "", ""],
    }


def test_a_field_beside_the_columns_of_a_workbook_is_refused_and_an_empty_sheet_is_no_table(tmp_path):
    path = write_any(tmp_path / "labels.xlsx", [["bag_id", "label"], ["x", "a"], ["y", "b", "", "?"]])
    with pytest.raises(DataError, match="row 3 has 4 fields, but the header has 2"):
        read_table(path, ())
    openpyxl.Workbook().save(path)
    with pytest.raises(DataError, match="no column 'bag_id': its header is empty"):
        read_label_table(path)


def test_values_of_any_type_in_parquet_become_text(tmp_path):
    columns = {
        "bag_id": pyarrow.array([10, 20]),
        "label": pyarrow.array([1.0, None]),
        "share": pyarrow.array([0.5, float("nan")]),
        "yes": pyarrow.array([True, False]),
        "when": pyarrow.array([1, 2], pyarrow.timestamp("ns")),
        "far": pyarrow.array([2**50, None], pyarrow.timestamp("s")),
        "list": pyarrow.array([["a", "b"], []]),
        "kind": pyarrow.array(["u", "v"]).dictionary_encode(),
        "__index_level_0__": pyarrow.array([0, 1]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    first, second = read_table(tmp_path / "labels.parquet", ()).values()
    assert [first[name] for name in ("bag_id", "label", "share", "yes", "list", "kind")] == [
        "10",
        "1",
        "0.5",
        "1",
        "a|b",
        "u",
    ]
    assert [second[name] for name in ("bag_id", "label", "share", "yes", "list")] == ["20", "", "", "0", ""]
    assert first["when"].startswith("1970-01-01")
    assert "__index_level_0__" not in first


def test_without_openpyxl_a_workbook_names_the_remedy(tmp_path, monkeypatch):
    path = write_any(tmp_path / "labels.xlsx", [["bag_id"], ["x"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(StorageError, match=r"labels\.xlsx needs openpyxl: pip install 'mipl\[xlsx\]'"):
        read_table(path, ())


@given(data=st.data(), kind=st.sampled_from(["xlsx", "parquet"]))
@settings(deadline=None, max_examples=60)
def test_a_truncated_file_is_refused(folder, data, kind):
    whole, cut = folder / f"whole.{kind}", folder / f"cut.{kind}"
    if not whole.exists():  # once: a workbook holds the time, and its length varies
        write_any(whole, [["bag_id", "candidates"], ["x", "a"], ["y", "b"]])
    content = whole.read_bytes()
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(
        StorageError, match=rf"cut\.{kind} is not (an Excel workbook|a Parquet file), or is dam"
    ):
        read_table(cut, ())


@given(content=st.binary(max_size=80), kind=st.sampled_from(["xlsx", "parquet", "tsv"]), magic=st.booleans())
@settings(deadline=None, max_examples=100)
def test_arbitrary_bytes_of_another_kind_are_a_table_or_a_clear_error(folder, content, kind, magic):
    start, end = {"xlsx": (b"PK\3\4", b""), "parquet": (b"PAR1", b"PAR1"), "tsv": (b"bag_id\t", b"\n")}[kind]
    path = folder / f"bytes.{kind}"
    path.write_bytes(start + content + end if magic else content)
    table, complaint = attempt(read_label_table, path)
    assert f"bytes.{kind}" in complaint or table.ids or kind == "tsv"
    assert "\n" not in complaint.replace(content.decode("utf-8", "replace"), "")


# ---- what a table says of bags -------------------------------------------------------------------------


def test_a_label_table_needs_no_bags(table):
    got = read_label_table(table("slide_id,case_id,candidates,label,weights\ns1,p1,b|a,a,3|1\ns2,p1,c,c,7\n"))
    assert got.ids == ("s1", "s2")
    assert got.classes == ("a", "b", "c")
    assert got.sets == (("b", "a"), ("c",))
    assert got.labels == ("a", "c")
    assert got.groups == ("p1", "p1")
    assert got.weights.dtype == np.float32
    assert got.weights.tolist() == [[0.25, 0.75, 0], [0, 0, 1]]
    chosen = got.select(["s2"])
    assert (chosen.ids, chosen.sets, chosen.labels) == (("s2",), (("c",),), ("c",))
    assert chosen.weights.tolist() == [[0, 0, 1]]


def test_a_table_of_labels_alone_has_no_candidates(table):
    got = read_label_table(table("bag_id,label,age,sex,note\nx,b,1,0,\ny,a,77,1,?\n"))
    assert (got.ids, got.classes, got.labels) == (("x", "y"), ("a", "b"), ("b", "a"))
    assert got.sets is got.groups is got.weights is None
    got = read_label_table(table("bag_id\nx\ny\n"))
    assert (got.ids, got.classes, got.sets, got.labels) == (("x", "y"), (), None, None)


def test_a_slide_table_of_stamp_is_read(table):
    content = "PATIENT,FILENAME,candidates\np,x.h5,a\np,dir.1/y.v2.pt,b\nq,z.svs,a\nq,w,b\n"
    got = read_label_table(table(content))
    assert got.ids == ("x", "dir.1/y.v2", "z.svs", "w")
    assert got.groups == ("p", "p", "q", "q")
    with pytest.raises(DataError, match="row 3 names the bag 'x' a second time"):
        read_label_table(table("FILENAME,candidates\nx.h5,a\nx.npz,b\n"))


@pytest.mark.parametrize("yes", ["1", "1.0", "True", "TRUE"])
def test_one_column_for_each_class_in_place_of_candidates(table, yes):
    no = {"1": "0", "1.0": "0.0", "True": "False", "TRUE": "FALSE"}[yes]
    rows = [f"0,x,p,{yes},0,{no},2,{no}", f"1,y,q,{yes},55,{yes},0,{no}"]
    content = "\n".join([",bag_id,patient,tumour,age,normal,grade,fat", *rows])
    got = read_label_table(table(content))
    assert got.classes == ("tumour", "normal", "fat")
    assert got.sets == (("tumour",), ("tumour", "normal"))
    assert got.groups == ("p", "q")
    bags = apply_label_table(many([1, 1], ids=["y", "x"]), table(content))
    assert bags.candidates.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert bags.groups.tolist() == ["q", "p"]


def test_groups_are_kept_where_the_table_has_none(table):
    bags = three(groups=["p", "p", "q"])
    assert apply_label_table(bags, table("bag_id,candidates\nx,b\ny,a\nz,b\n")).groups.tolist() == [
        "p",
        "p",
        "q",
    ]


def test_weights_follow_the_bags_own_classes(table):
    content = "bag_id,candidates,weights\nx,b|a,0.75|0.25\ny,c,1\nz,a|c,1|1\n"
    bags = apply_label_table(three(classes=["c", "none", "b", "a"]), table(content))
    assert bags.weights.tolist() == [[0, 0, 0.75, 0.25], [1, 0, 0, 0], [0.5, 0, 0, 0.5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("bag_id,slide_id,candidates\nx,x,a\n", "has the columns 'bag_id' and 'slide_id': keep one of them"),
        ("bag_id,FILENAME\nx,x\n", "has the columns 'bag_id' and 'FILENAME'"),
        ("bag_id,case_id,PATIENT\nx,p,p\n", "has the columns 'case_id' and 'PATIENT'"),
        ("bag_id,case_id\nx,p\ny,\n", "has no case_id for bag 'y': give one to every bag, or to none"),
        ("bag_id,label\nx,p\ny,\n", "has no label for bag 'y'"),
        ("bag_id,candidates\nx,a\n\n ,b\n", "row 4 has nothing in column 'bag_id'"),
        ("bag_id,a,b\nx,1,0\ny,0,0\n", r"Bag 'y' has no candidate label \(row 3\)"),
        ("bag_id,a,b\nx,1,0\ny,1,\n", "row 3 has nothing in column 'b': write 0 or 1"),
        (
            "bag_id,tumour,fat,label\nx,1,0,tumour\ny,1,0,tumor\n",
            "row 3 has the label 'tumor'.*Did you mean 'tum",
        ),
        ("bag_id,candidates,weights\nx,a|b,1\n", "row 2 has 1 weights for 2 candidates: give one for each"),
        ("bag_id,candidates,weights\nx,a|b,1|x\n", "row 2 has a weight that is not a number"),
        (
            "bag_id,candidates,weights\nx,a|b,1|-1\n",
            r"row 2 has the weights 1\|-1: use numbers of at least 0",
        ),
        ("bag_id,candidates,weights\nx,a|b,0|0\n", "row 2 has the weights"),
        ("bag_id,candidates,weights\nx,a|b,1|nan\n", "row 2 has the weights"),
        ("bag_id,candidates,weights\nx,a|b,1|inf\n", "row 2 has the weights"),
        ("bag_id,candidates,weights\nx,a,1\ny,a,\n", "has no weights for bag 'y'"),
        ("bag_id,a,b,weights\nx,1,0,1\n", "has weights without the column 'candidates'"),
        ("bag_id,label,weights\nx,a,1\n", "has weights without the column 'candidates'"),
    ],
    ids=repr,
)
def test_a_label_table_that_says_no_sense_is_refused_by_name(table, content, message):
    with pytest.raises(DataError, match=rf"labels\.csv.*{message}"):
        read_label_table(table(content))


def test_a_table_of_labels_alone_cannot_be_applied(table):
    with pytest.raises(DataError, match=r"labels\.csv has no column 'candidates' and no 0/1 column"):
        apply_label_table(three(), table("bag_id,label,age\nx,a,30\ny,a,40\nz,b,50\n"))


printable = (
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
    .map(str.strip)
    .filter(bool)
)


@st.composite
def labelled(draw):
    """Draw the arguments of write_labels but the path."""
    m, k = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    lists = {"min_size": k, "max_size": k, "unique": True}
    classes = draw(
        st.one_of(st.just(list(range(k))), st.lists(printable.map(lambda s: s.replace("|", "/")), **lists))
    )
    labels = rng.integers(0, k, m)
    candidates = rng.random((m, k)) < 0.5
    candidates[np.arange(m), labels] = True
    weights = (rng.random((m, k)) * candidates + 1e-9 * candidates).astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    return {
        "ids": draw(st.lists(printable, min_size=m, max_size=m, unique=True)),
        "candidates": candidates if draw(st.booleans()) else None,
        "classes": tuple(classes),
        "labels": labels if draw(st.booleans()) else None,
        "groups": draw(st.one_of(st.none(), st.lists(printable, min_size=m, max_size=m))),
        "weights": weights if draw(st.booleans()) else None,
    }


@given(given_=labelled())
@settings(deadline=None, max_examples=150)
def test_labels_are_read_back_exactly(folder, given_):
    if given_["candidates"] is None:
        given_["weights"] = None
    path = folder / "written_labels.csv"
    write_labels(path, **given_)
    table = read_label_table(path)
    names = [str(name) for name in given_["classes"]]
    assert list(table.ids) == given_["ids"]
    assert set(table.classes) <= set(names)
    wanted = given_["candidates"]
    if wanted is not None:
        assert table.sets == tuple(tuple(names[j] for j in np.flatnonzero(row)) for row in wanted)
    if given_["labels"] is not None and len(table.ids):
        assert table.labels == tuple(names[j] for j in given_["labels"])
    if given_["groups"]:
        assert list(table.groups) == given_["groups"]
    if given_["weights"] is not None and len(table.ids):
        order = [names.index(name) for name in table.classes]
        assert np.array_equal(table.weights, given_["weights"][:, order])
    if wanted is not None and len(table.ids):
        bags = Bags.from_list(np.zeros((len(table.ids), 1, 2)), ids=given_["ids"], classes=given_["classes"])
        bags = apply_label_table(bags, path)
        assert np.array_equal(bags.candidates, wanted)
        assert given_["weights"] is None or np.array_equal(bags.weights, given_["weights"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("a|b", "c")}, r"The class 'a\|b' cannot be written to a table"),
        ({"classes": ("a ", "c")}, "The class 'a ' cannot be written"),
        ({"classes": ("", "c")}, "The class '' cannot be written"),
        ({"classes": ("\udfff", "c")}, r"The class '\\udfff' is not valid Unicode"),
        ({"ids": ["x", "y\n"]}, "The bag 'y ' cannot be written"),
        ({"ids": ["x", "x"]}, "distinct ids"),
        ({"groups": ["p", ""]}, "The group '' cannot be written"),
        ({"groups": ["p"]}, "as many groups as bags"),
        ({"candidates": np.array([[1, 0], [0, 0]])}, "Bag 'y' has no candidate label"),
        ({"candidates": np.array([[1, 0]])}, "The candidate matrix is 1×2"),
        ({"labels": [0, 2]}, "Bag 'y' has the class 2"),
        ({"labels": [0]}, "There are 1 labels for 2 bags"),
        ({"weights": np.ones((2, 2))}, "Initial weights need candidates"),
        ({"weights": np.ones((1, 2))}, "Initial weights need candidates"),
        ({"weights": np.ones((2, 2)), "candidates": None}, "Initial weights need candidates"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_labels_that_could_not_be_read_back_are_not_written(tmp_path, change, message):
    given_ = {"ids": ["x", "y"], "candidates": np.eye(2, dtype=bool), "classes": ("a", "b")} | change
    with pytest.raises(DataError, match=message):
        write_labels(tmp_path / "labels.csv", **given_)
    assert list(tmp_path.iterdir()) == []


def test_labels_are_written_as_csv_only(tmp_path):
    with pytest.raises(StorageError, match=r"labels\.xlsx should end in \.csv"):
        write_labels(tmp_path / "labels.xlsx", ["x"], None, ())


@given(
    text=st.lists(pieces, max_size=40).map("".join),
    header=st.sampled_from(["slide_id,a,b", "FILENAME,candidates,weights,patient"]),
)
@settings(deadline=None, max_examples=100)
def test_arbitrary_text_is_a_label_table_or_a_clear_error(folder, text, header):
    path = folder / "any_labels.csv"
    path.write_text(header + "\n" + text, encoding="utf-8", newline="")
    got, complaint = attempt(read_label_table, path)
    assert "any_labels.csv" in complaint or got.sets is None or all(got.sets)


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


def test_predictions_name_the_class_and_its_confidence(tmp_path):
    path = tmp_path / "new" / "predictions.csv"
    write_predictions(path, ["x", "y"], ["cat, wild", "dog"], np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert path.read_bytes().decode() == (
        'bag_id,predicted,confidence,"p(cat, wild)",p(dog)\r\n'
        'x,dog,0.75,0.25,0.75\r\ny,"cat, wild",0.5,0.5,0.5\r\n'
    )
    assert [file.name for file in path.parent.iterdir()] == ["predictions.csv"]


HEADER = "bag_id,predicted,confidence,p(a),p(b)\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER, "labels.csv has no predictions, only a header"),
        (HEADER + "x,a,1,1\n", "labels.csv, row 2 has 4 fields, but the header has 5"),
        (HEADER + "x,a,1,1,0\n\ny,a,1,one,0\n", "labels.csv, row 4 has a probability that is not a number"),
        (HEADER + "x,a,1,1,\n", "labels.csv, row 2 has a probability that is not a number"),
        (HEADER + "x,a,1,nan,0\n", "labels.csv, row 2 has a probability that is not between 0 and 1"),
        (HEADER + "x,a,1,1,0\ny,a,1,-1,2\n", "labels.csv, row 3 has a probability that is not between"),
        (HEADER + "x,a,1,1,0\nx,a,1,1,0\n", "labels.csv, row 3 names the bag 'x' a second time"),
        ("bag_id,label,confidence,p(a)\nx,a,1,1\n", "labels.csv has 1 columns of probabilities"),
        ("bag_id,label,confidence\nx,a,1\n", "labels.csv has 0 columns of probabilities"),
        ("bag_id,label,p(a),p(b)\nx,a,1,0\n", "labels.csv has no column 'confidence'"),
        ("bag_id,label,confidence,p(a),p(a)\nx,a,1,1,0\n", r"has two columns 'p\(a\)' in its header"),
    ],
    ids=repr,
)
def test_predictions_that_are_none_are_refused_by_row(table, content, message):
    with pytest.raises(DataError, match=message):
        read_predictions(table(content))
