"""data list, info, fetch, build, convert, votes, images: where bags come from."""

from __future__ import annotations

import dataclasses
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
    RawOpt,
    ROpt,
    SkipMissingOpt,
    app,
    console,
    features_line,
    print_json,
    source_of,
)

data_app = typer.Typer(
    no_args_is_help=True, help="Where bags come from: data sets by name, files, votes, images."
)
app.add_typer(data_app, name="data")

NameArg = Annotated[str, typer.Argument(metavar="NAME", help="A name from 'mipl data list'.")]
OutOpt = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Where to write: .npz, .mat, .csv, .tsv, .parquet, or a folder (CLAM layout).",
    ),
]
ROWS = {  # of Table 1: field -> what it is called, and whether it is a share
    "bags": "bags",
    "instances": "instances",
    "max_instances": "most instances",
    "min_instances": "fewest instances",
    "mean_instances": "mean instances",
    "max_positives": "most positives",
    "min_positives": "fewest positives",
    "mean_positives": "mean positives",
    "dimension": "dimension",
    "classes": "classes",
    "mean_candidates": "mean candidates",
}


@data_app.command("list")
def list_(as_json: JsonOpt = False) -> None:
    """List the data sets that have a name, and what each is built from."""
    from mipl.data.datasets import DATASETS

    rows = [
        {"name": name, "paper": dataset.table1 is not None, "r": dataset.takes_r, "raw": dataset.raw_files}
        for name, dataset in DATASETS.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "in the paper", "-r", "--raw is")
    for row in rows:
        table.add_row(
            str(row["name"]), "yes" if row["paper"] else "", "1, 2, 3" if row["r"] else "", str(row["raw"])
        )
    console().print(table)


