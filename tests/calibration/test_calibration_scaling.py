"""Temperature and vector scaling against other minimisers, and what must always hold of them."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from scipy.special import log_softmax

from mipl.calibration import scaling as module
from mipl.calibration.scaling import LIMIT, Scaling, fit_scaling, softest_scaling
from mipl.data.candidates import add_false_positives
from mipl.errors import DataError, SettingError


def drawn(m=400, k=4, sharpness=1.0, seed=0):
    """Log-probabilities with a temperature of ``sharpness`` to undo, and labels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    z = log_softmax(2 * rng.normal(size=(m, k)), axis=1)
    labels = np.array([rng.choice(k, p=np.exp(row)) for row in z])
    return log_softmax(sharpness * z, axis=1), labels


def one_hot(labels, k=4):
    return labels[:, None] == np.arange(k)


def slow_loss(log_p, sets):
    """The mean of −log Σ_S p from the probabilities themselves."""
    return -np.log((np.exp(log_p) * sets).sum(axis=1)).mean()


@pytest.mark.parametrize("known", ["labels", "candidates"])
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_is_that_of_a_fine_grid_and_undoes_the_distortion(known, sharpness):
    log_p, labels = drawn(sharpness=sharpness)
    sets = one_hot(labels) if known == "labels" else add_false_positives(labels, 4, 1, "scaling")
    found = fit_scaling(log_p, sets)
    losses = {t: slow_loss(log_softmax(log_p / t, axis=1), sets) for t in np.geomspace(0.1, 10, 61)}
    best = min(losses, key=losses.get)
    assert abs(np.log(found.temperature / best)) < np.log(10) / 30
    assert slow_loss(found.apply(log_p), sets) <= losses[best] + 1e-12
    assert found.temperature == pytest.approx(sharpness, rel=0.35)
    assert not found.at_limit


@given(st.integers(0, 2**16), st.sampled_from([0.3, 1.0, 4.0]), st.integers(5, 200))
@settings(deadline=None, max_examples=30)
def test_the_softest_scaling_is_two_standard_errors_softer(seed, sharpness, m):
    log_p, labels = drawn(m=m, sharpness=sharpness, seed=seed)
    best, softest = fit_scaling(log_p, one_hot(labels)), softest_scaling(log_p, one_hot(labels))
    assert softest.temperature >= best.temperature * (1 - 1e-9)

    def total(temperature):
        return m * slow_loss(log_softmax(log_p / temperature, axis=1), one_hot(labels))

    assert total(softest.temperature) <= total(best.temperature) + 2.0 + 1e-9
    if softest.temperature < 0.9 * LIMIT:  # a little softer is out of reach
        assert total(softest.temperature * 1.1) > total(best.temperature) + 2.0


def test_uniform_candidates_lead_where_labels_lead_and_confusable_ones_do_not():
    log_p, labels = drawn(m=4000, sharpness=2.0)
    by_labels = fit_scaling(log_p, one_hot(labels)).temperature
    by_candidates = fit_scaling(log_p, add_false_positives(labels, 4, 1, "scaling")).temperature
    assert by_labels == pytest.approx(2.0, rel=0.05)
    assert by_candidates == pytest.approx(2.0, rel=0.1)
    truth = one_hot(labels)
    rival = np.where(truth, -np.inf, log_p).argmax(axis=1)
    assert fit_scaling(log_p, truth | one_hot(rival)).temperature < 1


