"""calibrate, triage: a trained model in use."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import (
    DataArg,
    DataSeedOpt,
    IgnoreOpt,
    JsonOpt,
    LabelsOpt,
    MissingTruthOpt,
    ModelArg,
    RawOpt,
    ROpt,
    SkipMissingOpt,
    app,
    console,
    print_json,
    source_of,
)
from mipl.errors import SettingError


@app.command()
def calibrate(
    model: ModelArg,
    data: DataArg,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL2", help="Folder for the calibrated model.")],
    by: Annotated[
        str, typer.Option("--by", help="labels: true ones; candidates: the candidate sets alone.")
    ] = "labels",
    kind: Annotated[
        str, typer.Option("--kind", help="temperature, vector, or none (prediction sets only).")
    ] = "temperature",
    set_share: Annotated[
        float, typer.Option("--set-share", help="Part of the bags kept for prediction sets; 0: none.")
    ] = 0.5,
    candidate: Annotated[
        str,
        typer.Option(
            "--candidate",
            help="With --by candidates, which one makes the prediction sets: worst, drawn or best.",
        ),
    ] = "worst",
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Calibrate a trained model on bags that it was not trained on; predictions then use it by themselves."""
    from mipl.calibration.conformal import WAYS
    from mipl.calibration.model import calibrate as fitted
    from mipl.estimators import load
    from mipl.files import check_folder

    classifier = load(model)
    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    check_folder(out, "model.json")
    before = float(classifier.predict_proba(bags).max(axis=1).mean())
    made = fitted(classifier, bags, by=by, kind=kind, set_share=set_share, candidate=candidate)
    after = float(made.predict_proba(bags).max(axis=1).mean())
    made.save(out)
    calibration = made.calibration_
    assert calibration is not None
    scaling, conformal = calibration.scaling, calibration.conformal
    result: dict[str, Any] = {
        "model": str(out),
        "by": by,
        "kind": kind,
        "bags": len(bags),
        "temperature": None if scaling is None else scaling.temperature,
        "mean_confidence_before": before,
        "mean_confidence": after,
        "set_bags": 0 if conformal is None else len(conformal.scores),
        "sets_promise": None if conformal is None else WAYS[conformal.way],
    }
    if as_json:
        print_json(result)
        return
    if scaling is not None:
        found = "" if scaling.temperature is None else f" T = {scaling.temperature:.3g};"
        typer.echo(
            f"{kind} by {by}:{found} mean confidence {100 * before:.1f}% before, {100 * after:.1f}% after"
        )
    if conformal is not None:
        typer.echo(f"Prediction sets from {len(conformal.scores)} bags: {WAYS[conformal.way]}")
    typer.echo(f"Model written to {out}")


