"""What a feature file says of its features: encoder, generator, patch size, and the size of the image.

Read from the attributes that ``mipl data images``, CLAM, TRIDENT and STAMP write; all of them are optional.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mipl.errors import DataError, StorageError
from mipl.files import read_json

RECORD = "generator.json"  # of `mipl data images`, next to the folder of feature files
KEYS = {  # name here -> attributes of other tools
    "encoder": ("encoder", "extractor"),
    "magnification": ("target_magnification",),
    "patch_size": ("patch_size", "tile_size_px"),
}
UNKNOWN = (math.nan, math.nan, math.nan, math.nan)
LONGEST = 200  # characters of a value
MOST, LARGEST = 100, 1024  # attributes that are read, and their bytes
Features = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of the features of one file."""

    features: Features  # what must be the same in training and prediction, as far as it is known
    geometry: tuple[float, float, float, float] = UNKNOWN  # width and height of a patch and of the image
    source: str | None = None  # path of the image in its folder


def read_origin(path: Path, features: str, coordinates: str | None) -> Origin:
    """Return what the attributes of a feature file say; files without attributes say nothing.

    Args:
        path: the feature file.
        features: name of the array of features.
        coordinates: name of the array of coordinates.
    """
    found: dict[str, Any] = {}
    if path.suffix in (".h5", ".hdf5"):
        import h5py

        with contextlib.suppress(Exception), h5py.File(path, "r") as file:  # attributes are optional
            for owner in (file, file[features], *([file[coordinates]] if coordinates else [])):
                found |= _read(owner)
    return Origin(_features(found, path.parent.name), _geometry(found), _text(found.get("source")))


def features_in(file: Any, features: str) -> Features:
    """Return what an open HDF5 file says of the array ``features``."""
    return _features(_read(file) | _read(file[features]))


def _read(owner: Any) -> dict[str, Any]:
    """Return the attributes of an HDF5 file or array, without large ones."""
    found = {}
    for name in list(owner.attrs)[:MOST]:
        if owner.attrs.get_id(name).get_storage_size() <= LARGEST:
            found[name] = _plain(owner.attrs[name])
    return found


def recorded(folder: Path) -> Features:
    """Return what ``generator.json`` in a folder, or in the one above it, says of the features."""
    for place in (folder, folder.parent):
        if (place / RECORD).is_file():
            try:
                content = read_json(place / RECORD)
            except StorageError:
                return {}
            settings = content.get("settings")
            about = {
                "generator": content.get("generator"),
                **(settings if isinstance(settings, dict) else {}),
            }
            return {
                name: text for name in ("generator", "encoder", "weights") if (text := _text(about.get(name)))
            }
    return {}


def common_features(origins: Mapping[str, Origin], known: Features) -> Features:
    """Return what is known of the features of all files.

    A patch size that differs from file to file is left out; other differences are errors.
    """
    result = dict(known)
    for key in (*KEYS, "generator", "weights"):
        values: dict[str, str] = {}  # value -> the first file that has it
        for slide, origin in origins.items():
            if key in origin.features:
                values.setdefault(json.dumps(origin.features[key]), slide)
        if key in result:
            values.setdefault(json.dumps(result[key]), RECORD)
        if len(values) > 1 and key != "patch_size":
            (one, first), (other, second) = list(values.items())[:2]
            raise DataError(
                f"The features are not all of one {key}: {json.loads(one)} in {first}, but "
                f"{json.loads(other)} in {second}: give a folder of features that were made in one way."
            )
        result.pop(key, None)
        if len(values) == 1:
            result[key] = json.loads(next(iter(values)))
    return result


def check_same_features(trained: Any, given: Any) -> None:
    """Raise an error if bags have other features than those that a model was trained on.

    Args:
        trained: what is known of the model's features, a dictionary or None.
        given: what is known of the features of the bags.
    """
    if not isinstance(trained, Mapping) or not isinstance(given, Mapping):
        return
    for key in ("encoder", "generator", "weights", "magnification", "patch_size"):
        if key in trained and key in given and trained[key] != given[key]:
            raise DataError(
                f"The bags have features of another {key.replace('_', ' ')}, {_shown(given[key])}, than the "
                f"model was trained on, {_shown(trained[key])}: make their features in the same way."
            )


def describe(features: Any) -> str:
    """Return the origin of features as text, or an empty text if nothing is known."""
    if not isinstance(features, Mapping):
        return ""
    return ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in features.items())


def attributes(features: Any, geometry: Iterable[float] | None) -> dict[str, Any]:
    """Return the attributes from which :func:`read_origin` reads the same."""
    result = dict(features) if isinstance(features, Mapping) else {}
    if geometry is not None:
        wide, high, image_wide, image_high = (float(value) for value in geometry)
        result |= {"patch_extent": [wide, high], "image_extent": [image_wide, image_high]}
    return {name: value for name, value in result.items() if value is not None}


def _features(found: Mapping[str, Any], folder: str = "") -> Features:
    result: Features = {}
    for key, names in KEYS.items():
        value = next((found[name] for name in names if name in found), None)
        if isinstance(value, str | int | float | list):
            result[key] = value
    if "encoder" not in result and folder.startswith("features_"):  # TRIDENT
        result["encoder"] = folder.removeprefix("features_")
    for key in ("generator", "weights"):
        if (text := _text(found.get(key))) is not None:
            result[key] = text
    return result


def _geometry(found: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Return width and height of a patch and of the image, in the unit of the coordinates; NaN: unknown."""
    if "patch_extent" in found or "image_extent" in found:  # written by mipl
        patch, image = _pair(found.get("patch_extent")), _pair(found.get("image_extent"))
    elif "patch_size_level0" in found:  # TRIDENT
        patch = _pair(found["patch_size_level0"])
        image = _pair([found.get("level0_width"), found.get("level0_height")])
    elif "downsample" in found and "patch_size" in found:  # CLAM
        scale = _pair(found["downsample"])
        patch = _times(_pair(found["patch_size"]), scale)
        image = _times(_pair(found.get("level_dim")), scale)
    elif "tile_size_um" in found:  # STAMP, whose coordinates are in micrometres
        patch, image = _pair(found["tile_size_um"]), _pair(None)
    else:
        patch = image = _pair(None)
    return (*patch, *image)


def _pair(value: Any) -> tuple[float, float]:
    values = value if isinstance(value, list) else [value, value]
    if len(values) != 2 or not all(isinstance(v, int | float) and 0 < v < math.inf for v in values):
        return math.nan, math.nan
    return float(values[0]), float(values[1])


def _times(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] * other[0], one[1] * other[1]


def _plain(value: Any) -> Any:
    """Return an attribute as text, a number or a short list of numbers, or None."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, np.generic | np.ndarray) and np.size(value) <= 4:
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, str | int | float | list):
        return None
    if isinstance(value, list) and not all(isinstance(entry, int | float) for entry in value):
        return None
    return value[:LONGEST] if isinstance(value, str) else value


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) and value else None


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(f"{entry:g}" for entry in value)
    return f"{value:g}" if isinstance(value, int | float) else f"'{value}'"
