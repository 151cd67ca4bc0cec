"""Folders of slide features: CLAM, TRIDENT and STAMP layouts, and plain ``.npy``/``.npz`` files.

A slide is a bag, and the name of its file without suffix is the id. Opening a folder reads only the headers
of the files; features are read when a batch needs them.
"""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.annotations import refuse_votes
from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix, label_array
from mipl.data.formats.labels import joined_labels
from mipl.data.formats.origin import (
    UNKNOWN,
    Origin,
    attributes,
    common_features,
    read_origin,
    recorded,
)
from mipl.data.formats.table import LabelTable, read_label_table, write_labels
from mipl.data.lazy import SUFFIXES, FileArray, Part, array_names, open_array
from mipl.data.names import NameIndex
from mipl.data.validation import STORED
from mipl.errors import MOST_LISTED, DataError, MiplNotice, StorageError, counted, have, listed
from mipl.files import atomic_folder

FEATURES = ("features", "feats", "patch_embeddings")  # CLAM and TRIDENT, STAMP, STAMP's older files
COORDINATES = ("coords", "coordinates")
MARKER = "h5_files"


def open_folder(
    folder: Path,
    tables: Path | Sequence[Path] = (),
    *,
    skip_missing: bool = False,
    missing_truth: bool = False,
    by_patient: bool = False,
) -> Bags:
    """Open the slides of a folder as bags that stay on disk.

    Args:
        folder: folder of the feature files, or the folder above CLAM's ``h5_files`` and ``pt_files`` or above
            one ``features_<encoder>`` of TRIDENT.
        tables: tables (CSV, TSV, XLSX) of slides with their candidates, labels and patients, or one; later
            ones win. Without them every file is a bag, for prediction.
        skip_missing: leave out slides of the tables that have no file.
        missing_truth: allow true labels outside their candidate sets.
        by_patient: make one bag of all slides of a patient.

    Raises:
        DataError: files and table do not fit together; the message lists all problems.
        StorageError: a file cannot be read.
    """
    paths = [tables] if isinstance(tables, Path) else list(tables)
    files = feature_files(folder)
    parts, origins, unreadable = _read_files(files)
    sources = {slide: origin.source for slide, origin in origins.items() if origin.source is not None}
    index = NameIndex(files, sources)
    named = {slide: slide for slide in files}  # by file: the name of the slide in the table
    table = ", ".join(map(str, paths))
    known = None
    if paths:
        known = joined_labels(paths, [_in_files(read_label_table(path), index) for path in paths])
        named, unmatched = _match_files(folder, files, table, known.ids, index, skip_missing)
        problems = [text for slide, text in unreadable.items() if slide in named] + unmatched
    else:
        problems = list(unreadable.values())
    features = {slide: parts[slide][0] for slide in named if slide in parts}
    coordinates = {slide: where for slide in features if (where := parts[slide][1]) is not None}
    problems += _width_problems(features)
    if problems:
        more = f"; and {len(problems) - MOST_LISTED} more" if len(problems) > MOST_LISTED else ""
        raise DataError("; ".join(problems[:MOST_LISTED]) + more + ".")
    if not named:
        raise DataError(f"No slide of {table} has a file in {folder}: is it the right folder?")
    rows = LabelTable((), ()) if known is None else known.select(list(named.values()))
    kept = coordinates if len(coordinates) == len(features) else {}
    used = {slide: origins[slide] for slide in features}
    found = _bags(folder, rows, features, kept, missing_truth, used)
    return patient_bags(found) if by_patient else found


