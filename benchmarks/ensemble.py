"""What an ensemble and cross-fitting cost beside a single network: processor time of fits, predictions."""

from __future__ import annotations

import time
import warnings
from typing import Any

from cases import Case
from measuring import Json, Row, call, ratio_row
from mipl.data.bags import Bags
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier
from mipl.training.recipe import DECAY

SIDES: dict[str, dict[str, Any]] = {
    "single": {"ensemble": 1},
    "ensemble": {"weight_decay": DECAY},
    "selected": {},
}
PREDICTIONS = 10


def fit_and_predict(bags: str, method: str, given: dict[str, Any]) -> Json:
    """Return processor seconds of a fit on one split and of predictions of the bags left over."""
    loaded = Bags.load(bags)
    train, test = stratified_split(loaded, 1)
    known, new = loaded[train], loaded[test]
    classifier = make_classifier(method, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few epochs at toy size learn nothing
        started = time.process_time()
        classifier.fit(known)
        fitted = time.process_time()
    classifier.predict_proba(new)
    begun = time.process_time()
    for _ in range(PREDICTIONS):
        classifier.predict_proba(new)
    return {"fit": fitted - started, "predict": (time.process_time() - begun) / PREDICTIONS}


def section(case: Case, repeats: int, quick: bool) -> Json:
    """Measure the three in turn, on one thread, as often as asked."""
    found: dict[str, list[Json]] = {name: [] for name in SIDES}
    for _ in range(repeats):
        for name, given in SIDES.items():
            settings = {**given, "epochs": 2} if quick else given
            found[name].append(
                call(
                    "ensemble",
                    "fit_and_predict",
                    threads=1,
                    bags=case.path,
                    method=case.method,
                    given=settings,
                )
            )
    times = {
        (name, what): [each[what] for each in runs]
        for name, runs in found.items()
        for what in ("fit", "predict")
    }
    rows: list[Row] = []
    for title, side, what, at_most in (
        ("the ensemble trains", "ensemble", "fit", 2.5),
        ("and with the choice of a weight decay", "selected", "fit", 6.0),
        ("the ensemble predicts", "ensemble", "predict", 3.0),
    ):
        row = ratio_row(f"{title}, {case.title}", times[side, what], times["single", what], None)
        seconds = min(times[side, what]), min(times["single", what])
        note = f"{seconds[0]:.3g} s against {seconds[1]:.3g} s of a single network"
        rows.append(Row(row.name, row.value, row.unit, row.low, row.high, at_most=at_most, note=note))
    return {"rows": rows, "data": dict(found)}
