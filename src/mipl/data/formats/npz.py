"""Bags as one ``.npz`` file, without pickle."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.bags import Bags
from mipl.errors import DataError, StorageError
from mipl.files import atomic_file

FORMAT = "mipl-bags-1"
ARRAYS = ("candidates", "labels", "instance_labels", "coordinates", "groups", "weights")


def save_npz(bags: Bags, path: Path) -> None:
    """Write ``bags`` to ``path``; an older file stays until the new one is whole."""
    if path.suffix != ".npz":
        raise StorageError(f"{path} should end in .npz.")
    packed = bags.packed()
    meta = {
        "format": FORMAT,
        "classes": list(packed.classes),
        "missing_truth": packed.missing_truth,
        "provenance": dict(packed.provenance),
    }
    arrays = {name: getattr(packed, name) for name in ARRAYS if getattr(packed, name) is not None}
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            meta=np.array(json.dumps(meta)),
            instances=packed.source,
            offsets=packed.offsets,
            ids=packed.ids,
            **arrays,
        )


def load_npz(path: Path) -> Bags:
    """Read bags written by :func:`save_npz`; anything else is refused with a sentence."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile) or "meta" not in stored:
                raise StorageError(f"{path} does not hold bags: make such a file with Bags.save.")
            content: dict[str, Any] = {name: stored[name] for name in stored.files}
        meta = json.loads(str(content["meta"]))
        if meta.get("format") != FORMAT:
            raise StorageError(
                f"{path} has the format {meta.get('format')!r}; this version reads {FORMAT!r}."
            )
        offsets = content["offsets"]
        return Bags(
            source=content["instances"],
            starts=offsets[:-1],
            sizes=np.diff(offsets),
            classes=tuple(meta["classes"]),
            ids=content["ids"],
            missing_truth=bool(meta["missing_truth"]),
            provenance=meta["provenance"],
            **{name: content.get(name) for name in ARRAYS},
        )
    except (StorageError, DataError):
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist.") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise StorageError(
            f"{path} is damaged or is not an .npz of bags ({type(error).__name__}: {error})."
        ) from error
