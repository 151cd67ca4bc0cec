import numpy as np
import pytest
import slow_metrics as slow
from hypothesis import given, settings
from sklearn import metrics as sk

from mipl.errors import DataError
from mipl.metrics import accuracy, balanced_accuracy, brier, negative_log_likelihood

ALL = [accuracy, balanced_accuracy, brier, negative_log_likelihood]


@pytest.mark.parametrize("metric", ALL)
@given(data=slow.predictions())
@settings(deadline=None, max_examples=80)
def test_equals_the_slow_loop(metric, data):
    p, y = data
    expected = getattr(slow, metric.__name__)(p.astype(float).tolist(), y.tolist())
    value = metric(p, y)
    assert type(value) is float
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("metric", ALL)
@given(data=slow.predictions())
@settings(deadline=None, max_examples=40)
def test_ignores_order_and_repetition(metric, data):
    p, y = data
    value = metric(p, y)
    assert metric(p[::-1], y[::-1]) == pytest.approx(value, abs=1e-12)
    assert metric(np.repeat(p, 3, axis=0), np.repeat(y, 3)) == pytest.approx(value, abs=1e-12)


@given(data=slow.predictions())
@settings(deadline=None, max_examples=40)
def test_ranges(data):
    p, y = data
    assert 0 <= accuracy(p, y) <= 1
    assert 0 <= balanced_accuracy(p, y) <= 1
    assert 0 <= brier(p, y) <= 2
    assert 0 <= negative_log_likelihood(p, y) < 87.4


@pytest.mark.parametrize("k", [2, 5])
def test_equals_scikit_learn(k):
    p, y = slow.sampled(400, k, seed=k, sharpness=0.5)
    columns = list(range(k))
    assert accuracy(p, y) == pytest.approx(sk.accuracy_score(y, p.argmax(1)), abs=1e-12)
    assert balanced_accuracy(p, y) == pytest.approx(sk.balanced_accuracy_score(y, p.argmax(1)), abs=1e-12)
    theirs = sk.brier_score_loss(y, p, labels=columns, scale_by_half=False)
    assert brier(p, y) == pytest.approx(theirs, abs=1e-12)
    assert negative_log_likelihood(p, y) == pytest.approx(sk.log_loss(y, p, labels=columns), rel=1e-9)


def test_ties_predict_the_lowest_column():
    p = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    assert accuracy(p, [0, 1]) == 1.0
    assert accuracy(p, [1, 2]) == 0.0


def test_balanced_accuracy_leaves_out_absent_classes():
    p = [[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.0, 0.1, 0.9]]
    assert balanced_accuracy(p, [0, 0, 0, 2]) == 1.0
    assert balanced_accuracy(p, [0, 0, 2, 2]) == 0.75


def test_brier_of_the_surest_mistake_is_two():
    assert brier([[1.0, 0.0]], [1]) == 2.0


def test_brier_leaves_the_callers_array_alone():
    p = np.array([[0.25, 0.75]])
    brier(p, [1])
    assert p.tolist() == [[0.25, 0.75]]


def test_likelihood_of_zero_is_finite_and_clipped_at_float32_tiny():
    assert negative_log_likelihood([[1.0, 0.0]], [1]) == pytest.approx(126 * np.log(2), rel=1e-12)
    # A float32 model can hold smaller numbers than tiny; they count as zero does.
    assert negative_log_likelihood([[1.0, 1e-42]], [1]) == negative_log_likelihood([[1.0, 0.0]], [1])


def test_a_hair_more_than_one_counts_as_one():
    assert brier([[1.0004, 0.0]], [0]) == 0.0
    assert negative_log_likelihood([[1.0004, 0.0]], [0]) == 0.0


@pytest.mark.parametrize(
    ("p", "y", "sentence"),
    [
        ([0.5, 0.5], [0], r"Probabilities have shape \(2,\); give an m×k table"),
        (np.zeros((0, 3)), [], r"Probabilities have shape \(0, 3\); give"),
        (np.zeros((2, 0)), [0, 0], r"Probabilities have shape \(2, 0\); give"),
        ([[0.5, 0.5], [1.0]], [0, 0], "ragged or not numbers; give"),
        ([["a", "b"]], [0], "ragged or not numbers; give"),
        ([[0.5, 0.5]] * 3, [0, 1], r"Labels have shape \(2,\) for 3 rows of probabilities; give one label"),
        ([[0.5, 0.5]], [[0]], r"Labels have shape \(1, 1\) for 1 rows"),
        ([[0.5, 0.5]], [0.0], "Labels are of type float64; give integers"),
        ([[0.5, 0.5]], ["0"], "Labels are of type <U1; give integers"),
        (
            [[0.5, 0.5], [-0.1, 1.1]],
            [0, 0],
            r"Probability -0\.1 in row 1, column 0 is not between 0 and 1; pass",
        ),
        ([[0.5, 0.5], [3.0, -2.0]], [0, 0], "Probability 3 in row 1, column 0 is not between"),
        ([[np.nan, 0.5]], [0], "Probability nan in row 0, column 0 is not between"),
        ([[0.0, np.inf]], [0], "Probability inf in row 0, column 1 is not between"),
        ([[0.5, 0.5], [0.5, 0.498]], [0, 0], r"Row 1 of the probabilities sums to 0\.998, not to 1; divide"),
        ([[0.5, 0.5], [0.5, 0.502]], [0, 0], r"Row 1 of the probabilities sums to 1\.002, not to 1; divide"),
        ([[0.5, 0.5]] * 2, [0, 2], "Label 2 in row 1 is not a column from 0 to 1; number"),
        ([[0.5, 0.5]] * 2, [-1, 0], "Label -1 in row 0 is not a column from 0 to 1; number"),
    ],
)
@pytest.mark.parametrize("metric", ALL)
def test_says_what_is_wrong_in_which_row(metric, p, y, sentence):
    with pytest.raises(DataError, match=sentence):
        metric(p, y)


@pytest.mark.parametrize("total", [0.9995, 1.0005])
def test_takes_rows_that_sum_to_one_as_float32_does(total):
    assert accuracy([[total - 0.25, 0.25]], [0]) == 1.0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_takes_labels_of_any_whole_number_type(dtype):
    assert accuracy([[0.2, 0.8], [0.7, 0.3]], np.array([1, 1], dtype=dtype)) == 0.5
