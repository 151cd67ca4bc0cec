"""Loading: the authors' ``.mat`` by ``mipl`` and by ``np.vstack`` in a loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from cases import Case
from measuring import Json, call, ratio_row
from mipl.data.bags import Bags
from mipl.data.formats.mat import read_mat

ASKED = {False: 20.0, True: 8.0}  # compressed?
LEAST = 5  # turns: a reading takes a tenth of a second, and the machine's noise as much


def write_cells(bags: Bags, path: Path, compressed: bool) -> None:
    """Write bags as the authors' files are: one row of cells a bag, features as doubles."""
    assert bags.candidates is not None
    assert bags.labels is not None
    cells = np.empty((len(bags), 3), dtype=object)
    scale = 255.0 if bags.source.dtype == np.uint8 else 1.0
    for i, bag in enumerate(bags):
        cells[i, 0] = bag.instances.reshape(len(bag), -1).astype(np.float64) / scale
        cells[i, 1] = np.flatnonzero(bags.candidates[i])[None] + 1.0
        cells[i, 2] = np.array([[bags.labels[i] + 1.0]])
    savemat(path, {"data": cells}, do_compression=compressed)


def stacked(path: Path) -> tuple[NDArray[Any], NDArray[Any], list[NDArray[Any]], NDArray[Any]]:
    """Read such a file as published scripts do: instances, sizes, candidates, labels."""
    data = loadmat(path)["data"]
    features = np.empty((0, data[0, 0].shape[1]))
    sizes, candidates, labels = [], [], []
    for row in data:
        features = np.vstack((features, row[0]))
        sizes.append(len(row[0]))
        candidates.append(row[1].ravel().astype(int) - 1)
        labels.append(int(row[2].item()) - 1)
    return features, np.array(sizes), candidates, np.array(labels)


def read(path: str, ours: bool) -> Json:
    """Read a file once; a fresh process does it, as a script would: reading again is cheaper for both."""
    started = time.perf_counter()
    if ours:
        read_mat(Path(path))
    else:
        stacked(Path(path))
    return {"seconds": time.perf_counter() - started}


def section(cases: Sequence[Case], scratch: Path, repeats: int) -> Json:
    """Compare the two on the cases' bags, uncompressed and compressed."""
    rows, data = [], {}
    for case in cases:
        for compressed, asked in ASKED.items():
            path = scratch / "loading.mat"
            write_cells(case.bags, path, compressed)
            slow, fast = [], []
            for _ in range(max(repeats, LEAST)):
                for ours, times in ((False, slow), (True, fast)):
                    times.append(call("loading", "read", path=str(path), ours=ours)["seconds"])
            size = path.stat().st_size / 2**20
            path.unlink()
            name = f"loading, {case.title}, {'compressed' if compressed else 'uncompressed'}"
            note = f"{np.median(slow):.2f} s against {np.median(fast):.3f} s, {size:.0f} MB"
            rows.append(ratio_row(name, slow, fast, asked, note))
            data[name] = {"seconds": slow, "mipl_seconds": fast, "mb": size}
    return {"rows": rows, "data": data}