@data_app.command()
def info(
    data: DataArg,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Show what a data set is like: its row of the paper's Table 1, beside the paper's own."""
    from mipl.data.datasets import find_dataset
    from mipl.data.statistics import bag_statistics

    source = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth)
    bags = source.open()
    ours = dataclasses.asdict(bag_statistics(bags))
    name = str(bags.provenance.get("dataset", source.name))
    dataset = find_dataset(name)
    paper = None if dataset is None else dataset.table1_row(int(bags.provenance.get("r", 1)))
    theirs = None if paper is None else dataclasses.asdict(paper)
    if as_json:
        print_json(
            {
                "data": data,
                "here": ours,
                "paper": theirs,
                "classes": [str(c) for c in bags.classes],
                "features": bags.feature_names,
                "groups": None if bags.groups is None else len(set(bags.groups.tolist())),
                "provenance": dict(bags.provenance),
            }
        )
        return
    table = Table("", "here", *(["paper"] if theirs else []))
    for field, title in ROWS.items():
        table.add_row(title, _cell(field, ours[field]), *([_cell(field, theirs[field])] if theirs else []))
    shown = console()
    shown.print(f"{name}: {bags!r}", markup=False, highlight=False)
    shown.print(table)
    origin = "; ".join(f"{key}: {value}" for key, value in bags.provenance.items() if key != "classes")
    shown.print(f"classes: {', '.join(str(c) for c in bags.classes) or 'none known'}", markup=False)
    if (line := features_line(bags.feature_names)) is not None:
        shown.print(line, markup=False, highlight=False)
    shown.print(f"provenance: {origin or 'unknown'}", markup=False)


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return "n/a"
    if field.endswith("positives"):
        return f"{100 * value:.1f}%"
    return f"{value:.2f}" if field.startswith("mean") else f"{value:,}"


@data_app.command()
def build(
    name: NameArg,
    out: OutOpt,
    r: ROpt = None,
    raw: RawOpt = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of what is drawn (default 0).")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Build a data set by its name from raw files, and write it."""
    from mipl.data.datasets import build as build_bags
    from mipl.data.datasets import find_dataset
    from mipl.data.images import list_images
    from mipl.data.sources import save
    from mipl.training.progress import progress_bar

    _check_out(out)
    dataset = find_dataset(name)
    images = None  # the number of images to encode, for the progress bar
    if raw is not None and dataset is not None and dataset.from_images and not dataset.has_authors_file(raw):
        images = len(list_images(raw))
    with progress_bar(name, images, show=not as_json and images is not None) as report:
        bags = build_bags(name, r, seed, raw, report=report)
    save(bags, out)
    _written(bags, out, as_json)


@data_app.command()
def convert(
    data: DataArg,
    out: OutOpt,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Convert bags between any two formats."""
    from mipl.data.sources import save

    _check_out(out)
    bags = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth).open()
    save(bags, out)
    _written(bags, out, as_json)


def _check_out(out: Path) -> None:
    """Complain of a place that cannot be written before the work, not after it."""
    from mipl.data.sources import check_out

    check_out(out)


def _written(bags: Any, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(
            {"out": str(out), "bags": len(bags), "instances": int(bags.sizes.sum()), "digest": bags.digest()}
        )
    else:
        if (line := features_line(bags.feature_names)) is not None:
            typer.echo(line)
        typer.echo(f"{bags!r}; written to {out}")


@data_app.command()
def fetch(
    name: NameArg,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to put the file into.")],
    r: ROpt = None,
    url: Annotated[str | None, typer.Option("--url", help="The file's address, where none is known.")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Fetch the authors' own file of a data set; a broken download goes on where it stopped."""
    from mipl.data.fetch import fetch as get
    from mipl.training.progress import progress_bar

    with progress_bar(name, None, show=not as_json) as report:
        fetched = get(
            name,
            1 if r is None else r,
            out,
            url=url,
            report=lambda done, total: report(done >> 20, f"of {total >> 20} MB" if total else "MB"),
        )
    if as_json:
        print_json({"path": str(fetched.path), "sha256": fetched.sha256, "checked": fetched.checked})
        return
    typer.echo(f"{fetched.path}, SHA-256 {fetched.sha256}")
    if not fetched.checked:
        typer.echo(
            "No checksum of this file was known: this one is recorded, and the next fetch is held to it."
        )


@data_app.command()
def votes(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="VOTES",
            help="CSV, TSV, XLSX or Parquet: bag_id, annotator, label, or one column an annotator.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="CSV to write, for --labels.")],
    min_votes: Annotated[
        int, typer.Option("--min-votes", min=1, help="Votes that make a label a candidate (1: the union).")
    ] = 1,
    min_share: Annotated[
        float, typer.Option("--min-share", min=0.0, max=1.0, help="Share of a bag's votes that it takes.")
    ] = 0.0,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Start training from the votes' shares, not from equal weights."),
    ] = False,
    ignore: IgnoreOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Turn annotators' votes into candidate sets, and say how well they agree."""
    from mipl.data import votes as v
    from mipl.data.formats.table import write_labels

    given = v.read_votes(table, ignore=ignore or ())
    candidates = v.candidates(given, min_votes=min_votes, min_share=min_share)
    write_labels(
        out,
        list(given.ids),
        candidates,
        given.classes,
        labels=given.truth,
        groups=given.groups,
        weights=v.weights(given, candidates) if weights else None,
    )
    truth = given.truth
    outside = 0 if truth is None else int((~candidates[range(len(truth)), truth]).sum())
    agreement = v.agreement(given)
    mean = float(candidates.sum(axis=1).mean())
    if as_json:
        print_json({"out": str(out), "candidates": mean, "agreement": agreement, "truths_outside": outside})
        return
    shown = Table("agreement", "value", title=f"{len(given.ids)} bags, {table.name}", title_justify="left")
    for key, value in agreement.items():
        if not isinstance(value, dict):
            shown.add_row(key.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    console().print(shown)
    each = Table("annotator", "agrees with the others' majority")
    for value in agreement.values():
        if isinstance(value, dict):
            for annotator, share in value.items():
                each.add_row(str(annotator), "n/a" if share is None or share != share else f"{share:.3f}")
    if each.row_count:
        console().print(each)
    kept = ("" if given.groups is None else ", patients") + ("" if truth is None else ", true labels")
    option = " --missing-truth" if outside else ""
    typer.echo(f"{mean:.2f} candidates a bag{kept}; written to {out}: use it with --labels {out}{option}")


@data_app.command()
def images(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Images, or one subfolder of images for each class.")
    ],
    generator: Annotated[
        str,
        typer.Option(
            "--generator",
            help="How an image becomes a bag: row, sbn, kmeans, sift, or patches by an encoder: "
            "lite0-9, lite0-16, lite0-25 (EfficientNet-Lite0), r34-9, r34-16, r34-25 (ResNet-34).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for one feature file an image.")],
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="PATH", help="Weights of ResNet-34, if not in the hub's cache."),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Name and leave out images that cannot be read.")
    ] = False,
    as_json: JsonOpt = False,
) -> None:
    """Turn a folder of images into bags, one feature file each; interrupted, the same command goes on."""
    from mipl.data.images import generate, list_images, make_generator
    from mipl.training.progress import progress_bar

    made = make_generator(generator, **({} if weights is None else {"weights": weights}))
    with progress_bar(generator, len(list_images(folder)), show=not as_json) as report:
        try:
            summary = generate(folder, made, out, skip_unreadable=skip_unreadable, report=report)
        except KeyboardInterrupt:
            typer.echo(
                f"mipl: stopped; finished files are in {out}: the same command makes the rest.", err=True
            )
            raise typer.Exit(130) from None
    if as_json:
        print_json(
            {**dataclasses.asdict(summary), "out": str(out), "skipped": [str(p) for p in summary.skipped]}
        )
        return
    for path in summary.skipped:
        typer.echo(f"mipl: note: {path} could not be read and is left out.", err=True)
    typer.echo(f"{summary.made} images made into bags, {summary.kept} were there before; in {out}")
