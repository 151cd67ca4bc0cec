"""Smooth and debiased calibration errors and the split of the log score, by independent routes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import norm

from mipl.errors import DataError, SettingError
from mipl.metrics import (
    debiased_calibration_error,
    evaluate,
    log_score_split,
    negative_log_likelihood,
    smooth_calibration_error,
)


def predictions(m=400, k=3, sharpness=1.0, seed=0):
    """Return probabilities of a model that is calibrated at sharpness 1, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(m, k)) * 1.5
    labels = np.array([rng.choice(k, p=row) for row in softmax(z, axis=1)])
    return softmax(sharpness * z, axis=1), labels


def smoothed_by_a_loop(confidence, correct, width, points=2000):
    """Return the integral of the smoothed residuals with explicit reflections of the kernel."""
    t = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for f, y in zip(confidence, correct, strict=True):
        for mirror in (-4, -2, 0, 2, 4):
            total += (y - f) * (norm.pdf(t, mirror + f, width) + norm.pdf(t, mirror - f, width))
    return np.abs(total).mean() / len(confidence)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_the_smooth_error_is_the_width_at_which_the_smoothed_error_equals_it(sharpness):
    p, y = predictions(150, sharpness=sharpness)
    found = smooth_calibration_error(p, y)
    assert smoothed_by_a_loop(p.max(axis=1), p.argmax(axis=1) == y, found) == pytest.approx(found, abs=2e-4)


def test_the_debiased_error_is_the_formula_and_is_lower_than_with_bias():
    p, y = predictions(300, sharpness=1.0)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    plain = corrected = 0.0
    for part in np.array_split(np.argsort(confidence, kind="stable"), 15):
        accuracy, n = correct[part].mean(), len(part)
        gap = (accuracy - confidence[part].mean()) ** 2
        plain += n * gap / 300
        corrected += n * (gap - accuracy * (1 - accuracy) / (n - 1)) / 300
    assert debiased_calibration_error(p, y) == pytest.approx(np.sqrt(max(0, corrected)), abs=1e-12)
    assert corrected < plain


def test_recalibration_removes_what_sharpening_added():
    sharp, y = predictions(4000, sharpness=3.0)
    true, _ = predictions(4000, sharpness=1.0)
    refinement, calibration = log_score_split(sharp, y)
    assert refinement + calibration == pytest.approx(negative_log_likelihood(sharp, y), abs=1e-9)
    assert refinement == pytest.approx(log_score_split(true, y).refinement, abs=1e-4)
    assert calibration > 0.1
    assert abs(log_score_split(true, y).calibration) < 0.01
    assert smooth_calibration_error(sharp, y) > 0.1 > 0.03 > smooth_calibration_error(true, y)
    assert debiased_calibration_error(sharp, y) > 0.1 > 0.03 > debiased_calibration_error(true, y)


@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_errors_are_finite_and_in_range_for_any_predictions(m, k, seed):
    rng = np.random.default_rng(seed)
    p = softmax(30 * rng.normal(size=(m, k)), axis=1)
    y = rng.integers(k, size=m)
    assert 0 <= smooth_calibration_error(p, y) <= 1
    assert 0 <= debiased_calibration_error(p, y) <= 1
    assert all(map(np.isfinite, log_score_split(p, y)))


def test_the_report_has_them_without_intervals():
    p, y = predictions(60)
    report = evaluate(p, y, bootstrap=20)
    names = (
        "smooth_calibration_error", "debiased_calibration_error", "refinement_loss", "calibration_loss",
    )  # fmt: skip
    assert set(names) <= set(report)
    assert not {f"{name}_low" for name in names} & set(report)
    with pytest.raises(SettingError, match="folds = 1 must be"):
        log_score_split(p, y, folds=1)
    with pytest.raises(DataError):
        smooth_calibration_error(p, y[:-1])
