"""Bags as one ``.npz`` file, without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.bags import Bags
from mipl.data.candidates import check_classes
from mipl.data.features import names_in
from mipl.data.lazy import FileArray, Part, map_npz
from mipl.errors import DataError, StorageError
from mipl.files import atomic_file

FORMAT = "mipl-bags-1"
ARRAYS = (
    "candidates", "labels", "instance_labels", "coordinates", "groups", "weights", "votes", "geometry",
)  # fmt: skip


def save_npz(bags: Bags, path: Path) -> None:
    """Write ``bags`` to ``path`` atomically."""
    if path.suffix != ".npz":
        raise StorageError(f"{path} should end in .npz.")
    packed = bags.packed()
    meta: dict[str, Any] = {
        "format": FORMAT,
        "classes": list(packed.classes),
        "missing_truth": packed.missing_truth,
        "provenance": dict(packed.provenance),
    }
    if packed.feature_names is not None:
        meta["feature_names"] = list(packed.feature_names)
    if packed.votes is not None:
        meta["annotators"] = list(packed.annotators)
    try:
        text = json.dumps(meta)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The provenance cannot be written to {path}: {error}; use text, numbers, lists and dictionaries."
        ) from error
    arrays = {name: getattr(packed, name) for name in ARRAYS if getattr(packed, name) is not None}
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            meta=np.array(text),
            instances=packed.instances,
            offsets=packed.offsets,
            ids=packed.ids,
            **arrays,
        )


def load_npz(path: Path, *, mapped: bool = False) -> Bags:
    """Read bags written by :func:`save_npz`.

    Args:
        path: the file.
        mapped: leave the instances in the file, see :meth:`Bags.load`.

    Raises:
        StorageError: the file is missing, damaged or of another format.
        DataError: its content is inconsistent.
    """
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            archive = stored if isinstance(stored, np.lib.npyio.NpzFile) else None
            content: dict[str, Any] = (
                {name: archive[name] for name in archive.files if not mapped or name != "instances"}
                if archive is not None
                else {}
            )
        if "meta" not in content:
            raise StorageError(f"{path} is not a file of bags: create one with Bags.save.")
        meta = json.loads(str(content["meta"]))
        if meta.get("format") != FORMAT:
            raise StorageError(
                f"{path} has the format {meta.get('format')!r}; this version reads {FORMAT!r}."
            )
        offsets = content["offsets"]
        return Bags(
            source=_mapped_instances(path) if mapped else content["instances"],
            starts=offsets[:-1],
            sizes=np.diff(offsets),
            classes=check_classes(meta["classes"]),
            ids=content["ids"],
            missing_truth=bool(meta["missing_truth"]),
            provenance=dict(meta["provenance"]),
            feature_names=names_in(meta),
            annotators=tuple(map(str, meta.get("annotators", ()))),
            **{name: content.get(name) for name in ARRAYS},
        )
    except StorageError:
        raise
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist: check the path.") from error
    except (IsADirectoryError, PermissionError) as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # a reader may raise anything on a damaged file
        raise StorageError(
            f"{path} is damaged or is not an .npz of bags ({type(error).__name__}: {error}); "
            "create one with Bags.save."
        ) from error


def _mapped_instances(path: Path) -> FileArray:
    instances = map_npz(path, "instances")
    if instances is None or instances.ndim != 2:
        raise StorageError(
            f"The instances of {path} cannot be mapped: they are compressed or not vectors; do not map them."
        )
    return FileArray([Part(path, "instances", instances.shape, instances.dtype)], instances.dtype)
