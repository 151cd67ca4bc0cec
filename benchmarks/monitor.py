"""False alarms of `mipl watch` and its delay after a shift: python benchmarks/monitor.py [--raw FOLDER]

A stream has held-out bags, new bags of the same kind, and from then on bags of a shift, all drawn without
replacement from the same pool. From the test bags of a recorded run, by their probabilities alone:

- none: no shift, to count false alarms;
- class mix: two of the five classes become four times as frequent as the others.

With --raw, a folder that has crc-tiles, also from tiles: TILES per class, a third of which train a single
network on lite0-9 features, and two more shifts:

- stain: the tiles with the haematoxylin and eosin components scaled, as another laboratory stains them;
- encoder: the same encoder on tiles of half the resolution, as another version of the pipeline reads them.

Features are computed once, in about ten minutes on one core, and saved in --features. Writes
results/trust/monitor.json and the table of docs/trust.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mipl.calibration.reference import bag_scores
from mipl.data.bags import Bags
from mipl.data.candidates import add_confusable
from mipl.data.images.folder import list_images, read_image
from mipl.data.images.named import make_generator
from mipl.estimators import make_classifier
from mipl.seeding import rng_for
from mipl.watch import watch
from pages import filled
from sequence import recorded

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "trust" / "monitor.json", REPO / "docs" / "trust.md"
Floats = NDArray[np.float64]
GENERATOR, TILES = "lite0-9", 60
MODEL = ("sam-cn", {"ensemble": 1, "epochs": 30})
RECORDED = "crc5-lite0-16"
LEVEL = 0.05  # probability of a false alarm
HELD_OUT, BEFORE = 0.3, 0.1  # fractions of a pool that are held out, and new before the shift
SHIFTED_CLASSES, ODDS = 2, 4.0
# Optical densities of haematoxylin and eosin (Ruifrok and Johnston, 2001) and of their remainder
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
FACTORS = np.array([1.3, 0.75, 1.0])


def other_stain(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an RGB image (h, w, 3) with the amounts of both stains multiplied by FACTORS."""
    density = -np.log((image.astype(np.float64) + 1) / 256)  # (h, w, 3)
    amounts = density @ np.linalg.inv(STAINS) * FACTORS
    return np.clip(256 * np.exp(-amounts @ STAINS) - 1, 0, 255).round().astype(np.uint8)


