"""The harness of benchmarks/monitor.py on made-up scores and images."""

import json
import sys

import numpy as np

from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import monitor
from pages import filled


def made_up(m=220):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=m)
    p = rng.dirichlet(np.ones(5), size=m) * 0.3 + 0.7 * np.eye(5)[labels]
    same = {
        "confidence": p.max(axis=1),
        "features": rng.random(m),
        **{f"p({j})": p[:, j] for j in range(5)},
    }
    return {"same": same, "stain": same | {"features": 1 + rng.random(m)}}, labels


def test_streams_without_a_shift_rarely_alarm_and_shifts_are_found():
    scores, labels = made_up()
    assert monitor.delays(scores, labels, "none", 40)["alarms"] <= 0.15
    stain = monitor.delays(scores, labels, "stain", 10)
    assert stain["alarms"] >= 0.9
    assert 3 <= stain["median"] <= 30
    mix = monitor.delays(scores, labels, "class mix", 10)
    assert mix["median"] is None or mix["median"] > stain["median"]
    rows = [{"pool": "made up", **row} for row in (monitor.delays(scores, labels, "none", 2), stain)]
    shown = monitor.table({"streams": rows})
    assert shown.count("\n") == 3


def test_the_changes_of_images_are_changes():
    image = np.random.default_rng(1).integers(0, 256, size=(8, 10, 3), dtype=np.uint8)
    assert (monitor.half_resolution(image)[:2, :2] == monitor.half_resolution(image)[0, 0]).all()
    assert monitor.half_resolution(image).shape == monitor.other_stain(image).shape == image.shape
    white = np.full((2, 2, 3), 255, dtype=np.uint8)
    assert (monitor.other_stain(white) == 255).all()
    assert (monitor.other_stain(image) != image).any()


def test_the_page_shows_what_was_measured():
    found = json.loads(monitor.RESULTS.read_text(encoding="utf-8"))
    page = monitor.PAGE.read_text(encoding="utf-8")
    assert filled(page, {"monitor": monitor.table(found)}) == page, "run python benchmarks/monitor.py"
    spread = (found["level"] * (1 - found["level"]) / 500) ** 0.5
    for row in found["streams"]:
        assert row["streams"] == 500
        if row["shift"] == "none":
            assert row["alarms"] <= found["level"] + 3 * spread
