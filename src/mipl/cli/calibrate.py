"""The verb ``calibrate``: calibrated confidence, and scores for prediction sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, print_json
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import counted

if TYPE_CHECKING:
    pass


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
    false_candidates: Annotated[
        str,
        typer.Option(
            "--false-candidates",
            help="With --by candidates: chance, or estimate (approximate): a rate per pair of classes where "
            "a test rejects chance.",
        ),
    ] = "chance"


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
    by_labels = calibration.by == "labels"
    classes = tuple(classifier.classes_.tolist())
    bags, note = options.open_labelled(data, classes) if by_labels else (options.open(data), None)
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
        "note": note,
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
    if summary["note"] is not None:
        typer.echo(summary["note"])
    if summary["kind"] != "none":
        temperature = "" if summary["temperature"] is None else f" T = {summary['temperature']:.3g};"
        typer.echo(
            f"{summary['kind']} by {summary['by']}:{temperature} mean confidence "
            f"{100 * summary['mean_confidence_before']:.1f}% before, "
            f"{100 * summary['mean_confidence']:.1f}% after"
        )
    if summary["sets_promise"] is not None:
        typer.echo(f"Prediction sets from {counted(summary['set_bags'], 'bag')}: {summary['sets_promise']}")
    typer.echo(f"Model written to {summary['model']}")
