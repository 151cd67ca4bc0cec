"""Read the cells of a table (CSV, TSV, XLSX, Parquet) as text."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mipl.errors import StorageError

SEPARATOR = "|"  # between the names in one field
Fields = tuple[list[str], dict[int, list[str]]]  # the header, and the fields by row number


DELIMITERS = (",", ";", "\t")


def text_header(path: Path) -> tuple[str, list[str]]:
    """Return the delimiter and the header of a text table; the delimiter gives more than one column."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    headers = {delimiter: _first_row(path, delimiter) for delimiter in DELIMITERS}
    if len(headers[usual] or ()) < 2:
        best = max(DELIMITERS, key=lambda delimiter: len(headers[delimiter] or ()))
        usual = best if len(headers[best] or ()) > 1 else usual
    return usual, headers[usual] or []


def _first_row(path: Path, delimiter: str) -> list[str] | None:
    """Return the first row, or None if it cannot be parsed with this delimiter."""
    with _opened_text(path) as text:
        try:
            return next(csv.reader(text, strict=True, delimiter=delimiter), [])
        except csv.Error:
            return None


def _read_csv(path: Path) -> Fields:
    delimiter, header = text_header(path)
    with _opened_text(path) as text:
        reader = csv.reader(text, strict=True, delimiter=delimiter)
        next(reader, [])
        return header, {number: row for number, row in enumerate(reader, start=2) if row}


@contextlib.contextmanager
def _opened_text(path: Path) -> Iterator[io.TextIOWrapper]:
    kind = "TSV" if path.suffix.lower() == ".tsv" else "CSV"
    with opened(path, f"a {kind} file in UTF-8") as file:
        yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def _read_xlsx(path: Path) -> Fields:
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise StorageError(f"Reading {path} needs openpyxl: pip install 'mipl[xlsx]'.") from error
    with opened(path, "an Excel workbook") as file:
        sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
        sheet.reset_dimensions()  # some programs write wrong dimensions, and rows would be missing
        grid = [[as_text(value) for value in row] for row in sheet.iter_rows(values_only=True)]
    header = grid[0] if grid else []
    while header and not header[-1].strip():
        header.pop()
    for row in grid[1:]:
        while len(row) > len(header) and not row[-1].strip():
            row.pop()
        row += [""] * (len(header) - len(row))
    return header, {number: row for number, row in enumerate(grid[1:], start=2) if "".join(row).strip()}


def _read_parquet(path: Path) -> Fields:
    table = parquet_table(path)
    columns = [[as_text(value) for value in column.to_pylist()] for column in table.columns]
    return table.column_names, dict(enumerate(map(list, zip(*columns, strict=True)), start=1))


READERS: dict[str, Callable[[Path], Fields]] = {".xlsx": _read_xlsx, ".parquet": _read_parquet}


def read_cells(path: Path) -> Fields:
    """Read a table as text by its suffix; the default is CSV."""
    if path.suffix.lower() == ".xls":
        raise StorageError(f"{path} is in the format of Excel before 2007: save it as .xlsx or .csv.")
    return READERS.get(path.suffix.lower(), _read_csv)(path)


def parquet_table(path: Path) -> Any:
    """Read a Parquet file as a `pyarrow.Table`, without the unnamed index that pandas may have added."""
    from pyarrow import string, types
    from pyarrow.parquet import ParquetFile

    # a path, not a file object: a thread of Arrow with a Python object may outlive the interpreter
    with opened(path, "a Parquet file"):
        table = ParquetFile(str(path)).read()
        table.validate(full=True)  # text that is not UTF-8 would fail later
        for i, field in enumerate(table.schema):
            if types.is_temporal(field.type):  # Python cannot represent some times
                table = table.set_column(i, field.name, table.column(i).cast(string()))
        names = enumerate(table.column_names)
        return table.select([i for i, name in names if not name.startswith("__index_level_")])


@contextlib.contextmanager
def opened(path: Path, what: str) -> Iterator[Any]:
    """Open a file for reading; any error while it is read becomes a `StorageError`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    with file:
        try:
            yield file
        except Exception as error:  # a reader may raise anything on a damaged file
            detail = " ".join(str(error).split())[:200].rstrip(".")
            raise StorageError(f"{path} is not {what}, or is damaged: {detail}.") from error


def as_text(value: Any) -> str:
    """Return a cell as the text of a CSV file: 3.0 as 3, true as 1, a missing value as an empty field."""
    if value is None or value != value:
        return ""
    if isinstance(value, list):
        return SEPARATOR.join(as_text(entry) for entry in value)
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value) if whole else value)
