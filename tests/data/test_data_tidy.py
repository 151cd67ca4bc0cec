import csv
import io

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, assert_same, attempt, many

from mipl.data.bags import Bags
from mipl.data.formats.tidy import read_tidy, write_tidy
from mipl.errors import DataError, StorageError

KINDS = ["csv", "tsv", "parquet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tidy")


@pytest.fixture
def table(tmp_path):
    """Write a table, as text or bytes, and return its path."""

    def write(content, name="bags.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# ---- reading -------------------------------------------------------------------------------------------

FULL = """bag_id,label,f1,candidates,x,y,weights,instance_label,case_id,f2
b,cat,1.5,cat|dog,0,7,3|1,cat,p,-1
a,dog,2.5,dog,1,8,1,,q,0
b,cat,3,cat|dog,2,9,3|1,,p,1e-3
"""


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_column_has_its_place(table, mark):
    bags = read_tidy(table(mark + FULL))
    assert bags.ids.tolist() == ["b", "a"]
    assert bags.sizes.tolist() == [2, 1]
    assert bags.classes == ("cat", "dog")
    assert bags.source.dtype == np.float32
    assert np.array_equal(bags.source, np.float32([[1.5, -1], [3, 1e-3], [2.5, 0]]))
    assert bags.candidates.tolist() == [[1, 1], [0, 1]]
    assert bags.labels.tolist() == [0, 1]
    assert bags.weights.tolist() == [[0.75, 0.25], [0, 1]]
    assert bags.groups.tolist() == ["p", "q"]
    assert bags.instance_labels.tolist() == [0, -1, -1]
    assert bags.coordinates.tolist() == [[0, 7], [2, 9], [1, 8]]
    assert bags.coordinates.dtype == np.int64


def test_only_the_bag_and_one_feature_are_needed(table):
    bags = read_tidy(table("slide_id\tf\r\nx\t1\r\n\r\ny\t 2 \r\n", "bags.tsv"))
    assert bags.ids.tolist() == ["x", "y"]
    assert bags.source.tolist() == [[1], [2]]
    assert bags.candidates is bags.labels is bags.groups is bags.coordinates is bags.instance_labels is None
    assert bags.classes == ()


def test_a_column_without_a_name_is_no_feature_and_one_coordinate_is_one(table):
    bags = read_tidy(table(",bag_id,x\n0,a,5\n1,a,6\n"))
    assert bags.source.tolist() == [[5], [6]]
    assert bags.coordinates is None


@pytest.mark.parametrize(
    ("labels", "classes"),
    [(["1", "0", "2"], (0, 1, 2)), (["1", "2", "3"], ("1", "2", "3")), (["0", "a", "1"], ("0", "1", "a"))],
)
def test_the_numbers_from_0_on_are_indices_and_all_else_names(table, labels, classes):
    bags = read_tidy(table("bag_id,label,f\n" + "".join(f"{i},{name},1\n" for i, name in enumerate(labels))))
    assert bags.classes == classes
    assert [str(bags.classes[j]) for j in bags.labels] == labels


def test_rows_of_a_bag_need_not_be_adjacent(folder):
    bags = many(
        [3, 1, 4, 2], ids=list("dbca"), labels=[1, 0, 1, 0], instance_labels=[[-1] * 3, [0], [1] * 4, [0, 1]]
    )
    write_tidy(bags, folder / "order.csv")
    header, *rows = (folder / "order.csv").read_text().splitlines()
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    (folder / "order.csv").write_text("\n".join([header, *shuffled]))
    got = read_tidy(folder / "order.csv")
    names = [row.split(",")[0].strip('"') for row in shuffled]
    assert got.ids.tolist() == list(dict.fromkeys(names))
    for bag in got:
        before = bags[bags.ids.tolist().index(bag.id)]
        place = [row for row, name in zip(shuffled, names, strict=True) if name == bag.id]
        assert bag.instances[:, 0].tolist() == [float(row.split(",")[3]) for row in place]
        order = [before.instances[:, 0].tolist().index(value) for value in bag.instances[:, 0]]
        assert bag.instance_labels.tolist() == before.instance_labels[order].tolist()
        assert bag.label == before.label


def test_parquet_says_which_floats_there_are(tmp_path):
    path = tmp_path / "bags.parquet"
    single, double = pyarrow.array([0.1], pyarrow.float32()), pyarrow.array([0.1], pyarrow.float64())
    small, true = pyarrow.array([3], pyarrow.int8()), pyarrow.array([True])
    assert read_tidy(parquet(path, bag_id=["a"], f=single, g=small, h=true)).source.dtype == np.float32
    bags = read_tidy(parquet(path, bag_id=["a"], f=single, g=double))
    assert bags.source.dtype == np.float64
    assert bags.source.tolist() == [[np.float32(0.1), 0.1]]


def test_text_in_parquet_may_be_of_other_types(tmp_path):
    path = parquet(
        tmp_path / "bags.parquet",
        bag_id=pyarrow.array([7, 8, 7]),
        label=pyarrow.array(["b", "a", "b"]).dictionary_encode(),
        candidates=pyarrow.array([["a", "b"], ["a"], ["a", "b"]]),
        patient=pyarrow.array([1.0, 2.0, 1.0]),
        instance_label=pyarrow.array([None, "a", "b"]),
        f=pyarrow.array([1.0, 2.0, 3.0]),
        __index_level_0__=pyarrow.array([5, 6, 7]),
    )
    bags = read_tidy(path)
    assert bags.ids.tolist() == ["7", "8"]
    assert bags.labels.tolist() == [1, 0]
    assert bags.candidates.tolist() == [[1, 1], [1, 0]]
    assert bags.groups.tolist() == ["1", "2"]
    assert bags.instance_labels.tolist() == [-1, 1, 0]
    assert bags.source.tolist() == [[1], [3], [2]]


# ---- round trip ----------------------------------------------------------------------------------------


def said_of(bags):
    """Return what is known of each bag, with names in place of indices."""
    names = [*map(str, bags.classes), None]  # the last is that of −1
    for i, bag in enumerate(bags):
        yield {
            "id": bag.id,
            "instances": bag.instances.tolist(),
            "set": None if bag.candidates is None else {names[j] for j in np.flatnonzero(bag.candidates)},
            "label": None if bag.label is None else names[bag.label],
            "names": None if bag.instance_labels is None else [names[j] for j in bag.instance_labels],
            "coordinates": None if bag.coordinates is None else bag.coordinates.tolist(),
            "group": bag.group,
            "weights": None
            if bags.weights is None
            else {names[j]: w for j, w in enumerate(bags.weights[i]) if w},
        }


@given(
    given_=arguments(dtypes=("float32", "float64"), shapes=((1,), (3,))),
    kind=st.sampled_from(KINDS),
    data=st.data(),
)
@settings(deadline=None, max_examples=120)
def test_written_bags_are_read_back(folder, given_, kind, data):
    """Exactly, but for what a table cannot say: provenance, classes never named, float64 in text."""
    k = len(given_["classes"])
    if not isinstance(given_["classes"][0], int):
        given_["classes"] = sorted(f'class {j} é,"\t' + "\n" * (j % 2) + "!" for j in range(k))
    if "candidates" not in given_:
        given_.pop("weights", None)
    if kind != "parquet":
        given_["arrays"] = [array.astype(np.float32) for array in given_["arrays"]]
    scale = 10.0 ** data.draw(st.integers(-40, 30))
    given_["arrays"] = [(scale * array).astype(array.dtype) for array in given_["arrays"]]
    bags = Bags.from_list(**given_ | {"provenance": None})
    write_tidy(bags, folder / f"bags.{kind}")
    got = read_tidy(folder / f"bags.{kind}")
    assert got.source.dtype == bags.source.dtype
    assert list(said_of(got)) == list(said_of(bags))
    if len(got.classes) == k:  # every class is spoken of
        assert_same(got, bags)


def test_doubles_in_text_are_read_as_single(tmp_path):
    bags = Bags.from_list([np.array([[0.1, 2 / 3]])])
    write_tidy(bags, tmp_path / "bags.csv")
    assert "0.6666666666666666" in (tmp_path / "bags.csv").read_text(encoding="utf-8")
    got = read_tidy(tmp_path / "bags.csv").source
    assert got.dtype == np.float32
    assert np.array_equal(got, bags.source.astype(np.float32))


def test_half_floats_become_single(tmp_path):
    bags = Bags.from_list([np.float16([[0.1, 2]])])
    for kind in KINDS:
        write_tidy(bags, tmp_path / f"bags.{kind}")
        got = read_tidy(tmp_path / f"bags.{kind}").source
        assert got.dtype == np.float32
        assert np.array_equal(got, bags.source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_selection_is_written_alone(tmp_path, kind):
    bags = many([2, 1, 3], labels=["a", "b", "a"], coordinates=[np.full((n, 2), n) for n in (2, 1, 3)])
    write_tidy(bags[[2, 0]], tmp_path / f"bags.{kind}")
    got = read_tidy(tmp_path / f"bags.{kind}")
    assert got.ids.tolist() == ["2", "0"]
    assert got.classes == ("a",)
    assert np.array_equal(got.instances, bags[[2, 0]].instances)
    assert got.coordinates[:, 0].tolist() == [3, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        (lambda: Bags.from_list([np.zeros((2, 3, 3), dtype=np.float32)]), "The instances are images"),
        (lambda: Bags.from_list([np.zeros((2, 3), dtype=np.uint8)]), r"images \(uint8, shape \(3,\)\)"),
        (lambda: many([1])[:0], "There is no bag to write"),
        (lambda: many([1], candidates=[[0]], labels=[0], missing_truth=True), "true labels may be outside"),
        (lambda: many([1], coordinates=[np.zeros((1, 3))]), "coordinates have 3 columns"),
        (lambda: many([1], classes=["a", "b"], weights=[[1, 0]]), "Initial weights need candidates"),
        (lambda: many([1], candidates=[["a|b"]]), r"The class 'a\|b' cannot be written"),
        (lambda: many([1], ids=[" x"]), "The bag ' x' cannot be written"),
        (lambda: many([1], groups=[""]), "The group '' cannot be written"),
    ],
    ids=range(9),
)
def test_what_a_table_cannot_hold_is_refused(tmp_path, bags, message):
    with pytest.raises(DataError, match=message):
        write_tidy(bags(), tmp_path / "bags.csv")
    assert list(tmp_path.iterdir()) == []


def test_only_some_kinds_of_files_are_tidy_tables(tmp_path):
    for call in (lambda path: write_tidy(many([1]), path), read_tidy):
        with pytest.raises(StorageError, match=r"bags\.xlsx should end in \.csv, \.tsv or \.parquet"):
            call(tmp_path / "bags.xlsx")


# ---- malformed tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("bag,f\nx,1\n", "has no column 'bag_id': its header is bag, f"),
        ("", "has no column 'bag_id': its header is empty"),
        ("bag_id,slide_id,f\nx,x,1\n", "has the columns 'bag_id' and 'slide_id'"),
        ("bag_id,group,patient,f\nx,p,p,1\n", "has the columns 'group' and 'patient'"),
        ("bag_id,f,f\nx,1,2\n", "has two columns 'f'"),
        ("bag_id,f, f\nx,1,2\n", "has two columns 'f'"),
        ("bag_id,label\nx,a\n", "has no feature columns: its header is bag_id, label"),
        ("bag_id,f\n", "has no row"),
        ("bag_id,f", "has no row|Empty CSV"),
        ("bag_id,f\nx,1\n\n,2\n", "row 4 has no bag id"),
        ("bag_id,f,g\nx,1,2\n\ny,1,\n", "row 4 has nothing in column 'g', where a finite number is expected"),
        ("bag_id,f\nx,1\ny,abc\n", "row 3 has 'abc' in column 'f'"),
        ("bag_id,f\nx,1\ny,nan\n", "row 3 has 'nan' in column 'f'"),
        ("bag_id,f\nx,1\ny,-inf\n", "row 3 has '-inf' in column 'f'"),
        ("bag_id,f\nx,1\ny,1e39\n", "row 3 has '1e39' in column 'f'"),
        ("bag_id,f\nx,1\ny,1_0\n", "row 3 has '1_0' in column 'f'"),
        ("bag_id,f\nx,1\ny,NA\n", "row 3 has 'NA' in column 'f'"),
        (
            "bag_id,f,scanner\nx,1,Leica\n",
            "row 2 has 'Leica' in column 'scanner'.*leave the column out with --ignore",
        ),
        ("bag_id,f\nx,1\ny,1,2\n", "row 3 has 3 fields, but the header has 2"),
        ("bag_id,f,x,y\nx,1,2,3\nx,1,2,\n", "row 3 has nothing in column 'y'"),
        ("bag_id,f,x,y\nx,1,2,3\nx,1,left,3\n", "row 3 has 'left' in column 'x'"),
        ("bag_id,f,x,y\nx,1,2,inf\n", "row 2 has 'inf' in column 'y'"),
        (
            "bag_id,f,label\nx,1,a\ny,1,b\n\nx,2,b\n",
            "row 5 gives bag 'x' the label 'b', but an earlier row 'a'",
        ),
        (
            "bag_id,f,candidates\nx,1,a|b\nx,2,\n",
            r"row 3 gives bag 'x' the candidates '', but an earlier row 'a\|b'",
        ),
        ("bag_id,f,case_id\nx,1,p\nx,2,q\n", "row 3 gives bag 'x' the case_id 'q'"),
        ("bag_id,f,weights,candidates\nx,1,1,a\nx,2,2,a\n", "row 3 gives bag 'x' the weights '2'"),
        ("bag_id,f,label\nx,1,a\ny,2,\n", "has no label for bag 'y'"),
        ("bag_id,f,candidates\nx,1,a\ny,2,\n", "has no candidates for bag 'y'"),
        ("bag_id,f,candidates\nx,1,|\n", "Bag 'x' has no candidate label"),
        ("bag_id,f,candidates,label\nx,1,a,b\n", "Bag 'x' has the true label 'b' outside"),
        ("bag_id,f,weights\nx,1,1\n", "has weights without the column 'candidates'"),
        ("bag_id,f,candidates,weights\nx,1,a|b,1\n", "Bag 'x' has 1 weights for 2 candidates"),
    ],
    ids=repr,
)
def test_a_table_that_holds_no_bags_is_refused_by_row(table, content, message):
    with pytest.raises((DataError, StorageError), match=rf"bags\.csv.*({message})") as caught:
        read_tidy(table(content))
    assert "\n" not in str(caught.value)


