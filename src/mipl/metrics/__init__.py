"""Accuracy, calibration and bootstrap intervals: pure functions of probabilities (m, k) and labels (m,)."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from mipl.errors import SettingError
from mipl.metrics._inputs import checked
from mipl.metrics.binless import (
    LogScoreSplit,
    debiased_calibration_error,
    log_score_split,
    smooth_calibration_error,
)
from mipl.metrics.calibration import (
    ReliabilityCurve,
    adaptive_calibration_error,
    calibration_error_if_calibrated,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_curve,
)
from mipl.metrics.classification import (
    accuracy,
    balanced_accuracy,
    brier,
    confusion_matrix,
    negative_log_likelihood,
)
from mipl.metrics.intervals import Interval, Metric, bootstrap_interval
from mipl.metrics.partial import (
    approximated_accuracy,
    approximated_accuracy_scorer,
    covering_rate,
    covering_rate_scorer,
    first_near_best,
    first_within_one_error,
    set_log_likelihood,
    set_log_likelihood_scorer,
    set_log_likelihoods,
)
from mipl.metrics.selective import (
    CoverageCurve,
    accuracy_at_coverage,
    accuracy_at_top,
    area_under_risk_coverage,
    calibration_error_at_top,
)

__all__ = [
    "CoverageCurve",
    "Interval",
    "LogScoreSplit",
    "Metric",
    "ReliabilityCurve",
    "accuracy",
    "accuracy_at_coverage",
    "accuracy_at_top",
    "adaptive_calibration_error",
    "approximated_accuracy",
    "approximated_accuracy_scorer",
    "area_under_risk_coverage",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier",
    "calibration_error_at_top",
    "calibration_error_if_calibrated",
    "classwise_calibration_error",
    "confusion_matrix",
    "covering_rate",
    "covering_rate_scorer",
    "debiased_calibration_error",
    "evaluate",
    "expected_calibration_error",
    "first_near_best",
    "first_within_one_error",
    "log_score_split",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "reliability_curve",
    "set_log_likelihood",
    "set_log_likelihood_scorer",
    "set_log_likelihoods",
    "smooth_calibration_error",
]


def evaluate(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bins: int = 15,
    bootstrap: int = 0,
    seed: int = 0,
) -> dict[str, float]:
    """Compute all metrics.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
        bins: number of bins of the calibration errors.
        bootstrap: number of bootstrap draws, or 0 for no intervals.
        seed: seed of the draws.

    Returns:
        The metrics by name of the function, as floats. With bootstrap draws, ``name_low`` and ``name_high``
        are the 95% interval of ``name``. ``calibration_error_if_calibrated``, which does not depend on the
        labels, has no interval, nor have the last four: bags that are drawn twice look like miscalibration
        to them.
    """
    if not isinstance(bootstrap, int | np.integer) or bootstrap < 0:
        raise SettingError(f"bootstrap is {bootstrap!r}; give a number of draws, or 0 for no intervals.")
    metrics: dict[str, Metric] = {
        "accuracy": accuracy,
        "balanced_accuracy": balanced_accuracy,
        "brier": brier,
        "negative_log_likelihood": negative_log_likelihood,
        "expected_calibration_error": functools.partial(expected_calibration_error, bins=bins),
        "maximum_calibration_error": functools.partial(maximum_calibration_error, bins=bins),
        "adaptive_calibration_error": functools.partial(adaptive_calibration_error, bins=bins),
        "classwise_calibration_error": functools.partial(classwise_calibration_error, bins=bins),
    }
    p, y = checked(probabilities, labels)
    report: dict[str, float] = {}
    for name, metric in metrics.items():
        if bootstrap:
            interval = bootstrap_interval(metric, p, y, draws=bootstrap, seed=seed)
            report[name], report[f"{name}_low"], report[f"{name}_high"] = interval
        else:
            report[name] = metric(p, y)
    report["calibration_error_if_calibrated"] = calibration_error_if_calibrated(p, bins=bins, seed=seed)
    report["smooth_calibration_error"] = smooth_calibration_error(p, y)
    report["debiased_calibration_error"] = debiased_calibration_error(p, y, bins=bins)
    report["refinement_loss"], report["calibration_loss"] = log_score_split(p, y, seed=seed)
    return report
