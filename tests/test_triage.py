"""Operating points: the guarantee against brute force, and edge cases."""

import csv
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, binomtest

from mipl import triage
from mipl.errors import DataError, SettingError
from mipl.triage import (
    OperatingPoint,
    at_coverage,
    at_max_error,
    at_threshold,
    decisions,
    fixed_thresholds,
    further_bags,
    measured,
    min_bags,
    upper_bound,
    write_decisions,
)

LEVELS = st.sampled_from([0.001, 0.01, 0.05, 0.1, 0.3])


@st.composite
def labelled(draw, most=120):
    """Draw confidences, with many ties, and whether the predictions are correct."""
    n = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    c = rng.random(n)
    if draw(st.booleans()):
        c = np.round(c, draw(st.integers(0, 2)))
    return c, rng.random(n) >= draw(st.sampled_from([0.0, 0.02, 0.1, 0.5])) * 2 * (1 - c)


@given(count=st.integers(0, 300), share=st.floats(0, 1), delta=LEVELS)
@settings(deadline=None, max_examples=100)
def test_so_few_errors_have_probability_delta_at_the_bound(count, share, delta):
    errors = round(share * count)
    bound = upper_bound(errors, count, delta)
    if errors == count:
        assert bound == 1.0
        return
    by_root = brentq(lambda rate: binom.cdf(errors, count, rate) - delta, 1e-12, 1 - 1e-12, xtol=1e-14)
    assert bound == pytest.approx(by_root, abs=1e-9)
    interval = binomtest(errors, count).proportion_ci(1 - 2 * delta, method="exact")
    assert bound == pytest.approx(interval.high, abs=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.37])
@pytest.mark.parametrize("count", [1, 12, 80])
def test_the_bound_covers_the_rate_by_summing_over_every_outcome(rate, count):
    below = [upper_bound(errors, count, 0.1) < rate for errors in range(count + 1)]
    assert binom.pmf(np.arange(count + 1), count, rate)[below].sum() <= 0.1 + 1e-12


@given(max_error=st.floats(1e-3, 0.9), delta=LEVELS)
def test_the_least_number_of_bags_is_the_least(max_error, delta):
    least = min_bags(max_error, delta)
    assert upper_bound(0, least, delta) <= max_error * (1 + 1e-9)
    assert least == 1 or upper_bound(0, least - 1, delta) > max_error


@given(n=st.integers(1, 2000), max_error=st.floats(0.005, 0.8), delta=LEVELS)
@settings(max_examples=200)
def test_the_counts_are_fixed_by_the_setting_and_each_can_pass(n, max_error, delta):
    counts = triage._counts(n, max_error, delta)
    assert counts == sorted(set(counts))
    assert counts[-1] == n
    assert 1 <= len(counts) <= triage.MAX_THRESHOLDS
    if len(counts) > 1:
        assert upper_bound(0, counts[0], delta / len(counts)) <= max_error * (1 + 1e-9)


@given(data=labelled(), max_error=st.sampled_from([0.05, 0.1, 0.3, 0.6]), delta=LEVELS)
@settings(deadline=None, max_examples=200)
def test_the_largest_coverage_that_passes_is_chosen(data, max_error, delta):
    """The same search as a loop over bags, by the binomial test in place of the bound."""
    c, right = data
    counts = triage._counts(len(c), max_error, delta)
    best = 0
    for count in counts:
        next_one = sorted(c.tolist(), reverse=True)[count] if count < len(c) else -1.0
        above = [i for i in range(len(c)) if c[i] > next_one]
        wrong = sum(not right[i] for i in above)
        if above and binom.cdf(wrong, len(above), max_error) <= delta / len(counts):
            best = max(best, len(above))
    point = at_max_error(c, right, max_error, delta)
    assert point.reported == best == point.reports(c).sum()
    assert (point.threshold is None) == (best == 0)
    assert point.labelled == len(c)
    if best:
        assert point.errors == (~right)[point.reports(c)].sum()
        assert point.bound <= max_error


@given(data=labelled(), power=st.sampled_from([0.3, 2.0]))
@settings(deadline=None, max_examples=50)
def test_only_the_order_of_the_confidences_counts(data, power):
    c, right = np.round(data[0], 6), data[1]  # coarse enough that the power keeps distinct values distinct
    one, other = at_max_error(c, right, 0.2, 0.1), at_max_error(c**power, right, 0.2, 0.1)
    assert (one.reported, one.errors, one.bound) == (other.reported, other.errors, other.bound)
    assert (one.reports(c) == other.reports(c**power)).all()


