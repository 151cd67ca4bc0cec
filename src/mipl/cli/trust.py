"""The verbs ``calibrate, triage``: calibrated confidence, and which bags need a reviewer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, console, print_json
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import SettingError

if TYPE_CHECKING:
    from mipl.calibration.conformal import Conformal
    from mipl.data.bags import Bags
    from mipl.estimators import BagClassifier
    from mipl.triage import OperatingPoint


@dataclasses.dataclass(frozen=True)
class CalibrationOptions:
    """How a model is calibrated."""

    by: Annotated[
        str, typer.Option("--by", help="Calibrate by labels (true labels) or by candidates (candidate sets).")
    ] = "labels"
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="temperature, smoothed, vector, structured, or none (prediction sets only)."
        ),
    ] = "temperature"
    set_share: Annotated[
        float,
        typer.Option("--set-share", help="Fraction of the bags reserved for prediction sets; 0: no sets."),
    ] = 0.5
    candidate: Annotated[
        str,
        typer.Option(
            "--candidate",
            help="With --by candidates, the candidate scored for prediction sets: worst, drawn or best.",
        ),
    ] = "worst"


@app.command()
@expand_options
def calibrate(
    model: ModelArg,
    data: DataArg,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL2", help="Folder for the calibrated model.")],
    calibration: CalibrationOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Calibrate a trained model on bags it was not trained on; predictions of MODEL2 are then calibrated."""
    from mipl.calibration.conformal import GUARANTEES
    from mipl.calibration.model import calibrate as calibrated
    from mipl.estimators import load
    from mipl.files import check_folder

    classifier = load(model)
    bags = options.open(data)
    check_folder(out, "model.json")
    before = float(classifier.predict_proba(bags).max(axis=1).mean())
    result = calibrated(classifier, bags, **dataclasses.asdict(calibration))
    after = float(result.predict_proba(bags).max(axis=1).mean())
    result.save(out)
    assert result.calibration_ is not None
    scaling, conformal = result.calibration_.scaling, result.calibration_.conformal
    summary = {
        "model": str(out),
        "by": calibration.by,
        "kind": calibration.kind,
        "bags": len(bags),
        "temperature": None if scaling is None else scaling.temperature,
        "mean_confidence_before": before,
        "mean_confidence": after,
        "set_bags": 0 if conformal is None else len(conformal.scores),
        "sets_promise": None if conformal is None else GUARANTEES[conformal.way],
    }
    if as_json:
        print_json(summary)
    else:
        _print_calibration(summary)


def _print_calibration(summary: dict[str, Any]) -> None:
    if summary["kind"] != "none":
        temperature = "" if summary["temperature"] is None else f" T = {summary['temperature']:.3g};"
        typer.echo(
            f"{summary['kind']} by {summary['by']}:{temperature} mean confidence "
            f"{100 * summary['mean_confidence_before']:.1f}% before, "
            f"{100 * summary['mean_confidence']:.1f}% after"
        )
    if summary["sets_promise"] is not None:
        typer.echo(f"Prediction sets from {summary['set_bags']} bags: {summary['sets_promise']}")
    typer.echo(f"Model written to {summary['model']}")


@dataclasses.dataclass(frozen=True)
class RuleOptions:
    """Which bags are reported, and the bags with true labels that the error is measured on."""

    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error", help="Report as many bags as possible with at most this error among them."
        ),
    ] = None
    coverage: Annotated[
        float | None, typer.Option("--coverage", help="Report this fraction of DATA, the most confident.")
    ] = None
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Report bags with at least this confidence.")
    ] = None
    calibrate_on: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="DATA2|FRACTION",
            help="Bags with true labels that the model has not seen, or the fraction of DATA to use for it.",
        ),
    ] = None
    calibrate_labels: Annotated[
        Path | None, typer.Option("--calibrate-labels", metavar="FILE", help="Label table of DATA2.")
    ] = None
    delta: Annotated[
        float, typer.Option("--delta", help="Probability that the bound on the error may fail.")
    ] = 0.05

    def check(self) -> None:
        """Raise an error unless there is exactly one rule, with the labelled bags that it needs."""
        if sum(rule is not None for rule in (self.max_error, self.coverage, self.threshold)) != 1:
            raise SettingError("Give exactly one rule: --max-error, --coverage or --threshold.")
        if self.max_error is not None and self.calibrate_on is None:
            raise SettingError(
                "--max-error needs bags with true labels: --calibrate DATA2, or a fraction of DATA."
            )


