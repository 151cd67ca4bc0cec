"""Reproduce the paper: open the data, make the missing runs, draw tables and figures from the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mipl.data.datasets import DATASETS
from mipl.data.formats.npz import save_npz
from mipl.data.sources import Source
from mipl.data.splits import split_digest
from mipl.data.statistics import BagStatistics, bag_statistics
from mipl.errors import MiplError, SettingError, suggest
from mipl.experiments.engines import Failure, run_jobs
from mipl.experiments.runner import Job, is_present, split_of
from mipl.paper.base import Item, Output
from mipl.paper.items import ITEMS
from mipl.paper.names import QUICK_SET, SetKey, is_stand_in, set_title
from mipl.paper.page import write_output, write_page
from mipl.paper.runs import RunIndex, RunQuery
from mipl.records.store import Store
from mipl.reports import figures
from mipl.reports.tables import Cell, Table

QUICK_EPOCHS, QUICK_SPLITS = 30, (1,)
ALL_SPLITS = tuple(range(1, 11))
TABLE1_SETS = tuple((name, 1 if found.takes_r else None) for name, found in DATASETS.items() if found.table1)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of :func:`reproduce`."""

    out: Path
    raw: Path | None = None
    quick: bool = False  # embedded data, few epochs, one split
    splits: tuple[int, ...] | None = None  # None: 1 to 10, or 1 if ``quick``
    epochs: int | None = None  # None: each method's default, or 30 if ``quick``
    recipe: str = "stable"
    workers: int = 2
    engine: str = "local"
    address: str | None = None
    records: Path | None = None  # folder of finished runs; None: a folder in ``out``
    draw_only: bool = False
    show: bool = True  # a progress bar

    @property
    def store(self) -> Path:
        """The folder of records."""
        return self.out / "records" if self.records is None else self.records

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the splits to run."""
        return self.splits or (QUICK_SPLITS if self.quick else ALL_SPLITS)


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """The result of :func:`reproduce`."""

    page: Path
    failures: list[Failure]
    unavailable: dict[str, str]  # data set -> the reason why it cannot be opened


def names() -> list[str]:
    """Return the names of everything that can be reproduced, in the paper's order."""
    return ["table1", *ITEMS]


def reproduce(wanted: Sequence[str], options: Options, command: str) -> Reproduction:
    """Make the runs of some tables and figures that have no record, then draw them and the page.

    Args:
        wanted: names of tables and figures, or "all".
        options: how to run and where to write.
        command: the command, as it is shown on the page.
    """
    chosen = _chosen(wanted, options)
    items = [] if options.draw_only else [ITEMS[name] for name in chosen if name in ITEMS]
    queries = [query for item in items for query in item.queries(options.quick)]
    sets: list[SetKey] = [(query.dataset, query.r) for query in queries]
    if "table1" in chosen:
        sets += QUICK_SET if options.quick else TABLE1_SETS
    data, unavailable = _open(dict.fromkeys(sets), {query.share for query in queries}, options)
    jobs = _jobs(queries, data, options)
    failures = run_jobs(jobs, options.engine, options.workers, options.address, options.show)
    # A mean never combines runs of the present recipe with others: these count as missing.
    records = [record for record in Store(options.store) if is_present(record)]
    for name in chosen:
        runs = RunIndex(
            records,
            recipe=options.recipe,
            epochs=None if options.quick else options.epochs,
            quick_epochs=(options.epochs or QUICK_EPOCHS) if options.quick else options.epochs,
            splits=ALL_SPLITS if options.splits is None else options.splits,
            folder=str(options.store),
        )
        with figures.style():
            item: Item | None = ITEMS.get(name)
            output = _table1(data, runs) if item is None else item.draw(item, name, runs)
        write_output(name, output, options.out, command)
    return Reproduction(write_page(options.out, names()), failures, unavailable)


def _chosen(wanted: Sequence[str], options: Options) -> list[str]:
    """Return the names to reproduce in the paper's order, or raise an error about names or options."""
    known = names()
    for name in wanted:
        if name not in (*known, "all"):
            raise SettingError(f"'{name}' cannot be reproduced.{suggest(name, [*known, 'all'])}")
    chosen = known if "all" in wanted else [name for name in known if name in wanted]
    if options.raw is None and not options.quick:
        if not options.draw_only:
            raise SettingError("Give the folder of raw files with --raw DIR, or --quick for embedded data.")
        if "table1" in wanted:
            raise SettingError("Table 1 is computed from the raw files: give their folder with --raw DIR.")
        chosen = [name for name in chosen if name != "table1"]  # one that was drawn before stays
    if options.raw is not None and not options.raw.is_dir():
        raise SettingError(f"{options.raw} is not a folder: give the folder of the raw files with --raw.")
    return chosen


@dataclasses.dataclass(frozen=True)
class _Data:
    """A data set that can be opened, with the properties that jobs need."""

    source: Source
    digest: str
    split_digests: dict[tuple[int, float], str]  # by number and fraction of the training bags
    provenance: dict[str, object]
    vectors: bool
    row: BagStatistics  # of Table 1


