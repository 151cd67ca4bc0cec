"""reproduce and report: the paper's tables and figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from mipl.cli.app import JsonOpt, RecipeOpt, app, print_json
from mipl.cli.experiments import AddressOpt, EngineOpt, numbers
from mipl.errors import SettingError


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="table1 to table5, fig2, …: see docs/reproduce.md; or all."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for all that is made.")],
    raw: Annotated[
        Path | None,
        typer.Option("--raw", metavar="DIR", help="Folder of the folders of raw files."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Embedded data, few epochs, one split: to see how it works.")
    ] = False,
    splits: Annotated[str | None, typer.Option("--splits", help="Which splits (default 1-10).")] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Epochs of every run (default: each method's own).")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time, one thread each.")] = 2,
    engine: EngineOpt = "local",
    address: AddressOpt = None,
    recipe: RecipeOpt = "stable",
    records: Annotated[
        Path | None,
        typer.Option("--records", metavar="DIR", help="Folder of records (default OUT/records)."),
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw from the records that are there; run nothing.")
    ] = False,
    as_json: JsonOpt = False,
) -> None:
    """Make a table or figure of the paper again, ours beside the paper's; finished runs are kept."""
    from mipl.paper.reproduce import Options
    from mipl.paper.reproduce import reproduce as make

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
    given = {"--splits": splits, "--epochs": epochs, "--recipe": None if recipe == "stable" else recipe}
    words = [
        "mipl",
        "reproduce",
        name,
        *(["--quick"] if quick else []),
        *(["--draw-only"] if draw_only else []),
    ]
    words += [word for key, value in given.items() if value is not None for word in (key, str(value))]
    wanted = [part.strip() for part in name.split(",") if part.strip()]
    try:
        outcome = make(wanted, options, shlex.join(words))
    except KeyboardInterrupt:
        print("mipl: stopped; finished runs are kept: the same command makes the rest.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        failed = [{"run": job.title, "reason": reason} for job, reason in outcome.failures]
        print_json({"page": str(outcome.page), "failed": failed, "lacking": outcome.lacking})
    else:
        typer.echo(f"Page: {outcome.page}")
    for title, reason in outcome.lacking.items():
        print(f"mipl: note: {title} is left empty: {reason}", file=sys.stderr)
    for job, reason in outcome.failures:
        print(f"mipl: {job.title} failed: {reason}", file=sys.stderr)
    if outcome.failures:
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'mipl reproduce' wrote to.")],
) -> None:
    """Join everything reproduced in a folder in one page, with the provenance of every number."""
    from mipl.paper.page import write_page
    from mipl.paper.reproduce import names

    typer.echo(f"Page: {write_page(folder, names())}")
