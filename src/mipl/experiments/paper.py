"""Reproduce the paper: find the data, make the runs that are missing, draw from the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from mipl.data.datasets import DATASETS
from mipl.data.formats.npz import save_npz
from mipl.data.sources import Source
from mipl.data.splits import split_digest
from mipl.data.statistics import BagStatistics, bag_statistics
from mipl.errors import MiplError, SettingError, suggest
from mipl.experiments.engines import run_jobs
from mipl.experiments.runner import Job, is_present, split_of
from mipl.records.store import Store
from mipl.reports import figures
from mipl.reports.items import ITEMS
from mipl.reports.page import write_page, write_product
from mipl.reports.paper import QUICK_SET, Product
from mipl.reports.runs import Runs, Want, is_stand_in, set_title
from mipl.reports.tables import Cell, Table

QUICK_EPOCHS, QUICK_SPLITS = 30, (1,)
ALL_SPLITS = tuple(range(1, 11))
TABLE1_SETS = tuple((name, 1 if d.takes_r else None) for name, d in DATASETS.items() if d.table1)


@dataclasses.dataclass(frozen=True)
class Options:
    """How to reproduce; what is None is as the paper has it, or as ``quick`` has it."""

    out: Path
    raw: Path | None = None
    quick: bool = False  # on the embedded data, with few epochs and splits
    splits: tuple[int, ...] | None = None
    epochs: int | None = None
    recipe: str = "stable"
    workers: int = 2
    engine: str = "local"
    address: str | None = None
    records: Path | None = None  # of finished runs; None: a folder in ``out``
    draw_only: bool = False
    show: bool = True

    @property
    def store(self) -> Path:
        """The folder of records."""
        return self.out / "records" if self.records is None else self.records

    @property
    def numbers(self) -> tuple[int, ...]:
        """The splits to make runs of."""
        return self.splits or (QUICK_SPLITS if self.quick else ALL_SPLITS)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of it: the page, the runs that failed, and the data sets that could not be had."""

    page: Path
    failures: list[tuple[Job, str]]
    lacking: dict[str, str]  # data set -> the reason


def names() -> list[str]:
    """Return what can be reproduced, in the paper's order."""
    return ["table1", *ITEMS]


def reproduce(wanted: Sequence[str], options: Options, command: str) -> Outcome:
    """Make the runs of the wanted tables and figures that have no record, and draw them and the page."""
    known = names()
    for name in wanted:
        if name not in (*known, "all"):
            raise SettingError(f"'{name}' cannot be reproduced.{suggest(name, [*known, 'all'])}")
    chosen = known if "all" in wanted else [name for name in known if name in wanted]
    if options.raw is None and options.draw_only and not options.quick:
        if "table1" in wanted:
            raise SettingError("Table 1 is read off the raw files: say where they are with --raw DIR.")
        chosen = [name for name in chosen if name != "table1"]  # one drawn before stays as it is
    run = [] if options.draw_only else [ITEMS[name] for name in chosen if name in ITEMS]
    wants = [want for item in run for want in item.wants(options.quick)]
    sets: Iterable[tuple[str, int | None]] = [(want.dataset, want.r) for want in wants]
    if "table1" in chosen:
        sets = [*sets, *(QUICK_SET if options.quick else TABLE1_SETS)]
    if options.raw is None and not options.quick and not options.draw_only:
        raise SettingError("Say where the raw files are with --raw DIR, or give --quick for embedded data.")
    if options.raw is not None and not options.raw.is_dir():
        raise SettingError(f"{options.raw} is not a folder: give the folder of the raw files with --raw.")
    data, lacking = _open(dict.fromkeys(sets), {want.share for want in wants}, options)
    jobs = _jobs(wants, data, options)
    failures = run_jobs(jobs, options.engine, options.workers, options.address, options.show)
    # a mean never joins runs of a recipe as it is and as it was: what is no more counts as missing
    records = [record for record in Store(options.store) if is_present(record)]
    for name in chosen:
        runs = Runs(
            records,
            recipe=options.recipe,
            epochs=None if options.quick else options.epochs,
            quick_epochs=(options.epochs or QUICK_EPOCHS) if options.quick else options.epochs,
            splits=ALL_SPLITS if options.splits is None else options.splits,
            where=str(options.store),
        )
        with figures.style():
            item = ITEMS.get(name)
            product = _table1(data, runs) if item is None else item.draw(item, name, runs)
        write_product(name, product, options.out, command)
    return Outcome(write_page(options.out, known), failures, lacking)


@dataclasses.dataclass(frozen=True)
class _Data:
    """A data set that can be opened, and what a plan must know of it."""

    source: Source
    digest: str
    split_digests: dict[tuple[int, float], str]  # by number and share of the training bags
    provenance: dict[str, object]
    vectors: bool
    row: BagStatistics


