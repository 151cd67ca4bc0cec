"""The verbs ``methods, fit, predict``: one model at a time."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, console, features_line, print_json
from mipl.cli.options import DataOptions, TrainingOptions, expand_options
from mipl.errors import SettingError, counted, listed, suggest

if TYPE_CHECKING:
    from mipl.estimators import BagClassifier


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
    if not as_json:
        _print_before_fit(classifier, bags)
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


def _print_before_fit(classifier: Any, bags: Any) -> None:
    """Print the features, and what will be trained on what in three lines."""
    from mipl.estimators.plan import make_plan
    from mipl.training.checks import check_training

    method, _ = classifier.parts(bags.provenance)
    method.training_bags(bags)  # refuses votes that the method cannot use
    if (line := features_line(bags.feature_names)) is not None:
        typer.echo(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training warns of the same
        check_training(bags)
    # networks on images take long before their first epoch: timing them would delay the training itself
    for line in make_plan(classifier, bags, measure=len(bags.feature_shape) == 1).summary():
        typer.echo(line)


@app.command()
@expand_options
def plan(
    data: DataArg,
    *,
    method: Annotated[str, typer.Option("--method", help="A name from 'mipl methods'.")] = "sam-cn",
    training: TrainingOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Say what 'mipl fit' finds in the data, what it will train and why, how long, and what is doubtful."""
    from mipl.estimators import make_classifier
    from mipl.estimators.plan import make_plan
    from mipl.training.checks import check_training

    bags = options.open(data)
    classifier = make_classifier(method, random_state=training.seed, **training.params(method))
    check_training(bags)
    planned = make_plan(classifier, bags)
    if as_json:
        print_json(planned.to_dict())
        return
    for heading, lines in (
        ("Found", planned.found),
        ("Will be trained", (*planned.training, f"time on this machine: {planned.time}")),
        ("Doubtful", planned.doubts or ("nothing",)),
    ):
        typer.echo("\n".join([heading, *(f"  - {line}" for line in lines)]))


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
        f"{bags!r}\n{method} trained for {counted(len(losses), 'epoch')} in {seconds:.1f} s; "
        f"model written to {out}"
    )
    sets = "candidate set" if classifier.annotators_ is None else "votes"
    if held_out is not None:
        typer.echo(
            f"Out-of-fold, without true labels: {100 * held_out['covering_rate']:.1f}% of the predictions "
            f"inside the {sets}, estimated accuracy {100 * held_out['approximated_accuracy']:.1f}%, "
            f"mean confidence {100 * held_out['mean_confidence']:.1f}%; signal {held_out['signal']:.1f} "
            f"standard errors, temperature {held_out['temperature']:.2f}."
        )
        if "chance_p_value" in held_out:
            typer.echo(_chance_line(held_out["chance_p_value"], classifier.recipe_.false_candidates))
    if classifier.annotators_ is not None:
        typer.echo(
            f"{len(bags.annotators)} annotators, with a confusion matrix each, estimated out of fold: "
            "'mipl annotators' reports their quality."
        )


def _chance_line(p_value: float, way: str) -> str:
    """Return what the test of the false candidates says, and what the temperature rests on."""
    from mipl.calibration.candidate_model import LEVEL

    if p_value > LEVEL:
        return f"False candidates: chance is not rejected (p = {p_value:.2g})."
    used = (
        "the temperature uses a rate for each pair of classes and is approximate"
        if way == "estimate"
        else "the temperature assumes chance and may be too low; --set false_candidates=estimate uses a rate "
        "for each pair of classes (approximate)"
    )
    found = f"some classes are candidates together more often than by chance (p = {p_value:.2g})"
    return f"False candidates: {found}; {used}."


@app.command()
@expand_options
def predict(
    model: ModelArg,
    data: DataArg,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="CSV to write: bag_id, predicted, confidence, p(class) …"),
    ],
    *,
    class_mix: Annotated[
        str | None,
        typer.Option(
            "--class-mix",
            metavar="CLASS=SHARE,…",
            help="Correct the probabilities for a population with these shares of the classes, or 'estimate' "
            "to estimate them from DATA.",
        ),
    ] = None,
    trained_mix: Annotated[
        str | None,
        typer.Option(
            "--trained-mix",
            metavar="CLASS=SHARE,…",
            help="Class shares of the training bags; by default those of the out-of-fold predictions.",
        ),
    ] = None,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Predict bags with a trained model."""
    from mipl.data.formats.table import write_predictions
    from mipl.estimators import load

    classifier = load(model)
    bags = options.open(data)
    probabilities = classifier.predict_proba(bags)
    mix = None
    if class_mix is not None:
        probabilities, mix = _for_class_mix(classifier, probabilities, class_mix, trained_mix)
    elif trained_mix is not None:
        raise SettingError("--trained-mix is for --class-mix: give both.")
    write_predictions(out, bags.ids.tolist(), classifier.classes_.tolist(), probabilities)
    confidence = float(probabilities.max(axis=1).mean())
    if as_json:
        corrected = {} if mix is None else {"class_mix": mix}
        print_json({"predictions": str(out), "bags": len(bags), "mean_confidence": confidence, **corrected})
    else:
        if mix is not None:
            shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in mix.items())
            typer.echo(f"Probabilities corrected for the class mix {shares}.")
        typer.echo(
            f"{counted(len(bags), 'bag')} predicted, mean confidence {100 * confidence:.1f}%; "
            f"written to {out}"
        )


def _for_class_mix(
    classifier: BagClassifier, probabilities: Any, wanted: str, trained: str | None
) -> tuple[Any, dict[str, float]]:
    """Return probabilities corrected for a class mix, and the mix by class."""
    from mipl.calibration.class_mix import correct_class_mix, estimate_class_mix

    names = [str(name) for name in classifier.classes_.tolist()]
    held_out = classifier.out_of_fold_proba()
    if trained is not None:
        before = _shares("--trained-mix", trained, names)
    elif held_out is not None:
        before = held_out.mean(axis=0).tolist()
    else:
        raise SettingError(
            "The model has no out-of-fold predictions: give the class shares of its training bags with "
            "--trained-mix."
        )
    if wanted == "estimate":
        after = estimate_class_mix(probabilities, before).tolist()
    else:
        after = _shares("--class-mix", wanted, names)
    return correct_class_mix(probabilities, before, after), dict(zip(names, after, strict=True))


def _shares(option: str, text: str, names: list[str]) -> list[float]:
    """Return the shares of the classes, scaled to sum 1, from ``a=0.2,b=0.8``."""
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.rpartition("="))
        if name not in names:
            raise SettingError(f"{option} names the class '{name}'.{suggest(name, names)}")
        try:
            given[name] = float(value)
        except ValueError as error:
            raise SettingError(f"{option} has the share '{value}' of '{name}', not a number.") from error
    if missing := [name for name in names if name not in given]:
        raise SettingError(f"{option} has no share for {listed(missing)}: give one for every class.")
    total = sum(given.values())
    if not total > 0 or min(given.values()) < 0 or not math.isfinite(total):
        raise SettingError(f"{option} {text} is no class mix: give shares of at least 0, not all of them 0.")
    return [given[name] / total for name in names]
