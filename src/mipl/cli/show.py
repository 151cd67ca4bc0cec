"""explain, export: a trained model shown to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import (
    DataArg,
    DataSeedOpt,
    IgnoreOpt,
    JsonOpt,
    LabelsOpt,
    MissingTruthOpt,
    ModelArg,
    RawOpt,
    ROpt,
    SkipMissingOpt,
    app,
    console,
    print_json,
    source_of,
)
from mipl.errors import SettingError


@app.command()
def explain(
    model: ModelArg,
    data: DataArg,
    bag: Annotated[list[str], typer.Option("--bag", metavar="ID", help="The bag to explain; repeatable.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for a CSV, a PNG and an SVG of each bag.")
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="Instances to list of each bag.")] = 10,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Show which instances of a bag the model looked at: a heat map over the slide, or the instances."""
    from mipl.estimators import load
    from mipl.explain import MARKER, write_explanations
    from mipl.explain import explain as explained
    from mipl.files import check_folder

    classifier = load(model)
    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    check_folder(out, MARKER)
    made = explained(classifier, bags, bag)
    listed = write_explanations(out, made)
    tops = [[each.rows()[i] for i in each.order[:top]] for each in made]
    if as_json:
        print_json(
            {
                "folder": str(out),
                "bags": [{**about, "top": rows} for about, rows in zip(listed, tops, strict=True)],
            }
        )
        return
    for about, rows in zip(listed, tops, strict=True):
        placed = rows[0]["x"] is not None
        table = Table("rank", "index", *(["x", "y"] if placed else []), "attention")
        for row in rows:
            where = [f"{row['x']:g}", f"{row['y']:g}"] if placed else []
            table.add_row(str(row["rank"]), str(row["index"]), *where, f"{100 * row['attention']:.2f}%")
        typer.echo(
            f"{about['bag_id']}: {about['label']}, confidence {100 * about['confidence']:.1f}%, "
            f"{about['instances']} instances"
        )
        console().print(table)
    typer.echo(f"Tables and figures written to {out}")


@app.command()
def export(
    model: ModelArg,
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE", help="ONNX graph of one bag of any size to write."),
    ] = None,
    card: Annotated[
        Path | None, typer.Option("--card", metavar="FILE", help="Model card (Markdown) to write.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Bags with true labels, for the card's measurements."),
    ] = None,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Write a trained model as an ONNX graph that was checked against torch, or its model card, or both."""
    from mipl.estimators import load
    from mipl.export.card import model_card, write_card
    from mipl.export.onnx import export_onnx
    from mipl.files import check_place

    if onnx is None and card is None:
        raise SettingError("Give what to write: --onnx FILE, --card FILE, or both.")
    if data is not None and card is None:
        raise SettingError("--data is measured for the card: give --card FILE too.")
    for path in (onnx, card):
        if path is not None:
            check_place(path)
    classifier = load(model)
    text = None
    if card is not None:  # made before anything is written
        source = (
            None
            if data is None
            else source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth)
        )
        text = model_card(model, classifier, None if source is None else (source.title, source.open()))
    result: dict[str, Any] = {}
    if onnx is not None:
        result["onnx"] = {"file": str(onnx), **export_onnx(classifier, onnx)}
    if card is not None and text is not None:
        write_card(card, text)
        result["card"] = {"file": str(card), "measured": data is not None}
    if as_json:
        print_json(result)
        return
    if onnx is not None:
        checked = result["onnx"]
        worst = max(checked["differences"].values())
        sizes = ", ".join(str(size) for size in checked["sizes"])
        typer.echo(
            f"ONNX graph written to {onnx}; on random bags of {sizes} instances at most {worst:.1g} off torch"
        )
    if card is not None:
        typer.echo(f"Model card written to {card}")