@dataclasses.dataclass(frozen=True)
class PredictionSetOptions:
    """Which prediction sets are written."""

    set_coverage: Annotated[
        float,
        typer.Option(
            "--set-coverage", help="Probability that a prediction set contains the true label; 0: no sets."
        ),
    ] = 0.9
    class_conditional: Annotated[
        bool, typer.Option("--class-conditional", help="Reach this probability within every class.")
    ] = False


@app.command()
@expand_options
def triage(
    model: ModelArg,
    data: DataArg,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="CSV to write: bag_id, predicted, confidence, prediction_set, decision, reason.",
        ),
    ],
    rule: RuleOptions,
    prediction_sets: PredictionSetOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Decide which bags are reported and which are sent to review; see docs/trust.md for the guarantees."""
    from mipl.calibration.conformal import check_coverage, fit_conformal
    from mipl.calibration.model import truth_of
    from mipl.estimators import load
    from mipl.files import check_place
    from mipl.triage import decisions, write_decisions

    rule.check()
    if prediction_sets.set_coverage:
        check_coverage(prediction_sets.set_coverage)
    check_place(out)
    classifier = load(model)
    bags, labelled = _open_both(classifier, data, rule, options)
    p = classifier.predict_proba(bags)
    conformal = None if classifier.calibration_ is None else classifier.calibration_.conformal
    known = None
    if labelled is not None:
        known = classifier.predict_proba(labelled), truth_of(classifier, labelled)  # (n, k), (n, k)
        if conformal is None or conformal.way != "labels":
            conformal = fit_conformal(*known)
    point = _operating_point(rule, p, known)
    sets = None
    if conformal is not None and prediction_sets.set_coverage:
        sets = conformal.sets(
            p, prediction_sets.set_coverage, class_conditional=prediction_sets.class_conditional
        )
    rows = decisions(bags.ids.tolist(), classifier.classes_.tolist(), p, point, sets)
    write_decisions(out, rows)
    _print_triage(
        out,
        rows,
        point,
        None if sets is None else _describe_sets(rows, conformal, prediction_sets),
        None if known is None else _metrics_by_coverage(known[0], known[1].argmax(axis=1)),
        as_json,
    )


def _open_both(
    classifier: BagClassifier, data: str, rule: RuleOptions, options: DataOptions
) -> tuple[Bags, Bags | None]:
    """Return the bags of DATA to decide on and those of ``--calibrate``, one per group, if it is given."""
    from mipl.calibration.model import check_unseen
    from mipl.data.datasets import DATASETS
    from mipl.data.splits import one_per_group, random_split

    # -r, --raw and --data-seed belong to DATA, unless only the data set of --calibrate is built by name
    second_only = data not in DATASETS and rule.calibrate_on in DATASETS
    bags = (options.without_builder() if second_only else options).open(data)
    if rule.calibrate_on is None:
        return bags, None
    if (fraction := _fraction(rule.calibrate_on)) is not None:
        check_unseen(classifier, bags)
        taken, rest = random_split(bags, fraction, "triage")
        bags, labelled = bags[rest], bags[taken]
    else:
        by_name = options if rule.calibrate_on in DATASETS else options.without_builder()
        own = dataclasses.replace(by_name, labels=rule.calibrate_labels, skip_missing=False, ignore=None)
        labelled = own.open(rule.calibrate_on)
        check_unseen(classifier, labelled)
    return bags, labelled[one_per_group(labelled, "triage")]


def _fraction(text: str) -> float | None:
    """Return the fraction given by ``--calibrate``, or None if it names data."""
    try:
        fraction = float(text)
    except ValueError:
        return None
    if not 0 < fraction < 1:
        raise SettingError(f"--calibrate {text} is neither data nor a fraction between 0 and 1.")
    return fraction


def _operating_point(rule: RuleOptions, p: Any, known: tuple[Any, Any] | None) -> OperatingPoint:
    """Return the operating point of a rule, with its error on the labelled bags where there are any."""
    import numpy as np

    from mipl.triage import at_coverage, at_max_error, at_threshold, measured

    if known is not None:
        seen, truth = known
        confidence, correct = seen.max(axis=1), truth[np.arange(len(seen)), seen.argmax(axis=1)]
        if rule.max_error is not None:
            return at_max_error(confidence, correct, rule.max_error, rule.delta)
    if rule.threshold is not None:
        point = at_threshold(rule.threshold)
    else:
        assert rule.coverage is not None
        point = at_coverage(p.max(axis=1), rule.coverage)
    return point if known is None else measured(point, confidence, correct, rule.delta)


def _describe_sets(
    rows: list[dict[str, Any]], conformal: Conformal | None, options: PredictionSetOptions
) -> dict[str, Any]:
    import numpy as np

    from mipl.calibration.conformal import GUARANTEES

    assert conformal is not None
    return {
        "coverage": options.set_coverage,
        "class_conditional": options.class_conditional,
        "mean_size": float(np.mean([len(row["prediction_set"]) for row in rows])),
        "promise": GUARANTEES[conformal.way],
    }


def _metrics_by_coverage(probabilities: Any, labels: Any) -> dict[str, Any]:
    """Return accuracy and ECE of the most confident 10%, 20%, … and the area under risk–coverage."""
    from mipl.metrics import accuracy_at_top, area_under_risk_coverage, calibration_error_at_top

    return {
        "area_under_risk_coverage": area_under_risk_coverage(probabilities, labels),
        "top": [
            {
                "share": coverage,
                "accuracy": accuracy_at_top(probabilities, labels, coverage),
                "ece": calibration_error_at_top(probabilities, labels, coverage),
            }
            for coverage in [tenth / 10 for tenth in range(1, 11)]
        ],
    }


def _print_triage(
    out: Path,
    rows: list[dict[str, Any]],
    point: OperatingPoint,
    sets: dict[str, Any] | None,
    labelled: dict[str, Any] | None,
    as_json: bool,
) -> None:
    counts = Counter(row["decision"] for row in rows)
    if as_json:
        print_json(
            {
                "decisions": str(out),
                "bags": len(rows),
                "report": counts["report"],
                "review": counts["review"],
                "operating_point": point.to_dict(),
                "sets": sets,
                "labelled": labelled,
            }
        )
        return
    at = "" if point.threshold is None else f" (confidence at least {point.threshold:.4g})"
    typer.echo(f"{counts['report']} of {len(rows)} bags reported{at}, {counts['review']} for review.")
    typer.echo(point.note)
    if sets is not None:
        typer.echo(
            f"Prediction sets have {sets['mean_size']:.2f} labels on average; with probability "
            f"{sets['coverage']:g}{' in each class' if sets['class_conditional'] else ''}: {sets['promise']}."
        )
    if labelled is not None:
        table = Table("most confident", "accuracy", "ECE", title="On the labelled bags", title_justify="left")
        for row in labelled["top"]:
            table.add_row(*(f"{100 * row[name]:.1f}%" for name in ("share", "accuracy", "ece")))
        console().print(table)
        typer.echo(f"Area under risk–coverage: {labelled['area_under_risk_coverage']:.4f}")
    typer.echo(f"Decisions written to {out}")
