"""The verbs ``data list, info, build, convert, fetch, votes, images``: data sets and file formats."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import DataArg, JsonOpt, app, console, features_line, print_json
from mipl.cli.options import DataOptions, IgnoreOpt, RawOpt, ROpt, expand_options
from mipl.errors import SettingError, counted

data_app = typer.Typer(
    no_args_is_help=True, help="Data sets by name, file formats, annotators' votes, images."
)
app.add_typer(data_app, name="data")

NameArg = Annotated[str, typer.Argument(metavar="NAME", help="A name from 'mipl data list'.")]
OutOpt = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Output: an .npz, .mat, .csv, .tsv or .parquet file, or a folder (CLAM layout).",
    ),
]
ROWS = {  # rows of Table 1: field -> title
    "bags": "bags",
    "instances": "instances",
    "max_instances": "max. instances",
    "min_instances": "min. instances",
    "mean_instances": "mean instances",
    "max_positives": "max. positives",
    "min_positives": "min. positives",
    "mean_positives": "mean positives",
    "dimension": "dimension",
    "classes": "classes",
    "mean_candidates": "mean candidates",
}


@data_app.command("list")
def list_(as_json: JsonOpt = False) -> None:
    """List the data sets available by name, and the raw files that each is built from."""
    from mipl.data.datasets import DATASETS

    rows = [
        {"name": name, "paper": dataset.table1 is not None, "r": dataset.takes_r, "raw": dataset.raw_files}
        for name, dataset in DATASETS.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "in the paper", "-r", "--raw")
    for row in rows:
        table.add_row(
            str(row["name"]), "yes" if row["paper"] else "", "1, 2, 3" if row["r"] else "", str(row["raw"])
        )
    console().print(table)


@data_app.command()
@expand_options
def info(data: DataArg, options: DataOptions, as_json: JsonOpt = False) -> None:
    """Show the characteristics of a data set (the columns of the paper's Table 1) next to the paper's."""
    from mipl.data.datasets import find_dataset
    from mipl.data.statistics import bag_statistics

    source = options.source(data)
    bags = source.open()
    ours = dataclasses.asdict(bag_statistics(bags))
    name = str(bags.provenance.get("dataset", source.name))
    dataset = find_dataset(name)
    row = None if dataset is None else dataset.table1_row(int(bags.provenance.get("r", 1)))
    paper = None if row is None else dataclasses.asdict(row)
    if as_json:
        print_json(
            {
                "data": data,
                "here": ours,
                "paper": paper,
                "classes": [str(c) for c in bags.classes],
                "features": bags.feature_names,
                "groups": None if bags.groups is None else len(set(bags.groups.tolist())),
                "provenance": dict(bags.provenance),
            }
        )
    else:
        _print_info(name, bags, ours, paper)


def _print_info(name: str, bags: Any, ours: dict[str, Any], paper: dict[str, Any] | None) -> None:
    table = Table("", "here", *(["paper"] if paper else []))
    for field, title in ROWS.items():
        table.add_row(title, _cell(field, ours[field]), *([_cell(field, paper[field])] if paper else []))
    output = console()
    output.print(f"{name}: {bags!r}", markup=False, highlight=False)
    output.print(table)
    origin = "; ".join(f"{key}: {value}" for key, value in bags.provenance.items() if key != "classes")
    output.print(f"classes: {', '.join(str(c) for c in bags.classes) or 'unknown'}", markup=False)
    if (line := features_line(bags.feature_names)) is not None:
        output.print(line, markup=False, highlight=False)
    output.print(f"provenance: {origin or 'unknown'}", markup=False)


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
    seed: Annotated[int | None, typer.Option("--seed", help="Random seed (default 0).")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Build a data set by name from its raw files, and write it to a file or folder."""
    from mipl.data.datasets import build as build_bags
    from mipl.data.datasets import find_dataset
    from mipl.data.images import list_images
    from mipl.data.sources import check_out, save
    from mipl.training.progress import progress_bar

    check_out(out)
    dataset = find_dataset(name)
    images = None  # the number of images to encode, for the progress bar
    if raw is not None and dataset is not None and dataset.from_images and not dataset.has_authors_file(raw):
        images = len(list_images(raw))
    with progress_bar(name, images, show=not as_json and images is not None) as report:
        bags = build_bags(name, r, seed, raw, report=report)
    save(bags, out)
    _print_written(bags, out, as_json)


@data_app.command()
@expand_options
def convert(data: DataArg, out: OutOpt, options: DataOptions, as_json: JsonOpt = False) -> None:
    """Convert bags from any supported format to another."""
    from mipl.data.sources import check_out, save

    check_out(out)
    bags = options.open(data)
    save(bags, out)
    _print_written(bags, out, as_json)


def _print_written(bags: Any, out: Path, as_json: bool) -> None:
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
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to download into.")],
    r: ROpt = None,
    url: Annotated[str | None, typer.Option("--url", help="URL of the file, where none is known.")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Download the authors' own file of a data set; an interrupted download is resumed."""
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
            "No checksum of this file was known; this one is recorded, and the next download is checked "
            "against it."
        )


@dataclasses.dataclass(frozen=True)
class VoteOptions:
    """How votes become candidate sets."""

    min_votes: Annotated[
        int, typer.Option("--min-votes", min=1, help="Votes needed for a candidate label (1: the union).")
    ] = 1
    min_share: Annotated[
        float,
        typer.Option(
            "--min-share", min=0.0, max=1.0, help="Fraction of a bag's votes needed for a candidate label."
        ),
    ] = 0.0
    mass: Annotated[
        float | None,
        typer.Option(
            "--mass",
            min=0.0,
            max=1.0,
            help="In place of these: the smallest set with this posterior probability, from a confusion "
            "matrix for each annotator.",
        ),
    ] = None
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Also write the vote proportions as initial candidate weights."),
    ] = False


