"""The verb ``triage``: which bags are reported, and which need a reviewer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, console, print_json
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import SettingError, counted

if TYPE_CHECKING:
    from mipl.calibration.conformal import Conformal
    from mipl.data.bags import Bags
    from mipl.estimators import BagClassifier
    from mipl.triage import OperatingPoint


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
        Path | None,
        typer.Option(
            "--calibrate-labels",
            metavar="FILE",
            help="Label table of DATA2, or reviews, of which only bags drawn at random are used.",
        ),
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
            "--set-coverage",
            help="Probability that a prediction set contains the true label, among reported and among "
            "reviewed bags; 0: no sets.",
        ),
    ] = 0.9
    class_conditional: Annotated[
        bool,
        typer.Option(
            "--class-conditional", help="Reach this probability within every class, not every decision."
        ),
    ] = False
    set_share: Annotated[
        float,
        typer.Option(
            "--set-share",
            help="With --max-error and a model without prediction sets, the fraction of the labelled bags "
            "reserved for them.",
        ),
    ] = 0.25

    def check(self) -> None:
        """Raise an error for a coverage or a fraction that is out of range."""
        from mipl.calibration.conformal import check_coverage

        if self.set_coverage:
            check_coverage(self.set_coverage)
        if not 0 < self.set_share < 1:
            raise SettingError(f"--set-share {self.set_share:g} is not a fraction between 0 and 1.")


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
            help="CSV to write: bag_id, predicted, confidence, prediction_set, decision, reason, typicality.",
        ),
    ],
    rule: RuleOptions,
    prediction_sets: PredictionSetOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Decide which bags are reported and which are sent to review; see docs/trust.md for the guarantees."""
    from mipl.estimators import load
    from mipl.files import check_place
    from mipl.triage import decisions, write_decisions

    rule.check()
    prediction_sets.check()
    check_place(out)
    classifier = load(model)
    bags, labelled, note = _open_both(classifier, data, rule, options)
    p = classifier.predict_proba(bags)
    known = None if labelled is None else _Known.of(classifier, labelled, rule, prediction_sets)
    point = _operating_point(classifier, rule, p, known)
    sets, promise, scored = _prediction_sets(classifier, p, point, known, prediction_sets)
    typicality, rare = _typicality(classifier, bags, labelled)
    rows = decisions(bags.ids.tolist(), classifier.classes_.tolist(), p, point, sets, typicality, rare)
    write_decisions(out, rows)
    summary = {
        "decisions": str(out),
        "bags": len(rows),
        **{name: sum(row["decision"] == name for row in rows) for name in ("report", "review")},
        "note": note,
        "operating_point": point.to_dict(),
        "sets": None if sets is None else _describe_sets(rows, promise, scored, prediction_sets),
        "unlike": None if typicality is None else int((typicality <= rare).sum()),
        "labelled": None if known is None else _metrics_by_coverage(*known.all),
    }
    if as_json:
        print_json(summary)
    else:
        _print_triage(summary, point)


@dataclasses.dataclass(frozen=True, eq=False)
class _Known:
    """Probabilities (n, k) and true labels (n,) of labelled bags, by what they are used for."""

    all: tuple[Any, Any]
    decide: tuple[Any, Any]  # choose the threshold, or measure its error
    sets: tuple[Any, Any]  # calibrate prediction sets, if the model has none; they choose no threshold

    @classmethod
    def of(
        cls, classifier: BagClassifier, labelled: Bags, rule: RuleOptions, sets: PredictionSetOptions
    ) -> _Known:
        from mipl.calibration.model import truth_of
        from mipl.data.splits import random_split

        p, y = classifier.predict_proba(labelled), truth_of(classifier, labelled).argmax(axis=1)
        every = (p, y)
        if rule.max_error is None or not sets.set_coverage or _own_sets(classifier) is not None:
            return cls(every, every, every)
        reserved, rest = random_split(labelled, sets.set_share, "sets")
        return cls(every, (p[rest], y[rest]), (p[reserved], y[reserved]))


def _own_sets(classifier: BagClassifier) -> Conformal | None:
    """Return the scores of prediction sets that a model was calibrated with by labels, if it was."""
    calibration = classifier.calibration_
    conformal = None if calibration is None else calibration.conformal
    usable = conformal is not None and conformal.way == "labels" and conformal.confidences is not None
    return conformal if usable else None


def _prediction_sets(
    classifier: BagClassifier,
    p: Any,
    point: OperatingPoint,
    known: _Known | None,
    options: PredictionSetOptions,
) -> tuple[Any, str, int]:
    """Return prediction sets (m, k), or None, what holds for them, and from how many labelled bags."""
    import numpy as np

    from mipl.calibration.conformal import GUARANTEES, fit_conformal

    conformal = _own_sets(classifier)
    if conformal is None and known is not None:
        probabilities, labels = known.sets
        conformal = fit_conformal(probabilities, labels[:, None] == np.arange(probabilities.shape[1]))
    if conformal is None and classifier.calibration_ is not None:
        conformal = classifier.calibration_.conformal
    if conformal is None or not options.set_coverage:
        return None, "", 0
    promise, scored = GUARANTEES[conformal.way], len(conformal.scores)
    if options.class_conditional:
        sets = conformal.sets(p, options.set_coverage, class_conditional=True)
        return sets, f"in each class: {promise}", scored
    if conformal.confidences is None or point.threshold is None:
        where = "over all bags" if point.threshold is not None else "among the reviewed bags, which are all"
        return conformal.sets(p, options.set_coverage), f"{where}: {promise}", scored
    sets = conformal.sets(p, options.set_coverage, threshold=point.threshold)
    return sets, f"among reported and among reviewed bags: {promise}", scored


