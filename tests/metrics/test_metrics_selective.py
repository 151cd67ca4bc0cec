import json

import numpy as np
import pytest
import slow_metrics as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.errors import DataError, SettingError
from mipl.metrics import accuracy, accuracy_at_coverage, most_confident


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


@given(data=slow.predictions(), share=st.floats(0.01, 1))
@settings(deadline=None)
def test_the_most_confident_are_as_many_as_asked_and_surer_than_the_rest(data, share):
    p, _ = data
    chosen = most_confident(p, share)
    assert len(set(chosen.tolist())) == len(chosen) == max(1, round(share * len(p)))
    confidence = p.max(axis=1)
    rest = np.delete(confidence, chosen)
    assert len(rest) == 0 or confidence[chosen].min() >= rest.max()


def test_a_share_of_nothing_is_refused():
    with pytest.raises(SettingError, match="above 0"):
        most_confident([[0.5, 0.5]], 0.0)
