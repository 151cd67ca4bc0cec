"""The monitor: p-values and bets against plain loops, false alarms, and shifts that it finds."""

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, kstest

from mipl.errors import DataError, SettingError
from mipl.watch import JUMP, SLOPES, conformal_p_values, jumper, watch, weights, write_course

VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=30)


@given(reference=VALUES, new=VALUES, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_the_p_value_is_the_rank_among_all_bags_so_far(reference, new, seed):
    u = np.random.default_rng(seed).random(len(new))
    expected = []
    for i in range(len(new)):
        seen = reference + new[: i + 1]
        greater, equal = sum(s > new[i] for s in seen), sum(s == new[i] for s in seen)
        expected.append((greater + u[i] * equal) / len(seen))
    assert conformal_p_values(reference, new, u) == pytest.approx(expected, abs=1e-12)


def test_p_values_are_uniform_and_independent_even_with_ties():
    rng = np.random.default_rng(1)
    p = np.array(
        [conformal_p_values(x[:8], x[8:], rng.random(4)) for x in rng.integers(0, 5, size=(4000, 12))]
    )
    for column in p.T:
        assert kstest(column, "uniform").pvalue > 0.001
    assert np.abs(np.corrcoef(p.T) - np.eye(4)).max() < 0.06


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None, max_examples=60)
def test_the_capital_is_that_of_a_loop_and_stays_the_same_on_average(p):
    capital = dict.fromkeys(SLOPES, 1 / len(SLOPES))
    for value in p:
        total = sum(capital.values())
        capital = {
            b: ((1 - JUMP) * own + JUMP * total / len(SLOPES)) * (1 + b * (value - 0.5))
            for b, own in capital.items()
        }
    course = jumper(np.array(p))
    assert course[-1] == pytest.approx(sum(capital.values()))
    assert (course >= 0).all()
    # a factor that is linear in p has its mean at p = 1/2, the mean of a uniform p
    assert jumper(np.array([*p, 0.5]))[-1] == pytest.approx(course[-1])
    both = [jumper(np.array([*p, 0.5 + side]))[-1] for side in (-0.3, 0.3)]
    assert np.mean(both) == pytest.approx(course[-1])


def scores(values):
    return {"confidence": values[:, 0], "features": values[:, 1], "p(a)": values[:, 2], "p(b)": values[:, 3]}


def test_false_alarms_are_at_most_the_level():
    rng = np.random.default_rng(2)
    alarms = sum(
        watch(scores(x[:30]), scores(x[30:]), level=0.2, seed=i).alarm is not None
        for i, x in enumerate(rng.random((150, 130, 4)))
    )
    assert binomtest(alarms, 150, 0.2, alternative="greater").pvalue > 0.001


@pytest.mark.parametrize("column", range(4))
def test_a_change_of_one_score_is_found_and_named(column, tmp_path):
    x = np.random.default_rng(3).random((260, 4))
    x[160:, column] = 0.7 + 0.3 * x[160:, column]
    course = watch(scores(x[:100]), scores(x[100:]))
    assert 60 <= course.alarm < 130
    assert course.strongest == list(scores(x))[column]
    ids = [f"bag{i}" for i in range(160)]
    write_course(tmp_path / "c.csv", ids, course)
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["bag_id"] for row in rows] == ids
    assert [row["alarm"] for row in rows].index("1") == course.alarm
    assert float(rows[course.alarm]["evidence"]) >= 100 > float(rows[course.alarm - 1]["evidence"])
    assert course.to_dict()["alarm_at"] == course.alarm + 1


def test_the_same_seed_gives_the_same_course():
    x = np.round(np.random.default_rng(4).random((60, 4)), 1)
    one, other = (watch(scores(x[:30]), scores(x[30:]), seed=seed) for seed in (5, 5))
    assert (one.combined == other.combined).all()
    assert (one.combined != watch(scores(x[:30]), scores(x[30:]), seed=6).combined).any()


def test_weights_sum_to_one_by_kind():
    found = weights(["confidence", "features", "p(a)", "p(b)"])
    assert found == pytest.approx({"confidence": 1 / 3, "features": 1 / 3, "p(a)": 1 / 6, "p(b)": 1 / 6})
    assert weights(["confidence", "p(a)"]) == {"confidence": 0.5, "p(a)": 0.5}


def test_bad_input_is_named():
    with pytest.raises(SettingError, match="level is 0"):
        watch({"confidence": [1.0]}, {"confidence": [1.0]}, level=0)
    with pytest.raises(DataError, match="same scores"):
        watch({"confidence": [1.0]}, {"features": [1.0]})
    with pytest.raises(DataError, match="nothing to compare"):
        watch({"confidence": [1.0]}, {"confidence": []})