def _typicality(classifier: BagClassifier, bags: Bags, labelled: Bags | None) -> tuple[Any, float]:
    """Return the typicality of the bags (m,), or None without bags to compare with, and what is rare."""
    from mipl.calibration.reference import FEATURES, Reference

    reference = None if classifier.calibration_ is None else classifier.calibration_.reference
    if reference is None and labelled is not None:
        reference = Reference.of(classifier, labelled)
    distances = classifier.feature_distances(bags)
    if reference is None or distances is None or FEATURES not in reference.scores:
        return None, 0.0
    return reference.typicality(distances), reference.rare


def _open_both(
    classifier: BagClassifier, data: str, rule: RuleOptions, options: DataOptions
) -> tuple[Bags, Bags | None, str | None]:
    """Return the bags of DATA to decide on, those of ``--calibrate``, one per group, and a note on them."""
    from mipl.calibration.model import check_unseen
    from mipl.data.datasets import DATASETS
    from mipl.data.splits import one_per_group, random_split

    # -r, --raw and --data-seed belong to DATA, unless only the data set of --calibrate is built by name
    second_only = data not in DATASETS and rule.calibrate_on in DATASETS
    bags = (options.without_builder() if second_only else options).open(data)
    if rule.calibrate_on is None:
        return bags, None, None
    note = None
    if (fraction := _fraction(rule.calibrate_on)) is not None:
        check_unseen(classifier, bags)
        taken, rest = random_split(bags, fraction, "triage")
        bags, labelled = bags[rest], bags[taken]
    else:
        by_name = options if rule.calibrate_on in DATASETS else options.without_builder()
        tables = None if rule.calibrate_labels is None else [rule.calibrate_labels]
        own = dataclasses.replace(by_name, labels=tables, skip_missing=False, ignore=None)
        labelled, note = own.open_labelled(rule.calibrate_on, tuple(classifier.classes_.tolist()))
        check_unseen(classifier, labelled)
    return bags, labelled[one_per_group(labelled, "triage")], note


def _fraction(text: str) -> float | None:
    """Return the fraction given by ``--calibrate``, or None if it names data."""
    try:
        fraction = float(text)
    except ValueError:
        return None
    if not 0 < fraction < 1:
        raise SettingError(f"--calibrate {text} is neither data nor a fraction between 0 and 1.")
    return fraction


def _operating_point(
    classifier: BagClassifier, rule: RuleOptions, p: Any, known: _Known | None
) -> OperatingPoint:
    """Return the operating point of a rule, with its error on the labelled bags where there are any."""
    from mipl.triage import at_coverage, at_max_error, at_threshold, measured

    if known is not None:
        seen, labels = known.decide
        confidence, correct = seen.max(axis=1), seen.argmax(axis=1) == labels
        if rule.max_error is not None:
            held_out = classifier.out_of_fold_proba()
            own = None if held_out is None else held_out.max(axis=1)
            return at_max_error(confidence, correct, rule.max_error, rule.delta, out_of_fold=own)
    if rule.threshold is not None:
        point = at_threshold(rule.threshold)
    else:
        assert rule.coverage is not None
        point = at_coverage(p.max(axis=1), rule.coverage)
    return point if known is None else measured(point, confidence, correct, rule.delta)


def _describe_sets(
    rows: list[dict[str, Any]], promise: str, scored: int, options: PredictionSetOptions
) -> dict[str, Any]:
    import numpy as np

    return {
        "coverage": options.set_coverage,
        "class_conditional": options.class_conditional,
        "mean_size": float(np.mean([len(row["prediction_set"]) for row in rows])),
        "promise": promise,
        "bags": scored,
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


def _print_triage(summary: dict[str, Any], point: OperatingPoint) -> None:
    at = "" if point.threshold is None else f" (confidence at least {point.threshold:.4g})"
    if summary["note"] is not None:
        typer.echo(summary["note"])
    typer.echo(
        f"{summary['report']} of {counted(summary['bags'], 'bag')} reported{at}, "
        f"{summary['review']} for review."
    )
    typer.echo(point.note)
    if (sets := summary["sets"]) is not None:
        typer.echo(
            f"Prediction sets, from {sets['bags']} bags, have {sets['mean_size']:.2f} labels on "
            f"average; with probability {sets['coverage']:g} {sets['promise']}."
        )
    if summary["unlike"]:
        bags = "1 bag is" if summary["unlike"] == 1 else f"{summary['unlike']} bags are"
        typer.echo(f"{bags} unlike the held-out bags by the features: see the column typicality.")
    if (labelled := summary["labelled"]) is not None:
        table = Table("most confident", "accuracy", "ECE", title="On the labelled bags", title_justify="left")
        for row in labelled["top"]:
            table.add_row(*(f"{100 * row[name]:.1f}%" for name in ("share", "accuracy", "ece")))
        console().print(table)
        typer.echo(f"Area under risk–coverage: {labelled['area_under_risk_coverage']:.4f}")
    typer.echo(f"Decisions written to {summary['decisions']}")