@app.command()
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
    max_error: Annotated[
        float | None,
        typer.Option("--max-error", help="Report as much as keeps the error among the reported below this."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option("--coverage", help="Report this share of DATA, the most confident.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Report from this confidence on.")
    ] = None,
    calibrate_on: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="DATA2|SHARE",
            help="Bags with true labels that the model has not seen, or a share of DATA to take for it.",
        ),
    ] = None,
    calibrate_labels: Annotated[
        Path | None, typer.Option("--calibrate-labels", metavar="FILE", help="Label table of DATA2.")
    ] = None,
    delta: Annotated[
        float, typer.Option("--delta", help="The chance that the bound on the error may fail.")
    ] = 0.05,
    set_coverage: Annotated[
        float, typer.Option("--set-coverage", help="How often prediction sets hold the truth; 0: no sets.")
    ] = 0.9,
    class_conditional: Annotated[
        bool, typer.Option("--class-conditional", help="Prediction sets that hold it so often in each class.")
    ] = False,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Decide which bags are reported and which a person looks at; docs/trust.md says what is guaranteed."""
    import numpy as np

    from mipl.calibration.conformal import WAYS, check_coverage, fit_conformal
    from mipl.calibration.model import check_unseen, truth_of
    from mipl.data.datasets import DATASETS
    from mipl.data.splits import one_per_group, random_split
    from mipl.estimators import load
    from mipl.files import check_place
    from mipl.triage import at_coverage, at_max_error, at_threshold, decisions, measured, write_decisions

    if sum(rule is not None for rule in (max_error, coverage, threshold)) != 1:
        raise SettingError("Give one rule: --max-error, --coverage or --threshold.")
    if max_error is not None and calibrate_on is None:
        raise SettingError("--max-error needs bags with true labels: --calibrate DATA2, or a share of DATA.")
    if set_coverage:
        check_coverage(set_coverage)
    check_place(out)
    classifier = load(model)
    of_both = data not in DATASETS and calibrate_on in DATASETS
    of_data = (None, None, None) if of_both else (r, data_seed, raw)
    bags = source_of(data, *of_data, labels, skip_missing, ignore, missing_truth).open()
    known = None
    if calibrate_on is not None and (share := _share(calibrate_on)) is not None:
        check_unseen(classifier, bags)
        taken, rest = random_split(bags, share, "triage")
        bags, known = bags[rest], bags[taken]
    elif calibrate_on is not None:
        # -r, --raw and --data-seed are those of whichever of the two is built by name
        by_name = (r, data_seed, raw) if calibrate_on in DATASETS else (None, None, None)
        known = source_of(calibrate_on, *by_name, calibrate_labels, False, None, missing_truth).open()
        check_unseen(classifier, known)
    p = classifier.predict_proba(bags)
    on_top: dict[str, Any] | None = None
    conformal = None if classifier.calibration_ is None else classifier.calibration_.conformal
    if threshold is not None:
        point = at_threshold(threshold)
    elif coverage is not None:
        point = at_coverage(p.max(axis=1), coverage)
    if known is not None:
        known = known[one_per_group(known, "triage")]
        truth, seen = truth_of(classifier, known), classifier.predict_proba(known)  # (n, k), (n, k)
        sure, right = seen.max(axis=1), truth[np.arange(len(seen)), seen.argmax(axis=1)]
        if max_error is not None:
            point = at_max_error(sure, right, max_error, delta)
        else:
            point = measured(point, sure, right, delta)
        if conformal is None or conformal.way != "labels":
            conformal = fit_conformal(seen, truth)
        on_top = _on_top(seen, truth.argmax(axis=1))
    sets = None
    if conformal is not None and set_coverage:
        sets = conformal.sets(p, set_coverage, class_conditional=class_conditional)
    rows = decisions(bags.ids.tolist(), classifier.classes_.tolist(), p, point, sets)
    write_decisions(out, rows)
    counted = Counter(row["decision"] for row in rows)
    about: dict[str, Any] | None = None
    if sets is not None and conformal is not None:
        about = {
            "coverage": set_coverage,
            "class_conditional": class_conditional,
            "mean_size": float(np.mean([len(row["prediction_set"]) for row in rows])),
            "promise": WAYS[conformal.way],
        }
    if as_json:
        print_json(
            {
                "decisions": str(out),
                "bags": len(rows),
                "report": counted["report"],
                "review": counted["review"],
                "operating_point": point.to_dict(),
                "sets": about,
                "labelled": on_top,
            }
        )
        return
    at = "" if point.threshold is None else f" (confidence from {point.threshold:.4g} on)"
    typer.echo(f"{counted['report']} of {len(rows)} bags reported{at}, {counted['review']} for review.")
    typer.echo(point.note)
    if about is not None:
        typer.echo(
            f"Prediction sets have {about['mean_size']:.2f} labels on average; with probability "
            f"{set_coverage:g}{' in each class' if class_conditional else ''}: {about['promise']}."
        )
    if on_top is not None:
        table = Table("most confident", "accuracy", "ECE", title="On the labelled bags", title_justify="left")
        for row in on_top["top"]:
            table.add_row(*(f"{100 * row[name]:.1f}%" for name in ("share", "accuracy", "ece")))
        console().print(table)
        typer.echo(f"Area under risk–coverage: {on_top['area_under_risk_coverage']:.4f}")
    typer.echo(f"Decisions written to {out}")


def _on_top(probabilities: Any, labels: Any) -> dict[str, Any]:
    """Return accuracy and ECE of the most confident tenth, two tenths, … and the area under risk–coverage."""
    from mipl.metrics import accuracy_at_top, area_under_risk_coverage, calibration_error_at_top

    shares = [tenth / 10 for tenth in range(1, 11)]
    return {
        "area_under_risk_coverage": area_under_risk_coverage(probabilities, labels),
        "top": [
            {
                "share": share,
                "accuracy": accuracy_at_top(probabilities, labels, share),
                "ece": calibration_error_at_top(probabilities, labels, share),
            }
            for share in shares
        ],
    }


def _share(text: str) -> float | None:
    """Return the share that --calibrate gives, or None if it names data."""
    try:
        share = float(text)
    except ValueError:
        return None
    if not 0 < share < 1:
        raise SettingError(f"--calibrate {text} is neither data nor a share between 0 and 1.")
    return share
