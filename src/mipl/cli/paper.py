"""reproduce and report: the paper's tables and figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mipl.cli.app import JsonOpt, RecipeOpt, app, print_json
from mipl.cli.experiments import AddressOpt, EngineOpt, numbers
from mipl.errors import SettingError

if TYPE_CHECKING:
    from mipl.paper.reproduce import Options, Reproduction


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="table1 to table5, fig2, …, separated by commas, or all."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.")],
    raw: Annotated[
        Path | None,
        typer.Option("--raw", metavar="DIR", help="Folder with one folder of raw files per data set."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Embedded data, few epochs, one split: a quick try.")
    ] = False,
    splits: Annotated[str | None, typer.Option("--splits", help="Splits to run (default 1-10).")] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Epochs of every run (default: the method's)."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Parallel processes, one thread each.")] = 2,
    engine: EngineOpt = "local",
    address: AddressOpt = None,
    recipe: RecipeOpt = "stable",
    records: Annotated[
        Path | None,
        typer.Option("--records", metavar="DIR", help="Folder of records (default OUT/records)."),
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw from existing records without running anything.")
    ] = False,
    as_json: JsonOpt = False,
) -> None:
    """Reproduce tables and figures of the paper; finished runs are not repeated."""
    from mipl.paper.reproduce import Options
    from mipl.paper.reproduce import reproduce as reproduce_items

    if records is not None and draw_only and not records.is_dir():
        raise SettingError(f"{records} is not a folder of records.")
    options = Options(
        out=out,
        raw=raw,
        quick=quick,
        splits=None if splits is None else tuple(numbers(splits)),
        epochs=epochs,
        recipe=recipe,
        workers=jobs,
        engine=engine,
        address=address,
        records=records,
        draw_only=draw_only,
        show=not as_json,
    )
    wanted = [part.strip() for part in name.split(",") if part.strip()]
    try:
        result = reproduce_items(wanted, options, _command(name, splits, options))
    except KeyboardInterrupt:
        print("mipl: stopped; run the same command to resume after the finished runs.", file=sys.stderr)
        raise typer.Exit(130) from None
    _print_result(result, as_json)
    if result.failures:
        raise typer.Exit(1)


def _command(name: str, splits: str | None, options: Options) -> str:
    """Return the command that the page shows: the options that affect the results."""
    words = ["mipl", "reproduce", name]
    words += ["--quick"] if options.quick else []
    words += ["--draw-only"] if options.draw_only else []
    words += ["--splits", splits] if splits is not None else []
    words += ["--epochs", str(options.epochs)] if options.epochs is not None else []
    words += ["--recipe", options.recipe] if options.recipe != "stable" else []
    return shlex.join(words)


def _print_result(result: Reproduction, as_json: bool) -> None:
    """Print the page, then the data sets that are unavailable and the runs that failed."""
    if as_json:
        failed = [{"run": job.title, "reason": reason} for job, reason in result.failures]
        print_json({"page": str(result.page), "failed": failed, "lacking": result.unavailable})
    else:
        typer.echo(f"Page: {result.page}")
    for title, reason in result.unavailable.items():
        print(f"mipl: note: {title} is left empty: {reason}", file=sys.stderr)
    for job, reason in result.failures:
        print(f"mipl: {job.title} failed: {reason}", file=sys.stderr)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'mipl reproduce' wrote to.")],
) -> None:
    """Write one page with all tables and figures reproduced in a folder, and their provenance."""
    from mipl.paper.page import write_page
    from mipl.paper.reproduce import names

    typer.echo(f"Page: {write_page(folder, names())}")