def half_resolution(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an RGB image (h, w, 3) that was reduced to half its size and enlarged again."""
    h, w = image.shape[0] // 2, image.shape[1] // 2
    small = image[: 2 * h, : 2 * w].reshape(h, 2, w, 2, 3).mean(axis=(1, 3))
    return small.repeat(2, axis=0).repeat(2, axis=1).round().astype(np.uint8)


VERSIONS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    "same": lambda image: image,
    "stain": other_stain,
    "encoder": half_resolution,
}


def features(raw: Path, saved: Path) -> dict[str, Bags]:
    """Return the bags of each version of the same tiles, computed or read."""
    found = {}
    for version, change in VERSIONS.items():
        path = saved / f"{GENERATOR}-{TILES}-{version}.npz"
        if not path.is_file():
            _compute(raw / "crc-tiles", change, path)
        found[version] = Bags.load(path)
    return found


def _compute(folder: Path, change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]], path: Path) -> None:
    generator, chosen = make_generator(GENERATOR), []
    images = list_images(folder)
    classes = sorted({str(image.label) for image in images})
    for name in classes:
        own = [image for image in images if image.label == name]
        order = rng_for("monitor tiles", name).permutation(len(own))[:TILES]
        chosen += [own[i] for i in sorted(order.tolist())]
    instances = [generator.make([change(read_image(image.path))])[0].features for image in chosen]
    labels = np.array([classes.index(str(image.label)) for image in chosen])
    candidates = add_confusable(labels, np.full((len(classes),) * 2, 0.25), "monitor")
    path.parent.mkdir(parents=True, exist_ok=True)
    Bags.from_list(instances, candidates, labels, classes, ids=[image.id for image in chosen]).save(path)


def scores_of(bags: dict[str, Bags]) -> tuple[dict[str, dict[str, Floats]], NDArray[np.int64], float]:
    """Return the scores of the held-out bags by version, their labels, and the accuracy of the model."""
    same = bags["same"]
    order = rng_for("monitor split").permutation(len(same))
    train, rest = np.sort(order[: len(same) // 3]), np.sort(order[len(same) // 3 :])
    method, settings = MODEL
    model = make_classifier(method, **settings).fit(same[train])
    assert same.labels is not None
    scores = {version: bag_scores(model, each[rest]) for version, each in bags.items()}
    return scores, same.labels[rest], model.score(same[rest])


def of_probabilities(p: Floats) -> dict[str, Floats]:
    """Return the scores of bags whose features are not recorded."""
    return {"confidence": p.max(axis=1), **{f"p({j})": p[:, j] for j in range(p.shape[1])}}


def delays(
    scores: dict[str, dict[str, Floats]], labels: NDArray[np.int64], shift: str, streams: int
) -> dict[str, Any]:
    """Return how often a stream alarms, and after how many bags of the shift; "none": there is no shift."""
    same = scores["same"]
    count, alarms, early, found = len(labels), 0, 0, []
    held_out, before_shift = round(HELD_OUT * count), round(BEFORE * count)
    for number in range(streams):
        rng = rng_for("monitor", shift, number)
        order = rng.permutation(count)
        held, before, after = np.split(order, [held_out, held_out + before_shift])
        if shift == "class mix":
            favoured = rng.permutation(labels.max() + 1)[:SHIFTED_CLASSES]
            odds = np.where(np.isin(labels[after], favoured), ODDS, 1.0)
            after = rng.choice(after, size=len(after), p=odds / odds.sum())
        shifted = scores.get(shift, same)
        new = {name: np.append(same[name][before], shifted[name][after]) for name in same}
        reference = {name: values[held] for name, values in same.items()}
        alarm = watch(reference, new, level=LEVEL, seed=number).alarm
        if shift == "none":
            alarms += alarm is not None
        elif alarm is not None and alarm < before_shift:
            early += 1
        elif alarm is not None:
            alarms += 1
            found.append(alarm - before_shift + 1)
    row: dict[str, Any] = {"shift": shift, "streams": streams, "alarms": alarms / streams}
    row |= {"held_out": held_out, "before": before_shift, "bags": len(after)}
    if shift != "none":
        ordered = np.sort(np.append(found, np.full(streams - early - len(found), np.inf)))
        middle = [float(ordered[int(q * (len(ordered) - 1))]) for q in (0.5, 0.9)]
        row |= {"early": early / streams}
        row |= {
            name: value if np.isfinite(value) else None
            for name, value in zip(("median", "ninety"), middle, strict=True)
        }
    return row


def table(found: dict[str, Any]) -> str:
    """Return the table of docs/trust.md in Markdown."""
    lines = [
        "| bags from | shift | held-out bags | streams | alarms | bags until the alarm: median, 90% |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["streams"]:
        delay = "–"
        if row["shift"] != "none":
            limit = f"over {row['bags']}"
            values = [limit if row[name] is None else f"{row[name]:.0f}" for name in ("median", "ninety")]
            delay = ", ".join(values)
        alarms = f"{row['streams']} | {100 * row['alarms']:.1f}%"
        lines.append(f"| {row['pool']} | {row['shift']} | {row['held_out']} | {alarms} | {delay} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, help="folder with crc-tiles; without it no images are read")
    parser.add_argument("--features", type=Path, default=Path("monitor-features"))
    parser.add_argument("--records", type=Path, default=REPO / "results" / "records")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found: dict[str, Any] = {"command": "python benchmarks/monitor.py", "level": LEVEL, "streams": []}
    tested = recorded(given.records)[RECORDED]
    pools = {f"{RECORDED}, recorded": ({"same": of_probabilities(tested.p)}, tested.labels)}
    if given.raw is not None:
        found["command"] += " --raw FOLDER"
        scores, labels, accuracy = scores_of(features(given.raw, given.features))
        pools[f"{GENERATOR} features"] = scores, labels
        found["model"] = {"method": MODEL[0], **MODEL[1], "tiles_per_class": TILES, "accuracy": accuracy}
    for pool, (scores, labels) in pools.items():
        for shift in ("none", "class mix", *(name for name in scores if name != "same")):
            found["streams"].append({"pool": pool, **delays(scores, labels, shift, given.streams)})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        page = filled(PAGE.read_text(encoding="utf-8"), {"monitor": table(found)})
        PAGE.write_text(page, encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
