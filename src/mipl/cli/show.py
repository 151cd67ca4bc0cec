"""The verbs ``explain, export``: attention, ONNX graph and model card of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, console, print_json
from mipl.cli.options import DataOptions, SlideOptions, expand_options
from mipl.errors import SettingError, counted


@app.command()
@expand_options
def explain(
    model: ModelArg,
    data: DataArg,
    bag: Annotated[list[str], typer.Option("--bag", metavar="ID", help="Bag to explain; repeatable.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for a CSV, a PNG and an SVG per bag.")
    ],
    *,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="FILE|DIR",
            help="Tile or slide thumbnail to draw the map over, or the folder of such images.",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of instances to print per bag.")] = 10,
    options: SlideOptions,
    as_json: JsonOpt = False,
) -> None:
    """Show the attention of the model over the instances of a bag: as a heat map over the slide or ranked."""
    from mipl.estimators import load
    from mipl.explain import MARKER, read_images, write_explanations
    from mipl.explain import explain as explain_bags
    from mipl.files import check_folder

    classifier = load(model)
    bags = options.open(data)
    check_folder(out, MARKER)
    images = None if image is None else read_images(image, bag)
    explanations = explain_bags(classifier, bags, bag, images)
    written = write_explanations(out, explanations)
    tops = [[each.rows()[i] for i in each.order[:top]] for each in explanations]
    if as_json:
        found = [{**about, "top": rows} for about, rows in zip(written, tops, strict=True)]
        print_json({"folder": str(out), "bags": found})
        return
    for about, rows in zip(written, tops, strict=True):
        typer.echo(
            f"{about['bag_id']}: {about['label']}, confidence {100 * about['confidence']:.1f}%, "
            f"{counted(about['instances'], 'instance')}"
        )
        console().print(_attention_table(rows))
    typer.echo(f"Tables and figures written to {out}")


def _attention_table(rows: list[dict[str, Any]]) -> Table:
    has_coordinates = rows[0]["x"] is not None
    table = Table("rank", "index", *(["x", "y"] if has_coordinates else []), "attention")
    for row in rows:
        coordinates = [f"{row['x']:g}", f"{row['y']:g}"] if has_coordinates else []
        table.add_row(str(row["rank"]), str(row["index"]), *coordinates, f"{100 * row['attention']:.2f}%")
    return table


@app.command()
@expand_options
def export(
    model: ModelArg,
    *,
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE", help="ONNX graph to write, for one bag of any size."),
    ] = None,
    card: Annotated[
        Path | None, typer.Option("--card", metavar="FILE", help="Model card (Markdown) to write.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DATA", help="Bags with true labels, for the measurements in the card."
        ),
    ] = None,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Write a trained model as an ONNX graph that is verified against torch, or its model card, or both."""
    from mipl.estimators import load
    from mipl.export.card import model_card, write_card
    from mipl.export.onnx import export_onnx
    from mipl.files import check_place

    if onnx is None and card is None:
        raise SettingError("Nothing to write: give --onnx FILE, --card FILE, or both.")
    if data is not None and card is None:
        raise SettingError("--data is only used for the model card: give --card FILE too.")
    for path in (onnx, card):
        if path is not None:
            check_place(path)
    classifier = load(model)
    text = ""
    if card is not None:  # measured before any file is written
        source = None if data is None else options.source(data)
        text = model_card(model, classifier, None if source is None else (source.title, source.open()))
    result: dict[str, Any] = {}
    if onnx is not None:
        result["onnx"] = {"file": str(onnx), **export_onnx(classifier, onnx)}
    if card is not None:
        write_card(card, text)
        result["card"] = {"file": str(card), "measured": data is not None}
    if as_json:
        print_json(result)
    else:
        _print_export(result)


def _print_export(result: dict[str, Any]) -> None:
    if (graph := result.get("onnx")) is not None:
        worst = max(graph["differences"].values())
        sizes = ", ".join(str(size) for size in graph["sizes"])
        typer.echo(
            f"ONNX graph written to {graph['file']}; it differs from torch by at most {worst:.1g} on random "
            f"bags of {sizes} instances"
        )
    if (card := result.get("card")) is not None:
        typer.echo(f"Model card written to {card['file']}")
