import json

import numpy as np
import pytest
import slow_metrics as slow
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from netcal.metrics.confidence import ACE, ECE, MCE
from scipy.stats import binom
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from mipl.errors import DataError, SettingError
from mipl.metrics import (
    accuracy,
    adaptive_calibration_error,
    calibration_error_if_calibrated,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_curve,
)

ERRORS = [
    expected_calibration_error,
    maximum_calibration_error,
    adaptive_calibration_error,
    classwise_calibration_error,
]
SHARPNESS = [0.3, 1.0, 3.0]  # labels that follow confidences over-, well- and under-confidently


def binary(confidence):
    """Probabilities of two classes that predict column 0 with each confidence of at least ½."""
    c = np.asarray(confidence)
    return np.stack([c, 1 - c], axis=1)


# --- against a slow loop ---


@pytest.mark.parametrize("metric", ERRORS)
@given(data=slow.predictions(), bins=st.integers(1, 20))
@settings(deadline=None, max_examples=100)
def test_equals_the_slow_loop(metric, data, bins):
    p, y = data
    expected = getattr(slow, metric.__name__)(p.astype(float).tolist(), y.tolist(), bins)
    value = metric(p, y, bins=bins)
    assert type(value) is float
    assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ERRORS)
def test_has_fifteen_bins_unless_told(metric):
    p, y = slow.sampled(200, 4, seed=1)
    expected = getattr(slow, metric.__name__)(p.tolist(), y.tolist(), 15)
    assert metric(p, y) == pytest.approx(expected, abs=1e-12)
    assert metric(p, y) != pytest.approx(metric(p, y, bins=14), abs=1e-6)


@given(data=slow.predictions(), bins=st.integers(1, 20))
@settings(deadline=None, max_examples=100)
def test_curve_equals_the_slow_loop(data, bins):
    p, y = data
    curve = reliability_curve(p, y, bins=bins)
    groups = slow.equal_width(slow.top(p.astype(float).tolist(), y.tolist()), bins)
    assert curve.edges.tolist() == [r / bins for r in range(bins + 1)]
    assert curve.count.tolist() == [len(group) for group in groups]
    for r, group in enumerate(groups):
        if group:
            assert curve.confidence[r] == pytest.approx(sum(c for c, _ in group) / len(group), abs=1e-12)
            assert curve.accuracy[r] == pytest.approx(sum(a for _, a in group) / len(group), abs=1e-12)
        else:
            assert np.isnan(curve.confidence[r])
            assert np.isnan(curve.accuracy[r])


# --- against other libraries ---


@pytest.mark.parametrize("sharpness", SHARPNESS)
@pytest.mark.parametrize("k", [2, 5])
def test_equals_torchmetrics(k, sharpness):
    p, y = slow.sampled(500, k, seed=k, sharpness=sharpness)
    p = p.clip(1e-6, 1 - 1e-6)  # at exactly 1 torchmetrics opens one bin too many
    p /= p.sum(axis=1, keepdims=True)
    for norm, metric in (("l1", expected_calibration_error), ("max", maximum_calibration_error)):
        theirs = multiclass_calibration_error(torch.tensor(p), torch.tensor(y), k, n_bins=15, norm=norm)
        assert metric(p, y) == pytest.approx(float(theirs), abs=1e-6)  # theirs is in float32


@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_equals_netcal(sharpness):
    p, y = slow.sampled(450, 5, seed=7, sharpness=sharpness)
    assert expected_calibration_error(p, y) == pytest.approx(ECE(bins=15).measure(p, y), abs=1e-12)
    assert maximum_calibration_error(p, y) == pytest.approx(MCE(bins=15).measure(p, y), abs=1e-12)
    # Where 15 divides m and no confidences are equal, quantiles cut the same groups of 30, all of one weight.
    adaptive = adaptive_calibration_error(p, y)
    assert adaptive == pytest.approx(ECE(bins=15, equal_intervals=False).measure(p, y), abs=1e-12)
    assert adaptive == pytest.approx(ACE(bins=15, equal_intervals=False).measure(p, y), abs=1e-12)


