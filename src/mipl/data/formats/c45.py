"""C4.5 data files of bags (SIVAL): one row per instance, which starts with the names of bag and instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.candidates import BoolArray
from mipl.errors import StorageError

Array = NDArray[Any]


def read_c45(path: Path) -> dict[str, tuple[Array, BoolArray]]:
    """Read features (n, d) and positive instances (n,) by image.

    A row has two names, of the image and of the region in either order, the features, and 0 or 1. The column
    with fewer distinct names is the image's.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    rows = [(n, line.strip().removesuffix(".").split(",")) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows or len(rows[0][1]) < 4:
        raise StorageError(f"{path} is not C4.5 data: a row has image, region, features …, 0 or 1.")
    width = len(rows[0][1])
    values = np.empty((len(rows), width - 2), dtype=np.float64)
    for i, (number, row) in enumerate(rows):
        try:
            values[i] = [float(field) for field in row[2:]]
        except ValueError as error:
            raise StorageError(
                f"{path}, row {number} is not two names, {width - 3} numbers and 0 or 1: {error}."
            ) from error
        if not np.isfinite(values[i]).all() or values[i, -1] not in (0, 1):
            raise StorageError(
                f"{path}, row {number} has a number that is not finite, or does not end in 0 or 1."
            )
    names = np.array([[row[0].strip(), row[1].strip()] for _, row in rows])
    image = min((names[:, 0], names[:, 1]), key=lambda column: len(np.unique(column)))
    _, first = np.unique(image, return_index=True)
    return {
        str(name): (values[image == name, :-1].astype(np.float32), values[image == name, -1] == 1)
        for name in image[np.sort(first)]
    }
