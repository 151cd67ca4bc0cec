import numpy as np
import pytest
import slow_metrics as slow

from mipl.errors import DataError, SettingError
from mipl.metrics import accuracy, bootstrap_interval, brier, expected_calibration_error
from mipl.seeding import rng_for


def share_of_zeros(p, y):
    return float((y == 0).mean())


def test_equals_a_slow_loop():
    p, y = slow.sampled(40, 3, seed=1)
    interval = bootstrap_interval(brier, p, y, draws=101, level=0.8, seed=5)
    rng, values = rng_for("bootstrap", 5), []
    for _ in range(101):
        rows = rng.integers(40, size=40)
        values.append(slow.brier(p[rows].tolist(), y[rows].tolist()))
    values.sort()
    # Of 101 sorted values the 10th, 50th and 90th percentile are the values of those ranks.
    value = slow.brier(p.tolist(), y.tolist())
    expected = (value, value + values[10] - values[50], value + values[90] - values[50])
    assert interval == pytest.approx(expected, abs=1e-12)
    assert interval._fields == ("value", "low", "high")
    assert all(type(x) is float for x in interval)


@pytest.mark.parametrize("metric", [accuracy, brier])
def test_contains_the_value_of_a_mean(metric):
    p, y = slow.sampled(100, 4, seed=2)
    low_level, high_level = (bootstrap_interval(metric, p, y, draws=400, level=x) for x in (0.5, 0.99))
    assert high_level.low < low_level.low < low_level.value < low_level.high < high_level.high
    assert low_level.value == metric(p, y)


def test_brackets_a_calibration_error_that_resampling_inflates():
    p, y = slow.sampled(500, 5, seed=11)
    rng = rng_for("bootstrap", 0)
    draws = [rng.integers(500, size=500) for _ in range(200)]
    inflated = [expected_calibration_error(p[rows], y[rows]) for rows in draws]
    interval = bootstrap_interval(expected_calibration_error, p, y, draws=200)
    assert np.median(inflated) > interval.value
    assert 0 <= interval.low < interval.value < interval.high


def test_stays_within_what_the_metric_can_be():
    # Exactly calibrated, so the value is 0 and the lower end would fall below it.
    p, y = np.tile([0.75, 0.25], (80, 1)), np.tile([0, 0, 0, 1], 20)
    interval = bootstrap_interval(expected_calibration_error, p, y, draws=200)
    assert interval.low == interval.value == 0 < interval.high
    sure = bootstrap_interval(accuracy, np.tile([0.9, 0.1], (30, 1)), [0] * 29 + [1], draws=301)
    assert sure.high <= 1


def test_is_the_same_for_a_seed_and_another_for_another():
    p, y = slow.sampled(60, 3, seed=3)
    first = bootstrap_interval(brier, p, y, draws=50, seed=1)
    assert bootstrap_interval(brier, p, y, draws=50, seed=1) == first
    assert bootstrap_interval(brier, p, y, draws=50, seed=np.int64(1)) == first
    other = bootstrap_interval(brier, p, y, draws=50, seed=2)
    assert other.value == first.value
    assert other.low != first.low


def test_one_seed_draws_the_same_rows_for_every_metric():
    p, y = slow.sampled(60, 3, seed=4)
    one = bootstrap_interval(accuracy, p, y, draws=99)
    other = bootstrap_interval(lambda p, y: 1 - accuracy(p, y), p, y, draws=99)
    assert other.low == pytest.approx(1 - one.high, abs=1e-12)


def test_has_a_thousand_draws_of_95_percent_unless_told():
    p, y = slow.sampled(30, 3, seed=5)
    calls = []

    def counted(p, y):
        calls.append(1)
        return brier(p, y)

    interval = bootstrap_interval(counted, p, y)
    assert len(calls) == 1001
    assert interval == bootstrap_interval(brier, p, y, draws=1000, level=0.95, seed=0)


@pytest.mark.parametrize(("level", "least", "most"), [(0.8, 0.73, 0.86), (0.95, 0.90, 0.98)])
def test_covers_a_known_mean_as_often_as_it_says(level, least, most):
    rng = np.random.default_rng(6)
    truth, covered = 0.4, 0
    p = np.full((150, 2), 0.5)
    for run in range(300):
        y = (rng.random(150) >= truth).astype(int)
        interval = bootstrap_interval(share_of_zeros, p, y, draws=100, level=level, seed=run)
        covered += interval.low <= truth <= interval.high
    assert least <= covered / 300 <= most


def test_one_example_has_an_interval_of_one_point():
    assert bootstrap_interval(accuracy, [[0.4, 0.6]], [1], draws=5) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("draws", [0, -1, 2.5])
def test_draws_must_be_a_number_of_draws(draws):
    with pytest.raises(SettingError, match=f"draws is {draws!r}; give an integer"):
        bootstrap_interval(accuracy, [[0.5, 0.5]], [0], draws=draws)


@pytest.mark.parametrize("level", [0, 1, 95, float("nan")])
def test_level_must_be_a_share(level):
    with pytest.raises(SettingError, match=f"level is {level!r}; give a number between 0 and 1"):
        bootstrap_interval(accuracy, [[0.5, 0.5]], [0], level=level)


def test_a_metric_must_be_finite():
    with pytest.raises(
        DataError, match="The metric is nan on bootstrap draw 0; give one that is always finite"
    ):
        bootstrap_interval(lambda p, y: float("nan"), [[0.5, 0.5]], [0], draws=3)


def test_input_is_checked_even_if_the_metric_does_not():
    with pytest.raises(DataError, match=r"Row 0 of the probabilities sums to 0\.9"):
        bootstrap_interval(share_of_zeros, [[0.5, 0.4]], [0])