@data_app.command()
@expand_options
def votes(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="VOTES",
            help="CSV, TSV, XLSX or Parquet: bag_id, annotator, label, or one column per annotator; or "
            "answers.json.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="CSV to write, for --labels.")],
    options: VoteOptions,
    ignore: IgnoreOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Turn votes into a table of candidate sets, for methods that do not use who voted for what."""
    from mipl.data import votes as v
    from mipl.data.formats.table import write_labels

    given = v.read_votes(table, ignore=ignore or ())
    if options.mass is None:
        candidates = v.candidates(given, min_votes=options.min_votes, min_share=options.min_share)
    elif options.min_votes > 1 or options.min_share or options.weights:
        raise SettingError(
            "--mass chooses the sets by probability: leave out --min-votes, --min-share and --weights."
        )
    else:
        candidates = v.posterior_candidates(given, options.mass)
    truth, groups = given.truth, given.groups
    write_labels(
        out,
        list(given.ids),
        candidates,
        given.classes,
        labels=truth,
        groups=groups,
        weights=v.weights(given, candidates) if options.weights else None,
    )
    outside = 0 if truth is None else int((~candidates[range(len(truth)), truth]).sum())
    mean = float(candidates.sum(axis=1).mean())
    if as_json:
        print_json({"out": str(out), "candidates": mean, "truths_outside": outside})
        return
    saved = ("" if groups is None else ", patients") + ("" if truth is None else ", true labels")
    option = " --missing-truth" if outside else ""
    typer.echo(f"{mean:.2f} candidates per bag{saved}; written to {out}: use it with --labels {out}{option}")


@data_app.command()
def images(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Images, or one subfolder of images per class.")
    ],
    generator: Annotated[
        str,
        typer.Option(
            "--generator",
            help="Bag generator: row, sbn, kmeans, sift, or encoded patches: "
            "lite0-9, lite0-16, lite0-25 (EfficientNet-Lite0), r34-9, r34-16, r34-25 (ResNet-34).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for one feature file per image.")],
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="PATH", help="Weights of ResNet-34, if not in the torch hub cache."
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Report and leave out images that cannot be read.")
    ] = False,
    as_json: JsonOpt = False,
) -> None:
    """Turn a folder of images into bags, one feature file per image; rerun the command to resume."""
    from mipl.data.images import generate, list_images, make_generator
    from mipl.training.progress import progress_bar

    bag_generator = make_generator(generator, **({} if weights is None else {"weights": weights}))
    with progress_bar(generator, len(list_images(folder)), show=not as_json) as report:
        try:
            summary = generate(folder, bag_generator, out, skip_unreadable=skip_unreadable, report=report)
        except KeyboardInterrupt:
            typer.echo(
                f"mipl: stopped; finished files are in {out}: run the same command to resume.", err=True
            )
            raise typer.Exit(130) from None
    if as_json:
        skipped = [str(path) for path in summary.skipped]
        print_json({**dataclasses.asdict(summary), "out": str(out), "skipped": skipped})
        return
    for path in summary.skipped:
        typer.echo(f"mipl: note: {path} could not be read and is left out.", err=True)
    typer.echo(f"{counted(summary.made, 'image')} converted to bags, {summary.kept} already done; in {out}")
