"""The verbs ``methods, fit, predict, evaluate``: one model at a time."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, console, features_line, print_json
from mipl.cli.options import DataOptions, TrainingOptions, expand_options
from mipl.errors import DataError, suggest


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with its settings.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """List the methods, or describe one: purpose, advice, cost, citation and settings."""
    from mipl.methods import METHODS, PLUGINS

    if name is not None:
        _print_method(name, as_json)
        return
    entries = [
        {
            "name": entry,
            "summary": METHODS[entry].cls.summary,
            **({"plugin": PLUGINS[entry].package} if entry in PLUGINS else {}),
        }
        for entry in METHODS
    ]
    if as_json:
        print_json(entries)
        return
    table = Table("name", "description")
    for entry in entries:
        origin = f" ({entry['plugin']})" if "plugin" in entry else ""
        table.add_row(entry["name"], re.split(r"(?<=\.) (?=[A-Z])", entry["summary"])[0] + origin)
    console().print(table)


def _print_method(name: str, as_json: bool) -> None:
    from mipl.methods import METHODS

    cls = METHODS[name].cls
    about = {"name": name, **{key: getattr(cls, key) for key in ("summary", "advice", "cost", "citation")}}
    settings = _settings_by_recipe(name)
    if as_json:
        print_json({**about, **settings})
        return
    output = console()
    for key, heading in (("summary", ""), ("advice", "When: "), ("cost", "Cost: "), ("citation", "")):
        if about[key]:
            output.print(f"{heading}{about[key]}\n", markup=False, highlight=False)
    output.print(_settings_table("Settings of the method", settings["settings"]))
    output.print(_settings_table("Settings of the recipe", settings["recipes"]))


def _settings_by_recipe(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of a method and of the recipe, each with its value in every recipe."""
    from mipl.estimators import make_classifier
    from mipl.methods import METHODS
    from mipl.registry import settings_of
    from mipl.training.recipe import RECIPES, Recipe

    owners: dict[str, type[Any]] = {"settings": METHODS[name].cls, "recipes": Recipe}
    parts = {recipe: make_classifier(name, recipe=recipe).parts() for recipe in RECIPES}
    return {
        kind: [
            {
                "name": key,
                "group": field.metadata.get("group", ""),
                "doc": field.metadata.get("doc", ""),
                **{recipe: getattr(found[i], key) for recipe, found in parts.items()},
            }
            for key, field in settings_of(owner).items()
        ]
        for i, (kind, owner) in enumerate(owners.items())
    }


def _settings_table(title: str, rows: list[dict[str, Any]]) -> Table:
    from mipl.training.recipe import RECIPES

    heading = f"{title} (--recipe NAME, --set setting=value)"
    table = Table("setting", *RECIPES, "description", title=heading, title_justify="left")
    for previous, row in zip([rows[0], *rows], rows, strict=False):
        if row["group"] != previous["group"]:
            table.add_section()
        table.add_row(row["name"], *(str(row[recipe]) for recipe in RECIPES), row["doc"])
    return table


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """Where a model is trained."""

    devices: Annotated[
        int, typer.Option("--devices", min=1, help="Number of training processes on this machine.")
    ] = 1
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Machines; run the command on each, with NODE_RANK set.")
    ] = 1
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="With several devices: cpu, cuda, mps or auto.")
    ] = "auto"
    precision: Annotated[
        str, typer.Option("--precision", help="32-true, or bf16-mixed on devices that support it.")
    ] = "32-true"


