"""The verbs: demo, methods, fit, predict, evaluate, run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mipl.errors import DataError, SettingError, suggest

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated classifiers from bags of instances with candidate labels.",
)

DataArg = Annotated[str, typer.Argument(metavar="DATA", help="An .npz file of bags, or a data set by name.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ROpt = Annotated[int, typer.Option("-r", help="False positives per bag, for a data set by name.")]
RawOpt = Annotated[Path | None, typer.Option("--raw", help="Folder of raw files, for a data set by name.")]
SeedOpt = Annotated[int, typer.Option("--seed", help="Seed of training.")]
DataSeedOpt = Annotated[int, typer.Option("--data-seed", help="Seed of a data set built by name.")]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method or recipe; repeatable."),
]
RecipeOpt = Annotated[str, typer.Option("--recipe", help="How to train: stable or paper.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the runs.")] = Path("demo"),
    splits: Annotated[
        int, typer.Option("--splits", min=1, help="Train/test splits pooled in the result.")
    ] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time.")] = 2,
    as_json: JsonOpt = False,
) -> None:
    """Train one network three ways on the embedded digits bags and compare accuracy and calibration."""
    from mipl.experiments.demo import run_demo

    console = Console(stderr=True)
    if not as_json:
        console.print(
            "Training one network three ways on digits-mipl (250 bags, 5 classes, 1 false positive a bag) …"
        )
    rows, page = run_demo(out, splits, jobs)
    if as_json:
        _print_json({"models": rows, "page": str(page)})
        return
    table = Table(title=f"digits-mipl, {rows[0]['test_bags']} test bags of {splits} splits")
    for column, justify in (
        ("model", "left"),
        ("accuracy", "right"),
        ("ECE", "right"),
        ("mean confidence", "right"),
        ("seconds", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(
            row["title"],
            f"{100 * row['accuracy']:.1f}%",
            f"{100 * row['expected_calibration_error']:.1f}%",
            f"{100 * row['mean_confidence']:.1f}%",
            f"{row['seconds']:.1f}",
        )
    Console().print(table)
    typer.echo(f"Page: {page}")


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with its settings.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """List the methods, or show one with its settings and its citation, and the recipes."""
    import dataclasses

    from mipl.methods import METHODS
    from mipl.registry import settings_of
    from mipl.training.recipes import RECIPES, Recipe

    if name is None:
        entries = [{"name": entry, "summary": METHODS[entry].cls.summary} for entry in METHODS]
        if as_json:
            _print_json(entries)
            return
        table = Table("name", "what it is")
        for entry in entries:
            table.add_row(entry["name"], entry["summary"])
        Console().print(table)
        return
    entry_ = METHODS[name]
    made = dataclasses.asdict(entry_.make())
    settings = [
        {"name": key, "value": made[key], "doc": field.metadata.get("doc", "")}
        for key, field in settings_of(entry_.cls).items()
    ]
    recipes = [
        {"name": key, "doc": field.metadata.get("doc", ""), **{r: getattr(RECIPES[r], key) for r in RECIPES}}
        for key, field in settings_of(Recipe).items()
    ]
    if as_json:
        _print_json(
            {
                "name": name,
                "summary": entry_.cls.summary,
                "citation": entry_.cls.citation,
                "settings": settings,
                "recipes": recipes,
            }
        )
        return
    console = Console()
    console.print(f"[bold]{name}[/bold]\n{entry_.cls.summary}\n\n{entry_.cls.citation}\n")
    table = Table(
        "setting",
        "value",
        "what it is",
        title="Settings of the method (--set setting=value)",
        title_justify="left",
    )
    for row in settings:
        table.add_row(row["name"], str(row["value"]), row["doc"])
    console.print(table)
    table = Table(
        "setting",
        *RECIPES,
        "what it is",
        title="Settings of the recipes (--recipe NAME, --set setting=value)",
        title_justify="left",
    )
    for row in recipes:
        table.add_row(row["name"], *(str(row[r]) for r in RECIPES), row["doc"])
    console.print(table)


@app.command()
def fit(
    data: DataArg,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder to write the model to.")],
    method: Annotated[str, typer.Option("--method", help="A name from 'mipl methods'.")] = "sam-cn",
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels", metavar="FILE", help="CSV with bag_id, candidates (a|b|c) and optionally label."
        ),
    ] = None,
    settings: SetOpt = None,
    recipe: RecipeOpt = "stable",
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Folder to keep the state in, and to go on from."),
    ] = None,
    r: ROpt = 1,
    raw: RawOpt = None,
    seed: SeedOpt = 0,
    data_seed: DataSeedOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Train a model on bags with candidate sets."""
    from mipl.data.formats.table import apply_label_table
    from mipl.data.sources import Source
    from mipl.estimators import make_classifier
    from mipl.files import check_folder

    bags = Source(data, r, data_seed, _text(raw)).open()
    if labels is not None:
        bags = apply_label_table(bags, labels)
    classifier = make_classifier(
        method, recipe=recipe, random_state=seed, verbose=not as_json, **_settings(method, settings)
    )
    check_folder(out, "model.json")  # before an hour of training, not after it
    try:
        classifier.fit(bags, checkpoint=checkpoint)
    except KeyboardInterrupt:
        kept = (
            f"the epochs finished so far are in {checkpoint}: the same command goes on from there"
            if checkpoint
            else "nothing is kept; --checkpoint DIR would keep it"
        )
        print(f"mipl: stopped; {kept}.", file=sys.stderr)
        raise typer.Exit(130) from None
    classifier.save(out)
    result = {
        "model": str(out),
        "method": method,
        "bags": len(bags),
        "classes": [str(name) for name in bags.classes],
        "epochs": classifier.recipe_.epochs,
        "loss": classifier.history_["loss"][-1],
        "seconds": sum(classifier.history_["seconds"]),
    }
    if as_json:
        _print_json(result)
    else:
        typer.echo(
            f"{bags!r}\n{method} trained for {result['epochs']} epochs in {result['seconds']:.1f} s; "
            f"model written to {out}"
        )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that 'mipl fit' wrote.")],
    data: DataArg,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="CSV to write: bag_id, label, confidence, p(class) …"),
    ],
    r: ROpt = 1,
    raw: RawOpt = None,
    data_seed: DataSeedOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Predict bags with a trained model."""
    from mipl.data.formats.table import write_predictions
    from mipl.data.sources import Source
    from mipl.estimators import load

    classifier = load(model)
    bags = Source(data, r, data_seed, _text(raw)).open()
    probabilities = classifier.predict_proba(bags)
    write_predictions(out, bags.ids.tolist(), classifier.classes_.tolist(), probabilities)
    confidence = float(probabilities.max(axis=1).mean())
    if as_json:
        _print_json({"predictions": str(out), "bags": len(bags), "mean_confidence": confidence})
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
    r: ROpt = 1,
    raw: RawOpt = None,
    data_seed: DataSeedOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Measure accuracy and calibration of predictions against the true labels."""
    import numpy as np

    from mipl.data.formats.table import read_predictions
    from mipl.data.sources import Source
    from mipl.metrics import evaluate as measure

    ids, classes, probabilities = read_predictions(predictions)
    bags = Source(data, r, data_seed, _text(raw)).open()
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
        _print_json({"bags": len(ids), **values})
        return
    table = Table(
        "metric",
        "value",
        *(["95% interval"] if bootstrap else []),
        title=f"{len(ids)} of {len(bags)} bags",
        title_justify="left",
    )
    for name in [key for key in values if not key.endswith(("_low", "_high"))]:
        interval = [f"{values[f'{name}_low']:.4f} – {values[f'{name}_high']:.4f}"] if bootstrap else []
        table.add_row(name.replace("_", " "), f"{values[name]:.4f}", *interval)
    Console().print(table)


