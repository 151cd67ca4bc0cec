"""Folders of slide features: CLAM, TRIDENT and STAMP layouts, and plain ``.npy``/``.npz`` files.

A slide is a bag, and the name of its file without suffix is the id. Opening a folder reads only the headers
of the files; features are read when a batch needs them.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mipl.data.annotations import refuse_votes
from mipl.data.bags import Bags
from mipl.data.candidates import candidate_matrix, label_array
from mipl.data.formats.table import LabelTable, read_label_table, write_labels
from mipl.data.lazy import SUFFIXES, FileArray, Part, array_names, open_array
from mipl.data.validation import STORED
from mipl.errors import MOST_LISTED, DataError, MiplNotice, StorageError, listed
from mipl.files import atomic_folder

FEATURES = ("features", "feats", "patch_embeddings")  # CLAM and TRIDENT, STAMP, STAMP's older files
COORDINATES = ("coords", "coordinates")
# suffixes of slide names in tables
SLIDES = (".svs", ".ndpi", ".mrxs", ".tif", ".tiff", ".scn", ".qptiff", ".czi", *SUFFIXES)
MARKER = "h5_files"


def open_folder(
    folder: Path, table: Path | None = None, *, skip_missing: bool = False, missing_truth: bool = False
) -> Bags:
    """Open the slides of a folder as bags that stay on disk.

    Args:
        folder: folder of the feature files, or the folder above CLAM's ``h5_files`` and ``pt_files`` or above
            one ``features_<encoder>`` of TRIDENT.
        table: table (CSV, TSV, XLSX) of slides with their candidates, labels and patients. Without it every
            file is a bag, for prediction.
        skip_missing: leave out slides of the table that have no file.
        missing_truth: allow true labels outside their candidate sets.

    Raises:
        DataError: files and table do not fit together; the message lists all problems.
        StorageError: a file cannot be read.
    """
    files = feature_files(folder)
    known = None if table is None else read_label_table(table)
    named = {slide: slide for slide in files}  # by file: the name of the slide in the table
    problems: list[str] = []
    if known is not None:
        named, problems = _match_files(folder, files, f"{table}", known.ids, skip_missing)
    features: dict[str, Part] = {}
    coordinates: dict[str, Part] = {}
    for slide in named:
        try:
            features[slide], where = _parts(files[slide])
            if where is not None:
                coordinates[slide] = where
        except (StorageError, DataError) as error:
            problems.append(str(error).rstrip("."))
    problems += _width_problems(features)
    if problems:
        more = f"; and {len(problems) - MOST_LISTED} more" if len(problems) > MOST_LISTED else ""
        raise DataError("; ".join(problems[:MOST_LISTED]) + more + ".")
    if not named:
        raise DataError(f"No slide of {table} has a file in {folder}: is it the right folder?")
    rows = LabelTable((), ()) if known is None else known.select(list(named.values()))
    kept = coordinates if len(coordinates) == len(features) else {}
    return _bags(folder, rows, features, kept, missing_truth)


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
        for bag in bags:
            with h5py.File(temporary / MARKER / f"{bag.id}.h5", "w") as file:
                file["features"] = bag.instances
                if bag.coordinates is not None:
                    file["coords"] = bag.coordinates
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


def _match_files(
    folder: Path, files: dict[str, Path], table: str, slides: Sequence[str], skip_missing: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the slide of the table for each file, and a list of problems."""
    file_of = {slide: _file_of(slide, files) for slide in slides}
    found = [name for name in file_of.values() if name is not None]
    missing = [slide for slide, name in file_of.items() if name is None]
    duplicates = sorted(name for name, rows in collections.Counter(found).items() if rows > 1)
    unused = sorted(set(files) - set(found))
    problems = []
    if missing and not skip_missing:
        problems.append(
            f"{len(missing)} slides of {table} have no file in {folder}: {listed(missing)} "
            "(add the files, remove the rows, or leave these slides out with --skip-missing)"
        )
    if duplicates:
        problems.append(f"{len(duplicates)} files are named by two rows of {table}: {listed(duplicates)}")
    if unused:
        message = f"{len(unused)} files in {folder} have no row in {table}: {listed(unused)}"
        if problems:  # perhaps the same slides under other names: report both
            problems.append(message)
        else:
            warnings.warn(f"{message}; they are ignored.", MiplNotice, stacklevel=3)
    return {name: slide for slide, name in file_of.items() if name is not None}, problems


def _file_of(slide: str, files: dict[str, Path]) -> str | None:
    """Return the name of the file of a slide, given with or without the suffix of the image."""
    if slide in files:
        return slide
    stems = (slide[: -len(suffix)] for suffix in SLIDES if slide.lower().endswith(suffix))
    return next((stem for stem in stems if stem in files), None)


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
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 1):
            raise DataError(
                f"{path} has '{key or 'an array'}' of shape {shape}: it should be patches × features"
            )
        return Part(path, key, shape, np.dtype(stored.dtype))


def _width_problems(features: dict[str, Part]) -> list[str]:
    """Return at most one problem: the slides whose number of features is not the most common one."""
    widths, counts = np.unique([part.width for part in features.values()], return_counts=True)
    if len(widths) < 2:
        return []
    usual = widths[counts.argmax()]
    others = [f"{slide} ({part.width})" for slide, part in features.items() if part.width != usual]
    return [f"{len(others)} slides do not have {usual} features as the others: {listed(others)}"]


def _bags(
    folder: Path,
    rows: LabelTable,
    features: dict[str, Part],
    coordinates: dict[str, Part],
    missing_truth: bool,
) -> Bags:
    ids = list(features)
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
        provenance={"dataset": folder.name, "origin": "folder of feature files"},
    )


def _joined(parts: dict[str, Part]) -> FileArray:
    return FileArray(list(parts.values()), np.result_type(*{part.dtype for part in parts.values()}))