def patient_bags(bags: Bags) -> Bags:
    """Return one bag per patient with the instances of all slides; its id is the patient's.

    The candidate set is the union over the slides. There are no coordinates, since those of several slides
    overlap.

    Args:
        bags: bags of slides that know their patients.

    Raises:
        DataError: the patients are unknown, or two slides of a patient have different true labels.
    """
    if bags.groups is None:
        raise DataError(
            "The patients of the slides are unknown: add a column patient (or case_id, group) to --labels."
        )
    patients, first, owner = np.unique(bags.groups, return_index=True, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    ordered, owner = bags[order], owner[order]
    if isinstance(bags.source, FileArray) and np.array_equal(bags.starts, bags.source.starts[:-1]):
        parts = [bags.source.parts[i] for i in order]  # one file per slide: nothing is read
        source: Any = FileArray(parts, bags.source.dtype, bags.source.columns)
    else:
        source = bags.source[ordered.rows()]
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.add.reduceat(ordered.sizes, begins)
    labels = bags.labels
    if labels is not None:
        labels = labels[first]
        differing = np.flatnonzero(ordered.labels != labels[owner])
        if len(differing):
            raise DataError(
                f"Patient '{patients[owner[differing[0]]]}' has slides with different labels: give all "
                "slides of a patient one label, or leave out --bag patient."
            )
    weights = bags.weights
    if weights is not None:
        sums = np.add.reduceat(weights[order], begins, axis=0)
        weights = (sums / sums.sum(axis=1, keepdims=True)).astype(np.float32)
    return dataclasses.replace(
        bags,
        source=source,
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        ids=patients,
        candidates=None
        if bags.candidates is None
        else np.logical_or.reduceat(bags.candidates[order], begins, axis=0),
        labels=labels,
        instance_labels=None,
        coordinates=None,
        geometry=None,
        groups=patients,
        weights=weights,
        provenance={**bags.provenance, "bag": "patient", "slides": len(bags)},
    )


def feature_files(folder: Path) -> dict[str, Path]:
    """Return the feature files by slide, in the folder itself or in one of the known layouts below it."""
    if not folder.is_dir():
        raise StorageError(f"{folder} is not a folder: give the folder of the feature files.")
    for place in (folder, folder / "h5_files", folder / "pt_files"):
        if files := _files(place):
            return files
    below = [place for pattern in ("features_*", "*/features_*") for place in sorted(folder.glob(pattern))]
    filled = [place for place in below if _files(place)]
    if len(filled) > 1:
        names = ", ".join(str(place.relative_to(folder)) for place in filled)
        raise DataError(f"{folder} has features of several encoders ({names}): give the folder of one.")
    if filled:
        return _files(filled[0])
    raise DataError(
        f"{folder} has no feature file ({', '.join(SUFFIXES)}), "
        "neither directly nor in h5_files, pt_files or features_<encoder>."
    )


def write_folder(bags: Bags, folder: Path) -> None:
    """Write vectors as a CLAM folder: ``h5_files/<id>.h5`` with features and coords, and labels.csv."""
    refuse_votes(bags, folder)
    import h5py

    if len(bags.feature_shape) != 1:
        raise DataError(f"The instances have shape {bags.feature_shape}: a folder of slides is for vectors.")
    for slide in bags.ids.tolist():
        if not slide or slide in (".", "..") or any(c in slide for c in "/\\\0") or len(slide) > 200:
            raise DataError(f"The id '{slide}' cannot be the name of a file: give the bag another id.")
    with atomic_folder(folder, "labels.csv") as temporary:
        (temporary / MARKER).mkdir()
        about = bags.provenance.get("features")
        for bag in bags:
            with h5py.File(temporary / MARKER / f"{bag.id}.h5", "w") as file:
                file["features"] = bag.instances
                if bag.coordinates is not None:
                    file["coords"] = bag.coordinates
                file.attrs.update(attributes(about, bag.geometry))
        write_labels(
            temporary / "labels.csv",
            bags.ids.tolist(),
            bags.candidates,
            bags.classes,
            labels=bags.labels,
            groups=bags.groups,
            weights=bags.weights,
        )


def _files(place: Path) -> dict[str, Path]:
    """Return the feature files of one folder by name without suffix."""
    files: dict[str, Path] = {}
    if not place.is_dir():
        return files
    inside = place.resolve()
    for path in sorted(place.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith(".") or not path.is_file():
            continue
        if path.resolve().parent != inside:
            raise StorageError(f"{path} is a link to another folder: copy the file instead.")
        if path.stem in files:
            raise DataError(
                f"{place} has two files for slide '{path.stem}', {files[path.stem].name} and {path.name}."
            )
        files[path.stem] = path
    return files


def _read_files(
    files: dict[str, Path],
) -> tuple[dict[str, tuple[Part, Part | None]], dict[str, Origin], dict[str, str]]:
    """Return by slide the arrays of features and coordinates, the origin, and what is wrong with a file."""
    parts: dict[str, tuple[Part, Part | None]] = {}
    origins: dict[str, Origin] = {}
    problems: dict[str, str] = {}
    for slide, path in files.items():
        try:
            parts[slide] = features, coordinates = _parts(path)
        except (StorageError, DataError) as error:
            problems[slide] = str(error).rstrip(".")
            continue
        origins[slide] = read_origin(path, features.key, None if coordinates is None else coordinates.key)
    return parts, origins, problems


def _in_files(table: LabelTable, index: NameIndex) -> LabelTable:
    """Return a table in which rows of one file have one name, so that tables can be joined.

    Rows without a file, and rows of which several name one file, keep their own names.
    """
    found = [index.find(slide) or slide for slide in table.ids]
    counts = collections.Counter(found)
    ids = [name if counts[name] == 1 else own for own, name in zip(table.ids, found, strict=True)]
    return dataclasses.replace(table, ids=tuple(ids))


def _match_files(
    folder: Path,
    files: dict[str, Path],
    table: str,
    slides: Sequence[str],
    index: NameIndex,
    skip_missing: bool,
) -> tuple[dict[str, str], list[str]]:
    """Return the slide of the table for each file, and a list of problems."""
    file_of = {slide: index.find(slide) for slide in slides}
    found = [name for name in file_of.values() if name is not None]
    missing = [slide for slide, name in file_of.items() if name is None]
    duplicates = sorted(name for name, rows in collections.Counter(found).items() if rows > 1)
    unused = sorted(set(files) - set(found))
    problems = []
    if missing and not skip_missing:
        problems.append(
            f"{counted(len(missing), 'slide')} of {table} {have(missing)} no file in {folder}: "
            f"{listed(missing)} (add the files, remove the rows, or leave these slides out with "
            "--skip-missing)"
        )
    if duplicates:
        are = "is" if len(duplicates) == 1 else "are"
        problems.append(
            f"{counted(len(duplicates), 'file')} {are} named by two rows of {table}: {listed(duplicates)}"
        )
    if unused:
        message = (
            f"{counted(len(unused), 'file')} in {folder} {have(unused)} no row in {table}: {listed(unused)}"
        )
        if problems:  # perhaps the same slides under other names: report both
            problems.append(message)
        else:
            they = "it is" if len(unused) == 1 else "they are"
            warnings.warn(f"{message}; {they} ignored.", MiplNotice, stacklevel=3)
    return {name: slide for slide, name in file_of.items() if name is not None}, problems


def _parts(path: Path) -> tuple[Part, Part | None]:
    """Return the parts of a file with the features and, if there are any, the coordinates."""
    names = array_names(path)
    key = next((name for name in FEATURES if name in names), names[0] if len(names) == 1 else None)
    if key is None:
        raise DataError(
            f"{path} has none of the arrays {', '.join(FEATURES)}: it has {listed(names) or 'nothing'}"
        )
    features = _part(path, key)
    if features.dtype not in STORED or features.dtype.kind != "f":
        raise DataError(f"{path} has features of type {features.dtype}: write them as float32 or float16")
    if not features.rows or not features.width:
        raise DataError(f"{path} is empty ({features.shape}): leave the slide out")
    key = next((name for name in COORDINATES if name in names), None)
    if key is None:
        return features, None
    coordinates = _part(path, key)
    if coordinates.rows != features.rows or coordinates.dtype.kind not in "iuf":
        raise DataError(
            f"{path} has {features.rows} features, but coordinates of shape {coordinates.shape} "
            f"and type {coordinates.dtype}"
        )
    return features, coordinates


def _part(path: Path, key: str) -> Part:
    with open_array(path, key) as stored:
        shape = tuple(int(side) for side in stored.shape)
        if len(shape) not in (1, 2, 3) or (len(shape) == 3 and shape[0] != 1):
            raise DataError(
                f"{path} has '{key or 'an array'}' of shape {shape}: it should be patches × features, "
                "or one vector"
            )
        return Part(path, key, shape, np.dtype(stored.dtype))


def _width_problems(features: dict[str, Part]) -> list[str]:
    """Return at most one problem: the slides whose number of features is not the most common one."""
    widths, counts = np.unique([part.width for part in features.values()], return_counts=True)
    if len(widths) < 2:
        return []
    usual = widths[counts.argmax()]
    others = [f"{slide} ({part.width})" for slide, part in features.items() if part.width != usual]
    do = "does" if len(others) == 1 else "do"
    return [f"{counted(len(others), 'slide')} {do} not have {usual} features as the others: {listed(others)}"]


def _bags(
    folder: Path,
    rows: LabelTable,
    features: dict[str, Part],
    coordinates: dict[str, Part],
    missing_truth: bool,
    origins: dict[str, Origin],
) -> Bags:
    ids = list(features)
    about = common_features(origins, recorded(next(iter(features.values())).path.parent))
    provenance: dict[str, Any] = {"dataset": folder.name, "origin": "folder of feature files"}
    geometry = [origin.geometry for origin in origins.values()]
    sizes = np.array([part.rows for part in features.values()], dtype=np.int64)
    return Bags(
        source=_joined(features),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        classes=rows.classes,
        ids=np.array(ids, dtype=np.str_),
        candidates=None if rows.sets is None else candidate_matrix(rows.sets, rows.classes, ids),
        labels=None if rows.labels is None else label_array(rows.labels, rows.classes, ids),
        coordinates=_joined(coordinates) if coordinates else None,
        groups=None if rows.groups is None else np.array(rows.groups, dtype=np.str_),
        weights=rows.weights,
        missing_truth=missing_truth,
        provenance=provenance | ({"features": about} if about else {}),
        geometry=np.array(geometry) if any(each is not UNKNOWN for each in geometry) else None,
    )


def _joined(parts: dict[str, Part]) -> FileArray:
    return FileArray(list(parts.values()), np.result_type(*{part.dtype for part in parts.values()}))
