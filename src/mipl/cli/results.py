"""The verbs ``results, results add, compare``: finished runs, shown and compared."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from mipl.cli.app import JsonOpt, app, console, print_json
from mipl.cli.options import expand_options, split_commas
from mipl.errors import SettingError

if TYPE_CHECKING:
    from mipl.records.store import Record


class ShowByDefault(TyperGroup):
    """A group of verbs whose first one need not be named: ``mipl results DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``show`` before arguments that begin with no verb."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        return super().parse_args(ctx, args)


results_app = typer.Typer(
    cls=ShowByDefault,
    no_args_is_help=True,
    help="Show the results in a folder of records ('mipl results DIR'), or add predictions of another tool.",
)
app.add_typer(results_app, name="results")
FolderArg = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of records written by 'mipl run'.")]


@dataclasses.dataclass(frozen=True)
class RecordFilter:
    """Which records are shown."""

    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this data set.")] = None
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these methods, separated by commas.")
    ] = None
    r: Annotated[int | None, typer.Option("-r", help="Only this number of false positives.")] = None
    recipe: Annotated[str | None, typer.Option("--recipe", help="Only this recipe.")] = None

    def matches(self, spec: dict[str, Any]) -> bool:
        """Return whether a run's specification passes the filter."""
        wanted = {"dataset": self.dataset, "r": self.r, "recipe": self.recipe}
        return all(value is None or spec[name] == value for name, value in wanted.items()) and (
            self.methods is None or spec["method"] in split_commas(self.methods)
        )

    def of(self, folder: Path) -> list[Record]:
        """Return the records of a folder that pass the filter."""
        from mipl.records.store import Store

        if not folder.is_dir():
            raise SettingError(f"{folder} is not a folder of records.")
        return [record for record in Store(folder) if self.matches(record.spec)]


@results_app.command("show")
@expand_options
def results(
    folder: FolderArg,
    wanted: RecordFilter,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write one row per run to this .parquet or .csv file."),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            "--pack", metavar="DIR", help="Write the runs of the present recipe as two small files into DIR."
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Show the results in a folder of records as means over splits, next to the paper's."""
    from mipl.experiments.runner import is_present
    from mipl.paper.printed import paper_results
    from mipl.records.table import write_table
    from mipl.reports.results import HEADER, markdown, result_cells, result_rows

    records = wanted.of(folder)
    if out is not None:
        write_table(records, out)
    if pack is not None:
        _pack(records, pack)
    rows = result_rows(records, is_present, paper_results())
    if as_json:
        print_json(rows)
    elif as_markdown:
        typer.echo(markdown(rows))
    else:
        table = Table(*HEADER)
        for row in rows:
            table.add_row(*result_cells(row))
        console().print(table)


def _pack(records: list[Record], folder: Path) -> None:
    from mipl.experiments.runner import is_present
    from mipl.records.pack import write_pack

    present = [record for record in records if is_present(record)]
    write_pack(present, folder)
    print(
        f"{len(present)} runs packed into {folder}; {len(records) - len(present)} of other recipe versions "
        "left out.",
        file=sys.stderr,
    )


@results_app.command("add")
def add(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="CSV with bag_id and one column p(class) per class.")
    ],
    *,
    method: Annotated[str, typer.Option("--method", help="A name for the tool that made them.")],
    split: Annotated[int, typer.Option("--split", min=1, help="Number of the split they are of.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of records with a run of the same split.")
    ],
    as_json: JsonOpt = False,
) -> None:
    """Add the predictions of another tool for the test bags of a split, to compare with your own runs."""
    from mipl.experiments.external import add_predictions
    from mipl.records.store import Store

    if not out.is_dir():
        raise SettingError(f"--out {out} is not a folder of records: make some with 'mipl run' first.")
    spec = add_predictions(out, predictions, method, split)
    record = Store(out).get(spec)
    assert record is not None
    if as_json:
        print_json({"record": spec.hash, "method": method, "split": split, "metrics": record.metrics})
    else:
        typer.echo(
            f"{method}, split {split}: {len(record.arrays['ids'])} bags, accuracy "
            f"{100 * record.metrics['accuracy']:.1f}%; added to {out}"
        )


@app.command()
@expand_options
def compare(
    folder: FolderArg,
    wanted: RecordFilter,
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="Method that the others are compared with; default: the best."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="HTML page to write, with all figures.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Compare methods on the same test bags: paired differences, ranks and reliability."""
    from mipl.experiments.runner import is_present
    from mipl.files import check_place
    from mipl.reports.compare import METRICS, as_json_values, cells, write_page
    from mipl.reports.compare import compare as compare_records

    if out is not None:
        if out.suffix not in (".html", ".htm"):
            raise SettingError(f"--out {out} is a page: end it in .html.")
        check_place(out)
    found = compare_records(wanted.of(folder), reference, is_present)
    if out is not None:
        write_page(found, out)
    if as_json:
        print_json({**as_json_values(found), "page": None if out is None else str(out)})
        return
    for data in found.datasets:
        titles = [title for title, *_ in METRICS.values()]
        table = Table("method", "splits", *titles, title=data.title, title_justify="left")
        for row in data.rows:
            texts = ["\n".join(filter(None, cells(row, metric))) for metric in METRICS]
            table.add_row(row.method, str(row.splits), *texts)
        console().print(table)
    typer.echo(
        f"Second lines: difference to {found.reference}, 95% interval corrected for shared training bags; "
        "* significant at 5% after Holm."
    )
    for ranking in found.rankings:
        typer.echo(
            f"Friedman, {METRICS[ranking.metric][0]}, {ranking.over}: F = {ranking.test.f:.2f} (critical "
            f"{ranking.test.critical:.2f}), p = {ranking.test.p:.2g}; critical difference of ranks "
            f"{ranking.critical_difference:.2f}."
        )
    for note in found.notes:
        typer.echo(f"Note: {note}")
    if out is not None:
        typer.echo(f"Page: {out}")
