"""The header of a table: known columns in any case, misspelt ones, and doubtful ones."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from mipl.errors import DataError, MiplNotice, listed, suggest

GROUPS = ("group", "case_id", "patient", "PATIENT")
TEXT = ("candidates", "label", "weights", "instance_label", "bag_id", "slide_id", *GROUPS)  # read as text
KNOWN = {
    name.lower(): name
    for name in ("FILENAME", "annotator", "rater", "vote", "predicted", "confidence", *reversed(TEXT))
}
# columns of the tables of predictions that mipl writes
PREDICTED = ({"predicted", "confidence"}, {"prediction_set", "decision"})
METADATA = set(
    re.findall(
        r"\w+",
        "age batch birth center centre class comment comments date day fold gender hospital id ids idx index "
        "month note notes number reason remark remarks row scanner sex site split target time timestamp true "
        "truth unnamed year",
    )
)
SHOWN = 20  # column names listed in a message


def plain_header(path: Path, header: Iterable[str]) -> list[str]:
    """Return distinct names without surrounding blanks; known columns are matched in any case."""
    names = [name.strip() for name in header]
    names = [name if name in TEXT else KNOWN.get(name.lower(), name) for name in names]
    if len(set(names)) != len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path} has two columns '{duplicate}' in its header: keep one of them.")
    return names


def one_column(path: Path, header: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column of the header that is in ``names``, or None; two such columns are an error."""
    found = [name for name in names if name in header]
    if len(found) > 1:
        raise DataError(f"{path} has the columns '{found[0]}' and '{found[1]}': keep one of them.")
    return found[0] if found else None


def needed_column(path: Path, header: Sequence[str], names: Sequence[str]) -> str:
    """Return the column of the header that is in ``names``; none is an error."""
    column = one_column(path, header, names)
    if column is None:
        near = next((f" Rename '{name}'?" for name in header if near_miss(name, names)), "")
        shown = listed(header, SHOWN) or "empty"
        raise DataError(f"{path} has no column '{names[0]}': its header is {shown}.{near}")
    return column


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Return the known column that a name probably misspells, or None."""
    options = {option.lower(): option for option in reversed(list(known))}  # patient before PATIENT
    if name.lower() in options:
        return None
    near = difflib.get_close_matches(name.lower(), options, n=1, cutoff=0.8)
    return options[near[0]] if near else None


def without(path: Path, header: Sequence[str], ignore: Iterable[str]) -> list[str]:
    """Return the header without the columns of ``ignore``, all of which it must have."""
    ignored = set()
    for name in ignore:
        found = next((own for own in header if own == name or own.lower() == name.lower()), None)
        if found is None:
            raise DataError(f"{path} has no column '{name}' to ignore.{suggest(name, header)}")
        ignored.add(found)
    return [name for name in header if name not in ignored]


def check_misses(path: Path, header: Sequence[str]) -> None:
    """Raise an error for a misspelt column of candidates, and warn of other misspelt columns."""
    for known in (("candidates",), ("label",), ("weights",), GROUPS):
        name = next((name for name in header if near_miss(name, known)), None)
        if name is None or any(column in header for column in known):
            continue
        text = f"{path} has a column '{name}', which is not read: did you mean '{near_miss(name, known)}'?"
        if known == ("candidates",):
            raise DataError(f"{text} Rename it.")
        warnings.warn(text, MiplNotice, stacklevel=3)


def looks_like_metadata(name: str) -> bool:
    """Whether a word of a column name suggests metadata, such as year in birth_year."""
    return name.lower() in ("x", "y") or bool(METADATA & set(re.split(r"[^a-z]+", name.lower())))


def is_metadata(name: str) -> bool:
    """Whether all words of a column name suggest metadata, without a number as in 'site 1'."""
    words = re.findall(r"[a-z]+|\d+", name.lower())
    return words[:1] == ["unnamed"] or (bool(words) and set(words) <= METADATA)


def check_features(path: Path, features: Iterable[str]) -> None:
    """Warn of features whose names suggest metadata or a misspelt known column."""
    doubtful = [name for name in features if looks_like_metadata(name) or near_miss(name, TEXT)]
    if doubtful:
        warnings.warn(
            f"{path}: read as features, although named like metadata: {listed(doubtful)}. "
            "Leave out a column that is not a measurement with --ignore COLUMN.",
            MiplNotice,
            stacklevel=3,
        )


def check_not_predictions(path: Path, header: Sequence[str]) -> None:
    """Raise an error for predictions or decisions of a model where data or labels are expected."""
    old = "confidence" in header and any(name.startswith("p(") for name in header)
    if old or any(columns <= set(header) for columns in PREDICTED):
        raise DataError(f"{path} has predictions of a model, not labels: give the table of labels.")


def check_classes(path: Path, classes: Iterable[object]) -> None:
    """Warn of classes that are probably one class in two spellings, or several classes in one field."""
    alike: dict[str, list[str]] = {}
    for name in map(str, classes):
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    doubts = [
        f"the classes {listed(map(repr, names))} differ only in case or blanks"
        for names in alike.values()
        if len(names) > 1
    ]
    joined = [name for names in alike.values() for name in names if re.search(r"[,;\t]", name)]
    if joined:
        doubts.append(
            f"{listed(map(repr, joined))} counts as one class; several are separated by '|', as in a|b"
        )
    if doubts:
        warnings.warn(f"{path}: {'; '.join(doubts)}.", MiplNotice, stacklevel=3)
