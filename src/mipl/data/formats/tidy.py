"""Bags in one table (CSV, TSV or Parquet) with one row per instance and one column per feature."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.annotations import refuse_votes
from mipl.data.bags import Bags
from mipl.data.candidates import Classes, IntArray, candidate_matrix, label_array
from mipl.data.formats.cells import as_text, parquet_table, text_header
from mipl.data.formats.header import (
    GROUPS,
    SHOWN,
    TEXT,
    check_classes,
    check_features,
    check_not_predictions,
    near_miss,
    needed_column,
    one_column,
    plain_header,
    without,
)
from mipl.data.formats.table import complete, label_fields, read_rows, split_names, weight_matrix
from mipl.errors import DataError, MiplError, StorageError, listed
from mipl.files import atomic_file

Array = NDArray[Any]
IDS = ("bag_id", "slide_id")
COORDINATES = ("x", "y")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
BLOCK = 1 << 24  # bytes that are parsed at once, and the maximum length of a row
LARGEST = float(np.finfo(np.float32).max)


def read_tidy(path: Path, *, ignore: Iterable[str] = (), missing_truth: bool = False) -> Bags:
    """Read bags of vectors from a table with one row per instance; the rows of a bag need not be adjacent.

    A table with ``candidates`` and without bag ids is partial-label data: each row is a bag of one instance.

    Columns: ``bag_id`` or ``slide_id``; optional columns of the bag, with the same value in each of its rows,
    are ``candidates`` (names separated by ``|``), ``weights`` (numbers in their order), ``label``, and the
    patient as ``group``, ``case_id``, ``patient`` or ``PATIENT``; optional columns of the instance are
    ``instance_label`` (empty: none of the classes) and the coordinates ``x`` and ``y``. Every other column
    with a name is a feature, listed in :attr:`Bags.feature_names`. The delimiter may be a comma, a semicolon
    or a tab; the case of known columns does not matter. Features are float32, or float64 if one of them is
    float64 in Parquet. Classes are the sorted names in the table, or 0 … k−1 if they are these numbers.

    Args:
        path: the table.
        ignore: columns that are not features.
        missing_truth: allow true labels outside their candidate sets.

    Raises:
        DataError: a column or field is wrong; the message names the row.
        StorageError: the file cannot be read.
    """
    columns = _columns(path, tuple(ignore))
    features = _feature_columns(path, columns)
    rows = _Rows.of(path, columns)
    labels = rows.per_bag("label")
    groups = rows.per_bag(one_column(path, list(columns), GROUPS))
    texts, weight_texts = rows.per_bag("candidates"), rows.per_bag("weights")
    if weight_texts is not None and texts is None:
        raise DataError(f"{path} has weights without the column 'candidates' whose order they follow.")
    sets = None if texts is None else [split_names(text) for text in texts]
    code, values = _encode(columns["instance_label"]) if "instance_label" in columns else (None, [])
    classes = _classes({name for names in sets or () for name in names} | {*(labels or ()), *values} - {""})
    check_classes(path, classes)
    names = tuple(str(name) for name in classes)
    source = _matrix(path, columns, features, rows.order)
    coordinates = _matrix(path, columns, COORDINATES, rows.order) if _has_coordinates(columns) else None
    where = [f"{path}: Bag '{bag}'" for bag in rows.ids]
    weights = None if weight_texts is None else weight_matrix(weight_texts, sets or [], names, where)
    try:
        return Bags(
            source=source,
            starts=np.cumsum(rows.sizes) - rows.sizes,
            sizes=rows.sizes,
            classes=classes,
            ids=np.array(rows.ids, dtype=np.str_),
            candidates=None if sets is None else candidate_matrix(sets, names, rows.ids),
            labels=None if labels is None else label_array(labels, names, rows.ids),
            instance_labels=None if code is None else _class_indices(values, names)[code][rows.order],
            coordinates=coordinates,
            groups=None if groups is None else np.array(groups, dtype=np.str_),
            weights=weights,
            missing_truth=missing_truth,
            feature_names=tuple(features),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _is_partial_label(header: Sequence[str]) -> bool:
    """Return whether a table has candidates, but neither bag ids nor a column that may be a misspelt one."""
    return "candidates" in header and not any(name in IDS or near_miss(name, IDS) for name in header)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """The bag of each row of a table."""

    path: Path
    columns: dict[str, Any]
    ids: list[str]  # m, in order of appearance
    bag: IntArray  # (rows,) index into ids
    sizes: IntArray  # (m,)
    order: IntArray  # (rows,) rows sorted by bag
    first: IntArray  # (m,) first row of each bag

    @classmethod
    def of(cls, path: Path, columns: dict[str, Any]) -> _Rows:
        """Group the rows by the column of bag ids; without one, every row is a bag."""
        header = list(columns)
        if _is_partial_label(header):
            return cls._single(path, columns)
        bag, ids = _encode(columns[needed_column(path, header, IDS)])
        if not ids:
            raise DataError(f"{path} has no rows: there is no bag.")
        if "" in ids:
            i = int(np.flatnonzero(bag == ids.index(""))[0])
            raise DataError(f"{path}, row {_row(path, i)} has no bag id: fill it in.")
        sizes = np.bincount(bag)
        order = np.argsort(bag, kind="stable")
        return cls(path, columns, ids, bag, sizes, order, order[np.cumsum(sizes) - sizes])

    @classmethod
    def _single(cls, path: Path, columns: dict[str, Any]) -> _Rows:
        """Return bags of one instance, whose ids are the numbers of the rows of data, from 1."""
        count = len(columns["candidates"])
        if not count:
            raise DataError(f"{path} has no rows: there is no bag.")
        place, ids = np.arange(count), [str(number) for number in range(1, count + 1)]
        return cls(path, columns, ids, place, np.ones(count, dtype=np.int64), place, place)

    def per_bag(self, name: str | None) -> tuple[str, ...] | None:
        """Return the value of a column for each bag, or None; different values in one bag are an error."""
        if name not in self.columns:
            return None
        code, values = _encode(self.columns[name])
        expected = code[self.first][self.bag]
        changed = np.flatnonzero(code != expected)
        if len(changed):
            i = int(changed[0])
            raise DataError(
                f"{self.path}, row {_row(self.path, i)} gives bag '{self.ids[self.bag[i]]}' the {name} "
                f"'{values[code[i]]}', but an earlier row '{values[expected[i]]}': give the same value in "
                "every row of a bag."
            )
        return complete(self.path, str(name), [values[c] for c in code[self.first]], self.ids)


def _has_coordinates(columns: Iterable[str]) -> bool:
    return set(COORDINATES) <= set(columns)


def _feature_columns(path: Path, columns: dict[str, Any]) -> list[str]:
    known = {*TEXT, *(COORDINATES if _has_coordinates(columns) else ()), ""}
    features = [name for name in columns if name not in known]
    if not features:
        raise DataError(f"{path} has no feature columns: its header is {listed(columns, SHOWN)}.")
    check_features(path, features)
    return features


def _class_indices(values: Sequence[str], names: Sequence[str]) -> IntArray:
    """Return the index of each value in ``names``, −1 for an empty one."""
    index = {name: j for j, name in enumerate(names)}
    return np.array([index.get(value, -1) for value in values])


def write_tidy(bags: Bags, path: Path) -> None:
    """Write ``bags`` of vectors as .csv, .tsv or .parquet for :func:`read_tidy`.

    A table loses the provenance, the order of the classes, classes that no bag has and, as text, the
    difference between float64 and float32. An .npz file preserves everything.
    """
    refuse_votes(bags, path)
    import pyarrow

    suffix = _suffix(path)
    _check_writable(bags)
    fields = label_fields(
        bags.ids.tolist(), bags.candidates, bags.classes, bags.labels, bags.groups, bags.weights
    )
    columns = {name: np.repeat(np.array(texts, dtype=object), bags.sizes) for name, texts in fields.items()}
    if bags.instance_labels is not None:
        names = np.array([*map(str, bags.classes), ""], dtype=object)  # index −1 is the last one
        columns["instance_label"] = names[bags.instance_labels[bags.rows()]]
    if bags.coordinates is not None:
        columns |= dict(zip(COORDINATES, bags.coordinates[bags.rows()].T, strict=True))
    features = bags.instances
    if features.dtype == np.float16:  # not supported by every reader of Parquet
        features = features.astype(np.float32)
    named = bags.feature_names or [f"f{j}" for j in range(features.shape[1])]
    columns |= dict(zip(named, features.T, strict=True))
    table = pyarrow.table({name: pyarrow.array(np.ascontiguousarray(c)) for name, c in columns.items()})
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        if suffix == ".parquet":
            from pyarrow.parquet import write_table

            write_table(table, file)
        else:
            from pyarrow.csv import WriteOptions, write_csv

            write_csv(table, file, WriteOptions(delimiter=DELIMITERS[suffix]))


def _check_writable(bags: Bags) -> None:
    if len(bags.feature_shape) != 1 or bags.source.dtype == np.uint8:
        raise DataError(
            f"The instances are images ({bags.source.dtype}, shape {bags.feature_shape}): "
            "a table is for vectors of floats; write an .npz file."
        )
    if not len(bags):
        raise DataError("There is no bag to write.")
    if bags.missing_truth:
        raise DataError(
            "A table cannot store that true labels may be outside their candidate sets: write an .npz file."
        )
    for name in bags.feature_names or ():
        if name in (*TEXT, *COORDINATES, "") or name != name.strip():
            raise DataError(f"A table cannot have a feature with the name '{name}': write an .npz file.")
    if bags.coordinates is not None and bags.coordinates.shape[1] != len(COORDINATES):
        raise DataError(
            f"The coordinates have {bags.coordinates.shape[1]} columns, but a table has x and y: "
            "write an .npz file."
        )


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*DELIMITERS, ".parquet"):
        raise StorageError(f"{path} should end in .csv, .tsv or .parquet.")
    return suffix


def _columns(path: Path, ignore: Sequence[str]) -> dict[str, Any]:
    """Read the columns of a table by name, each a `pyarrow.ChunkedArray`."""
    table = parquet_table(path) if _suffix(path) == ".parquet" else _text_table(path, ignore)
    header = plain_header(path, table.column_names)
    columns = dict(zip(header, table.columns, strict=True))
    return {name: columns[name] for name in _kept(path, header, ignore)}


def _kept(path: Path, header: Sequence[str], ignore: Sequence[str]) -> list[str]:
    check_not_predictions(path, header)
    if not _is_partial_label(header):
        needed_column(path, header, IDS)
    return without(path, header, ignore)


def _text_table(path: Path, ignore: Sequence[str]) -> Any:
    """Read a CSV or TSV file as a `pyarrow.Table`: features as float32, coordinates by inference."""
    import pyarrow
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    delimiter, header = text_header(path)
    names = plain_header(path, header)
    kept = _kept(path, names, ignore)
    inferred = {*COORDINATES, ""} if _has_coordinates(kept) else {""}
    kinds = {
        raw: pyarrow.float32() if name in kept and name not in TEXT else pyarrow.string()
        for raw, name in zip(header, names, strict=True)
        if name not in inferred
    }
    try:
        # a path, not a file object: a thread of Arrow with a Python object may outlive the interpreter
        return read_csv(
            str(path),
            ReadOptions(block_size=BLOCK),
            ParseOptions(delimiter=delimiter, newlines_in_values=True),
            ConvertOptions(column_types=kinds, null_values=[""]),
        )
    except (pyarrow.ArrowException, OSError) as error:
        numbers = [name for name in kept if name not in TEXT and name]
        raise _explain(path, numbers, str(error)) from error


def _encode(column: Any) -> tuple[IntArray, list[str]]:
    """Encode a column of text as codes (rows,) and their values, in order of appearance."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pyarrow.types.is_nested(column.type):
        column = pyarrow.chunked_array([[as_text(value) for value in column.to_pylist()]], pyarrow.string())
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    places: dict[str, int] = {}
    merged = [places.setdefault(as_text(v).strip(), len(places)) for v in encoded.dictionary.to_pylist()]
    return np.array(merged, dtype=np.int64)[encoded.indices.to_numpy()], list(places)


