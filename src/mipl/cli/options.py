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
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from mipl.cli.app import RecipeOpt
from mipl.errors import SettingError, suggest

if TYPE_CHECKING:
    from mipl.data.bags import Bags
    from mipl.data.candidates import Classes
    from mipl.data.sources import Source

Options = TypeVar("Options", bound="SlideOptions")
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
class SlideOptions:
    """How DATA is built or read, where a bag of a folder is a slide."""

    r: ROpt = None
    raw: RawOpt = None
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="CSV, TSV or XLSX with bag_id or slide_id, candidates (a|b|c), and optionally label and "
            "patient, or exported reviews; repeatable, later ones win.",
        ),
    ] = None
    votes: Annotated[
        Path | None,
        typer.Option(
            "--votes",
            metavar="FILE",
            help="Annotators' votes, as a long or wide table or answers.json; sam-cn and other CDL and MDL "
            "methods learn a confusion matrix for each annotator.",
        ),
    ] = None
    gold: Annotated[
        Path | None,
        typer.Option("--gold", metavar="FILE", help="With --votes: bag_id, label of bags known for certain."),
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
            tuple(map(str, self.labels or ())) or None,
            self.skip_missing,
            ignore=tuple(self.ignore or ()),
            missing_truth=self.missing_truth,
            votes=path_text(self.votes),
            gold=path_text(self.gold),
            bag=getattr(self, "bag", "slide"),
            **noise,  # type: ignore[arg-type]
        )

    def open(self, data: str) -> Bags:
        """Return the bags that DATA and these options stand for."""
        return self.source(data).open()

    def open_labelled(self, data: str, classes: Classes) -> tuple[Bags, str | None]:
        """Return the bags of DATA with true labels, and a sentence on bags that are left out.

        Where ``--labels`` are tables of labels alone, such as reviews, only their bags that were drawn at
        random are returned.
        """
        from mipl.data.reviews import is_table_of_labels, read_reviews, true_labels, with_true_labels

        if not self.labels or not all(map(is_table_of_labels, self.labels)):
            return self.open(data), None
        path = self.labels[0] if len(self.labels) == 1 else Path(", ".join(map(str, self.labels)))
        labels = true_labels(read_reviews(*self.labels), path)
        bags = dataclasses.replace(self, labels=None).open(data)
        return with_true_labels(bags, labels, path, classes), labels.note()

    def without_builder(self: Options) -> Options:
        """Return these options without those of a data set built by name: -r, --raw and --data-seed."""
        return dataclasses.replace(self, r=None, raw=None, data_seed=None)


@dataclasses.dataclass(frozen=True)
class DataOptions(SlideOptions):
    """How DATA is built or read."""

    bag: Annotated[
        str, typer.Option("--bag", help="A bag is a slide, or a patient with all slides: slide or patient.")
    ] = "slide"


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
