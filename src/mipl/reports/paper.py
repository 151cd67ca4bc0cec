"""The paper's tables and figures: the runs that each needs, and how it is drawn from their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure

from mipl.data.datasets import stand_in_for
from mipl.reports.claims import (
    BASELINE,
    EARLIER,
    EVERY,
    OTHERS,
    OURS,
    Sets,
    baseline_of,
    claims_table,
)
from mipl.reports.results import paper_results
from mipl.reports.runs import Mean, Runs, Settings, Want, mark_of, method_title, set_title
from mipl.reports.tables import Cell, Table, number

Variant = tuple[str, Settings]  # a method and the settings that are not its own
QUICK_SET: Sets = (("digits-mipl-vectors", 1),)  # embedded, so that every table can be tried at once
ROWS = (*OTHERS, *(name for a, b in BASELINE.items() for name in (b, f"{a}-cc", f"{a}-cn")))  # as printed
FAMILIES = tuple((b, f"{a}-cc", f"{a}-cn") for a, b in BASELINE.items())
NINE = tuple(name for family in FAMILIES for name in family)
WORD = {"accuracy": "Accuracy", "ece": "Expected calibration error"}


@dataclass(frozen=True)
class Product:
    """A table or figure with what is said below it; ``runs`` knows the records it was made of."""

    title: str
    tables: Sequence[Table]
    figure: Figure | None
    notes: Sequence[str]
    runs: Runs


@dataclass(frozen=True)
class Item:
    """What can be reproduced: its data sets, methods with settings, and the function that draws it."""

    title: str
    sets: Sets
    variants: tuple[Variant, ...]
    draw: Callable[[Item, str, Runs], Product]
    options: Mapping[str, Any] = field(default_factory=dict)
    quick_sets: Sets = QUICK_SET
    others: Sets = ()  # stand-ins besides the tissue images
    shares: tuple[float, ...] = (1.0,)  # of the training bags
    extras: tuple[str, ...] = ()  # that the records of the first split must hold
    first: bool = False  # whether that split is enough
    once: tuple[Variant, ...] = ()  # variants of which it is

    def wants(self, quick: bool = False) -> list[Want]:
        """Return the runs it needs: on the embedded data, or on the paper's sets and their stand-ins."""
        sets = self.quick_sets if quick else (*self.sets, *self.stand_ins(), *self.others)
        return [
            *(
                Want(*each, *variant, share, self.extras, self.first)
                for each in sets
                for variant in self.variants
                for share in self.shares
            ),
            *(Want(*each, *variant, 1.0, self.extras, True) for each in sets for variant in self.once),
        ]

    def stand_ins(self) -> Sets:
        """Return the data sets that stand in for those which nobody can be given."""
        return tuple((other.name, r) for d, r in self.sets if (other := stand_in_for(d)) is not None)

    def drawn(self, runs: Runs) -> Sets:
        """Return for each of the paper's sets the one to draw: itself, its stand-in, or the embedded data.

        Where there are no runs at all it is the paper's own, which then shows as empty.
        """
        chosen = []
        for each in self.sets:
            other = stand_in_for(each[0])
            options = [each, *([(other.name, each[1])] if other is not None else [])]
            chosen.append(next((option for option in options if runs.has(*option)), each))
        if not any(runs.has(*each) for each in chosen) and runs.has(*QUICK_SET[0]):
            return QUICK_SET
        return tuple(chosen)


def plain(names: Iterable[str], *given: tuple[str, Any]) -> tuple[Variant, ...]:
    """Return methods that share some settings."""
    return tuple((name, given) for name in names)


def printed(want: Want, metric: str) -> tuple[float, float] | None:
    """Return the paper's mean and deviation for a want, or None."""
    dataset, given = want.dataset, dict(want.given)
    if want.method.startswith("pop"):  # pooled by the mean unless it is said
        dataset = f"{dataset}/{given.pop('pooling', 'mean')}"
    return None if given else paper_results().get((dataset, want.r, want.method, metric))


