"""Groups of options that several verbs share, each declared once as a dataclass.

A verb takes such a group as one parameter, and :func:`expand_options` shows its fields to Typer as options::

    @app.command()
    @expand_options
    def predict(model: ModelArg, data: DataArg, options: DataOptions) -> None:
        bags = options.open(data)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mipl.cli.app import RecipeOpt
from mipl.errors import SettingError, suggest

if TYPE_CHECKING:
    from mipl.data.bags import Bags
    from mipl.data.sources import Source

ROpt = Annotated[
    int | None, typer.Option("-r", help="False positives per bag, for a data set by name (default 1).")
]
RawOpt = Annotated[Path | None, typer.Option("--raw", help="Folder of raw files, for a data set by name.")]
IgnoreOpt = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="COLUMN", help="Column of a table to leave out; repeatable."),
]


def expand_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``verb`` that is a dataclass by one option per field.

    Args:
        verb: Function with parameters annotated for Typer, or with dataclasses whose fields are.

    Returns:
        The function to register as a command. All its parameters are keyword-only, so that options with and
        without a default can follow each other.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            assert isinstance(parameter.annotation, type)
            groups[name] = parameter.annotation
            parameters += _field_parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(verb)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        verb(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _field_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """How DATA is built or read."""

    r: ROpt = None
    raw: RawOpt = None
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="CSV, TSV or XLSX with bag_id or slide_id, candidates (a|b|c), and optionally label and "
            "patient.",
        ),
    ] = None
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out the slides of --labels that have no file.")
    ] = False
    ignore: IgnoreOpt = None
    missing_truth: Annotated[
        bool, typer.Option("--missing-truth", help="Allow true labels outside their candidate sets.")
    ] = False
    data_seed: Annotated[
        int | None, typer.Option("--data-seed", help="Seed of a data set built by name (default 0).")
    ] = None

    def source(self, data: str, **noise: float) -> Source:
        """Return the description of the bags that DATA and these options stand for."""
        from mipl.data.sources import Source

        return Source(
            data,
            self.r,
            self.data_seed,
            path_text(self.raw),
            path_text(self.labels),
            self.skip_missing,
            ignore=tuple(self.ignore or ()),
            missing_truth=self.missing_truth,
            **noise,  # type: ignore[arg-type]
        )

    def open(self, data: str) -> Bags:
        """Return the bags that DATA and these options stand for."""
        return self.source(data).open()

    def without_builder(self) -> DataOptions:
        """Return these options without those of a data set built by name: -r, --raw and --data-seed."""
        return dataclasses.replace(self, r=None, raw=None, data_seed=None)


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained."""

    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the method or recipe; repeatable."),
    ] = None
    recipe: RecipeOpt = "stable"
    seed: Annotated[int, typer.Option("--seed", help="Seed of training.")] = 0

    def params(self, method: str) -> dict[str, Any]:
        """Return the recipe's name and the parsed settings of ``--set`` for a method."""
        return {"recipe": self.recipe, **_parse_settings(method, self.settings or [])}


def _parse_settings(method: str, pairs: list[str]) -> dict[str, Any]:
    from mipl.methods import METHODS
    from mipl.registry import parse_setting, settings_of
    from mipl.training.recipe import Recipe

    cls = METHODS[method].cls
    values: dict[str, Any] = {}
    for pair in pairs:
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


def path_text(path: Path | None) -> str | None:
    """Return a path as text, because job descriptions are sent to other processes."""
    return None if path is None else str(path)


def split_commas(text: str) -> list[str]:
    """Return the parts of a text that is separated by commas, without spaces around them."""
    return [part.strip() for part in text.split(",") if part.strip()]
