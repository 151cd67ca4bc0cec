"""Plausible input is read as intended, causes a warning, or is refused: never silently misread."""

import csv
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from command import run

from mipl.data.formats.tidy import read_tidy, write_tidy

NAMES = ("ash", "cedar", "elm")
QUICK = ("--set", "epochs=2", "--set", "ensemble=1")
COLUMNS = ("bag_id", "candidates", "label", "area", "hue", "texture")


def rows(seed=0, bags=18):
    """Draw a table of bags of three instances as dictionaries."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(bags):
        truth, other = NAMES[i % 3], NAMES[(i + 1) % 3]
        for _ in range(3):
            values = rng.normal(size=3) + (i % 3) * np.array([1.0, -1.0, 0.5])
            numbers = {name: f"{v:.5f}" for name, v in zip(COLUMNS[3:], values, strict=True)}
            made.append({"bag_id": f"b{i}", "candidates": f"{truth}|{other}", "label": truth, **numbers})
    return made


def write(path, table, columns=COLUMNS, delimiter=",", header=None):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(header or columns)
        writer.writerows([row[name] for name in columns] for row in table)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a table of bags, a model of it, and its predictions."""
    folder = tmp_path_factory.mktemp("input")
    write(folder / "ok.csv", rows())
    from mipl.cli import main

    assert main(["fit", f"{folder}/ok.csv", "--out", f"{folder}/m", *QUICK]) == 0
    assert main(["predict", f"{folder}/m", f"{folder}/ok.csv", "--out", f"{folder}/p.csv"]) == 0
    return folder


def refused(capsys, *words):
    code, _, err = run(capsys, *words)
    assert code == 2, err
    sentence = err.strip().splitlines()[-1]
    assert sentence.startswith("mipl: ")
    return sentence


def test_another_order_of_columns_gives_the_same_predictions(place, tmp_path, capsys):
    moved = write(tmp_path / "moved.csv", rows(), ("bag_id", "texture", "area", "label", "candidates", "hue"))
    code, _, err = run(capsys, "predict", place / "m", moved, "--out", tmp_path / "p.csv")
    assert code == 0, err
    assert (tmp_path / "p.csv").read_bytes() == (place / "p.csv").read_bytes()
    for name in ("b.npz", "b.mat", "b.parquet"):
        assert run(capsys, "data", "convert", moved, "--out", tmp_path / name)[0] == 0
        assert run(capsys, "predict", place / "m", tmp_path / name, "--out", tmp_path / "p.csv")[0] == 0
        assert (tmp_path / "p.csv").read_bytes() == (place / "p.csv").read_bytes()


def test_unknown_feature_names_are_refused(place, tmp_path, capsys):
    renamed = write(tmp_path / "other.csv", rows(), header=[*COLUMNS[:5], "gloss"])
    said = refused(capsys, "predict", place / "m", renamed, "--out", tmp_path / "p.csv")
    assert "lacks texture and also has gloss" in said
    more = [{**row, "year": "1990"} for row in rows()]
    wide = write(tmp_path / "more.csv", more, (*COLUMNS, "year"))
    assert "also has year" in refused(capsys, "predict", place / "m", wide, "--out", tmp_path / "p.csv")
    words = ("predict", place / "m", wide, "--out", tmp_path / "p.csv", "--ignore", "year")
    assert run(capsys, *words)[0] == 0
    assert (tmp_path / "p.csv").read_bytes() == (place / "p.csv").read_bytes()


def test_features_are_listed_and_a_year_causes_a_warning(tmp_path, capsys):
    more = [{**row, "year": "1990"} for row in rows()]
    table = write(tmp_path / "year.csv", more, (*COLUMNS, "year"))
    code, out, err = run(capsys, "fit", table, "--out", tmp_path / "m", *QUICK)
    assert code == 0
    assert "features: 4 columns, area, hue, texture, year" in out
    assert "named like metadata: year" in err
    assert "--ignore" in err
    code, out, err = run(capsys, "data", "info", table, "--ignore", "Year")
    assert "features: 3 columns, area, hue, texture" in out
    assert "year" not in err
    assert "no column 'yaer' to ignore" in refused(capsys, "data", "info", table, "--ignore", "yaer")
    write_tidy(read_tidy(table), tmp_path / "again.csv")
    assert read_tidy(tmp_path / "again.csv").feature_names == ("area", "hue", "texture", "year")


