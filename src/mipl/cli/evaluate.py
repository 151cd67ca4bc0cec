"""The verb ``evaluate``: predictions against true labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mipl.cli.app import JsonOpt, app, console, print_json
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import DataError, suggest

if TYPE_CHECKING:
    from mipl.reports.evaluation import Evaluation


@dataclasses.dataclass(frozen=True)
class Truth:
    """The true labels to evaluate by, and what is said of them."""

    labels: dict[str, str]  # by the id of the bag
    partial: bool  # a table of labels, in which a predicted bag may be missing
    note: str | None = None  # on reviews that are left out


@app.command()
@expand_options
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="CSV written by 'mipl predict'.")
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="LABELS",
            help="Table with bag_id and label (CSV, TSV, XLSX), such as reviews; or bags with true labels.",
        ),
    ],
    *,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", min=0, help="Bootstrap draws for 95% intervals; 0: no intervals.")
    ] = 1000,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for a page with diagrams, and the values as JSON."),
    ] = None,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Measure accuracy and calibration of predictions against true labels.

    Of reviews with a column 'selected', only bags drawn at random count.
    """
    import numpy as np

    from mipl.data.formats.table import read_predictions
    from mipl.files import check_folder
    from mipl.reports.evaluation import MARKER, Evaluation, write_page

    if out is not None:
        check_folder(out, MARKER)
    ids, classes, probabilities = read_predictions(predictions)
    truth = _truth(data, options, classes)
    rows = [i for i, bag in enumerate(ids) if bag in truth.labels]
    _check_predictions(predictions, data, ids, classes, truth)
    labels = np.array([classes.index(truth.labels[ids[i]]) for i in rows])
    found = Evaluation.of(classes, probabilities[rows], labels, bootstrap=bootstrap)
    notes = [truth.note] if truth.note else []
    if len(rows) < len(ids):
        notes.append(f"{len(ids) - len(rows)} of {len(ids)} predicted bags have no label in {data}.")
    if out is not None:
        write_page(out, found, notes, {"predictions": str(predictions), "labels": data})
    if as_json:
        print_json({**found.to_dict(), "notes": notes, **({} if out is None else {"page": str(out)})})
        return
    _print_evaluation(found, len(ids), bootstrap > 0)
    for note in notes:
        typer.echo(note)
    if out is not None:
        typer.echo(f"Page written to {out / 'index.html'}")


def _truth(data: str, options: DataOptions, classes: list[str]) -> Truth:
    from mipl.data.reviews import is_table_of_labels, read_reviews, true_labels

    if is_table_of_labels(path := Path(data), cohort=True) and options == DataOptions():
        known = true_labels(read_reviews(path), path)
        return Truth(known.labels, True, known.note())
    bags, note = options.open_labelled(data, tuple(classes))
    if bags.labels is None:
        raise DataError(f"{data} has no true labels: they are needed to evaluate predictions.")
    names = [str(bags.classes[label]) for label in bags.labels.tolist()]
    return Truth(dict(zip(bags.ids.tolist(), names, strict=True)), note is not None, note)


def _check_predictions(
    predictions: Path, data: str, ids: list[str], classes: list[str], truth: Truth
) -> None:
    """Raise an error unless the predicted bags have true labels among the predicted classes."""
    for bag in ids:
        label = truth.labels.get(bag)
        if label is None and not truth.partial:
            raise DataError(f"{predictions} predicts the bag '{bag}', which is not in {data}.")
        if label is not None and label not in classes:
            raise DataError(
                f"The bag '{bag}' has the label '{label}', for which {predictions} has no column."
                f"{suggest(label, classes)}"
            )
    if not truth.labels.keys() & set(ids):
        raise DataError(f"No bag of {predictions} has a label in {data}: are they of the same bags?")


def _print_evaluation(found: Evaluation, predicted: int, intervals: bool) -> None:
    columns = ["metric", "value", *(["95% interval"] if intervals else [])]
    table = Table(*columns, title=f"{found.bags} of {predicted} bags", title_justify="left")
    values = found.values
    for name in [key for key in values if not key.endswith(("_low", "_high"))]:
        low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
        interval = [] if low is None or high is None else [f"{low:.4f} – {high:.4f}"]
        table.add_row(name.replace("_", " "), f"{values[name]:.4f}", *interval)
    console().print(table)
    per_class = Table("class", "labelled", "predicted", "precision", "recall", title="", title_justify="left")
    for row in found.by_class():
        per_class.add_row(
            row["name"],
            str(row["labelled"]),
            str(row["predicted"]),
            *map(_percent, (row["precision"], row["recall"])),
        )
    console().print(per_class)
    confusion = Table(
        "true \\ predicted", *found.classes, title="Number of bags", title_justify="left", row_styles=[""]
    )
    for name, counts in zip(found.classes, found.confusion.tolist(), strict=True):
        confusion.add_row(name, *map(str, counts))
    console().print(confusion)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"
