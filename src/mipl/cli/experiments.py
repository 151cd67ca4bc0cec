"""The verbs ``demo, run``: several models, trained."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, app, console, print_json
from mipl.cli.options import DataOptions, TrainingOptions, expand_options, path_text, split_commas
from mipl.errors import SettingError, suggest

if TYPE_CHECKING:
    from mipl.data.bags import Bags
    from mipl.data.sources import Source
    from mipl.experiments.runner import Job
    from mipl.records.summary import SummaryRow

EngineOpt = Annotated[
    str, typer.Option("--engine", help="Execution engine: local (processes on this machine) or ray.")
]
AddressOpt = Annotated[
    str | None,
    typer.Option("--address", help="Address of a Ray cluster; without it a local one is started."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the runs.")] = Path("demo"),
    folds: Annotated[int, typer.Option("--folds", min=2, help="Folds of the cross-validation.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Parallel processes.")] = 2,
    as_json: JsonOpt = False,
) -> None:
    """Train a network three ways, and an ensemble, on bundled bags; compare accuracy and calibration."""
    from mipl.experiments.demo import run_demo

    errors = Console(stderr=True)
    if not as_json:
        errors.print(
            "Training a network three ways, and an ensemble of four, on digits-mipl-noisy "
            "(250 bags, 5 classes, 2 false positives per bag) …"
        )
    rows, page = run_demo(out, folds, jobs)
    if as_json:
        print_json({"models": rows, "page": str(page)})
        return
    table = Table(title=f"digits-mipl-noisy, {rows[0]['test_bags']} test bags, {folds}-fold cross-validation")
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


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Which runs are made, and the content of their records."""

    methods: Annotated[str, typer.Option("--methods", help="Names separated by commas, or 'all'.")] = "sam-cn"
    splits: Annotated[
        str | None,
        typer.Option(
            "--splits",
            help="Which splits: 1-10 (the default), or 1,3,5; only 1 for a data set with its own split.",
        ),
    ] = None
    official: Annotated[
        Path | None,
        typer.Option(
            "--official",
            metavar="DIR",
            help="Folder of index<k>.mat or CLAM's splits_<k>.csv files, in place of stratified splits.",
        ),
    ] = None
    class_noise: Annotated[
        float,
        typer.Option("--class-noise", help="Fraction of the bags whose candidates lose the true label."),
    ] = 0.0
    attribute_noise: Annotated[
        float, typer.Option("--attribute-noise", help="Fraction of its instances that each bag loses.")
    ] = 0.0
    share: Annotated[
        float, typer.Option("--share", help="Fraction of a split's training bags to train on.")
    ] = 1.0
    extras: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="EXTRAS",
            help="Extra content of records: features, training (docs/reproduce.md), separated by commas.",
        ),
    ] = ""

    def extra_names(self) -> tuple[str, ...]:
        """Return the names of ``--with``, checked."""
        from mipl.records.store import EXTRAS

        names = tuple(split_commas(self.extras))
        for name in names:
            if name not in EXTRAS:
                raise SettingError(f"--with {name}: records have no such content.{suggest(name, EXTRAS)}")
        return names


@app.command()
@expand_options
def run(
    data: DataArg,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the records, one folder per run.")
    ],
    runs: RunOptions,
    training: TrainingOptions,
    options: DataOptions,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Parallel processes, one thread each.")] = 2,
    engine: EngineOpt = "local",
    address: AddressOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Train methods on train/test splits in parallel, with one record per run; finished runs are skipped."""
    from mipl.experiments.engines import run_jobs
    from mipl.records.store import Store
    from mipl.records.summary import summarise

    extras = runs.extra_names()
    source = options.source(data, class_noise=runs.class_noise, attribute_noise=runs.attribute_noise)
    planned = _plan(source, source.open(), runs, training, extras, out)
    specs = [job.spec for job in planned]
    try:
        failures = run_jobs(planned, engine, jobs, address, show=not as_json)
    except KeyboardInterrupt:
        print(f"mipl: stopped; finished runs are in {out}: run the same command to resume.", file=sys.stderr)
        raise typer.Exit(130) from None
    store = Store(out)
    rows = summarise([record for spec in specs if (record := store.get(spec)) is not None])
    if as_json:
        failed = [{"run": job.title, "reason": reason} for job, reason in failures]
        print_json({"runs": len(specs), "failed": failed, "summary": rows})
    else:
        console().print(_summary_table(source.title, rows))
    for job, reason in failures:
        print(f"mipl: {job.title} failed: {reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def _plan(
    source: Source,
    bags: Bags,
    runs: RunOptions,
    training: TrainingOptions,
    extras: tuple[str, ...],
    out: Path,
) -> list[Job]:
    """Return one job per method and split, after checking splits and settings before the first run."""
    from mipl.data.splits import own_split, split_digest
    from mipl.experiments.runner import Job, split_of
    from mipl.methods import METHODS

    methods = list(METHODS) if runs.methods == "all" else split_commas(runs.methods)
    has_own = own_split(bags) is not None
    splits = numbers(runs.splits if runs.splits is not None else "1" if has_own else "1-10")
    kind = "official" if has_own or runs.official is not None else "stratified"
    folder = path_text(runs.official) or ""
    digests = {
        split: split_digest(bags, split_of(bags, kind, split, share=runs.share, folder=folder))
        for split in splits
    }
    return [
        Job(
            source=source,
            method=method,
            params=training.params(method),
            split=split,
            seed=training.seed,
            data_digest=bags.digest(),
            split_digest=digests[split],
            store=str(out),
            splits=kind,
            split_folder=folder,
            provenance=dict(bags.provenance),
            share=runs.share,
            vectors=len(bags.feature_shape) == 1,
            extras=extras,
        )
        for method in methods
        for split in splits
    ]


def _summary_table(title: str, rows: list[SummaryRow]) -> Table:
    from mipl.reports.results import mean_and_std

    table = Table(
        "method",
        "runs",
        "accuracy",
        "ECE",
        "fit seconds",
        title=f"{title}, mean ± standard deviation over splits",
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
    return table


def numbers(text: str) -> list[int]:
    """Return the split numbers of a text such as '1-3,7'."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        raise SettingError(f"--splits {text} is not a list of numbers: write 1-10, or 1,3,5.") from None
    if not found or len(set(found)) != len(found) or min(found) < 1:
        raise SettingError(f"--splits {text} is empty, repeats a split, or contains a number below 1.")
    return found