@pytest.mark.parametrize(("delimiter", "name"), [(";", "b.csv"), ("\t", "b.csv"), (";", "b.tsv")])
def test_separators_and_the_case_of_headers_do_not_matter(place, tmp_path, capsys, delimiter, name):
    header = ["SLIDE_ID", "Candidates", "LABEL", *COLUMNS[3:]]
    table = write(tmp_path / name, rows(), delimiter=delimiter, header=header)
    code, _, err = run(capsys, "predict", place / "m", table, "--out", tmp_path / "p.csv")
    assert (code, err) == (0, "")
    assert (tmp_path / "p.csv").read_bytes() == (place / "p.csv").read_bytes()


def test_a_misspelled_header_gets_a_suggestion(tmp_path, capsys):
    table = write(tmp_path / "near.csv", rows(), header=["bag_id", "candidate", *COLUMNS[2:]])
    assert "is the column meant to be 'candidates'?" in refused(capsys, "fit", table, "--out", tmp_path / "m")
    table = write(tmp_path / "id.csv", rows(), header=["bagid", *COLUMNS[1:]])
    assert "Rename 'bagid'?" in refused(capsys, "fit", table, "--out", tmp_path / "m")
    labels = tmp_path / "labels.csv"
    labels.write_text("bag_id,candidate\nb0,ash|elm\n")
    good = write(tmp_path / "ok.csv", rows())
    said = refused(capsys, "fit", good, "--labels", labels, "--out", tmp_path / "m")
    assert "did you mean 'candidates'?" in said
    labels.write_text("bag_id,candidates,patient_id\n" + "".join(f"b{i},ash|elm,p\n" for i in range(18)))
    bare = write(tmp_path / "bare.csv", rows(), ["bag_id", "hue"])
    _, _, err = run(capsys, "data", "info", bare, "--labels", labels)
    assert "column 'patient_id', which is not read: did you mean 'patient'?" in err
    comma = [{**row, "area": row["area"].replace(".", ",")} for row in rows()]
    table = write(tmp_path / "comma.csv", comma, delimiter=";")
    assert "decimals with a point" in refused(capsys, "fit", table, "--out", tmp_path / "m")


def test_suspicious_classes_cause_a_warning(tmp_path, capsys):
    odd = rows()
    for row, text in zip(odd[:6], ["ash,cedar"] * 3 + ["ASH|elm"] * 3, strict=True):
        row["candidates"] = text
    table = write(tmp_path / "odd.csv", odd, [name for name in COLUMNS if name != "label"])
    _, _, err = run(capsys, "data", "info", table)
    assert "'ASH', 'ash' differ only in case or blanks" in err
    assert "'ash,cedar' counts as one class" in err


def test_options_that_a_file_would_ignore_are_refused(place, tmp_path, capsys):
    for words in (("-r", "2"), ("--raw", tmp_path), ("--data-seed", "3")):
        said = refused(capsys, "fit", place / "ok.csv", "--out", tmp_path / "m", *words)
        assert f"{words[0]} {words[1]} is for a data set by name" in said
    said = refused(capsys, "fit", "digits-mipl", "--ignore", "a", "--out", tmp_path / "m")
    assert "--ignore is for a table" in said


def test_predictions_are_refused_as_labels_and_data(place, tmp_path, capsys):
    old = tmp_path / "old.csv"
    old.write_text((place / "p.csv").read_text().replace("predicted", "label", 1))
    for file in (place / "p.csv", old):
        assert run(capsys, "evaluate", file, place / "ok.csv")[0] == 0
        for words in ((place / "ok.csv", "--labels", file), (file,)):
            assert "has predictions of a model" in refused(capsys, "evaluate", file, *words)


