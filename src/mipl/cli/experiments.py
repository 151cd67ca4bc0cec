"""demo, run and results: several models, compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mipl.cli.app import (
    DataArg,
    DataSeedOpt,
    IgnoreOpt,
    JsonOpt,
    LabelsOpt,
    MissingTruthOpt,
    RawOpt,
    RecipeOpt,
    ROpt,
    SeedOpt,
    SetOpt,
    SkipMissingOpt,
    app,
    as_text,
    console,
    print_json,
    read_settings,
    source_of,
)
from mipl.errors import SettingError, suggest

ClassNoiseOpt = Annotated[
    float, typer.Option("--class-noise", help="Share of the bags whose true label is no candidate.")
]
AttributeNoiseOpt = Annotated[
    float, typer.Option("--attribute-noise", help="Share of its instances that every bag loses.")
]
EngineOpt = Annotated[
    str, typer.Option("--engine", help="What makes the runs: local (processes here) or ray.")
]
AddressOpt = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster's address; without it one is started here."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the runs.")] = Path("demo"),
    folds: Annotated[int, typer.Option("--folds", min=2, help="Folds of the cross-validation.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time.")] = 2,
    as_json: JsonOpt = False,
) -> None:
    """Train one network three ways on the embedded digits bags and compare accuracy and calibration."""
    from mipl.experiments.demo import run_demo

    errors = Console(stderr=True)
    if not as_json:
        errors.print(
            "Training one network three ways on digits-mipl (250 bags, 5 classes, 1 false positive a bag) …"
        )
    rows, page = run_demo(out, folds, jobs)
    if as_json:
        print_json({"models": rows, "page": str(page)})
        return
    table = Table(title=f"digits-mipl, {rows[0]['test_bags']} test bags, {folds}-fold cross-validation")
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
    console().print(table)
    typer.echo(f"Page: {page}")


@app.command()
def run(
    data: DataArg,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for one folder of records per run.")
    ],
    methods_: Annotated[
        str, typer.Option("--methods", help="Names separated by commas, or 'all'.")
    ] = "sam-cn",
    splits: Annotated[
        str | None,
        typer.Option(
            "--splits",
            help="Which splits: 1-10 (the default), or 1,3,5. A data set with a split of its own has 1 only.",
        ),
    ] = None,
    official: Annotated[
        Path | None,
        typer.Option(
            "--official",
            metavar="DIR",
            help="Folder of index<k>.mat or CLAM's splits_<k>.csv files, in place of stratified splits.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time, one thread each.")] = 2,
    settings: SetOpt = None,
    recipe: RecipeOpt = "stable",
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    seed: SeedOpt = 0,
    data_seed: DataSeedOpt = None,
    class_noise: ClassNoiseOpt = 0.0,
    attribute_noise: AttributeNoiseOpt = 0.0,
    share: Annotated[
        float, typer.Option("--share", help="Share of a split's training bags to train on.")
    ] = 1.0,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="EXTRAS",
            help="What records hold besides: features, training (docs/reproduce.md), separated by commas.",
        ),
    ] = "",
    engine: EngineOpt = "local",
    address: AddressOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Train methods over train/test splits in parallel, leaving one record a run; finished runs are kept."""
    from mipl.data.splits import own_split, split_digest
    from mipl.experiments.engines import run_jobs
    from mipl.experiments.runner import Job, split_of
    from mipl.methods import METHODS
    from mipl.records.store import EXTRAS, Store
    from mipl.records.summary import summarise
    from mipl.reports.results import mean_and_std

    extras = tuple(name.strip() for name in with_.split(",") if name.strip())
    for name in extras:
        if name not in EXTRAS:
            raise SettingError(f"There is no extra '{name}' of a record.{suggest(name, EXTRAS)}")
    source = source_of(
        data,
        r,
        data_seed,
        raw,
        labels,
        skip_missing,
        ignore,
        missing_truth,
        class_noise=class_noise,
        attribute_noise=attribute_noise,
    )
    bags = source.open()
    names = (
        list(METHODS) if methods_ == "all" else [name.strip() for name in methods_.split(",") if name.strip()]
    )
    has_own = own_split(bags) is not None
    chosen = numbers(splits if splits is not None else "1" if has_own else "1-10")
    kind = "official" if has_own or official is not None else "stratified"
    folder = as_text(official) or ""
    # Bad splits and settings are found before the first run, not after hours.
    digests = {
        split: split_digest(bags, split_of(bags, kind, split, share=share, folder=folder)) for split in chosen
    }
    planned = [
        Job(
            source=source,
            method=name,
            params={"recipe": recipe, **read_settings(name, settings)},
            split=split,
            seed=seed,
            data_digest=bags.digest(),
            split_digest=digests[split],
            store=str(out),
            splits=kind,
            split_folder=folder,
            provenance=dict(bags.provenance),
            share=share,
            vectors=len(bags.feature_shape) == 1,
            extras=extras,
        )
        for name in names
        for split in chosen
    ]
    specs = [job.spec for job in planned]
    try:
        failures = run_jobs(planned, engine, jobs, address, show=not as_json)
    except KeyboardInterrupt:
        print(f"mipl: stopped; finished runs are in {out}: the same command makes the rest.", file=sys.stderr)
        raise typer.Exit(130) from None
    store = Store(out)
    rows = summarise([record for spec in specs if (record := store.get(spec)) is not None])
    if as_json:
        print_json(
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
            title=f"{source.title}, mean ± standard deviation over splits",
            title_justify="left",
        )
        for row in rows:
            table.add_row(
                row["method"],
                str(row["runs"]),
                mean_and_std(row["accuracy"], row["accuracy_std"], 2),
                mean_and_std(row["ece"], row["ece_std"], 2),
                f"{row['seconds']:.1f}",
            )
        console().print(table)
    for job, reason in failures:
        print(f"mipl: {job.title} failed: {reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of records that 'mipl run' left.")],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this data set.")] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these methods, separated by commas.")
    ] = None,
    r: Annotated[int | None, typer.Option("-r", help="Only this number of false positives.")] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="Only this recipe.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a row a run to this .parquet or .csv file."),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            "--pack", metavar="DIR", help="Write the runs of the present recipe as two small files into DIR."
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Show the results in a folder of records, means over splits, with the paper's beside them."""
    from mipl.experiments.runner import is_present
    from mipl.paper.printed import paper_results
    from mipl.records.pack import write_pack
    from mipl.records.store import Store
    from mipl.records.table import write_table
    from mipl.reports.results import HEADER, markdown, result_cells, result_rows

    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder of records.")
    wanted = {
        "dataset": None if dataset is None else {dataset},
        "method": None if methods is None else {name.strip() for name in methods.split(",")},
        "r": None if r is None else {r},
        "recipe": None if recipe is None else {recipe},
    }
    records = [
        record
        for record in Store(folder)
        if all(values is None or record.spec[name] in values for name, values in wanted.items())
    ]
    if out is not None:
        write_table(records, out)
    if pack is not None:
        present = [record for record in records if is_present(record)]
        write_pack(present, pack)
        print(
            f"{len(present)} runs packed into {pack}; {len(records) - len(present)} of other recipe versions "
            "left out.",
            file=sys.stderr,
        )
    rows = result_rows(records, is_present, paper_results())
    if as_json:
        print_json(rows)
    elif as_markdown:
        typer.echo(markdown(rows))
    else:
        table = Table(*HEADER)
        for row in rows:
            table.add_row(*result_cells(row))
        console().print(table)


def numbers(text: str) -> list[int]:
    """Return the numbers of '1-3,7'."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        raise SettingError(f"--splits {text} cannot be read: write 1-10, or 1,3,5.") from None
    if not found or len(set(found)) != len(found) or min(found) < 1:
        raise SettingError(f"--splits {text} names no split, one twice, or one below 1.")
    return found
