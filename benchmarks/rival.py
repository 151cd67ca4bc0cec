"""Against torchmil: the same network, epochs, batch size and one thread, on three sets, in turns.

torchmil is installed in an environment of its own, named by MIPL_TORCHMIL (its Python):

    python -m venv ENV && ENV/bin/pip install torch torchmil && export MIPL_TORCHMIL=ENV/bin/python

Each side reads the same bags in its own way: mipl one ``.npz``, torchmil a folder of ``.npy`` files. Sets
that fit into memory are loaded there by both; the cohort is read from disk in every epoch by both.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
import warnings
from pathlib import Path

import numpy as np

from cases import Case
from lean import SINGLE, deep_bags
from mapped import write_set
from measuring import HERE, Json, Row, call, commands, ratio_row
from mipl.data.bags import Bags
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier

PYTHON = "MIPL_TORCHMIL"
BATCH, WIDTH = 8, 128
ROOM = 2.5  # bytes on disk per byte of the cohort: both sides have a copy


def mipl_side(path: str, epochs: int, in_memory: bool) -> Json:
    """Fit a single network on the first split and predict the rest; return what the other side returns."""
    started = time.process_time()
    bags = Bags.load(path, mapped=not in_memory)
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", epochs=epochs, batch_size=BATCH, **SINGLE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(bags[train])
    fitted = time.process_time()
    accuracy = model.score(bags[test])
    return {
        "fit": fitted - started,
        "predict": time.process_time() - fitted,
        "accuracy": accuracy,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


def write_folders(bags: Bags, folder: Path) -> None:
    """Write the first split as torchmil reads it, standardised by the training instances."""
    train, test = stratified_split(bags, 1)
    some = np.concatenate([bags[int(i)].instances for i in train[:50]]).astype(np.float64)
    mean, std = some.mean(axis=0), some.std(axis=0).clip(1e-7)
    for part, index in (("train", train), ("test", test)):
        for kind in ("features", "sets", "labels"):
            (folder / part / kind).mkdir(parents=True)
        for number, i in enumerate(index):
            bag, name = bags[int(i)], f"{number:06d}.npy"
            np.save(folder / part / "features" / name, ((bag.instances - mean) / std).astype(np.float32))
            np.save(folder / part / "sets" / name, bags.candidate_sets[i].astype(np.float32))
            np.save(folder / part / "labels" / name, np.array([bag.label]))


def section(case: Case, scratch: Path, repeats: int, quick: bool, raw: Path | None) -> Json:
    """Measure both sides on the three sets; without torchmil's environment say how to make it."""
    python = os.environ.get(PYTHON)
    if not python or not Path(python).is_file():
        reason = f"torchmil was not measured: {PYTHON} names no Python that has it."
        return {"rows": [], "data": {}, "said": [reason]}
    deep, _ = deep_bags(scratch, quick, raw)
    slides, patches, width = (12, (20, 60), 32) if quick else (200, (2000, 20000), 1024)
    said = []
    room = shutil.disk_usage(scratch).free / (ROOM * 4 * slides * sum(patches) / 2 * width)
    if room < 1:
        patches = (int(patches[0] * room), int(patches[1] * room))
        said.append(f"The disk has room for slides of {patches[0]:,}–{patches[1]:,} patches only.")
    cohort = scratch / "cohort.npz"
    write_set(cohort, slides, np.random.default_rng(0).integers(patches[0], patches[1] + 1, slides), width)
    slides_title = f"{slides} slides × {patches[0]:,}–{patches[1]:,} × {width:,}"
    rows: list[Row] = []
    data: Json = {}
    for name, path, epochs, in_memory in (
        (case.title, case.path, 20, True),
        ("crc5-lite0-16", deep, 10, True),
        (slides_title, str(cohort), 2, False),
    ):
        folder = scratch / "folders"
        write_folders(Bags.load(path, mapped=not in_memory), folder)
        given = {
            "folder": str(folder), "k": Bags.load(path, mapped=not in_memory).k, "width": WIDTH,
            "epochs": 2 if quick else epochs, "batch": BATCH, "in_memory": in_memory,
        }  # fmt: skip
        words = [python, str(HERE / "other_library.py"), json.dumps(given)]
        theirs, ours = [], []
        for _ in range(repeats):
            theirs += commands([words], threads=1)
            same = {"path": path, "epochs": given["epochs"], "in_memory": in_memory}
            ours.append(call("rival", "mipl_side", threads=1, **same))
        shutil.rmtree(folder)
        for what, unit in (("fit", "s"), ("predict", "s"), ("peak_mb", "MB")):
            slow, fast = ([each[what] for each in side] for side in (theirs, ours))
            note = f"{np.median(slow):.3g} {unit} against {np.median(fast):.3g} {unit}"
            if what == "fit":
                right = [
                    f"{100 * float(np.mean([each['accuracy'] for each in side])):.1f}%"
                    for side in (theirs, ours)
                ]
                note += f"; accuracy {right[0]} and {right[1]}"
            title = f"torchmil against mipl, {what.removesuffix('_mb')}, {name}"
            rows.append(ratio_row(title, slow, fast, None, note))
        data[name] = {"torchmil": theirs, "mipl": ours}
    cohort.unlink()
    return {"rows": rows, "said": said, "data": data}
