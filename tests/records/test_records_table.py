"""Records as one table."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest
from test_store import SPEC, put

from mipl.cli import main
from mipl.errors import MiplNotice, StorageError
from mipl.records import load_table
from mipl.records.store import Store


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "runs")
    for changes in ({}, {"split": 2}, {"r": 2}, {"method": "mine", "recipe": "paper", "r": None}):
        put(store, dataclasses.replace(SPEC, **changes), accuracy=0.5)
    damaged = dataclasses.replace(SPEC, split=9)
    put(store, damaged)
    (store.root / damaged.hash / "record.json").write_text("{")
    return store.root


@pytest.mark.parametrize(
    ("old", "new"),
    [('"fit": 1.0', '"fit": "1.0"'), ('"accuracy": 0.5', '"accuracy": [1]'), ("}\n}", '},"flops": "x"}')],
)
def test_one_record_of_another_type_stops_no_other(old, new, folder):
    """Of those written before there were checksums; a changed byte can make a text of a number."""
    place = folder / SPEC.hash
    (place / "checksums.json").unlink()
    text = (place / "record.json").read_text()
    assert old in text
    (place / "record.json").write_text(text.replace(old, new))
    with pytest.warns(MiplNotice, match=SPEC.hash):
        assert load_table(folder).num_rows == 3


def test_a_row_for_every_sound_record(folder):
    with pytest.warns(MiplNotice, match=r"record.json is damaged.*The record is skipped: delete its folder"):
        frame = load_table(folder).to_pandas()
    assert len(frame) == 4
    assert set(frame["method"]) == {"sam-cn", "mine"}
    assert frame.groupby("method")["accuracy"].mean()["sam-cn"] == 0.5
    assert frame["r"].isna().sum() == 1
    assert set(frame["hash"]) == {record.info["hash"] for record in Store(folder)}
    assert json.loads(frame["given"][0]) == {}
    assert frame["fit_seconds"].eq(1).all()


def test_what_was_split_and_by_which_version(tmp_path):
    store = Store(tmp_path)
    put(store, SPEC)
    put(store, dataclasses.replace(SPEC, split_digest="s", recipe_version=2))
    table = load_table(store)
    assert sorted(
        zip(*(table[name].to_pylist() for name in ("split_digest", "recipe_version")), strict=True)
    ) == [
        ("", 1),
        ("s", 2),
    ]


def test_no_record_is_a_table_without_rows(tmp_path):
    assert load_table(tmp_path).num_rows == 0
    with pytest.raises(StorageError, match="not a folder"):
        load_table(tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 4),
        (["-r", "1"], 2),
        (["--recipe", "paper"], 1),
        (["--methods", "mine, sam-cn", "-r", "2"], 1),
        (["--dataset", "other"], 0),
    ],
)
def test_the_command_line_filters_and_writes(folder, tmp_path, words, count, capsys):
    assert main(["results", str(folder), *words, "--out", str(tmp_path / "t.parquet"), "--json"]) == 0
    assert pq.read_table(tmp_path / "t.parquet").num_rows == count
    out, err = capsys.readouterr()
    assert sum(row["runs"] for row in json.loads(out)) == count
    assert err.startswith("mipl: note: ")
    assert "The record is skipped" in err


def test_a_file_of_another_kind_is_refused(folder, tmp_path, capsys):
    assert main(["results", str(folder), "--out", str(tmp_path / "t.xls")]) == 2
    assert "does not end in .parquet or .csv" in capsys.readouterr().err
    assert main(["results", str(folder), "--out", str(tmp_path / "t.csv")]) == 0
    assert (tmp_path / "t.csv").read_text().startswith('"hash","dataset","r"')
