"""Tables as Markdown, LaTeX and CSV; and what the paper's text says of its own."""

import csv

import pytest

from mipl.reports.claims import CLAIMS, claims_table, gain
from mipl.reports.results import paper_results
from mipl.reports.tables import Cell, Table, as_csv, latex, markdown, number

TABLE = Table(
    "A & B, 100%",
    ["method", "x_1"],
    [[Cell("heading")], [Cell("a|b*"), Cell("1.00±0.50 (2.00↑)", True, "paper 3, Δ −1")]],
    [{"method": "a", "mean": 1.0}, {"method": "b", "std": 2}],
)


def test_markdown_keeps_its_columns():
    lines = markdown(TABLE).splitlines()
    assert lines[2:4] == ["| method | x_1 |", "|---|---|"]
    assert lines[4] == "| heading |  |"
    assert lines[5] == r"| a\|b\* | **1.00±0.50 (2.00↑)**<br><sub>paper 3, Δ −1</sub> |"


def test_latex_is_plain_ascii_with_nothing_left_to_escape():
    text = latex(TABLE, "t")
    assert text.isascii()
    assert r"\caption{A \& B, 100\%}" in text
    assert r"\textbf{1.00$\pm$0.50 (2.00$\uparrow$)}" in text
    assert r"\multicolumn{2}{c}{heading}" in text
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_csv_has_the_values_or_else_the_text():
    rows = list(csv.DictReader(as_csv(TABLE).splitlines()))
    assert rows == [{"method": "a", "mean": "1.0", "std": ""}, {"method": "b", "mean": "", "std": "2"}]
    bare = Table(TABLE.caption, TABLE.header, TABLE.rows)
    assert as_csv(bare).splitlines() == ["method,x_1", "a|b*,1.00±0.50 (2.00↑)"]


def test_numbers():
    assert number(1.234, 0.5) == "1.23±0.50"
    assert number(1.234) == "1.23"


def test_what_the_paper_says_of_its_tables():
    found = {}
    for item in dict.fromkeys(claim.item for claim in CLAIMS):
        for says, printed, again, ours in claims_table(item, dict).rows:
            found[says.text] = (printed.text, again.text)
            assert again.bold == (printed.text != again.text)
            assert ours.text == "–"
    different = {says: pair for says, pair in found.items() if pair[0] != pair[1]}
    assert different == {
        "best of ours above each earlier method": ("67 of 72", "68 of 72"),
        "best of ours above each earlier method, both tables": ("105 of 110", "106 of 110"),
        "mean gain over the baseline, r = 1": ("3.27", "3.21"),
        "gain of DAM-CC on MNIST-MIPL, r = 3": ("14.37", "14.34"),
        "ECE lower by more than 50 points": ("26 of 60", "26 of 72"),
        "smallest reduction of ECE": ("16.76", "16.71"),
        "data sets on which ours have the lowest ECE": ("94.74%", "89.47%"),
    }
    assert found["best of ours below each earlier method, both tables"] == ("93 of 95", "93 of 95")
    assert claims_table("fig2", dict) is None


def test_a_gain_is_over_the_baseline_of_the_same_attention():
    paper = {key: value[0] for key, value in paper_results().items()}
    assert gain(paper, "birdsong-mipl", 1, "dam-cn", "accuracy") == pytest.approx(80.38 - 74.36)
    assert gain(paper, "birdsong-mipl", 1, "dam-cn", "ece") == pytest.approx(57.86 - 7.53)
    assert gain(paper, "birdsong-mipl", 1, "fastmipl", "ece") is None
    assert gain({}, "birdsong-mipl", 1, "dam-cn", "ece") is None
