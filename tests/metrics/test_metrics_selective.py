import json

import numpy as np
import pytest
import slow_metrics as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.errors import DataError, SettingError
from mipl.metrics import (
    accuracy,
    accuracy_at_coverage,
    accuracy_at_top,
    area_under_risk_coverage,
    calibration_error_at_top,
    expected_calibration_error,
)


@given(data=slow.predictions())
@settings(deadline=None, max_examples=100)
def test_equals_the_slow_loop(data):
    p, y = data
    curve = accuracy_at_coverage(p, y)
    points = zip(curve.coverage.tolist(), curve.accuracy.tolist(), curve.threshold.tolist(), strict=True)
    assert list(points) == slow.accuracy_at_coverage(p.astype(float).tolist(), y.tolist())


@given(data=slow.predictions(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_ignores_order_and_ends_at_the_accuracy(data, seed):
    p, y = data
    order = np.random.default_rng(seed).permutation(len(y))
    curve = accuracy_at_coverage(p, y)
    assert accuracy_at_coverage(p[order], y[order]).to_dict() == curve.to_dict()
    assert curve.coverage[-1] == 1.0
    assert curve.accuracy[-1] == pytest.approx(accuracy(p, y), abs=1e-12)
    assert (np.diff(curve.coverage) > 0).all()
    assert (np.diff(curve.threshold) < 0).all()


def test_equal_confidences_enter_together():
    p = [[0.75, 0.25], [0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]
    curve = accuracy_at_coverage(p, [0, 0, 1, 0])
    assert json.loads(json.dumps(curve.to_dict())) == {
        "coverage": [0.25, 0.75, 1.0],
        "accuracy": [1.0, 2 / 3, 0.75],
        "threshold": [1.0, 0.75, 0.5],
    }


def test_input_is_checked():
    with pytest.raises(DataError, match="Label 2 in row 0"):
        accuracy_at_coverage([[0.5, 0.5]], [2])


@given(data=slow.predictions(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=100)
def test_the_area_equals_the_slow_loop_in_any_order(data, seed):
    p, y = data
    area = area_under_risk_coverage(p, y)
    assert area == pytest.approx(slow.area_under_risk_coverage(p.astype(float).tolist(), y.tolist()))
    order = np.random.default_rng(seed).permutation(len(y))
    assert area_under_risk_coverage(p[order], y[order]) == pytest.approx(area)
    curve = accuracy_at_coverage(p, y)
    if len(curve.coverage) == len(y):  # no ties: the mean of the curve
        assert area == pytest.approx(curve.risk.mean())


def test_the_area_is_smaller_where_errors_come_last():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    assert area_under_risk_coverage(p, [0, 0, 0, 1]) == pytest.approx(1 / 16)
    assert area_under_risk_coverage(p, [1, 0, 0, 0]) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert area_under_risk_coverage(np.full((4, 2), 0.5), [0, 1, 0, 0]) == 0.25


@given(data=slow.predictions(), percent=st.integers(1, 100))
@settings(deadline=None, max_examples=100)
def test_the_top_share_equals_the_metric_of_those_rows(data, percent):
    p, y = data
    count = -(-percent * len(y) // 100)  # in whole numbers
    rows, labels = slow.at_top(p.astype(float).tolist(), y.tolist(), count)
    assert accuracy_at_top(p, y, percent / 100) == pytest.approx(slow.accuracy(rows, labels))
    ece = calibration_error_at_top(p, y, percent / 100, bins=7)
    assert ece == pytest.approx(slow.expected_calibration_error(rows, labels, 7), abs=1e-12)


def test_the_top_of_everything_is_everything():
    p, y = slow.sampled(40, 3, seed=5)
    assert accuracy_at_top(p, y, 1.0) == accuracy(p, y)
    assert calibration_error_at_top(p, y, 1.0) == expected_calibration_error(p, y)
    for share in (0, -0.1, 1.01, float("nan")):
        with pytest.raises(SettingError, match="above 0 and at most 1"):
            accuracy_at_top(p, y, share)
