"""The pathologist's day on made-up tiles: from images and votes to reviewed, calibrated decisions.

    python examples/pathology/journey.py OUT

Everything that a person would type is a ``mipl`` command and is printed; no file is written by hand between
them. The reviewer is simulated: a headless Chromium that is driven by keyboard (``pip install playwright``).
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mipl.cli import main

CLASSES = ("normal", "stroma", "tumour")
COLOURS = {"normal": (226, 190, 214), "stroma": (236, 150, 180), "tumour": (128, 84, 160)}  # RGB
SIDE, GRID = 96, 4  # pixels of a tile, and cells per side
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# ---- what the laboratory has: tiles, and three annotators' votes ----------------------------------------


def make_tile(label: str, rng: np.random.Generator) -> np.ndarray:
    """Return a tile (SIDE, SIDE, 3), RGB: pale tissue with a few cells of the texture of its class."""
    cell = SIDE // GRID
    tile = np.empty((SIDE, SIDE, 3))
    marked = rng.permutation(GRID * GRID) < rng.integers(3, 8)
    for i, own in enumerate(marked):
        mixed = rng.uniform(0.45, 1.0) if own else 0.0  # some are hard to tell
        colour = mixed * np.array(COLOURS[label]) + (1 - mixed) * np.array((238, 226, 233))
        grain = rng.normal(0, 12, (cell, cell, 1)) + rng.normal(0, 5, 3)
        row, column = divmod(i, GRID)
        tile[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = colour + grain
    return cv2.GaussianBlur(np.clip(tile, 0, 255).astype(np.uint8), (3, 3), 0)


def make_laboratory(folder: Path, sizes: dict[str, int], seed: int = 0) -> dict[str, str]:
    """Write the tiles of each cohort, and the votes on the first; return the true class of every tile.

    The tiles of ``calibration`` and ``test`` are in one subfolder per class, as a panel sorted them.
    """
    rng, truth = np.random.default_rng(seed), {}
    for cohort, count in sizes.items():
        for i in range(count):
            label, name = CLASSES[i % len(CLASSES)], f"{cohort}-{i:03d}"
            sorted_by_class = cohort in ("calibration", "test")
            place = folder / cohort / label if sorted_by_class else folder / cohort
            place.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"{name}.png"), make_tile(label, rng)[..., ::-1])
            truth[name] = label
    with (folder / "votes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", "annotator", "vote"])
        for name in (name for name in truth if name.startswith("tiles")):
            for annotator, error in (("Ada", 0.1), ("Ben", 0.2), ("Cleo", 0.3)):
                vote = rng.choice(CLASSES) if rng.random() < error else truth[name]
                writer.writerow([f"tiles/{name}.png", annotator, vote])  # the path that the annotator saw
    return truth


# ---- the day --------------------------------------------------------------------------------------------


def mipl(*words: Any) -> None:
    """Run a command as a person would type it, and stop where it fails."""
    command = [str(word) for word in words]
    print(f"$ mipl {' '.join(command)}", flush=True)
    if main(command) != 0:
        sys.exit(f"mipl {command[0]} failed")


def journey(out: Path, sizes: dict[str, int], epochs: int, reviews: int = 20) -> list[dict[str, Any]]:
    """Go from images to a model that learned from reviews; return what the reviewer saw."""
    lab, work = out / "laboratory", out / "work"
    truth = make_laboratory(lab, sizes)
    tiles, labels, model = work / "tiles", work / "labels.csv", work / "model"
    test, test_labels = work / "test", work / "test" / "labels.csv"
    calibration = (work / "calibration", "--labels", work / "calibration" / "labels.csv")
    settings = ("--method", "dam-cn", "--set", f"epochs={epochs}")

    for cohort in sizes:  # images -> features
        mipl("data", "images", lab / cohort, "--generator", "sbn", "--out", work / cohort)
    mipl("data", "votes", lab / "votes.csv", "--out", labels)
    mipl("fit", tiles, "--labels", labels, *settings, "--out", model)
    evaluate(model, test, test_labels, work / "predictions.csv")
    mipl("calibrate", model, *calibration, "--out", work / "calibrated")
    model = work / "calibrated"
    on_test = ("--calibrate", test, "--calibrate-labels", test_labels)
    mipl("triage", model, work / "new", "--max-error", 0.2, *on_test, "--out", work / "decisions.csv")
    doubtful = least_confident(work / "decisions.csv")
    mipl("explain", model, work / "new", "--bag", doubtful, "--image", lab / "new", "--out", work / "maps")
    mipl("export", model, "--card", work / "card.md", "--data", test, "--labels", test_labels)

    seen = serve_and_review(model, work / "new", lab / "new", work / "reviews.csv", truth, reviews)

    for image in (lab / "new").iterdir():  # the new tiles join the others; finished features are kept
        shutil.copy2(image, lab / "tiles")
    mipl("data", "images", lab / "tiles", "--generator", "sbn", "--out", tiles)
    both = ("--labels", labels, "--labels", work / "reviews.csv")
    mipl("fit", tiles, *both, *settings, "--out", work / "better")
    evaluate(work / "better", test, test_labels, work / "better.csv")
    return seen


def evaluate(model: Path, data: Path, labels: Path, predictions: Path) -> None:
    """Predict bags and measure the predictions against their true labels."""
    mipl("predict", model, data, "--out", predictions)
    mipl("evaluate", predictions, labels)


def least_confident(decisions: Path) -> str:
    """Return the bag of lowest confidence."""
    with decisions.open(newline="", encoding="utf-8") as file:
        return str(min(csv.DictReader(file), key=lambda row: float(row["confidence"]))["bag_id"])


# ---- the review -----------------------------------------------------------------------------------------


def serve_and_review(
    model: Path, data: Path, images: Path, table: Path, truth: dict[str, str], count: int
) -> list[dict[str, Any]]:
    """Serve the review page, label ``count`` bags by keyboard, export the reviews; return what was shown."""
    words = ["serve", model, "--data", data, "--images", images, "--audit", count // 2]
    words += ["--reviews", table.with_suffix(".sqlite"), "--port", 0]
    print(f"$ mipl {' '.join(map(str, words))}", flush=True)
    with table.with_suffix(".log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mipl.cli", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line.startswith("Serving on "):
                sys.exit(f"The server did not start, see {log.name}")
            return review(line.split()[-1], table, lambda bag: truth[bag], count)
        finally:
            server.terminate()
            server.wait()


def review(
    address: str, table: Path, answer: Callable[[str], str], count: int, screenshots: Path | None = None
) -> list[dict[str, Any]]:
    """Label bags by keyboard as the page offers them; return their ids and their images' mean colours."""
    from playwright.sync_api import sync_playwright

    seen = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
        page.set_default_timeout(120_000)
        page.goto(address)
        page.locator("#reviewer").fill("Dora")
        page.keyboard.press("Enter")
        keys = {name: str(number) for number, name in enumerate(CLASSES, start=1)}
        for number in range(count):
            page.locator("#bag[aria-busy=false] #image:visible").wait_for()
            bag = page.locator("#bag-id").inner_text()
            colour = page.evaluate(MEAN_COLOUR)
            seen.append({"bag": bag, "colour": colour, "decision": page.locator("#decision").inner_text()})
            if screenshots is not None and number in (0, count - 1):
                page.screenshot(path=screenshots / f"review-{number + 1}.png", full_page=True)
            page.keyboard.press(keys[answer(bag)])
            page.locator("#progress", has_text=f"{number + 1} of ").wait_for()
        with page.expect_download() as download:
            page.locator("#export").focus()
            page.keyboard.press("Enter")
        download.value.save_as(table)
        browser.close()
    return seen


MEAN_COLOUR = """() => {
  const canvas = document.getElementById("image");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const sum = [0, 0, 0];
  for (let i = 0; i < data.length; i += 4) for (let c = 0; c < 3; c += 1) sum[c] += data[i + c];
  return sum.map((value) => 4 * value / data.length);
}"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    folder = parser.parse_args().out
    for row in journey(folder, {"tiles": 90, "calibration": 60, "test": 90, "new": 60}, epochs=60):
        print(f"reviewed {row['bag']} ({row['decision']})")