def _matrix(path: Path, columns: dict[str, Any], names: Sequence[str], order: IntArray) -> Array:
    """Return columns of numbers as one array (rows, columns) with the rows in the given order."""
    from pyarrow import types

    for name in names:
        kind = columns[name].type
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if columns[name].null_count or not number:
            raise _explain(path, names, f"column '{name}' is of type {kind}")
    if names is COORDINATES:
        dtype = np.result_type(*(columns[name].type.to_pandas_dtype() for name in names))
    else:
        wide = any(types.is_float64(columns[name].type) for name in names)
        dtype = np.dtype(np.float64 if wide else np.float32)
    matrix = np.empty((len(order), len(names)), dtype=dtype)
    for j, name in enumerate(names):
        matrix[:, j] = columns[name].to_numpy()[order]
    if not (matrix.min() >= -LARGEST and matrix.max() <= LARGEST):  # NaN fails too
        raise _explain(path, names, "a number is NaN, infinite or too large")
    return matrix


def _classes(names: set[str]) -> Classes:
    numbers = range(len(names))
    return tuple(numbers) if names == set(map(str, numbers)) else tuple(sorted(names))


def _row(path: Path, index: int) -> int:
    """Return the row number in the file; only errors need it, so the file is read again."""
    numbers = list(read_rows(path)[1])
    return numbers[index] if index < len(numbers) else index + 2


def _explain(path: Path, names: Sequence[str], detail: str) -> MiplError:
    """Return an error that names the first field of these columns without a finite number."""
    for number, row in read_rows(path)[1].items():
        for name in names:
            if not _is_number(row[name]):
                content = f"'{row[name]}'" if row[name] else "nothing"
                hint = "correct it, or leave the column out with --ignore"
                if (near := near_miss(name, TEXT)) is not None:
                    hint = f"is the column meant to be '{near}'? Rename it, or leave it out with --ignore"
                elif _is_number(row[name].replace(",", ".")):
                    hint = "write decimals with a point, not with a comma"
                return DataError(
                    f"{path}, row {number} has {content} in column '{name}', where a finite number is "
                    f"expected: {hint}."
                )
    return StorageError(f"{path} cannot be read as a table of features: {' '.join(detail.split())[:200]}.")


def _is_number(text: str) -> bool:
    try:
        return text.isascii() and "_" not in text and abs(float(text)) <= LARGEST
    except ValueError:
        return False