@app.command()
@expand_options
def fit(
    data: DataArg,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder to write the model to.")],
    *,
    method: Annotated[str, typer.Option("--method", help="A name from 'mipl methods'.")] = "sam-cn",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="Folder for checkpoints, from which training resumes."
        ),
    ] = None,
    training: TrainingOptions,
    device: DeviceOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Train a model on bags with candidate sets."""
    from mipl.estimators import make_classifier
    from mipl.files import check_folder
    from mipl.training.distributed import launch

    bags = options.open(data)
    params = training.params(method)
    classifier = make_classifier(method, random_state=training.seed, verbose=not as_json, **params)
    check_folder(out, "model.json")  # before training rather than after it
    if not as_json and (line := features_line(bags.feature_names)) is not None:
        typer.echo(line)
    # after all checks of the command, so that an error is printed once and not by every process
    fabric = launch(device.devices, device.nodes, device.accelerator, device.precision)
    started = time.perf_counter()
    try:
        classifier.fit(bags, checkpoint=checkpoint, fabric=fabric)
    except KeyboardInterrupt:
        saved = (
            f"finished epochs are saved in {checkpoint}: run the same command to resume"
            if checkpoint
            else "nothing is saved; use --checkpoint DIR to be able to resume"
        )
        print(f"mipl: stopped; {saved}.", file=sys.stderr)
        raise typer.Exit(130) from None
    if fabric is None or fabric.is_global_zero:  # one process writes the model
        seconds = time.perf_counter() - started
        classifier.save(out)
        _print_fit(classifier, bags, method, out, seconds, as_json)


def _print_fit(classifier: Any, bags: Any, method: str, out: Path, seconds: float, as_json: bool) -> None:
    losses = classifier.history_["loss"]  # empty if training ended before its first epoch
    held_out = classifier.out_of_fold_
    if as_json:
        print_json(
            {
                "model": str(out),
                "method": method,
                "bags": len(bags),
                "classes": [str(name) for name in bags.classes],
                "epochs": len(losses),
                "loss": losses[-1] if losses else None,
                "seconds": seconds,
                "weight_decay": classifier.recipe_.weight_decay,
                "out_of_fold": held_out,
                "features": bags.feature_names,
            }
        )
        return
    typer.echo(
        f"{bags!r}\n{method} trained for {len(losses)} epochs in {seconds:.1f} s; model written to {out}"
    )
    if held_out is not None:
        typer.echo(
            f"Out-of-fold, without true labels: {100 * held_out['covering_rate']:.1f}% of the predictions "
            f"inside the candidate set, estimated accuracy {100 * held_out['approximated_accuracy']:.1f}%, "
            f"mean confidence {100 * held_out['mean_confidence']:.1f}%; signal {held_out['signal']:.1f} "
            f"standard errors, temperature {held_out['temperature']:.2f}."
        )


@app.command()
@expand_options
def predict(
    model: ModelArg,
    data: DataArg,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="CSV to write: bag_id, predicted, confidence, p(class) …"),
    ],
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Predict bags with a trained model."""
    from mipl.data.formats.table import write_predictions
    from mipl.estimators import load

    classifier = load(model)
    bags = options.open(data)
    probabilities = classifier.predict_proba(bags)
    write_predictions(out, bags.ids.tolist(), classifier.classes_.tolist(), probabilities)
    confidence = float(probabilities.max(axis=1).mean())
    if as_json:
        print_json({"predictions": str(out), "bags": len(bags), "mean_confidence": confidence})
    else:
        typer.echo(f"{len(bags)} bags predicted, mean confidence {100 * confidence:.1f}%; written to {out}")


@app.command()
@expand_options
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="CSV written by 'mipl predict'.")
    ],
    data: DataArg,
    *,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", min=0, help="Bootstrap draws for 95% intervals; 0: no intervals.")
    ] = 1000,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Measure accuracy and calibration of predictions against the true labels."""
    import numpy as np

    from mipl.data.formats.table import read_predictions
    from mipl.metrics import evaluate as compute_metrics

    ids, classes, probabilities = read_predictions(predictions)
    bags = options.open(data)
    if bags.labels is None:
        raise DataError(f"{data} has no true labels: they are needed to evaluate predictions.")
    names = [str(bags.classes[label]) for label in bags.labels.tolist()]
    truth = dict(zip(bags.ids.tolist(), names, strict=True))
    _check_predictions(predictions, data, ids, classes, truth)
    labels = np.array([classes.index(truth[bag]) for bag in ids])
    values = compute_metrics(probabilities, labels, bootstrap=bootstrap)
    if as_json:
        print_json({"bags": len(ids), **values})
        return
    columns = ["metric", "value", *(["95% interval"] if bootstrap else [])]
    table = Table(*columns, title=f"{len(ids)} of {len(bags)} bags", title_justify="left")
    for name in [key for key in values if not key.endswith(("_low", "_high"))]:
        low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
        interval = [] if low is None or high is None else [f"{low:.4f} – {high:.4f}"]
        table.add_row(name.replace("_", " "), f"{values[name]:.4f}", *interval)
    console().print(table)


def _check_predictions(
    predictions: Path, data: str, ids: list[str], classes: list[str], truth: dict[str, str]
) -> None:
    """Raise an error unless every predicted bag has a true label among the predicted classes."""
    for bag in ids:
        if bag not in truth:
            raise DataError(f"{predictions} predicts the bag '{bag}', which is not in {data}.")
        if truth[bag] not in classes:
            raise DataError(
                f"The bag '{bag}' has the label '{truth[bag]}', for which {predictions} has no column."
                f"{suggest(truth[bag], classes)}"
            )
