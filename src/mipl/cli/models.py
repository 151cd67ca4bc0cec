"""methods, fit, predict, evaluate: one model at a time."""

from __future__ import annotations

import re
import sys
import time
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
    RecipeOpt,
    ROpt,
    SeedOpt,
    SetOpt,
    SkipMissingOpt,
    app,
    console,
    features_line,
    print_json,
    read_settings,
    source_of,
)
from mipl.errors import DataError, suggest


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with its settings.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """List the methods, or show one: what it does, when to use it, its cost, citation and settings."""
    from mipl.estimators import make_classifier
    from mipl.methods import METHODS
    from mipl.registry import settings_of
    from mipl.training.recipe import RECIPES, Recipe

    if name is None:
        entries = [{"name": entry, "summary": METHODS[entry].cls.summary} for entry in METHODS]
        if as_json:
            print_json(entries)
            return
        table = Table("name", "what it is")
        for entry in entries:
            table.add_row(entry["name"], re.split(r"(?<=\.) (?=[A-Z])", entry["summary"])[0])
        console().print(table)
        return
    cls = METHODS[name].cls
    owners: dict[str, type[Any]] = {"settings": cls, "recipes": Recipe}
    made = {recipe: make_classifier(name, recipe=recipe).parts() for recipe in RECIPES}
    settings = {
        kind: [
            {
                "name": key,
                "group": field.metadata.get("group", ""),
                "doc": field.metadata.get("doc", ""),
                **{recipe: getattr(parts[place], key) for recipe, parts in made.items()},
            }
            for key, field in settings_of(owner).items()
        ]
        for place, (kind, owner) in enumerate(owners.items())
    }
    about = {"name": name, **{key: getattr(cls, key) for key in ("summary", "advice", "cost", "citation")}}
    if as_json:
        print_json({**about, **settings})
        return
    shown = console()
    for key, heading in (("summary", ""), ("advice", "When: "), ("cost", "Cost: "), ("citation", "")):
        if about[key]:
            shown.print(f"{heading}{about[key]}\n", markup=False, highlight=False)
    titles = {"settings": "Settings of the method", "recipes": "Settings of the recipe"}
    for kind, rows in settings.items():
        table = Table(
            "setting",
            *RECIPES,
            "what it is",
            title=f"{titles[kind]} (--recipe NAME, --set setting=value)",
            title_justify="left",
        )
        for before, row in zip([rows[0], *rows], rows, strict=False):
            if row["group"] != before["group"]:
                table.add_section()
            table.add_row(row["name"], *(str(row[recipe]) for recipe in RECIPES), row["doc"])
        shown.print(table)