def test_true_labels_outside_the_candidates_can_be_allowed(tmp_path, capsys):
    wrong = rows()
    for row in wrong[:3]:
        row["label"] = "elm"
    table = write(tmp_path / "wrong.csv", wrong)
    assert "--missing-truth" in refused(capsys, "fit", table, "--out", tmp_path / "m")
    assert run(capsys, "fit", table, "--missing-truth", "--out", tmp_path / "m", *QUICK)[0] == 0
    bare = write(tmp_path / "bare.csv", rows(), ["bag_id", *COLUMNS[3:]])
    assert "--labels FILE" in refused(capsys, "fit", bare, "--out", tmp_path / "m2")


def test_votes_copy_patients_and_true_labels_and_ignore_comments(tmp_path, capsys):
    votes, out = tmp_path / "votes.csv", tmp_path / "labels.csv"
    lines = [f"b{i},p{i // 2},{NAMES[i % 3]},ash,{NAMES[i % 3]},looks odd" for i in range(18)]
    votes.write_text("bag_id,case_id,label,ann,bob,comment\n" + "\n".join(lines) + "\n")
    code, said, err = run(capsys, "data", "votes", votes, "--out", out, "--min-votes", "1")
    assert code == 0
    assert "comment are not read as annotators" in err
    with out.open() as file:
        written = list(csv.DictReader(file))
    assert [row["group"] for row in written] == [f"p{i // 2}" for i in range(18)]
    assert [row["label"] for row in written] == [NAMES[i % 3] for i in range(18)]
    assert {name for row in written for name in row["candidates"].split("|")} == set(NAMES)
    bare = write(tmp_path / "bare.csv", rows(), ["bag_id", *COLUMNS[3:]])
    assert run(capsys, "data", "convert", bare, "--labels", out, "--out", tmp_path / "b.npz")[0] == 0
    strange = votes.read_text().replace("b0,p0,ash,ash,ash", "b0,p0,oak,ash,ash")
    votes.write_text(strange)
    _, said, _ = run(capsys, "data", "votes", votes, "--out", out)
    assert "--missing-truth" in said
    words = ("data", "convert", bare, "--labels", out, "--out", tmp_path / "b.npz")
    assert "--missing-truth" in refused(capsys, *words)
    assert run(capsys, *words, "--missing-truth")[0] == 0
    votes.write_text("bag_id,annotator,label\nb0,ann,ash\nb1,ann,elm\nb0,ann,cedar\n")
    said = refused(capsys, "data", "votes", votes, "--out", out)
    assert "row 4 is a second vote of 'ann' on bag 'b0'" in said


def test_lists_of_ids_stop_after_five_and_an_old_workbook_has_a_sentence(place, tmp_path, capsys):
    np.save(tmp_path / "b0.npy", np.zeros((2, 3), dtype=np.float32))
    labels = tmp_path / "labels.csv"
    labels.write_text("slide_id,candidates\nb0,a|b\n" + "".join(f"c{i},a|b\n" for i in range(680)))
    said = refused(capsys, "fit", tmp_path, "--labels", labels, "--out", tmp_path / "m")
    assert "680 slides" in said
    assert "c4, …" in said
    assert "c5" not in said
    old = tmp_path / "labels.xls"
    old.write_bytes(b"\xd0\xcf\x11\xe0")
    said = refused(capsys, "fit", place / "ok.csv", "--labels", old, "--out", tmp_path / "m")
    assert "Excel before 2007" in said
    assert "save the sheet of bags as .csv" in refused(capsys, "fit", old, "--out", tmp_path / "m")


def test_a_bad_table_ends_in_its_sentence_and_not_in_an_abort(tmp_path):
    bad = rows()
    bad[4]["texture"] = "nan"
    table = write(tmp_path / "nan.csv", bad)
    words = [sys.executable, "-m", "mipl.cli", "fit", str(table), "--out", str(tmp_path / "m")]
    for _ in range(4):  # a thread of Arrow outlived the interpreter in about half of the runs
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_names_of_features_do_not_change_the_identity_of_bags(place):
    bags = read_tidy(place / "ok.csv")
    assert bags.feature_names == COLUMNS[3:]
    plain = dataclasses.replace(bags, feature_names=None)
    assert (plain.digest(), plain.content_digest()) == (bags.digest(), bags.content_digest())