@given(
    data=labelled(),
    training=labelled(),
    max_error=st.sampled_from([0.05, 0.1, 0.3, 0.6]),
    delta=LEVELS,
)
@settings(deadline=None, max_examples=200)
def test_the_last_threshold_before_the_first_failure_is_chosen(data, training, max_error, delta):
    """Fixed-sequence testing as a loop over bags, by the binomial test in place of the bound."""
    (c, right), own = data, training[0]
    point = at_max_error(c, right, max_error, delta, out_of_fold=own)
    assert (point.threshold is None) == (not point.reports(c).any())
    needed = min_bags(max_error, delta)
    if len(c) < needed:
        assert point.threshold is None
        return
    chosen = None
    for threshold in fixed_thresholds(own, len(c), max_error, delta):
        above = [i for i in range(len(c)) if c[i] >= threshold]
        wrong = sum(not right[i] for i in above)
        if not above or binom.cdf(wrong, len(above), max_error) > delta:
            break
        chosen = threshold, len(above), wrong
    if chosen is None:
        assert point.threshold is None
    else:
        assert (point.threshold, point.reported, point.errors) == chosen
        assert point.bound <= max_error


@given(
    training=labelled(),
    n=st.integers(1, 3000),
    max_error=st.sampled_from([0.02, 0.1, 0.3]),
    delta=LEVELS,
)
@settings(deadline=None, max_examples=200)
def test_thresholds_come_from_out_of_fold_confidences_and_leave_enough_bags(training, n, max_error, delta):
    own = training[0]
    thresholds = fixed_thresholds(own, n, max_error, delta)
    assert thresholds == sorted(set(thresholds), reverse=True)
    assert thresholds[-1] == 0.0
    assert set(thresholds) <= {0.0, *own.tolist()}
    shares = [np.mean(own >= t) for t in thresholds]
    assert shares[0] * n >= 1.5 * min_bags(max_error, delta) * (1 - 1e-9) or thresholds == [0.0]
    assert thresholds == fixed_thresholds(np.random.default_rng(0).permutation(own), n, max_error, delta)


def test_of_a_confidence_that_says_nothing_no_more_than_delta_is_reported_wrongly():
    """The error is just above ε at every threshold, so every report is a violation."""
    rng = np.random.default_rng(0)
    own, draws, delta = rng.random(300), 400, 0.1
    wrong = sum(
        at_max_error(rng.random(200), rng.random(200) >= 0.101, 0.1, delta, out_of_fold=own).threshold
        is not None
        for _ in range(draws)
    )
    assert binomtest(wrong, draws, delta, alternative="greater").pvalue > 0.001
    assert wrong > 0