@app.command()
def fit(
    data: DataArg,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder to write the model to.")],
    method: Annotated[str, typer.Option("--method", help="A name from 'mipl methods'.")] = "sam-cn",
    settings: SetOpt = None,
    recipe: RecipeOpt = "stable",
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Folder to keep the state in, and to go on from."),
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", min=1, help="Processes that train together on this machine.")
    ] = 1,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Machines; run the command on each, with NODE_RANK set.")
    ] = 1,
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="Of several devices: cpu, cuda, mps or auto.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="32-true, or bf16-mixed for devices that have it.")
    ] = "32-true",
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    seed: SeedOpt = 0,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Train a model on bags with candidate sets."""
    from mipl.estimators import make_classifier
    from mipl.files import check_folder
    from mipl.training.parallel import launch

    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    classifier = make_classifier(
        method, recipe=recipe, random_state=seed, verbose=not as_json, **read_settings(method, settings)
    )
    check_folder(out, "model.json")  # before an hour of training, not after it
    if not as_json and (line := features_line(bags.feature_names)) is not None:
        typer.echo(line)
    # after everything that can be wrong with the command: one sentence, not one a process
    fabric = launch(devices, nodes, accelerator, precision)
    started = time.perf_counter()
    try:
        classifier.fit(bags, checkpoint=checkpoint, fabric=fabric)
    except KeyboardInterrupt:
        kept = (
            f"the epochs finished so far are in {checkpoint}: the same command goes on from there"
            if checkpoint
            else "nothing is kept; --checkpoint DIR would keep it"
        )
        print(f"mipl: stopped; {kept}.", file=sys.stderr)
        raise typer.Exit(130) from None
    if fabric is not None and not fabric.is_global_zero:
        return  # the first process writes
    seconds = time.perf_counter() - started
    classifier.save(out)
    losses = classifier.history_["loss"]  # none where a training ended before its first epoch
    result = {
        "model": str(out),
        "method": method,
        "bags": len(bags),
        "classes": [str(name) for name in bags.classes],
        "epochs": len(losses),
        "loss": losses[-1] if losses else None,
        "seconds": seconds,
        "weight_decay": classifier.recipe_.weight_decay,
        "out_of_fold": classifier.out_of_fold_,
        "features": bags.feature_names,
    }
    if as_json:
        print_json(result)
        return
    typer.echo(
        f"{bags!r}\n{method} trained for {result['epochs']} epochs in {result['seconds']:.1f} s; "
        f"model written to {out}"
    )
    if (found := classifier.out_of_fold_) is not None:
        typer.echo(
            f"On left-out bags, without true labels: {100 * found['covering_rate']:.1f}% predicted inside "
            f"their candidate set, accuracy about {100 * found['approximated_accuracy']:.1f}%, mean "
            f"confidence {100 * found['mean_confidence']:.1f}%; signal {found['signal']:.1f} standard "
            f"errors, temperature {found['temperature']:.2f}."
        )


@app.command()
def predict(
    model: ModelArg,
    data: DataArg,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="CSV to write: bag_id, predicted, confidence, p(class) …"),
    ],
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Predict bags with a trained model."""
    from mipl.data.formats.table import write_predictions
    from mipl.estimators import load

    classifier = load(model)
    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    probabilities = classifier.predict_proba(bags)
    write_predictions(out, bags.ids.tolist(), classifier.classes_.tolist(), probabilities)
    confidence = float(probabilities.max(axis=1).mean())
    if as_json:
        print_json({"predictions": str(out), "bags": len(bags), "mean_confidence": confidence})
    else:
        typer.echo(f"{len(bags)} bags predicted, mean confidence {100 * confidence:.1f}%; written to {out}")


@app.command()
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="CSV that 'mipl predict' wrote.")
    ],
    data: DataArg,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", min=0, help="Draws for 95% intervals; 0: none.")
    ] = 1000,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Measure accuracy and calibration of predictions against the true labels."""
    import numpy as np

    from mipl.data.formats.table import read_predictions
    from mipl.metrics import evaluate as measure

    ids, classes, probabilities = read_predictions(predictions)
    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    if bags.labels is None:
        raise DataError(f"{data} has no true labels: they are needed to evaluate predictions.")
    truth = {
        bag: str(bags.classes[label])
        for bag, label in zip(bags.ids.tolist(), bags.labels.tolist(), strict=True)
    }
    for bag in ids:
        if bag not in truth:
            raise DataError(f"{predictions} predicts the bag '{bag}', which is not in {data}.")
        if truth[bag] not in classes:
            raise DataError(
                f"The bag '{bag}' has the label '{truth[bag]}', for which {predictions} has no column."
                f"{suggest(truth[bag], classes)}"
            )
    values = measure(probabilities, np.array([classes.index(truth[bag]) for bag in ids]), bootstrap=bootstrap)
    if as_json:
        print_json({"bags": len(ids), **values})
        return
    table = Table(
        "metric",
        "value",
        *(["95% interval"] if bootstrap else []),
        title=f"{len(ids)} of {len(bags)} bags",
        title_justify="left",
    )
    for name in [key for key in values if not key.endswith(("_low", "_high"))]:
        low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
        interval = [] if low is None or high is None else [f"{low:.4f} – {high:.4f}"]
        table.add_row(name.replace("_", " "), f"{values[name]:.4f}", *interval)
    console().print(table)