def result_table(runs: Runs, caption: str, sets: Sets, variants: Sequence[Variant], metric: str) -> Table:
    """Return methods by data sets: ours, the gain over the baseline, the paper's value and the difference."""
    means = {(each, v): runs.mean(Want(*each, *v), metric) for each in sets for v in variants}
    better = max if metric == "accuracy" else min
    rows: list[list[Cell]] = [[Cell(method_title(*variant))] for variant in variants]
    values: list[dict[str, Any]] = []
    header, one_r = ["method"], len({r for _, r in sets}) == 1
    for each in sets:
        column = [mean for v in variants if (mean := means[each, v]) is not None]
        # Compared as printed: a digit that nobody sees makes no winner.
        best = f"{better(mean.mean for mean in column):.2f}" if len(column) > 1 else None
        records = [record for v in variants for record in runs.of(Want(*each, *v))]
        header.append(set_title(each[0], None if one_r else each[1]) + mark_of(records))
        for row, variant in zip(rows, variants, strict=True):
            want, mean = Want(*each, *variant), means[each, variant]
            base, gained = baseline_of(variant[0]), None
            if base is not None and (each, (base, variant[1])) in means:
                gained = runs.gain(want, replace(want, method=base), metric)
            row.append(cell_of(mean, gained, printed(want, metric), best, len(runs.splits), metric))
            values.append(value_of(runs, want, metric, mean, gained))
    return Table(caption, header, rows, values)


def cell_of(
    mean: Mean | None,
    gained: float | None,
    paper: tuple[float, float] | None,
    best: str | None,
    splits: int,
    metric: str,
) -> Cell:
    """Return ours with the gain over the baseline; below it the paper's value and the difference."""
    below = [] if paper is None else [f"paper {number(*paper)}"]
    if mean is None:
        return Cell("–", below=" ".join(below))
    if paper is not None:
        below.append(f"Δ {mean.mean - paper[0]:+.2f}")
    if mean.runs != splits:
        below.append(f"n={mean.runs}")
    text = number(mean.mean, mean.std) + ("" if gained is None else f" ({_arrow(gained, metric)})")
    return Cell(text, f"{mean.mean:.2f}" == best, ", ".join(below).replace("-", "−"))


def _arrow(gained: float, metric: str) -> str:
    """Return a gain as the paper writes it: accuracy that rises, error that falls."""
    amount = f"{abs(gained):.2f}"
    if float(amount) == 0:
        return amount
    return amount + ("↑" if (gained > 0) == (metric == "accuracy") else "↓")


def value_of(runs: Runs, want: Want, metric: str, mean: Mean | None, gained: float | None) -> dict[str, Any]:
    """Return a cell as a row of the CSV: the numbers, and the records or the command behind them."""
    paper, records = printed(want, metric), runs.of(want)
    return {
        "dataset": want.dataset,
        "r": "" if want.r is None else want.r,
        "method": want.method,
        "settings": " ".join(f"{name}={value}" for name, value in runs.settings(want).items()),
        "metric": metric,
        "runs": 0 if mean is None else mean.runs,
        "mean": "" if mean is None else round(mean.mean, 4),
        "std": "" if mean is None or mean.std is None else round(mean.std, 4),
        "gain_over_baseline": "" if gained is None else round(gained, 4),
        "paper_mean": "" if paper is None else paper[0],
        "paper_std": "" if paper is None else paper[1],
        "difference": "" if paper is None or mean is None else round(mean.mean - paper[0], 4),
        "data": {"": "authors' file", "†": "rebuilt", "‡": "stand-in"}.get(mark_of(records), "mixed")
        if records
        else "",
        "records": " ".join(record.info["hash"] for record in records),
        "command": "" if records else runs.command(want),
    }


def notes_of(runs: Runs, *, first: bool = False) -> list[str]:
    """Return what a reader must know of the numbers that were used; ``first``: they are of one split."""
    notes = []
    used = list(runs.used.values())
    if used and first:
        numbers = sorted({int(record.spec["split"]) for record in used})
        notes.append(f"Split {' and '.join(map(str, numbers))} alone; recipe “{runs.recipe}”.")
    elif used:
        kinds = " or ".join(sorted({record.spec["splits"] for record in used}, reverse=True))
        notes.append(
            f"Mean ± standard deviation in percent over up to {len(runs.splits)} {kinds} 7:3 splits "
            "(n where there are others); Δ is ours minus the paper's, a gain the mean over the splits that "
            f"both methods have; recipe “{runs.recipe}”."
        )
    marks = {mark_of([record]) for record in used}
    if "†" in marks:
        notes.append(
            "† Bags rebuilt from raw data: the authors' are not public, so values compare to some points."
        )
    if "‡" in marks:
        notes.append(
            "‡ A stand-in that is none of the paper's data sets: not to be compared with its values."
        )
    trained = {
        record.spec["recipe_settings"].get("epochs") for record in used if record.info["given"].get("epochs")
    }
    if trained:
        few = " and ".join(map(str, sorted(trained)))
        notes.append(
            f"Some runs were trained for {few} epochs only: they show the way, not what methods reach."
        )
    if runs.missing:
        notes.append("Empty cells: the commands below fill them; DIR is the folder of the raw files.")
    return notes


