"""Distances of bags to the training bags, and the reference that new bags are compared with."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import kstest

import mipl
from mipl.calibration import calibrate
from mipl.calibration.reference import Reference, bag_scores
from mipl.calibration.typicality import TrainingFeatures
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import DataError, StorageError
from mipl.estimators import CDLClassifier


def random_bags(m, d, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(d, d))
    return Bags.from_list([rng.normal(size=(rng.integers(1, 5), d)) @ mixing + shift for _ in range(m)])


@pytest.mark.parametrize(("m", "d"), [(60, 3), (60, 40), (10, 40), (2, 3)])
def test_the_distance_is_that_of_a_covariance_by_numpy(m, d):
    bags, new = random_bags(m, d, 0), random_bags(7, d, 1)
    x, y = (np.array([bag.instances.mean(axis=0) for bag in each]) for each in (bags, new))
    z, w = (x - x.mean(axis=0)) / x.std(axis=0), (y - x.mean(axis=0)) / x.std(axis=0)
    values, axes = np.linalg.eigh(z.T @ z / m)
    values, axes = values[::-1], axes[:, ::-1]
    q = min(32, m // 4, d)
    own = ((w @ axes[:, :q]) ** 2 / values[:q]).mean(axis=1) if q else 0.0
    rest = ((w @ axes[:, q:]) ** 2).mean(axis=1) / values[q:].mean() if q < d else 0.0
    assert TrainingFeatures.of(bags).distances(new) == pytest.approx(own + rest, rel=1e-3)


def test_training_bags_are_near_and_shifted_ones_far():
    made = TrainingFeatures.of(random_bags(200, 20, 0))
    near, far = made.distances(random_bags(50, 20, 1)), made.distances(random_bags(50, 20, 2, shift=10.0))
    assert near.mean() == pytest.approx(1.0, rel=0.5)  # no remainder: 20 axes of 20 features
    assert far.min() > near.max()


def test_constant_features_and_single_bags():
    bags = Bags.from_list([np.array([[1.0, i]]) for i in range(8)])
    assert np.isfinite(TrainingFeatures.of(bags).distances(bags)).all()
    assert TrainingFeatures.of(bags[:1]) is None
    same = Bags.from_list([np.ones((2, 3))] * 4)
    assert TrainingFeatures.of(same).distances(same).tolist() == [0.0] * 4


@pytest.fixture(scope="module")
def data():
    bags = gaussian_bags(bags=200, k=4)
    rng = np.random.default_rng(0)
    arrays = [bag.instances + 7 * rng.normal(size=bag.instances.shape) for bag in bags]
    noisy = Bags.from_list(arrays, bags.candidates, bags.labels)
    return noisy[:80], noisy[80:140], noisy[140:]


@pytest.fixture(scope="module")
def model(data):
    return CDLClassifier(epochs=4, ensemble=3, weight_decay=0.0).fit(data[0])


def test_the_model_keeps_its_out_of_fold_predictions_and_features(model, data, tmp_path):
    p = model.out_of_fold_proba()
    assert p.max(axis=1).mean() == pytest.approx(model.out_of_fold_["mean_confidence"], abs=1e-6)
    made = calibrate(model, data[1])
    made.save(tmp_path / "m")
    loaded = mipl.load(tmp_path / "m")
    assert (loaded.out_of_fold_proba() == made.out_of_fold_proba()).all()
    assert (loaded.feature_distances(data[2]) == made.feature_distances(data[2])).all()
    assert loaded.calibration_.reference == made.calibration_.reference
    # the new temperature is that of the same probabilities before calibration
    ratio = made.calibration_.scaling.temperature / model.calibration_.scaling.temperature
    tempered = p ** (1 / ratio) / (p ** (1 / ratio)).sum(axis=1, keepdims=True)
    assert made.out_of_fold_proba() == pytest.approx(tempered, abs=1e-6)


def test_a_model_of_an_earlier_version_loads(model, data, tmp_path):
    old = calibrate(model, data[1])
    old.out_of_fold_log_proba_ = old.training_features_ = None
    content = dataclasses.asdict(old.calibration_)
    old.save(tmp_path / "m")
    assert not (tmp_path / "m" / "statistics.safetensors").exists()
    stored = json.loads((tmp_path / "m" / "calibration.json").read_text())
    assert "features" in stored.pop("reference")["scores"]
    del stored["conformal"]["confidences"]
    (tmp_path / "m" / "calibration.json").write_text(json.dumps(stored))
    (tmp_path / "m" / "checksums.json").unlink()
    loaded = mipl.load(tmp_path / "m")
    assert loaded.out_of_fold_proba() is None
    assert loaded.feature_distances(data[2]) is None
    assert loaded.calibration_.reference is None
    assert loaded.calibration_.conformal.scores == content["conformal"]["scores"]
    assert loaded.calibration_.conformal.confidences is None
    assert set(bag_scores(loaded, data[2])) == {"confidence", *(f"p({j})" for j in range(4))}


def test_damaged_statistics_are_refused(model, tmp_path):
    model.save(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    (tmp_path / "m" / "statistics.safetensors").write_bytes(b"no")
    with pytest.raises(StorageError, match="damaged or incomplete"):
        mipl.load(tmp_path / "m")


def test_the_typicality_of_like_bags_is_uniform_and_of_unlike_ones_the_least():
    made, known = TrainingFeatures.of(random_bags(200, 20, 0)), random_bags(199, 20, 1)
    reference = Reference("", {"confidence": (0.5,) * 199, "features": tuple(made.distances(known))})
    p = reference.typicality(made.distances(random_bags(300, 20, 2)))
    assert kstest(p, "uniform").pvalue > 0.001
    odd = reference.typicality(made.distances(random_bags(5, 20, 3, shift=10.0)))
    assert odd.tolist() == [1 / 200] * 5
    assert reference.rare == 0.01
    assert dataclasses.replace(reference, scores={"confidence": (0.5,) * 9}).rare == 0.1


def test_scores_are_of_the_uncalibrated_model_and_never_of_training_bags(model, data):
    made = calibrate(model, data[1])
    plain = calibrate(model, data[1], kind="none", set_share=0)
    assert made.calibration_.reference == plain.calibration_.reference
    scores = bag_scores(made, data[2])
    assert scores["confidence"] == pytest.approx(plain.predict_proba(data[2]).max(axis=1))
    assert scores["p(2)"] == pytest.approx(plain.predict_proba(data[2])[:, 2])
    with pytest.raises(DataError, match="trained on these bags"):
        Reference.of(model, data[0])
