"""The model card: every number is compared with its source."""

import json
import re

import numpy as np
import pytest

from mipl import load, make_classifier
from mipl.calibration.model import calibrate
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import DataError
from mipl.export.card import BINS, BOOTSTRAP_DRAWS, model_card, write_card
from mipl.metrics import area_under_risk_coverage, evaluate, reliability_curve

NAMES = ["ash", "birch", "ce|dar", "elm"]


@pytest.fixture(scope="module")
def bags():
    made = gaussian_bags(bags=300, k=4)
    rng = np.random.default_rng(0)
    arrays = [bag.instances + 4 * rng.normal(size=bag.instances.shape) for bag in made]
    return Bags.from_list(
        arrays, made.candidates, made.labels, NAMES, provenance={"dataset": "toy", "year": 7}
    )


@pytest.fixture(scope="module")
def folder(bags, tmp_path_factory):
    place = tmp_path_factory.mktemp("card") / "model"
    make_classifier("demipl", epochs=3).fit(bags[:120]).save(place)
    return place


def card_of(folder, labelled=None):
    return model_card(folder, load(folder), labelled)


def section(card, name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", card, re.DOTALL | re.MULTILINE)[1]


def rows(text):
    """Return the cells of every table row, except the separator."""
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_training_data_and_the_settings_are_those_of_model_json(folder):
    card, info = card_of(folder), json.loads((folder / "model.json").read_text())
    data = dict(rows(section(card, "Training data")))
    assert data["bags"] == "120"
    assert data["instances"] == f"{info['trained_on']['instances']:,}"
    assert data["mean candidate labels per bag"] == str(info["trained_on"]["candidates_per_bag"])
    assert (data["origin: dataset"], data["origin: year"]) == ("toy", "7")
    assert info["trained_on"]["digest"] in data["digest"]
    for part, name in (("method", "Method"), ("recipe", "Recipe")):
        shown = dict(rows(section(card, name)))
        assert {
            key: str(value) for key, value in info[part].items() if key != "name"
        }.items() <= shown.items()
    assert (
        dict(rows(section(card, "Recipe")))["mean loss of the last epoch"]
        == f"{info['history']['loss'][-1]:.4g}"
    )
    assert "Disambiguated Attention Embedding" in section(card, "Method")  # the citation


def test_without_labelled_bags_nothing_is_claimed(folder):
    card = card_of(folder)
    assert "None: no labelled bags were given" in section(card, "Measurements")
    assert "was not measured for this card" in section(card, "Calibration")
    assert "were not scaled after training" in section(card, "Calibration")
    assert not re.search(r"accuracy \|", card)


def test_measurements_are_those_of_the_metrics(folder, bags):
    test = bags[120:200]
    card = card_of(folder, ("toy r=1", test))
    text = section(card, "Measurements")
    assert "On toy r=1: 80 bags with true labels" in text
    assert test.content_digest() in text
    shown = {row[0]: row[1:] for row in rows(text)[1:]}
    p = load(folder).predict_proba(test)
    expected = evaluate(p, test.labels, bootstrap=BOOTSTRAP_DRAWS)
    names = [name for name in expected if not name.endswith(("_low", "_high"))]
    assert set(shown) == {name.replace("_", " ") for name in [*names, "area_under_risk_coverage"]}
    without = [name for name in names if f"{name}_low" not in expected]  # no interval by the bootstrap
    assert "calibration_error_if_calibrated" in without
    for name in without:
        assert shown[name.replace("_", " ")] == [f"{expected[name]:.4f}", "–"]
    for name in set(names) - set(without):
        value, low, high = (f"{expected[name + end]:.4f}" for end in ("", "_low", "_high"))
        assert shown[name.replace("_", " ")] == [value, f"{low} – {high}"]
    assert shown["area under risk coverage"][0] == f"{area_under_risk_coverage(p, test.labels):.4f}"


def test_the_reliability_table_counts_every_bag(folder, bags):
    test = bags[120:200]
    table = rows(section(card_of(folder, ("toy", test)), "Calibration"))[1:]
    curve = reliability_curve(load(folder).predict_proba(test), test.labels, bins=BINS)
    assert sum(int(row[1]) for row in table) == 80
    assert [int(row[1]) for row in table] == curve.count[curve.count > 0].tolist()
    assert [row[3] for row in table] == [f"{a:.1%}" for a in curve.accuracy[curve.count > 0]]


@pytest.mark.parametrize(
    ("by", "expected"), [("labels", "true labels"), ("candidates", "candidate sets alone")]
)
def test_calibration_after_training_is_described(by, expected, folder, bags, tmp_path):
    made = calibrate(load(folder), bags[200:], by=by)
    made.save(tmp_path / "m")
    text = section(card_of(tmp_path / "m"), "Calibration")
    assert f"temperature scaling, T = {made.calibration_.scaling.temperature:.4g}" in text
    assert f"100 calibration bags, by their {expected}" in text
    assert made.calibration_.digest in text
    assert "Prediction sets from the scores of 50 bags" in text
    with pytest.raises(DataError, match="was calibrated on these bags"):
        card_of(tmp_path / "m", ("toy", bags[200:]))


def test_one_bag_per_patient_is_measured(folder, bags):
    test = bags[120:200]
    grouped = Bags.from_list(
        [bag.instances for bag in test], None, test.labels, NAMES, groups=[i // 2 for i in range(80)]
    )
    text = section(card_of(folder, ("toy", grouped)), "Measurements")
    assert "On toy: 40 bags" in text
    assert "One bag was drawn from each of 40 groups" in text


def test_seen_and_unlabelled_bags_are_refused(folder, bags):
    with pytest.raises(DataError, match="was trained on these bags"):
        card_of(folder, ("toy", bags[:120]))
    with pytest.raises(DataError, match="no true labels"):
        card_of(folder, ("toy", Bags.from_list([bag.instances for bag in bags[:5]])))


def test_limitations_name_the_assumptions(folder, tmp_path, bags):
    text = section(card_of(folder), "Limitations")
    for word in ("candidates", "Distribution shift", "Guarantees", "Unknown classes", "Attention"):
        assert word in text
    assert f"{np.e / (np.e + 3):.1%}" in text  # the sigmoid head's ceiling for four classes
    make_classifier("sam-cn", ensemble=1, epochs=1).fit(bags[:40]).save(tmp_path / "m")
    assert "Sigmoid head" not in section(card_of(tmp_path / "m"), "Limitations")


def test_names_cannot_break_a_table_and_the_file_is_whole(folder, tmp_path):
    card = card_of(folder)
    for head in re.findall(r"^\|.*\n\|[ |-]+\n(?:\|.*\n)*", card, re.MULTILINE):
        lines = head.strip().splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, head
    assert "ce\\|dar" in card
    write_card(tmp_path / "card.md", card)
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == card