def test_a_parquet_file_is_refused_by_row_too(tmp_path):
    path = tmp_path / "bags.parquet"
    with pytest.raises(DataError, match=r"bags\.parquet, row 2 has nothing in column 'f'"):
        read_tidy(parquet(path, bag_id=["a", "b"], f=[1.0, None]))
    with pytest.raises(DataError, match=r"bags\.parquet, row 2 has nothing in column 'f'"):
        read_tidy(parquet(path, bag_id=["a", "b"], f=[1.0, float("nan")]))
    with pytest.raises(DataError, match=r"row 1 has 'Leica' in column 'scanner'"):
        read_tidy(parquet(path, bag_id=["a"], f=[1.0], scanner=["Leica"]))
    with pytest.raises(DataError, match=r"row 1 has '1970-01-01.*' in column 'day'"):
        read_tidy(parquet(path, bag_id=["a"], f=[1.0], day=pyarrow.array([1], pyarrow.timestamp("ns"))))
    with pytest.raises(
        StorageError, match=r"cannot be read as a table of features: column 'f' is of type string"
    ):
        read_tidy(parquet(path, bag_id=["a"], f=["1"]))
    with pytest.raises(DataError, match="row 2 gives bag 'a' the label '2', but an earlier row '1'"):
        read_tidy(parquet(path, bag_id=["a", "a"], f=[1, 2], label=[1, 2]))
    twice = pyarrow.table([["a"], [1.0], [2.0]], names=["bag_id", "f", "f"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(DataError, match="has two columns 'f' in its header"):
        read_tidy(path)
    wrong = pyarrow.StringArray.from_buffers(
        1, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")
    )
    with pytest.raises(StorageError, match=r"bags\.parquet is not a Parquet file, or is damaged: .*UTF"):
        read_tidy(parquet(path, bag_id=wrong, f=[1.0]))
    with pytest.raises(DataError, match="row 1 has no bag id"):
        read_tidy(parquet(path, bag_id=pyarrow.array([None], pyarrow.string()), f=[1.0]))


@pytest.mark.parametrize(
    "content", [b"bag_id,f\n\xff\xfe,1\n", b"\xff\xfeb\0", b'bag_id,f\n"x,1\n'], ids=repr
)
def test_a_file_that_is_not_csv_in_utf8_is_refused(table, content):
    with pytest.raises(StorageError, match=r"bags\.csv is not a CSV file in UTF-8"):
        read_tidy(table(content))


def test_a_file_that_is_not_there_is_named(tmp_path):
    for kind in KINDS:
        with pytest.raises(StorageError, match=rf"no\.{kind} cannot be read: No such file"):
            read_tidy(tmp_path / f"no.{kind}")


def test_a_row_may_be_long(folder):
    bags = many([2, 1], ids=["x" * 2_000_000, "y"])
    write_tidy(bags, folder / "long.csv")
    assert_same(read_tidy(folder / "long.csv"), bags)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_truncated_parquet_file_is_refused(folder, data):
    write_tidy(many([2, 1], labels=["a", "b"]), folder / "whole.parquet")
    whole = (folder / "whole.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(StorageError, match=r"cut\.parquet is not a Parquet file, or is damaged"):
        read_tidy(folder / "cut.parquet")


pieces = st.sampled_from(
    ["bag_id", "f", "label", ",", ",", "\n", "\n", "\r", '"', "|", "a", "b", "1", "2.5", "nan", " ", "\0"]
)


@given(
    text=st.one_of(st.lists(pieces, max_size=40).map("".join), st.text(max_size=60)),
    header=st.sampled_from(
        ["", "bag_id,f\n", "bag_id,label,candidates,f\n", "slide_id,x,y,instance_label,f\n"]
    ),
)
@settings(deadline=None, max_examples=250)
def test_arbitrary_text_is_bags_or_a_clear_error(folder, text, header):
    path = folder / "any.csv"
    path.write_bytes((header + text).encode("utf-8", "surrogatepass"))
    bags, complaint = attempt(read_tidy, path)
    assert "any.csv" in complaint or len(bags)


@given(content=st.binary(max_size=80), kind=st.sampled_from(KINDS))
@settings(deadline=None, max_examples=100)
def test_arbitrary_bytes_are_bags_or_a_clear_error(folder, content, kind):
    path = folder / f"bytes.{kind}"
    path.write_bytes(content)
    bags, complaint = attempt(read_tidy, path)
    assert f"bytes.{kind}" in complaint or len(bags)


number = st.floats(width=32, allow_nan=False, allow_infinity=False)
word = (
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=4)
    .map(str.strip)
    .filter(bool)
)


@given(
    rows=st.lists(st.tuples(word, number, number), min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
)
@settings(deadline=None, max_examples=150)
def test_what_a_csv_writer_writes_is_read_as_a_loop_reads_it(folder, rows, end):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=end)
    writer.writerows([["bag_id", "one", "two"], *((bag, repr(a), repr(b)) for bag, a, b in rows)])
    path = folder / "written.csv"
    path.write_bytes(buffer.getvalue().encode())
    bags = read_tidy(path)
    assert bags.ids.tolist() == list(dict.fromkeys(bag for bag, _, _ in rows))
    for bag in bags:
        assert bag.instances.tolist() == [[a, b] for name, a, b in rows if name == bag.id]


def test_rows_without_bag_ids_are_bags_of_one_instance(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,candidates,label\n1,2,x|y,x\n3,4,y,y\n5,6,x,x\n", encoding="utf-8")
    bags = read_tidy(path)
    assert bags.sizes.tolist() == [1, 1, 1]
    assert bags.ids.tolist() == ["1", "2", "3"]
    assert bags.instances.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert bags.candidates.tolist() == [[True, True], [False, True], [True, False]]
    assert bags.feature_names == ("a", "b")


def test_a_misspelt_bag_id_is_not_taken_for_bags_of_one_instance(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("bagid,b,candidates\n1,2,x|y\n1,4,y\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no column 'bag_id'.*Rename 'bagid'"):
        read_tidy(path)