@pytest.mark.parametrize("known", ["labels", "candidates"])
def test_the_vector_is_the_optimum_that_another_minimiser_finds(known):
    log_p, labels = drawn(m=80, seed=3)
    log_p = log_softmax(log_p * np.array([1, 2, 0.5, 1]) + np.array([1, 0, 0, -1]), axis=1)
    sets = one_hot(labels) if known == "labels" else add_false_positives(labels, 4, 1, "scaling")
    sharpness = 1 / fit_scaling(log_p, sets).temperature

    def penalised(values):
        weight, bias = values[:4], values[4:]
        data = len(log_p) * slow_loss(log_softmax(log_p * weight + bias, axis=1), sets)
        return data + (((weight / sharpness - 1) ** 2).sum() + (bias**2).sum()) / 2

    found = fit_scaling(log_p, sets, "vector")
    value = penalised(np.array(found.weight + found.bias))
    start = np.concatenate([np.full(4, sharpness), np.zeros(4)])
    other = minimize(penalised, start, method="Powell", options={"xtol": 1e-8, "ftol": 1e-12})
    assert value <= other.fun + 1e-5
    assert value < penalised(start) - 1


def test_the_gradient_is_that_of_the_loss():
    log_p, labels = drawn(m=30, seed=5)
    sets = add_false_positives(labels, 4, 2, "scaling")
    at = np.random.default_rng(0).normal(size=8) + 1

    def part(place):
        return lambda values: module._vector_loss(values, log_p, sets, 1.5)[place]

    assert check_grad(part(0), part(1), at) < 1e-4


@given(seed=st.integers(0, 999), t=st.floats(0.01, 100))
@settings(deadline=None, max_examples=100)
def test_a_temperature_never_changes_the_prediction(seed, t):
    log_p, _ = drawn(m=20, seed=seed)
    scaled = Scaling("temperature", (1 / t,) * 4, (0.0,) * 4).apply(log_p)
    top = log_p.argmax(axis=1)
    assert (scaled[np.arange(20), top] == scaled.max(axis=1)).all()
    np.testing.assert_allclose(np.exp(scaled).sum(axis=1), 1)
    np.testing.assert_allclose(scaled, log_softmax(log_p / t, axis=1), atol=1e-9)


@given(seed=st.integers(0, 999), kind=st.sampled_from(["temperature", "vector"]), r=st.integers(0, 2))
@settings(deadline=None, max_examples=25)
def test_the_likelihood_never_falls(seed, kind, r):
    log_p, labels = drawn(m=40, seed=seed, sharpness=2)
    sets = add_false_positives(labels, 4, r, "scaling", seed)
    found = fit_scaling(log_p, sets, kind)
    by_temperature = fit_scaling(log_p, sets)
    assert slow_loss(by_temperature.apply(log_p), sets) <= slow_loss(log_p, sets) + 1e-12
    assert slow_loss(found.apply(log_p), sets) <= slow_loss(by_temperature.apply(log_p), sets) + 1e-9


def test_probabilities_of_zero_and_bags_without_an_error():
    log_p = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    sure = fit_scaling(log_p, np.eye(2, dtype=bool))
    assert sure.at_limit
    assert sure.weight[0] == LIMIT
    assert np.isfinite(sure.apply(log_p)).all()
    wrong = fit_scaling(log_p, ~np.eye(2, dtype=bool))
    assert wrong.temperature == pytest.approx(LIMIT)  # nothing the model says is of use
    assert not wrong.at_limit


def test_it_is_the_same_after_json():
    log_p, labels = drawn()
    for kind in module.KINDS:
        made = fit_scaling(log_p, one_hot(labels), kind)
        again = Scaling.from_dict(json.loads(json.dumps(dataclasses.asdict(made))), 4)
        assert again == made
        assert (again.apply(log_p) == made.apply(log_p)).all()
    with pytest.raises(ValueError, match="does not fit"):
        Scaling.from_dict(dataclasses.asdict(made), 5)


def test_bad_input_is_named():
    log_p, labels = drawn(m=5)
    with pytest.raises(SettingError, match="no kind of scaling 'vectro'"):
        fit_scaling(log_p, one_hot(labels), "vectro")
    with pytest.raises(DataError, match="say nothing"):
        fit_scaling(log_p, np.ones((5, 4), dtype=bool))
    for sets in (np.zeros((5, 4), dtype=bool), np.ones((4, 4), dtype=bool)):
        with pytest.raises(DataError, match="at least one bag"):
            fit_scaling(log_p, sets)
