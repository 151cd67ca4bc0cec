"""Calibration of a model: fitted, applied, saved, loaded, and refused where it would be misleading."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.base import clone

import mipl
from mipl.calibration import calibrate, fit_conformal, fit_scaling
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.splits import one_per_group, random_split
from mipl.errors import DataError, SettingError, StorageError
from mipl.estimators import CDLClassifier
from mipl.metrics import negative_log_likelihood


@pytest.fixture(scope="module")
def data():
    """Return training, calibration and test bags of overlapping classes."""
    bags = gaussian_bags(bags=360, k=4)
    rng = np.random.default_rng(0)
    noisy = Bags.from_list(
        [bag.instances + 7 * rng.normal(size=bag.instances.shape) for bag in bags],
        bags.candidates,
        bags.labels,
        ["ash", "birch", "cedar", "elm"],
    )
    return noisy[:120], noisy[120:240], noisy[240:]


@pytest.fixture(scope="module")
def model(data):
    return CDLClassifier(epochs=12, ensemble=1).fit(data[0])


@pytest.mark.parametrize("by", ["labels", "candidates"])
@pytest.mark.parametrize("kind", ["temperature", "vector", "none"])
def test_it_is_saved_and_loaded_exactly(model, data, by, kind, tmp_path):
    made = calibrate(model, data[1], by=by, kind=kind, candidate="drawn")
    made.save(tmp_path / "m")
    loaded = mipl.load(tmp_path / "m")
    assert loaded.calibration_ == made.calibration_
    assert (loaded.predict_proba(data[2]) == made.predict_proba(data[2])).all()
    assert (made.calibration_.scaling is None) == (kind == "none")
    if kind == "none":
        assert (made.predict_proba(data[2]) == model.predict_proba(data[2])).all()
        assert len(made.calibration_.conformal.scores) == 120
    else:
        assert (made.predict_proba(data[2]) != model.predict_proba(data[2])).any()
        assert len(made.calibration_.conformal.scores) == 60
    loaded.calibration_ = None
    loaded.save(tmp_path / "m")  # a plain model leaves no calibration of the one before
    assert not (tmp_path / "m" / "calibration.json").exists()
    assert mipl.load(tmp_path / "m").calibration_ is None


@pytest.mark.parametrize("by", ["labels", "candidates"])
def test_it_makes_new_bags_more_likely_and_leaves_the_model_alone(model, data, by):
    before = model.predict_proba(data[2])
    made = calibrate(model, data[1], by=by, set_share=0)
    assert made.calibration_.conformal is None
    assert (made.predict(data[2]) == model.predict(data[2])).all()
    labels = data[2].labels
    assert negative_log_likelihood(made.predict_proba(data[2]), labels) < negative_log_likelihood(
        before, labels
    )
    assert model.calibration_ is None
    assert (model.predict_proba(data[2]) == before).all()
    again = calibrate(made, data[1], by=by, set_share=0)  # from the plain probabilities, not on top
    assert again.calibration_ == made.calibration_


def test_the_bags_of_the_sets_are_not_those_of_the_scaling(model, data):
    cal = data[1]
    scored, scaled = random_split(cal, 0.25, "calibrate", 0)
    assert len(scored) == 30
    made = calibrate(model, cal, set_share=0.25).calibration_
    truth, log_p = np.eye(4, dtype=bool)[cal.labels], model.predict_log_proba(cal)
    assert made.scaling == fit_scaling(log_p[scaled], truth[scaled])
    assert made.conformal == fit_conformal(np.exp(made.scaling.apply(log_p[scored])), truth[scored])


def test_training_again_and_cloning_forget_it(model, data):
    made = calibrate(model, data[1])
    assert clone(made).calibration_ is None
    assert made.fit(data[0]).calibration_ is None


def test_a_calibration_replaces_the_temperature_of_an_ensemble(data):
    ensemble = CDLClassifier(epochs=12, ensemble=3).fit(data[0])
    trained = ensemble.calibration_
    assert trained.digest == data[0].content_digest()
    assert (trained.by, trained.bags, trained.conformal) == ("candidates", 120, None)
    made = calibrate(ensemble, data[1], set_share=0)
    plain = ensemble.predict_log_proba(data[1]) * trained.scaling.temperature  # up to a constant per bag
    truth = np.eye(4, dtype=bool)[data[1].labels]
    wanted = fit_scaling(plain, truth).temperature
    assert made.calibration_.scaling.temperature == pytest.approx(wanted, rel=1e-4)
    assert ensemble.calibration_ == trained
    again = made.fit(data[0])
    assert again.calibration_ == trained


def test_columns_follow_the_names_of_the_classes(model, data):
    cal = data[1]
    order = [2, 0, 3, 1]
    turned = Bags.from_list(
        [bag.instances for bag in cal],
        cal.candidates[:, order],
        np.argsort(order)[cal.labels],
        [cal.classes[j] for j in order],
        ids=cal.ids,
    )
    for by in ("labels", "candidates"):
        one, other = calibrate(model, cal, by=by), calibrate(model, turned, by=by)
        assert one.calibration_.scaling == other.calibration_.scaling
        assert one.calibration_.conformal == other.calibration_.conformal


def test_bags_of_a_patient_stay_together_and_count_once(model, data):
    groups = np.array([f"patient {i // 4}" for i in range(120)])
    grouped = dataclasses.replace(data[1], groups=groups)
    first, second = random_split(grouped, 0.5, "x")
    assert not set(groups[first]) & set(groups[second])
    assert len(first) + len(second) == 120
    chosen = one_per_group(grouped, "x")
    assert sorted(groups[chosen]) == sorted(set(groups))
    assert len(calibrate(model, grouped).calibration_.conformal.scores) == 15
    assert one_per_group(data[1], "x").tolist() == list(range(120))


def test_a_random_split_is_one():
    bags = gaussian_bags(bags=50)
    first, second = random_split(bags, 0.3, "a")
    assert len(first) == 15
    assert sorted([*first, *second]) == list(range(50))
    assert (
        first.tolist() == random_split(bags, 0.3, "a")[0].tolist() != random_split(bags, 0.3, "b")[0].tolist()
    )
    with pytest.raises(SettingError, match="fraction between 0 and 1"):
        random_split(bags, 1.0)
    with pytest.raises(DataError, match="too few"):
        random_split(bags[:1], 0.5)


def test_what_would_mislead_is_refused(model, data):
    train, cal, _ = data
    bare = dataclasses.replace(cal, candidates=None, labels=None)
    right = cal[np.flatnonzero(model.predict(cal) == np.array(cal.classes)[cal.labels])]
    for bags, settings, sentence in (
        (train, {}, "trained on these bags"),
        (
            dataclasses.replace(train, groups=np.char.add("patient ", train.ids)),
            {},
            "trained on these bags",
        ),
        (bare, {}, "no true labels"),
        (bare, {"by": "candidates"}, "no candidate sets"),
        (dataclasses.replace(cal, missing_truth=True), {"by": "candidates"}, "may be missing"),
        (right, {}, "do not determine the temperature"),
        (right, {"kind": "vector"}, "do not determine the temperature"),
        (dataclasses.replace(cal, classes=("ash", "birch", "cedar", "oak")), {}, "class 'oak'"),
    ):
        with pytest.raises(DataError, match=sentence):
            calibrate(model, bags, **settings)
    for settings, sentence in (
        ({"by": "label"}, "Did you mean 'labels'"),
        ({"kind": "platt"}, "no kind of scaling 'platt'"),
        ({"set_share": 1.2}, "a fraction between 0 and 1"),
        ({"set_share": 1}, "leaves no bag"),
        ({"by": "candidates", "candidate": "median"}, "no way 'median'"),
    ):
        with pytest.raises(SettingError, match=sentence):
            calibrate(model, cal, **settings)


def test_a_damaged_file_is_one_sentence(model, data, tmp_path):
    calibrate(model, data[1]).save(tmp_path / "m")
    path = tmp_path / "m" / "calibration.json"
    (tmp_path / "m" / "checksums.json").unlink()
    content = json.loads(path.read_text())
    for damage, sentence in (
        ({**content, "format": "other"}, "has the format 'other'"),
        ({name: value for name, value in content.items() if name != "by"}, "is damaged"),
        ({**content, "scaling": {**content["scaling"], "weight": [1.0]}}, "is damaged"),
        ({**content, "conformal": {**content["conformal"], "scores": ["x"]}}, "is damaged"),
    ):
        path.write_text(json.dumps(damage))
        with pytest.raises(StorageError, match=sentence):
            mipl.load(tmp_path / "m")