def draw_table(item: Item, name: str, runs: Runs) -> Product:
    """Draw Tables 2 to 5 and A1: a table for each r, then the stand-ins, then what the text says of them."""
    tables = []
    metrics: tuple[str, ...] = item.options["metrics"]
    for metric in metrics:
        for r in dict.fromkeys(r for _, r in item.sets):
            sets = tuple(each for each in item.sets if each[1] == r)
            where = item.options["where"] + ("" if r is None else f", r = {r}")
            tables.append(result_table(runs, f"{WORD[metric]} on {where}.", sets, item.variants, metric))
        extra = tuple(each for each in (*item.stand_ins(), *QUICK_SET) if runs.has(*each))
        if extra:
            caption = f"{WORD[metric]} on stand-ins, which are none of the paper's data sets."
            table = result_table(runs, caption, extra, item.variants, metric)
            # what has numbers comes first
            tables.insert(len(tables) if any(runs.has(*each) for each in item.sets) else 0, table)
    said = claims_table(name, lambda: our_values(runs))
    return Product(item.title, tables + ([said] if said else []), None, notes_of(runs), runs)


def our_values(runs: Runs) -> dict[tuple[str, int | None, str, str], float]:
    """Return our means on the paper's data sets, for what is computed from whole tables."""
    found = {}
    for dataset, r in EVERY:
        for method in (*EARLIER, *OURS):
            want = Want(dataset, r, method)
            for metric in ("accuracy", "ece"):
                if runs.has(dataset, r) and (mean := runs.mean(want, metric, needed=False)) is not None:
                    found[dataset, r, method, metric] = mean.mean
    return found


def draw_head_vs_loss(item: Item, name: str, runs: Runs) -> Product:
    """Draw the table that parts what the head does from what the loss does."""
    tables = []
    for each in item.drawn(runs):
        rows, values = [], []
        for attention, base in BASELINE.items():
            rows.append([Cell(f"{attention.upper()} attention")])
            for method in (base, f"{attention}-mdl", f"{attention}-cc", f"{attention}-cn"):
                row = [Cell(method_title(method))]
                for metric in ("accuracy", "ece"):
                    pair = {h: Want(*each, method, heads(method, h)) for h in ("sigmoid", "linear")}
                    own = printed(Want(*each, method), metric)
                    for head, want in pair.items():
                        # the paper ran the earlier methods with the one head and its own with the other
                        paper = own if head == ("sigmoid" if method == base else "linear") else None
                        mean = runs.mean(want, metric)
                        row.append(cell_of(mean, None, paper, None, len(runs.splits), metric))
                        values.append(value_of(runs, want, metric, mean, None))
                    gained = runs.gain(pair["linear"], pair["sigmoid"], metric)
                    row.append(Cell("–" if gained is None else f"{gained:+.2f}".replace("-", "−")))
                rows.append(row)
        header = [
            "loss",
            "accuracy, sigmoid head",
            "linear head",
            "gain",
            "ECE, sigmoid head",
            "linear head",
            "gain",
        ]
        records = [record for want in item.wants() for record in runs.of(want) if want.dataset == each[0]]
        caption = (
            f"Head against loss on {set_title(*each)}{mark_of(records)}: one network, two heads, four losses."
        )
        tables.append(Table(caption, header, rows, values))
    notes = notes_of(runs)
    notes.append(
        "A gain down a column is the loss's, a gain along a row the head's. The earlier methods put a "
        "sigmoid on the class scores before the softmax, so that no confidence passes e/(e + k − 1)."
    )
    return Product(item.title, tables, None, notes, runs)


def heads(method: str, head: str) -> Settings:
    """Return the settings that give a method a head and, for the earlier ones, CDL's order of updates."""
    if method in BASELINE.values():
        return (("head", head), ("update", "before"))
    return () if head == "linear" else (("head", head),)
