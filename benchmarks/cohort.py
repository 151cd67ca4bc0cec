"""Train on a synthetic cohort of slides in each pathology layout, and measure the memory that it takes.

    python benchmarks/cohort.py [--slides 60] [--patches 200 20000] [--width 512] [--epochs 3]

For each layout a cohort is written to a temporary folder, a fresh process trains on it, and the folder is
deleted. Prints one line of JSON a layout: peak anonymous memory above the interpreter's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measuring import Json, anonymous_mb, call, scratch

LAYOUTS = ("clam", "clam-pt", "trident", "stamp", "npy", "npz")
CLASSES = ("normal", "serrated", "tumour")


def train(features: str, table: str, epochs: int) -> Json:
    """Train one network on a cohort in this process; return its memory before and what it was."""
    import h5py  # noqa: F401 (libraries that reading and training load are not their memory)
    import pyarrow.csv  # noqa: F401
    import sklearn.base  # noqa: F401
    import torch

    from mipl.data.formats.h5 import open_folder
    from mipl.estimators import make_classifier

    torch.set_num_threads(1)
    before = anonymous_mb()
    bags = open_folder(Path(features), Path(table))
    started = time.perf_counter()
    model = make_classifier("sam-cn", ensemble=1, epochs=epochs, random_state=0).fit(bags)
    return {
        "instances": int(bags.sizes.sum()),
        "interpreter_mb": before,
        "seconds": time.perf_counter() - started,
        "loss": model.history_["loss"],
    }


def write_slide(layout: str, root: Path, name: str, features: NDArray[Any], coords: NDArray[Any]) -> None:
    if layout in ("clam-pt", "npy", "npz"):
        folder = root / "F" / ("pt_files" if layout == "clam-pt" else "")
        folder.mkdir(parents=True, exist_ok=True)
        if layout == "clam-pt":
            import torch

            torch.save(torch.from_numpy(features), folder / f"{name}.pt")
        elif layout == "npy":
            np.save(folder / f"{name}.npy", features)
        else:
            np.savez(folder / f"{name}.npz", features=features, coords=coords)
        return
    import h5py

    place, key = {
        "clam": ("F/h5_files", "features"),
        "trident": ("F/20x_256px/features_uni_v1", "features"),
        "stamp": ("F", "feats"),
    }[layout]
    (root / place).mkdir(parents=True, exist_ok=True)
    with h5py.File(root / place / f"{name}.h5", "w") as file:
        batch = layout == "trident"
        file[key] = features[None] if batch else features
        file["coords"] = coords[None] if batch else coords


def write_cohort(layout: str, root: Path, slides: int, patches: tuple[int, int], width: int) -> Path:
    """Write slides whose patches carry their class, and the table of their candidates."""
    rng = np.random.default_rng(0)
    rows = ["PATIENT,FILENAME,candidates" if layout == "stamp" else "case_id,slide_id,candidates"]
    for i in range(slides):
        n, label = int(rng.integers(patches[0], patches[1] + 1)), i % 3
        features = rng.standard_normal((n, width), dtype=np.float32)
        features[: max(1, n // 10), label] += 5
        grid = np.arange(n)
        coords = np.stack([grid % 100 * 256, grid // 100 * 256], axis=1)
        write_slide(layout, root, f"slide_{i:03d}", features, coords)
        names = f"{CLASSES[label]}|{CLASSES[(label + 1) % 3]}"
        rows.append(f"case_{i // 2},slide_{i:03d}{'.h5' if layout == 'stamp' else ''},{names}")
    table = root / "cohort.csv"
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return table


def measure(
    layout: str,
    slides: int,
    patches: tuple[int, int],
    width: int,
    epochs: int,
    parent: Path | None = None,
) -> Json:
    """Train on a cohort that is written to ``parent`` and deleted; return sizes, times and memory."""
    with scratch(parent) as folder:
        table = write_cohort(layout, folder, slides, patches, width)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        done = call("cohort", "train", threads=1, features=f"{folder}/F", table=str(table), epochs=epochs)
    above = done["peak_anon_mb"] - done["interpreter_mb"]
    return {"layout": layout, "slides": slides, "disk_mb": size / 2**20, "above_mb": above, **done}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--slides", type=int, default=60)
    parser.add_argument("--patches", type=int, nargs=2, default=(200, 20_000))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    given = parser.parse_args()
    for layout in given.layouts:
        started = time.perf_counter()
        row = measure(layout, given.slides, tuple(given.patches), given.width, given.epochs)
        print(json.dumps({**row, "with_writing_seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