def _open(
    sets: Iterable[SetKey], shares: Collection[float], options: Options
) -> tuple[dict[SetKey, _Data], dict[str, str]]:
    """Return the data sets that can be opened, and the reason for each of the others."""
    data, unavailable = {}, {}
    for dataset, r in sets:
        source = _source(dataset, r, options)
        try:
            bags = source.open()
            splits = {
                (number, share): split_digest(bags, split_of(bags, "stratified", number, share=share))
                for number in options.numbers
                for share in shares
            }
        except MiplError as error:
            unavailable[set_title(dataset, r)] = str(error)
            continue
        if source.built is not None and not Path(source.built).is_file():
            save_npz(bags, Path(source.built))
        vectors = len(bags.feature_shape) == 1
        data[dataset, r] = _Data(
            source, bags.digest(), splits, dict(bags.provenance), vectors, bag_statistics(bags)
        )
    return data, unavailable


def _source(dataset: str, r: int | None, options: Options) -> Source:
    """Return the source of a data set, whose name may include noise, as "sival-mipl class noise 0.2"."""
    base, *noise = dataset.split(" ")
    record = DATASETS[base]
    raw = None if options.raw is None or record.is_embedded else str(record.raw_folder(options.raw))
    source = Source(base, r, raw=raw)
    if noise:
        kind, _, level = noise
        levels = [float(level) if kind == each else 0.0 for each in ("class", "attribute")]
        source = dataclasses.replace(source, class_noise=levels[0], attribute_noise=levels[1])
    if record.from_images:  # built once, for all runs
        source = dataclasses.replace(source, built=str(options.out / "data" / f"{dataset}.npz"))
    return source


def _jobs(queries: Iterable[RunQuery], data: dict[SetKey, _Data], options: Options) -> list[Job]:
    """Return the runs to make, split by split, so that an interrupted table has some runs in every cell.

    A run that several items need is made once, with the extras of all; extras are of the first split.
    """
    splits = options.numbers
    epochs = options.epochs or (QUICK_EPOCHS if options.quick else None)
    extras: dict[tuple[int, RunQuery], tuple[str, ...]] = {}
    for split in splits:
        first = split == min(splits)
        for query in queries:
            if first or not query.first_split:
                key = split, dataclasses.replace(query, extras=(), first_split=False)
                known = extras.get(key, ())
                extras[key] = (*known, *(name for name in query.extras if first and name not in known))
    return [
        Job(
            source=found.source,
            method=query.method,
            params={"recipe": options.recipe, **({"epochs": epochs} if epochs else {}), **dict(query.given)},
            split=split,
            splits="stratified",
            seed=0,
            data_digest=found.digest,
            split_digest=found.split_digests[split, query.share],
            store=str(options.store),
            provenance=found.provenance,
            share=query.share,
            vectors=found.vectors,
            extras=asked,
        )
        for (split, query), asked in extras.items()
        if (found := data.get((query.dataset, query.r))) is not None
    ]


TABLE1_HEADER = {
    "bags": "bags", "instances": "instances", "max_instances": "most in a bag",
    "min_instances": "fewest", "mean_instances": "mean", "max_positives": "positive, most",
    "min_positives": "fewest", "mean_positives": "mean", "dimension": "features", "classes": "classes",
    "mean_candidates": "candidates",
}  # fmt: skip


def _table1(data: dict[SetKey, _Data], runs: RunIndex) -> Output:
    """Return Table 1: characteristics of the data sets, ours above the paper's."""
    stand_ins = [key for key in data if is_stand_in(key[0])]
    rebuilt = [key for key, found in data.items() if found.provenance.get("origin") != "the authors' file"]
    rows, values = [], []
    for key in (*TABLE1_SETS, *stand_ins):
        mark = "‡" if key in stand_ins else "†" if key in rebuilt else ""
        row = [Cell(set_title(key[0]) + mark)]
        value: dict[str, str | float | None] = {"dataset": key[0]}
        for name in TABLE1_HEADER:
            ours = getattr(data[key].row, name) if key in data else None
            paper = _paper_characteristic(key[0], name)
            below = "" if paper is None else f"paper {_short(name, paper)}"
            row.append(Cell("–" if ours is None else _short(name, ours), below=below))
            value |= {name: ours, f"paper_{name}": paper}
        rows.append(row)
        values.append(value)
    header = ["data set", *TABLE1_HEADER.values()]
    table = Table("Characteristics of the data sets (r = 1).", header, rows, values)
    notes = ["Ours are the bags that the runs use: the authors' files where they are there, else rebuilt."]
    if any(key not in stand_ins for key in rebuilt):
        notes.append("† Rebuilt from raw data: the authors' bags are not public.")
    if stand_ins:
        notes.append("‡ A stand-in that is none of the paper's data sets.")
    if any(key not in data for key in TABLE1_SETS):
        notes.append("Empty rows: 'mipl reproduce table1 --raw DIR' fills them from the raw files.")
    return Output("Table 1: the data sets", [table], None, notes, runs)


def _paper_characteristic(dataset: str, name: str) -> float | None:
    """Return a value of the paper's Table 1, or None."""
    row = DATASETS[dataset].table1_row(1)
    value: float | None = None if row is None else getattr(row, name)
    return value


def _short(name: str, value: float) -> str:
    if name.endswith("positives"):
        return f"{100 * value:.1f}%"
    return f"{value:g}" if float(value).is_integer() else f"{value:.2f}"