@pytest.mark.parametrize(("errors", "reported"), [(0, 20), (2, 60), (5, 90), (3, 100)])
def test_the_further_bags_are_the_fewest_at_the_same_rate(errors, reported):
    point = OperatingPoint("max_error", 0.5, "", 200, reported, errors, 1.0, 0.05)
    more = further_bags([point], 200, 0.1, 0.05)
    fewest = next(
        total
        for total in range(1, 10_000)
        if upper_bound(math.ceil(errors * total / 200), math.ceil(reported * total / 200), 0.05) <= 0.1
        and all(
            upper_bound(math.ceil(errors * t / 200), math.ceil(reported * t / 200), 0.05) <= 0.1
            for t in range(total, total + 3)
        )
    )
    assert more >= max(0, fewest - 200) - 1
    enough = (200 + more) / 200
    assert upper_bound(math.ceil(errors * enough), math.ceil(reported * enough), 0.05) <= 0.1
    assert further_bags([dataclasses.replace(point, errors=reported // 2)], 200, 0.1, 0.05) is None


def test_the_note_of_a_failed_sequence_gives_the_bound_at_its_start_and_the_bags_that_are_missing():
    c = np.linspace(0.5, 1, 100)
    point = at_max_error(c, np.arange(100) % 25 != 24, 0.05, 0.05, out_of_fold=c)
    assert point.threshold is None
    assert "at the first threshold 4 of 89 labelled bags are wrong, which bounds the error by" in point.note
    assert "further labelled bags could suffice (label all of them before you repeat this)" in point.note
    with pytest.raises(DataError, match="out-of-fold confidences are not values between 0 and 1"):
        at_max_error(c, np.ones(100), 0.1, out_of_fold=[2.0])
    with pytest.raises(SettingError, match="maximum error above 0"):
        fixed_thresholds(c, 10, 0.0, 0.05)


def test_without_a_threshold_the_note_says_what_is_missing():
    confidence, right = np.linspace(0.5, 1, 40), np.ones(40, dtype=bool)
    few = at_max_error(confidence, right, 0.05, 0.05)
    assert few.threshold is None
    assert not few.reports([0.0, 1.0]).any()
    assert "59 labelled bags are needed" in few.note
    assert "there are 40" in few.note
    impossible = at_max_error(np.ones(10_000), np.ones(10_000), 0.0, 0.05)
    assert impossible.threshold is None
    assert "no number of bags" in impossible.note
    bad = at_max_error(np.linspace(0.5, 1, 400), np.arange(400) % 2, 0.05, 0.05)
    assert bad.threshold is None
    assert "smallest bound on 400 bags" in bad.note


def test_one_bag_and_equal_confidences():
    assert at_max_error([0.9], [1], 0.95, 0.05).threshold == 0.0
    assert at_max_error([0.9], [1], 0.94, 0.05).threshold is None
    tied = at_max_error(np.full(200, 1.0), np.ones(200), 0.05, 0.05)  # one tie: all of them or none
    assert (tied.threshold, tied.reported) == (0.0, 200)
    half = at_max_error(np.repeat([0.9, 0.6], 200), np.repeat([1, 0], 200), 0.05, 0.05)
    assert half.reported == 200
    assert 0.6 < half.threshold <= 0.9


def test_everything_is_reported_where_nothing_is_wrong():
    point = at_max_error(np.linspace(0.3, 1, 300), np.ones(300), 0.05, 0.05)
    assert (point.threshold, point.reported, point.errors) == (0.0, 300, 0)
    assert point.reports([0.0]).all()


@given(c=st.lists(st.sampled_from([0.2, 0.5, 0.7, 0.9, 1.0]), min_size=1, max_size=30), share=st.floats(0, 1))
def test_the_coverage_is_the_largest_that_does_not_exceed_the_request(c, share):
    point = at_coverage(c, share)
    possible = [sum(x >= t for x in c) for t in {*c, 2.0}]
    assert point.reports(c).sum() == max(n for n in possible if n <= share * len(c) + 1e-9)


def test_a_fixed_threshold_is_measured_without_a_correction():
    point = at_threshold(0.8)
    assert point.reports([0.8, 0.79]).tolist() == [True, False]
    with_error = measured(point, [0.9] * 50 + [0.5] * 50, [1] * 48 + [0] * 52, 0.1)
    assert (with_error.labelled, with_error.reported, with_error.errors) == (100, 50, 2)
    assert with_error.bound == upper_bound(2, 50, 0.1)
    nothing = measured(at_threshold(1.0), [0.9], [1], 0.1)
    assert (nothing.reported, nothing.bound) == (0, 1.0)
    none = measured(at_coverage([0.5, 0.5], 0.5), [0.9], [1], 0.1)
    assert (none.threshold, none.reported) == (None, 0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: at_max_error([0.5], [1], 1.0), "at least 0 and below 1"),
        (lambda: at_max_error([0.5], [1], -0.1), "at least 0 and below 1"),
        (lambda: at_max_error([0.5], [1], math.nan), "at least 0 and below 1"),
        (lambda: at_max_error([0.5], [1], 0.1, 0.0), "delta is 0.0"),
        (lambda: at_max_error([0.5], [1], 0.1, 1.0), "delta is 1.0"),
        (lambda: at_threshold(1.5), "between 0 and 1"),
        (lambda: at_coverage([0.5], -1), "between 0 and 1"),
        (lambda: at_coverage([0.5], 1.5), "The coverage is 1.5: give a fraction between 0 and 1"),
    ],
)
def test_bad_settings_are_named(call, sentence):
    with pytest.raises(SettingError, match=sentence):
        call()


SHAPES = r"^confidence has shape .* and correct .*: give one value of each per bag, and at least one bag\.$"
RANGES = r"^A confidence is not between 0 and 1, or a value of correct is not 0 or 1\.$"


@pytest.mark.parametrize(
    ("c", "right"), [([], []), ([0.5], [1, 0]), ([[0.5]], [[1]]), ([math.nan], [1]), ([2], [1]), ([0.5], [2])]
)
def test_invalid_arrays_are_refused(c, right):
    with pytest.raises(DataError, match=RANGES if np.shape(c) == np.shape(right) == (1,) else SHAPES):
        at_max_error(c, right, 0.1)
    with pytest.raises(DataError, match="are impossible"):
        upper_bound(3, 2, 0.1)


def test_decisions_are_written_as_they_are(tmp_path):
    p = np.array([[0.7, 0.3], [0.45, 0.55]])
    sets = np.array([[False, False], [True, True]])  # the first is empty: its label is shown all the same
    rows = decisions(["a", "b"], ["ash, old", "birch"], p, at_threshold(0.6), sets)
    write_decisions(tmp_path / "d.csv", rows)
    with (tmp_path / "d.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [tuple(row.values())[:5] for row in read] == [
        ("a", "ash, old", "0.7", "ash, old", "report"),
        ("b", "birch", "0.55", "ash, old|birch", "review"),
    ]
    assert read[0]["reason"] == "confidence is at least 0.6"
    assert read[1]["reason"] == "confidence is below 0.6"
    assert [row["typicality"] for row in read] == ["", ""]
    (odd,) = decisions(["a"], ["ash", "birch"], p[:1], at_threshold(0.6), None, np.array([0.01]), 0.01)
    assert (odd["decision"], odd["typicality"]) == ("report", 0.01)
    assert odd["reason"] == "confidence is at least 0.6; unlike the held-out bags, so look at it"
    none = decisions(["a"], ["ash", "birch"], p[:1], OperatingPoint("max_error", None, ""))
    assert (none[0]["decision"], none[0]["prediction_set"]) == ("review", [])
    assert none[0]["reason"] == "no threshold meets the rule"
    assert dataclasses.asdict(at_threshold(0.6)) == at_threshold(0.6).to_dict()


def test_every_result_of_at_max_error():
    """All fields of the operating point, with the note, on each path through :func:`at_max_error`."""
    nothing = {
        "rule": "max_error",
        "threshold": None,
        "reported": 0,
        "errors": 0,
        "bound": None,
        "delta": 0.05,
    }
    wanted = "an error of at most 0.1 with probability 0.95"
    bags = np.linspace(0.5, 0.9, 100)
    assert at_max_error(bags, np.ones(100), 0.0).to_dict() == nothing | {
        "labelled": 100,
        "note": "No threshold meets this: no number of bags can rule out every error.",
    }
    assert at_max_error(bags[:20], np.ones(20), 0.1).to_dict() == nothing | {
        "labelled": 20,
        "note": f"No threshold meets {wanted}: 29 labelled bags are needed among the reported even without "
        "an error, and there are 20.",
    }
    assert at_max_error(bags, np.zeros(100), 0.1).to_dict() == nothing | {
        "labelled": 100,
        "note": f"No threshold meets {wanted}: the smallest bound on 100 bags is 1; more labelled bags are "
        "unlikely to help, because more than 0.1 are wrong.",
    }
    found = at_max_error(bags, np.arange(100) != 50, 0.1)  # K = 100 // 30 thresholds share δ
    assert found.to_dict() == {
        "rule": "max_error",
        "threshold": 0.0,
        "labelled": 100,
        "reported": 100,
        "errors": 1,
        "bound": pytest.approx(brentq(lambda p: binom.cdf(1, 100, p) - 0.05 / 3, 0, 1)),
        "delta": 0.05,
        "note": f"Among reported bags {wanted}; of 100 labelled bags 100 are reported, 1 of them wrong.",
    }


def test_a_fixed_point_states_its_rule_and_its_measured_error():
    point = at_threshold(0)
    assert point == OperatingPoint("threshold", 0.0, "Reported: bags with a confidence of at least 0.")
    assert measured(point, [0.5, 0.6, 0.7, 0.8], [1, 1, 0, 1]) == OperatingPoint(
        "threshold",
        0.0,
        "Reported: bags with a confidence of at least 0. 1 of 4 were wrong on 4 labelled bags: an error of "
        "at most 0.751 with probability 0.95.",
        labelled=4,
        reported=4,
        errors=1,
        bound=upper_bound(1, 4, 0.05),
        delta=0.05,
    )
    assert at_coverage([0.2, 0.4, 0.9], 1 / 3) == OperatingPoint(
        "coverage", np.nextafter(0.4, 1), "Reported: the most confident 0.333333 of the bags."
    )
    assert at_coverage([0.5, 0.5], 0.5) == OperatingPoint(
        "coverage", None, "No threshold reports at least one and at most 0.5 of the bags."
    )
    assert at_coverage([0.0, 0.0], 1.0).threshold == 0.0
    assert at_coverage([1 + 1e-6], 1.0).threshold == 0.0  # what rounding of probabilities may give


def test_a_threshold_between_numbers_of_single_precision_holds():
    """The threshold lies between 0.2 and the next number of double precision; compared as float32, on 0.2."""
    confidence = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    point = at_coverage(confidence, 1 / 3)
    assert point.threshold == np.nextafter(float(confidence[1]), 1)
    assert point.reports(confidence).tolist() == [False, False, True]


@pytest.mark.parametrize("max_error", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("delta", [0.01, 0.05, 0.3])
def test_the_counts_are_as_many_as_the_bags_can_afford(max_error, delta):
    for n in range(1, 500):
        affordable = [1]
        for size in range(2, min(15, n // 30) + 1):
            fewest = next(m for m in range(1, 10_000) if (1 - max_error) ** m <= delta / size * (1 + 1e-9))
            if len(range(fewest, n + 1)) >= size:
                affordable.append(size)
        counts = triage._counts(n, max_error, delta)
        assert len(counts) == affordable[-1]
        assert counts[-1] == n
        assert (np.diff(counts) > 0).all()


def test_decisions_need_an_id_for_each_bag():
    for ids in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="zip"):
            decisions(ids, ["ash", "birch"], np.array([[0.7, 0.3], [0.45, 0.55]]), at_threshold(0.6))
