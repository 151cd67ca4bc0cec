"""A table as data, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell: a first line, perhaps bold, and a smaller one below it."""

    text: str
    bold: bool = False
    below: str = ""


@dataclass(frozen=True)
class Table:
    """Rows below a header; a row with a single cell is a heading across the table."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    values: Sequence[Mapping[str, Any]] = field(default=())  # the numbers, for CSV

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON-ready values."""
        return {
            "caption": self.caption,
            "header": list(self.header),
            "rows": [[cell._asdict() for cell in row] for row in self.rows],
        }


def number(mean: float, std: float | None = None, digits: int = 2) -> str:
    """Return a mean with its standard deviation, if any."""
    return f"{mean:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}")


def markdown(table: Table) -> str:
    """Return the table in Markdown."""

    def shown(cell: Cell) -> str:
        first = f"**{_escape(cell.text)}**" if cell.bold and cell.text else _escape(cell.text)
        return f"{first}<br><sub>{_escape(cell.below)}</sub>" if cell.below else first

    lines = [f"**{table.caption}**", "", "| " + " | ".join(map(_escape, table.header)) + " |"]
    lines.append("|---" * len(table.header) + "|")
    for row in table.rows:
        cells = [shown(cell) for cell in row] + [""] * (len(table.header) - len(row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def latex(table: Table, label: str) -> str:
    """Return the table as a LaTeX float that needs no packages."""

    def shown(cell: Cell) -> str:
        first = rf"\textbf{{{_tex(cell.text)}}}" if cell.bold and cell.text else _tex(cell.text)
        if not cell.below:
            return first
        return rf"\begin{{tabular}}{{@{{}}c@{{}}}}{first}\\{{\scriptsize {_tex(cell.below)}}}\end{{tabular}}"

    width = len(table.header)
    lines = [r"\begin{table*}[t]", r"\centering\footnotesize", rf"\caption{{{_tex(table.caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", rf"\begin{{tabular}}{{l{'c' * (width - 1)}}}", r"\hline"]
    lines += [" & ".join(map(_tex, table.header)) + r" \\", r"\hline"]
    for row in table.rows:
        if len(row) == 1:
            lines += [r"\hline", rf"\multicolumn{{{width}}}{{c}}{{{shown(row[0])}}} \\", r"\hline"]
        else:
            lines.append(" & ".join(shown(cell) for cell in row) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table*}", ""])


def as_csv(table: Table) -> str:
    """Return the values of the table as CSV, or its text if it has none."""
    text = io.StringIO()
    if table.values:
        names = list(dict.fromkeys(name for row in table.values for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values)
        return text.getvalue()
    plain = csv.writer(text, lineterminator="\n")
    plain.writerow(table.header)
    plain.writerows([cell.text for cell in row] for row in table.rows if len(row) > 1)
    return text.getvalue()


def _escape(text: str) -> str:
    """Return text escaped for a table in Markdown."""
    return text.replace("|", r"\|").replace("\n", " ").replace("*", r"\*").replace("<", "&lt;")


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$",
    "Δ": r"$\Delta$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "†": r"$^\dagger$", "‡": r"$^\ddagger$",
    "×": r"$\times$", "γ": r"$\gamma$", "χ": r"$\chi$", "²": "$^2$", "–": "--", "≥": r"$\geq$",
    "≤": r"$\leq$", "<": "$<$", ">": "$>$", "’": "'", "…": r"\ldots{}",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)
