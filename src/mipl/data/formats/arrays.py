"""Named arrays of an ``.npz`` file, read without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.formats.cells import opened
from mipl.errors import StorageError

Shape = tuple[int | None, ...]  # None: any length


def read_arrays(path: Path, shapes: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
    """Read arrays of known shapes from an ``.npz`` file.

    Args:
        path: the file.
        shapes: the shape of each array by name; other arrays in the file are ignored.

    Returns:
        The arrays by name. Floats are finite.

    Raises:
        StorageError: the file is missing, damaged, needs pickle, or an array is missing, has another shape
            or a value that is not finite. The message states the expected content.
    """
    expected = "an .npz file with " + ", ".join(f"{name} {_text(shape)}" for name, shape in shapes.items())
    if not path.is_file():
        raise StorageError(f"{path} does not exist: expected {expected}.")
    with opened(path, expected) as file:
        stored = np.load(file, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        arrays = {name: stored[name] for name in shapes}
        if wrong := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{wrong[0]} is not an array")
    for name, shape in shapes.items():
        found = arrays[name]
        if found.ndim != len(shape) or any(
            side not in (None, length) for side, length in zip(shape, found.shape, strict=True)
        ):
            raise StorageError(f"{path} has {name} {_text(found.shape)}: expected {expected}.")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise StorageError(f"{path} has a NaN or infinite value in {name}: expected {expected}.")
    return arrays


def _text(shape: Shape) -> str:
    return f"({' × '.join('n' if side is None else str(side) for side in shape)})"
