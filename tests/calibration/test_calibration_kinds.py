"""Structured and smoothed scaling against their definitions."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp

from mipl.calibration import Scaling, fit_scaling
from mipl.calibration.scaling import set_loss


def made(m=120, k=4, seed=0):
    rng = np.random.default_rng(seed)
    log_p = log_softmax(2.5 * rng.normal(size=(m, k)) + np.array([0.5, 0, 0, -0.5]), axis=1)
    y = np.array([rng.choice(k, p=np.exp(row)) for row in log_softmax(0.5 * log_p + [0.3, 0, 0, 0], axis=1)])
    sets = y[:, None] == np.arange(k)
    return log_p, sets, sets | (rng.random((m, k)) < 0.3)


@pytest.mark.parametrize(("kind", "strength"), [("structured", 4.0), ("vector", 0.5)])
@pytest.mark.parametrize("ambiguous", [False, True])
def test_the_fit_minimises_the_penalised_loss(kind, strength, ambiguous):
    log_p, sets, larger = made()
    sets = larger if ambiguous else sets
    start = 1 / fit_scaling(log_p, sets).temperature

    def loss(values):  # a = 1/T, fixed; v and b are shrunk
        v, b = np.split(values, 2)
        scores = start * (1 + v) * log_p + b
        fit = logsumexp(scores, axis=1) - logsumexp(np.where(sets, scores, -np.inf), axis=1)
        return fit.sum() + strength * ((v**2).sum() + (b**2).sum())

    best = minimize(loss, np.zeros(8), method="BFGS").x  # with numerical gradients
    found = fit_scaling(log_p, sets, kind)
    np.testing.assert_allclose(found.weight, start * (1 + best[:4]), atol=2e-4)
    np.testing.assert_allclose(found.bias, best[4:], atol=2e-4)


def test_structured_scaling_is_shrunk_more_than_vector_scaling():
    log_p, sets, _ = made()
    plain, structured = (np.array(fit_scaling(log_p, sets, kind).bias) for kind in ("vector", "structured"))
    assert (structured**2).sum() < (plain**2).sum()


def test_smoothing_is_one_uniform_bag_among_those_that_say_something():
    log_p, sets, larger = made()
    for given, count in ((sets, 120), (larger, ((4 - larger.sum(axis=1)) / 3).sum())):
        plain, smoothed = fit_scaling(log_p, given), fit_scaling(log_p, given, "smoothed")
        assert smoothed.temperature == plain.temperature
        expected = (count * np.exp(plain.apply(log_p)) + 1 / 4) / (count + 1)
        np.testing.assert_allclose(np.exp(smoothed.apply(log_p)), expected, atol=1e-12)
    sure = np.log(np.array([[1.0, 0, 0, 0]]) + 1e-300)
    assert np.exp(smoothed.apply(sure)).min() > 1e-4
    assert np.isfinite(set_loss(smoothed.apply(sure), np.array([[False, True, False, False]]))).all()


def test_scaling_is_read_back_and_older_files_have_no_smoothing():
    log_p, sets, _ = made()
    scaling = fit_scaling(log_p, sets, "smoothed")
    content = dataclasses.asdict(scaling)
    assert Scaling.from_dict(content, 4) == scaling
    del content["uniform"]
    assert Scaling.from_dict(content, 4).uniform == 0.0
    with pytest.raises(ValueError, match="does not fit"):
        Scaling.from_dict({**dataclasses.asdict(scaling), "uniform": 2.0}, 4)
