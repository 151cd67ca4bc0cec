"""Tables as Markdown, LaTeX and CSV."""

import csv

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
