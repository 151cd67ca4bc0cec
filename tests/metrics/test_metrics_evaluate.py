import json
import subprocess
import sys

import numpy as np
import pytest
import slow_metrics as slow

import mipl.metrics
from mipl.errors import DataError, SettingError
from mipl.metrics import (
    bootstrap_interval,
    calibration_error_if_calibrated,
    evaluate,
    expected_calibration_error,
)

PLAIN = ["accuracy", "balanced_accuracy", "brier", "negative_log_likelihood"]
BINNED = [f"{kind}_calibration_error" for kind in ("expected", "maximum", "adaptive", "classwise")]
SIMULATED = "calibration_error_if_calibrated"  # has no interval
# nor have these, which test_metrics_binless.py checks
BINLESS = ["smooth_calibration_error", "debiased_calibration_error", "refinement_loss", "calibration_loss"]


def test_reports_every_metric_under_its_name():
    p, y = slow.sampled(90, 4, seed=1, sharpness=3)
    report = evaluate(p, y, bins=7)
    expected = {name: getattr(slow, name)(p.tolist(), y.tolist()) for name in PLAIN}
    expected |= {name: getattr(slow, name)(p.tolist(), y.tolist(), 7) for name in BINNED}
    expected[SIMULATED] = calibration_error_if_calibrated(p, bins=7)
    assert list(report) == [*PLAIN, *BINNED, SIMULATED, *BINLESS]
    assert {name: report[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert evaluate(p, y) == evaluate(p, y, bins=15) != report


def test_adds_intervals_when_asked():
    p, y = slow.sampled(50, 3, seed=2)
    report = evaluate(p, y, bins=5, bootstrap=40, seed=3)
    plain = evaluate(p, y, bins=5, seed=3)
    with_interval = [name + end for name in PLAIN + BINNED for end in ("", "_low", "_high")]
    assert list(report) == [*with_interval, SIMULATED, *BINLESS]
    assert report[SIMULATED] == calibration_error_if_calibrated(p, bins=5, seed=3)
    assert {name: report[name] for name in plain} == plain

    def error(p, y):
        return expected_calibration_error(p, y, bins=5)

    interval = bootstrap_interval(error, p, y, draws=40, seed=3)
    assert tuple(report["expected_calibration_error" + end] for end in ("", "_low", "_high")) == interval
    assert evaluate(p, y, bins=5, bootstrap=40, seed=3) == report
    assert evaluate(p, y, bins=5, bootstrap=40, seed=4) != report


def test_is_ready_for_json():
    p, y = slow.sampled(20, 3, seed=3)
    report = evaluate(p.astype(np.float32), y.astype(np.int32), bootstrap=5)
    assert all(type(value) is float for value in report.values())
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_one_example_of_which_nothing_was_guessed_is_finite():
    assert np.isfinite(list(evaluate([[1.0, 0.0, 0.0]], [2], bootstrap=3).values())).all()


@pytest.mark.parametrize("bootstrap", [-1, 0.5])
def test_bootstrap_must_be_a_number_of_draws(bootstrap):
    with pytest.raises(SettingError, match=f"bootstrap is {bootstrap!r}; give a number of draws"):
        evaluate([[0.5, 0.5]], [0], bootstrap=bootstrap)


def test_input_is_checked():
    with pytest.raises(SettingError, match="bins is 0"):
        evaluate([[0.5, 0.5]], [0], bins=0)
    with pytest.raises(DataError, match="Label 5 in row 0"):
        evaluate([[0.5, 0.5]], [5])


def test_exports_what_it_names():
    assert all(hasattr(mipl.metrics, name) for name in mipl.metrics.__all__)
    assert {*PLAIN, *BINNED, SIMULATED} < set(mipl.metrics.__all__)


def test_import_brings_numpy_alone():
    script = (
        "import sys, mipl; before = set(sys.modules); import mipl.metrics; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new & {'torch', 'sklearn', 'scipy', 'matplotlib', 'numpy'}))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("['numpy']", "[]")