def _open(
    sets: Iterable[tuple[str, int | None]], shares: Collection[float], options: Options
) -> tuple[dict[tuple[str, int | None], _Data], dict[str, str]]:
    """Return the data sets that can be had, and for the others the reason."""
    data, lacking = {}, {}
    for dataset, r in sets:
        base, *noise = dataset.split(" ")  # as in "sival-mipl class noise 0.2"
        record = DATASETS[base]
        raw = None if options.raw is None or record.is_embedded else str(record.raw_folder(options.raw))
        source = Source(base, r, raw=raw)
        if noise:
            kind, _, share = noise
            levels = [float(share) if kind == each else 0.0 for each in ("class", "attribute")]
            source = dataclasses.replace(source, class_noise=levels[0], attribute_noise=levels[1])
        if record.from_images:  # built once, for all runs
            source = dataclasses.replace(source, built=str(options.out / "data" / f"{dataset}.npz"))
        try:
            bags = source.open()
            splits = {
                (number, share): split_digest(bags, split_of(bags, "stratified", number, share=share))
                for number in options.numbers
                for share in shares
            }
        except MiplError as error:
            lacking[set_title(dataset, r)] = str(error)
            continue
        if source.built is not None and not Path(source.built).is_file():
            save_npz(bags, Path(source.built))
        vectors = len(bags.feature_shape) == 1
        data[dataset, r] = _Data(
            source, bags.digest(), splits, dict(bags.provenance), vectors, bag_statistics(bags)
        )
    return data, lacking


def _jobs(wants: Iterable[Want], data: dict[tuple[str, int | None], _Data], options: Options) -> list[Job]:
    """Return the runs to be made, split by split, so that what is stopped early has some of every cell.

    A run that is wanted for several things is made once, with all extras; these are of the first split.
    """
    splits = options.numbers
    epochs = options.epochs or (QUICK_EPOCHS if options.quick else None)
    extras: dict[tuple[int, Want], tuple[str, ...]] = {}
    for split in splits:
        first = split == min(splits)
        for want in wants:
            if first or not want.first:
                key = split, dataclasses.replace(want, extras=(), first=False)
                held = extras.get(key, ())
                extras[key] = (*held, *(name for name in want.extras if first and name not in held))
    return [
        Job(
            source=found.source,
            method=want.method,
            params={"recipe": options.recipe, **({"epochs": epochs} if epochs else {}), **dict(want.given)},
            split=split,
            splits="stratified",
            seed=0,
            data_digest=found.digest,
            split_digest=found.split_digests[split, want.share],
            store=str(options.store),
            provenance=found.provenance,
            share=want.share,
            vectors=found.vectors,
            extras=asked,
        )
        for (split, want), asked in extras.items()
        if (found := data.get((want.dataset, want.r))) is not None
    ]


def _table1(data: dict[tuple[str, int | None], _Data], runs: Runs) -> Product:
    """Return Table 1: what the data sets are like, ours above the paper's."""
    fields = {
        "bags": "bags", "instances": "instances", "max_instances": "most in a bag",
        "min_instances": "fewest", "mean_instances": "mean", "max_positives": "positive, most",
        "min_positives": "fewest", "mean_positives": "mean", "dimension": "features", "classes": "classes",
        "mean_candidates": "candidates",
    }  # fmt: skip
    extra = [each for each in data if is_stand_in(each[0])]
    rebuilt = [each for each, found in data.items() if found.provenance.get("origin") != "the authors' file"]
    body, values = [], []
    for each in (*TABLE1_SETS, *extra):
        ours, paper = data[each].row if each in data else None, DATASETS[each[0]].table1_row(1)
        mark = "‡" if each in extra else "†" if each in rebuilt else ""
        line = [Cell(set_title(each[0]) + mark)]
        value: dict[str, Any] = {"dataset": each[0]}
        for name in fields:
            mine, theirs = (None if row is None else getattr(row, name) for row in (ours, paper))
            below = "" if theirs is None else f"paper {_short(name, theirs)}"
            line.append(Cell("–" if mine is None else _short(name, mine), below=below))
            value |= {name: mine, f"paper_{name}": theirs}
        body.append(line)
        values.append(value)
    table = Table("Characteristics of the data sets (r = 1).", ["data set", *fields.values()], body, values)
    notes = ["Ours are the bags that the runs use: the authors' files where they are there, else rebuilt."]
    if any(each not in extra for each in rebuilt):
        notes.append("† Rebuilt from raw data: the authors' bags are not public.")
    if extra:
        notes.append("‡ A stand-in that is none of the paper's data sets.")
    if any(each not in data for each in TABLE1_SETS):
        notes.append("Empty rows: 'mipl reproduce table1 --raw DIR' fills them from the raw files.")
    return Product("Table 1: the data sets", [table], None, notes, runs)


def _short(name: str, value: float) -> str:
    if name.endswith("positives"):
        return f"{100 * value:.1f}%"
    return f"{value:g}" if float(value).is_integer() else f"{value:.2f}"
