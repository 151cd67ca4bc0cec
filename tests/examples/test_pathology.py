"""The journey of examples/pathology, from images to a model that learned from reviews, on small cohorts."""

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import mipl

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "pathology" / "journey.py"
specification = importlib.util.spec_from_file_location("journey", SCRIPT)
pathology = importlib.util.module_from_spec(specification)
specification.loader.exec_module(pathology)
SIZES = {"tiles": 48, "calibration": 24, "test": 48, "new": 30}


@pytest.mark.slow
@pytest.mark.skipif(pathology.CHROMIUM is None, reason="there is no Chromium on this machine")
def test_from_images_to_a_model_that_learned_from_reviews(tmp_path, capsys):
    seen = pathology.journey(tmp_path, SIZES, epochs=8)
    work = tmp_path / "work"

    # 20 different bags were reviewed, the random sample first, each with its own image on the page
    assert len({row["bag"] for row in seen}) == 20
    assert [row["decision"] == "random sample" for row in seen] == [True] * 10 + [False] * 10
    for row in seen:
        tile = cv2.imread(str(tmp_path / "laboratory" / "new" / f"{row['bag']}.png"))[..., ::-1]
        np.testing.assert_allclose(row["colour"], tile.mean(axis=(0, 1)), atol=2.5)

    with (work / "reviews.csv").open(newline="", encoding="utf-8") as file:
        reviews = list(csv.DictReader(file))
    assert {row["bag_id"]: row["selected"] for row in reviews} == {
        row["bag"]: "random" if i < 10 else "chosen" for i, row in enumerate(seen)
    }
    assert {row["reviewer"] for row in reviews} == {"Dora"}

    first, better = mipl.load(work / "model"), mipl.load(work / "better")
    assert first.trained_on_["bags"] == SIZES["tiles"]
    assert better.trained_on_["bags"] == SIZES["tiles"] + 20
    assert better.trained_on_["provenance"]["features"]["generator"] == "sbn"
    assert "generator 'sbn'" in (work / "card.md").read_text(encoding="utf-8")
    (explained,) = json.loads((work / "maps" / "explain.json").read_text(encoding="utf-8"))["bags"]
    assert (work / "maps" / explained["files"][1]).read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert printed.out.count("expected calibration error") >= 2
    assert "20 bags from" in printed.err  # what was joined