def test_equals_netcal_class_by_class():
    p, y = slow.sampled(300, 4, seed=8, sharpness=3)
    theirs = [ECE(bins=15).measure(p[:, j].copy(), (y == j).astype(int)) for j in range(4)]
    assert classwise_calibration_error(p, y) == pytest.approx(np.mean(theirs), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_confidence_of_exactly_one_is_in_the_last_bin(dtype):
    p, y = slow.sampled(300, 4, seed=9)
    p[:120] = np.eye(4)[p[:120].argmax(axis=1)]
    p = p.astype(dtype)
    curve = reliability_curve(p, y)
    assert curve.count.sum() == 300
    assert curve.count[-1] >= 120
    ours = expected_calibration_error(p, y), maximum_calibration_error(p, y)
    rows = p.astype(float).tolist()
    assert ours[0] == pytest.approx(slow.expected_calibration_error(rows, y.tolist(), 15), abs=1e-12)
    assert ours[1] == pytest.approx(slow.maximum_calibration_error(rows, y.tolist(), 15), abs=1e-12)
    wide = p.astype(float)
    assert ours[0] == pytest.approx(ECE(bins=15).measure(wide, y), abs=1e-12)
    assert ours[1] == pytest.approx(MCE(bins=15).measure(wide, y), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_curve_equals_scikit_learn(bins):
    p, y = slow.sampled(400, 5, seed=10, sharpness=3)
    curve = reliability_curve(p, y, bins=bins)
    right, confidence = calibration_curve(p.argmax(axis=1) == y, p.max(axis=1), n_bins=bins)
    full = curve.count > 0
    assert curve.accuracy[full] == pytest.approx(right, abs=1e-12)
    assert curve.confidence[full] == pytest.approx(confidence, abs=1e-12)


# --- properties ---


@pytest.mark.parametrize("metric", ERRORS)
@given(data=slow.predictions(), bins=st.integers(1, 20), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=80)
def test_ignores_order_and_repetition(metric, data, bins, seed):
    p, y = data
    value = metric(p, y, bins=bins)
    assert 0 <= value <= 1
    order = np.random.default_rng(seed).permutation(len(y))
    assert metric(p[order], y[order], bins=bins) == pytest.approx(value, abs=1e-12)
    assert metric(np.repeat(p, 3, axis=0), np.repeat(y, 3), bins=bins) == pytest.approx(value, abs=1e-12)


@given(data=slow.predictions(), bins=st.integers(1, 20))
@settings(deadline=None, max_examples=80)
def test_mean_gap_lies_between_the_gap_of_the_means_and_the_largest(data, bins):
    p, y = data
    one_bin = abs(accuracy(p, y) - p.astype(float).max(axis=1).mean())
    assert expected_calibration_error(p, y, bins=1) == pytest.approx(one_bin, abs=1e-12)
    assert adaptive_calibration_error(p, y, bins=1) == pytest.approx(one_bin, abs=1e-12)
    expected = expected_calibration_error(p, y, bins=bins)
    assert one_bin - 1e-12 <= expected <= maximum_calibration_error(p, y, bins=bins) + 1e-12
    assert one_bin - 1e-12 <= adaptive_calibration_error(p, y, bins=bins)


@given(data=slow.predictions(), bins=st.integers(1, 20))
@settings(deadline=None, max_examples=50)
def test_expected_error_is_the_curve_summed_up(data, bins):
    p, y = data
    curve = reliability_curve(p, y, bins=bins)
    eq2 = np.nansum(curve.count / len(y) * np.abs(curve.accuracy - curve.confidence))
    assert expected_calibration_error(p, y, bins=bins) == pytest.approx(eq2, abs=1e-12)


@given(
    groups=st.lists(st.tuples(st.integers(5, 10), st.integers(1, 3)), min_size=1, max_size=6),
    bins=st.integers(1, 20),
)
@settings(deadline=None, max_examples=50)
def test_perfect_calibration_gives_zero(groups, bins):
    # Of ten examples with confidence n/10, n are right: every set of whole groups is calibrated.
    p = binary(np.concatenate([np.full(10 * times, n / 10) for n, times in groups]))
    y = np.concatenate([np.tile([0] * n + [1] * (10 - n), times) for n, times in groups])
    for metric in ERRORS:
        assert metric(p, y, bins=bins) == pytest.approx(0, abs=1e-12)
    wrong = 1 - y  # the same confidences, calibrated only where n = 5
    assume(any(n > 5 for n, _ in groups))
    for metric in ERRORS:
        assert metric(p, wrong, bins=bins) > 0.01


@pytest.mark.parametrize("metric", ERRORS[:3])
def test_constant_prediction_errs_by_confidence_less_accuracy(metric):
    p = np.tile([0.7, 0.2, 0.1], (10, 1))
    y = [0] * 4 + [1] * 6
    assert metric(p, y) == pytest.approx(0.7 - 0.4, abs=1e-12)


def test_constant_prediction_class_by_class():
    p = np.tile([0.7, 0.2, 0.1], (10, 1))
    y = [0] * 4 + [1] * 6  # class 2 never occurs and still counts
    assert classwise_calibration_error(p, y) == pytest.approx((0.3 + 0.4 + 0.1) / 3, abs=1e-12)


# --- edges ---


def test_edges_belong_to_the_bin_below():
    # 9/15 = 0.6 and 12/15 = 0.8 are the right ends of bins 8 and 11.
    count = reliability_curve(binary([0.6, 0.8, np.nextafter(0.6, 1), 1.0]), [0] * 4).count
    assert np.flatnonzero(count).tolist() == [8, 9, 11, 14]


@pytest.mark.parametrize("bins", [3, 5, 10, 15, 20, 49])
def test_every_edge_is_the_nearest_float(bins):
    # np.linspace(0, 1, 11)[3] is larger than 0.3 and np.linspace(0, 1, 50)[5] smaller than 5/49.
    edges = [r / bins for r in range(bins + 1)]
    assert reliability_curve([[1.0, 0.0]], [0], bins=bins).edges.tolist() == edges
    # Each edge is the only value of its bin; with labels in turn, two in one bin would cancel.
    p, y = [[c, 1 - c] for c in edges], [r % 2 for r in range(bins + 1)]
    expected = slow.classwise_calibration_error(p, y, bins)
    assert classwise_calibration_error(p, y, bins=bins) == pytest.approx(expected, abs=1e-12)


def test_float32_is_binned_by_its_value():
    # float32's 0.6 is 0.60000002…, above the edge; float32's 0.7 is 0.69999998…, below the edge of ten bins.
    narrow = binary([0.6, 0.7]).astype(np.float32)
    assert np.flatnonzero(reliability_curve(narrow[:1], [0], bins=15).count).tolist() == [9]
    assert np.flatnonzero(reliability_curve(narrow[1:], [0], bins=10).count).tolist() == [6]
    for metric in ERRORS:
        assert metric(narrow, [0, 1]) == metric(narrow.astype(float), [0, 1])


def test_zero_is_in_the_first_bin():
    # Class 1 has probabilities 0 and 0.05 in one bin of ten: |1 − 0.05| / 2; class 0 has 1 and 0.95 likewise.
    p, y = [[1.0, 0.0], [0.95, 0.05]], [1, 0]
    assert classwise_calibration_error(p, y, bins=10) == pytest.approx(0.95 / 2, abs=1e-12)


def test_a_hair_more_than_one_counts_as_one():
    curve = reliability_curve([[1.0004, 0.0]], [1])
    assert curve.count[-1] == 1
    assert curve.confidence[-1] == 1.0
    assert expected_calibration_error([[1.0004, 0.0]], [1]) == 1.0


@pytest.mark.parametrize("metric", ERRORS)
def test_one_example(metric):
    assert metric([[0.75, 0.25]], [0]) == 0.25
    assert metric([[0.75, 0.25]], [1]) == 0.75


def test_equal_mass_bins_in_full():
    # Ranks 0…4 in two bins: 0.5, 0.6, 0.7 with a gap of |1/3 − 0.6|, and 0.8, 0.9 with |1 − 0.85|.
    p, y = binary([0.9, 0.5, 0.7, 0.6, 0.8]), [0, 1, 1, 0, 0]
    expected = 3 / 5 * abs(1 / 3 - 0.6) + 2 / 5 * 0.15
    assert adaptive_calibration_error(p, y, bins=2) == pytest.approx(expected, abs=1e-12)


def test_equal_confidences_share_the_bin_of_the_first():
    # The middle of six falls between equal confidences: all three 0.75 stay below, 0.9 is alone above.
    p, y = binary([0.5, 0.6, 0.75, 0.75, 0.75, 0.9]), [0, 0, 0, 1, 1, 1]
    expected = 5 / 6 * abs(3 / 5 - 3.35 / 5) + 1 / 6 * 0.9
    assert adaptive_calibration_error(p, y, bins=2) == pytest.approx(expected, abs=1e-12)


def test_fewer_examples_than_bins_stand_alone():
    p, y = binary([0.6, 0.7, 0.8]), [0, 1, 0]
    assert adaptive_calibration_error(p, y, bins=15) == pytest.approx((0.4 + 0.7 + 0.2) / 3, abs=1e-12)


def test_curve_goes_to_json_with_none_for_empty_bins():
    curve = reliability_curve([[0.75, 0.25]], [0], bins=2)
    assert json.loads(json.dumps(curve.to_dict(), allow_nan=False)) == {
        "edges": [0.0, 0.5, 1.0],
        "count": [0, 1],
        "confidence": [None, 0.75],
        "accuracy": [None, 1.0],
    }


@pytest.mark.parametrize("metric", [*ERRORS, reliability_curve])
@pytest.mark.parametrize("bins", [0, -3, 1.5, "15"])
def test_bins_must_be_a_number_of_bins(metric, bins):
    with pytest.raises(SettingError, match=f"bins is {bins!r}; give an integer of at least 1"):
        metric([[0.5, 0.5]], [0], bins=bins)


@pytest.mark.parametrize("metric", [*ERRORS, reliability_curve])
def test_input_is_checked(metric):
    with pytest.raises(DataError, match=r"Row 1 of the probabilities sums to 0\.8"):
        metric([[0.5, 0.5], [0.5, 0.3]], [0, 0])


# --- the ECE of a perfectly calibrated model ---


def noise(m, draws):
    """Five standard errors of the mean ECE over draws: the ECE of m labels deviates by less than 1/√(4m)."""
    return 5 / np.sqrt(4 * m * draws)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_calibrated_error_equals_the_slow_loop(bins):
    p, _ = slow.sampled(60, 4, seed=3)
    expected = slow.calibration_error_if_calibrated(p.tolist(), bins, draws=4000, seed=0)
    value = calibration_error_if_calibrated(p, bins=bins, draws=4000)
    assert value == pytest.approx(expected, abs=np.sqrt(2) * noise(60, 4000))


@given(data=slow.predictions(most=8), bins=st.integers(1, 20))
@settings(deadline=None, max_examples=30)
def test_calibrated_error_equals_the_sum_over_all_outcomes(data, bins):
    p, _ = data
    expected = slow.expected_if_calibrated(p.astype(float).tolist(), bins)
    value = calibration_error_if_calibrated(p, bins=bins, draws=4000)
    assert type(value) is float
    assert value == pytest.approx(expected, abs=noise(len(p), 4000))


@pytest.mark.parametrize(("m", "c"), [(1, 0.7), (20, 0.55), (100, 0.9), (400, 0.6)])
def test_calibrated_error_of_a_constant_confidence_is_the_binomial_mean_deviation(m, c):
    hits = np.arange(m + 1)
    expected = float(binom.pmf(hits, m, c) @ np.abs(hits / m - c))  # E|Binomial(m, c)/m − c|
    value = calibration_error_if_calibrated(binary([c] * m), draws=20_000)
    assert value == pytest.approx(expected, abs=noise(m, 20_000))


def test_calibrated_error_is_the_mean_error_of_labels_that_follow_the_probabilities():
    p, _ = slow.sampled(80, 5, seed=4)
    rng = np.random.default_rng(0)
    labels = [[rng.choice(5, p=row) for row in p] for _ in range(200)]
    errors = [expected_calibration_error(p, y) for y in labels]
    assert calibration_error_if_calibrated(p, draws=4000) == pytest.approx(
        np.mean(errors), abs=noise(80, 190)
    )


def test_certain_predictions_leave_no_error_to_chance():
    assert calibration_error_if_calibrated(np.eye(3)) == 0.0


def test_calibrated_error_depends_on_the_seed_and_not_on_order_classes_or_blocks(monkeypatch):
    p, _ = slow.sampled(70, 3, seed=5)
    value = calibration_error_if_calibrated(p)
    assert calibration_error_if_calibrated(p[::-1]) == value
    assert calibration_error_if_calibrated(p[:, [2, 0, 1]]) == value
    assert calibration_error_if_calibrated(p, seed=1) != value
    assert calibration_error_if_calibrated(p, bins=15, draws=1000, seed=0) == value
    monkeypatch.setattr("mipl.metrics.calibration.BLOCK", 300)  # four draws at a time
    assert calibration_error_if_calibrated(p) == pytest.approx(value, rel=1e-12)
    monkeypatch.setattr("mipl.metrics.calibration.BLOCK", 1)
    assert calibration_error_if_calibrated(p) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"draws": 0}, "draws is 0; give"), ({"draws": 1.5}, "draws is 1.5; give"), ({"bins": 0}, "bins is 0")],
)
def test_calibrated_error_checks_its_settings(wrong, sentence):
    with pytest.raises(SettingError, match=sentence):
        calibration_error_if_calibrated([[0.5, 0.5]], **wrong)


@pytest.mark.parametrize("p", [[0.5, 0.5], [[0.5], [0.5, 0.5]], [[0.5, 0.4]], [[np.nan, 1.0]]])
def test_calibrated_error_checks_its_input(p):
    with pytest.raises(DataError, match=r"robabilit"):
        calibration_error_if_calibrated(p)
