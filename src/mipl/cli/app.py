"""The Typer application, and the arguments, options and output helpers that several verbs use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mipl.errors import listed

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated classifiers from bags of instances with candidate labels.",
)


def _print_version(requested: bool) -> None:
    if requested:
        import mipl

        typer.echo(f"mipl {mipl.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


DataArg = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Bags: an .npz, .mat, .csv, .tsv or .parquet file, a folder of feature files, or the name of a "
        "data set.",
    ),
]
ModelArg = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by 'mipl fit'.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RecipeOpt = Annotated[str, typer.Option("--recipe", help="Training recipe: stable or paper.")]


def features_line(names: Sequence[str] | None) -> str | None:
    """Return a line listing the feature columns of a table, or None if the features have no names."""
    return None if names is None else f"features: {len(names)} columns, {listed(names, 20)}"


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    """Return the console for tables: as wide as the terminal, or at least 160 columns in a pipe."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=max(terminal.width, 160))
