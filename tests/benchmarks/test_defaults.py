"""The page of the defaults is what its rows say, and the tables mark what misses its target."""

import json
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import defaults
import small
from pages import filled


def row(case, method, split, accuracy=0.95, nll=0.2, given=None, **more):
    return {
        "dataset": case.dataset, "r": case.r, "method": method, "split": split, "given": given or {},
        "bags": 100, "accuracy": accuracy, "ece": 0.03, "ece_if_calibrated": 0.02, "nll": nll,
        "confidence": 0.9, "right": "ff" * 13, "in_band": 60, "right_in_band": 54, **more,
    }  # fmt: skip


def test_the_committed_pages_are_those_of_the_committed_rows():
    found = json.loads(defaults.RESULTS.read_text(encoding="utf-8"))
    page = defaults.PAGE.read_text(encoding="utf-8")
    assert filled(page, defaults.tables(found)) == page, "run python benchmarks/defaults.py"
    readme = defaults.README.read_text(encoding="utf-8")
    assert filled(readme, {"results": defaults.overview_table(found["rows"])}) == readme
    runs = defaults.RUNS_PAGE.read_text(encoding="utf-8")
    records = defaults.Store(defaults.PACK)
    rows = defaults.result_rows(records, defaults.is_present, defaults.paper_results())
    table = defaults.markdown(rows)
    assert "earlier" not in table
    assert filled(runs, {"results": table}) == runs
    training = defaults.TRAINING.read_text(encoding="utf-8")
    assert filled(training, {"ablation": defaults.ablation_table(found["rows"])}) == training
    if small.RESULTS.is_file():
        trained = json.loads(small.RESULTS.read_text(encoding="utf-8"))
        assert filled(page, {"small": small.table(trained)}) == page, "run python benchmarks/small.py"


def test_a_target_that_is_missed_is_marked():
    case = defaults.CASES[0]
    good = defaults.default_table([row(case, "sam-cn", split) for split in case.splits], "sam-cn")
    assert "✗" not in good
    assert "95.0 ± 0.0" in good
    low = defaults.default_table([row(case, "sam-cn", split, 0.9) for split in case.splits], "sam-cn")
    assert low.count("✗") == 1
    rough = [row(case, "sam-cn", split, ece=0.041) for split in case.splits]  # above 4, and 2 above expected
    assert defaults.default_table(rough, "sam-cn").count("✗") == 1
    small_set = [row(case, "sam-cn", split, ece=0.041, ece_if_calibrated=0.03) for split in case.splits]
    assert "✗" not in defaults.default_table(small_set, "sam-cn")


def test_regret_is_measured_against_the_best_alternative_on_the_same_splits():
    case = defaults.CASES[0]
    rows = [row(case, "sam-cn", split, 0.90, 0.30) for split in case.splits]
    rows += [row(case, "proden", split, 0.93, 1.00) for split in case.splits]
    rows += [row(case, "lws", split, 0.80, 0.25) for split in case.splits]
    (line,) = defaults.regret_table(rows).splitlines()[2:]
    assert "proden 93.0 | -3.0 ± 0.0 ✗" in line
    assert "lws 0.250 | -0.050 ± 0.000 ✗" in line
    close = [row(case, "sam-cn", split, 0.925, 0.26) for split in case.splits] + rows[3:]
    assert "✗" not in defaults.regret_table(close)


def test_one_split_has_an_error_over_its_bags():
    right = np.zeros((2, 100), dtype=bool)
    right[0, :90] = right[1, 5:92] = True
    own, other = ({"bags": 100, "right": np.packbits(each).tobytes().hex()} for each in right)
    wanted = np.std(right[0].astype(float) - right[1], ddof=1) / 10
    assert defaults.error_over_bags(own, other) == pytest.approx(wanted)


@pytest.mark.parametrize(("number", "right"), [(60, 54), (50, 50), (80, 0), (200, 120)])
def test_the_interval_of_a_proportion_is_that_of_scipy(number, right):
    line = defaults._band_line("set", number, right)
    wanted = binomtest(right, number).proportion_ci(method="exact")
    assert f"{100 * wanted.low:.1f}–{100 * wanted.high:.1f}" in line
    assert ("✗" in line) == (wanted.low > 0.95 or wanted.high < 0.85)


def test_sets_with_few_confident_predictions_are_pooled():
    first, second = defaults.CASES[:2]
    rows = [row(case, "sam-cn", 1, in_band=20, right_in_band=18) for case in (first, second)]
    (line,) = defaults.band_table(rows, "sam-cn").splitlines()[2:]
    assert f"pooled: {first.title}, {second.title} | 40 | 90.0%" in line


def test_the_ablation_compares_the_same_splits():
    case = next(case for case in defaults.CASES if (case.dataset, case.r) == ("birdsong-mipl", 3))
    rows = [row(case, "sam-cn", split, 0.80 + 0.01 * split) for split in (1, 2, 3)]
    rows += [row(case, "sam-cn", split, 0.78 + 0.01 * split, given={"warmup": 0.0}) for split in (2, 3)]
    table = defaults.ablation_table(rows)
    (line,) = [line for line in table.splitlines() if "`warmup`" in line]
    assert "| -2.0 ± 0.0 / +0.0 ± 0.0 |" in line
    (whole,) = [line for line in table.splitlines() if "nothing" in line]
    assert "82.0 / 3.0" in whole


def test_parts_are_removed_only_where_they_do_something():
    cases = {case.title: case for case in defaults.CASES}
    assert not defaults.matters({"pretrain": 0}, cases["crc5-lite0-16"])
    assert not defaults.matters({"components": 0}, cases["birdsong-mipl r = 3"])
    assert defaults.matters({"components": 0}, cases["crc5-lite0-16"])
    assert not defaults.matters({"weight_decay": 0.2}, cases["fmnist-mipl r = 3"])


def test_hopeless_bags_have_no_signal(gaussian):
    every = small.changed(gaussian, "every class a candidate", 0)
    assert every.candidates.all()
    other = small.changed(gaussian, "sets of other bags", 0)
    assert not np.array_equal(other.candidates, gaussian.candidates)
    assert sorted(map(tuple, other.candidates)) == sorted(map(tuple, gaussian.candidates))
    assert np.ptp(small.changed(gaussian, "constant features", 0).source) == 0
    assert small.changed(gaussian, "signal", 0) is gaussian
