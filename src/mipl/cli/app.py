"""The command line's application, and what its verbs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mipl.errors import SettingError, listed, suggest

if TYPE_CHECKING:
    from mipl.data.sources import Source

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated classifiers from bags of instances with candidate labels.",
)


def _version(asked: bool) -> None:
    if asked:
        import mipl

        typer.echo(f"mipl {mipl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


DataArg = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Bags: an .npz, .mat, .csv, .tsv or .parquet file, a folder of feature files, or a name.",
    ),
]
ModelArg = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that 'mipl fit' wrote.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ROpt = Annotated[
    int | None, typer.Option("-r", help="False positives per bag, for a data set by name (default 1).")
]
RawOpt = Annotated[Path | None, typer.Option("--raw", help="Folder of raw files, for a data set by name.")]
SeedOpt = Annotated[int, typer.Option("--seed", help="Seed of training.")]
DataSeedOpt = Annotated[
    int | None, typer.Option("--data-seed", help="Seed of a data set built by name (default 0).")
]
LabelsOpt = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="CSV, TSV or XLSX with bag_id or slide_id, candidates (a|b|c), and perhaps label and patient.",
    ),
]
SkipMissingOpt = Annotated[
    bool, typer.Option("--skip-missing", help="Leave out the slides of --labels that have no file.")
]
IgnoreOpt = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="COLUMN", help="A column of a table to leave out; repeatable."),
]
MissingTruthOpt = Annotated[
    bool,
    typer.Option("--missing-truth", help="Allow true labels outside their candidate sets."),
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method or recipe; repeatable."),
]
RecipeOpt = Annotated[str, typer.Option("--recipe", help="How to train: stable or paper.")]


def read_settings(method: str, pairs: list[str] | None) -> dict[str, Any]:
    """Return the settings that ``--set key=value`` gives, each by its type."""
    from mipl.methods import METHODS
    from mipl.registry import parse_setting, settings_of
    from mipl.training.recipe import Recipe

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


def source_of(
    data: str,
    r: int | None,
    data_seed: int | None,
    raw: Path | None,
    labels: Path | None,
    skip_missing: bool,
    ignore: list[str] | None,
    missing_truth: bool,
    **noise: float,
) -> Source:
    """Return what DATA and its options stand for."""
    from mipl.data.sources import Source

    return Source(
        data,
        r,
        data_seed,
        as_text(raw),
        as_text(labels),
        skip_missing,
        ignore=tuple(ignore or ()),
        missing_truth=missing_truth,
        **noise,  # type: ignore[arg-type]
    )


def features_line(names: Sequence[str] | None) -> str | None:
    """Return a line that says which columns of a table are features; None without names."""
    return None if names is None else f"features: {len(names)} columns, {listed(names, 20)}"


def as_text(path: Path | None) -> str | None:
    """Return a path as text, for a spec that travels to other processes."""
    return None if path is None else str(path)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough for names in a pipe."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=max(shown.width, 160))