@app.command()
def run(
    data: DataArg,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for one folder of records per run.")
    ],
    methods_: Annotated[
        str, typer.Option("--methods", help="Names separated by commas, or 'all'.")
    ] = "sam-cn",
    splits: Annotated[str, typer.Option("--splits", help="Which splits: 1-10, or 1,3,5.")] = "1-10",
    official: Annotated[
        Path | None,
        typer.Option(
            "--official",
            metavar="DIR",
            help="Folder of official index<k>.mat files, in place of stratified splits.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time, one thread each.")] = 2,
    settings: SetOpt = None,
    recipe: RecipeOpt = "stable",
    r: ROpt = 1,
    raw: RawOpt = None,
    seed: SeedOpt = 0,
    data_seed: DataSeedOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Train methods over train/test splits in parallel, leaving one record a run; finished runs are kept."""
    from mipl.data.sources import Source
    from mipl.experiments.engines import run_local
    from mipl.experiments.runner import Job, split_of
    from mipl.methods import METHODS
    from mipl.records.store import Store
    from mipl.records.summary import summarise

    source = Source(data, r, data_seed, _text(raw))
    bags = source.open()
    names = (
        list(METHODS) if methods_ == "all" else [name.strip() for name in methods_.split(",") if name.strip()]
    )
    planned = [
        Job(
            source=source,
            method=name,
            params={"recipe": recipe, **_settings(name, settings)},
            split=split,
            split_folder=_text(official),
            seed=seed,
            data_digest=bags.digest(),
            store=str(out),
        )
        for name in names
        for split in _numbers(splits)
    ]
    for job in planned:  # bad settings and splits are found before the first run, not after hours
        split_of(bags, job)
    specs = [job.spec for job in planned]
    try:
        failures = run_local(planned, jobs, show=not as_json)
    except KeyboardInterrupt:
        print(f"mipl: stopped; finished runs are in {out}: the same command makes the rest.", file=sys.stderr)
        raise typer.Exit(130) from None
    store = Store(out)
    rows = summarise([record for spec in specs if (record := store.get(spec)) is not None])
    if as_json:
        _print_json(
            {
                "runs": len(specs),
                "failed": [{"run": job.title, "reason": reason} for job, reason in failures],
                "summary": rows,
            }
        )
    else:
        table = Table(
            "method",
            "runs",
            "accuracy",
            "ECE",
            "fit seconds",
            title=f"{source.name} r={r}, mean ± deviation over splits",
            title_justify="left",
        )
        for row in rows:
            table.add_row(
                row["method"],
                str(row["runs"]),
                f"{row['accuracy']:.2f} ± {row['accuracy_std']:.2f}",
                f"{row['ece']:.2f} ± {row['ece_std']:.2f}",
                f"{row['seconds']:.1f}",
            )
        Console().print(table)
    for job, reason in failures:
        print(f"mipl: {job.title} failed: {reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def _settings(method: str, pairs: list[str] | None) -> dict[str, Any]:
    """Return the settings that ``--set key=value`` gives, each by its type."""
    from mipl.methods import METHODS
    from mipl.registry import parse_setting, settings_of
    from mipl.training.recipes import Recipe

    cls = METHODS[method].cls
    values: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals:
            raise SettingError(f"--set {pair} is not of the form key=value.")
        owner = Recipe if key in settings_of(Recipe) else cls
        if key not in settings_of(owner):
            raise SettingError(
                f"{method} has no setting '{key}'.{suggest(key, [*settings_of(cls), *settings_of(Recipe)])}"
            )
        values[key] = parse_setting(owner, key, text)
    return values


def _numbers(text: str) -> list[int]:
    """Return the numbers of '1-3,7'."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        raise SettingError(f"--splits {text} cannot be read: write 1-10, or 1,3,5.") from None
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 1:
        raise SettingError(f"--splits {text} names no split, one twice, or one below 1.")
    return numbers


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
