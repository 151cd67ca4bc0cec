"""Figures about training: bag features, probabilities on the training set, run time and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from mipl.paper.base import Item, Output
from mipl.paper.figures import bar_look, figure_notes
from mipl.paper.names import (
    BASELINE,
    FAMILIES,
    NINE_METHODS,
    SetKey,
    Settings,
    baseline_of,
    mark_of,
    method_title,
    set_title,
)
from mipl.paper.runs import RunIndex, RunQuery
from mipl.paper.tables import cell_of, csv_row, notes_of, printed
from mipl.records.store import Record
from mipl.records.summary import sample_std
from mipl.reports import charts
from mipl.reports.tables import Cell, Table, number
from mipl.seeding import seed_for

SHARES = tuple(round(0.1 * i, 1) for i in range(1, 11))
# The time of an epoch does not depend on their number. All layers are trained on images, as in the paper: the
# recipe pretrains the convolutions of CDL methods only, a difference in cost that is not due to the loss.
TIMED: Settings = (("epochs", 5), ("pretrain", 0))
LABEL_KINDS = ("true labels", "false-positive labels", "non-candidate labels")


def draw_features(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A1: t-SNE of the test bags' features, and the silhouette of their classes."""
    sets = item.drawn_sets(runs)
    panels, rows = [], []
    classes: list[str] = []
    values: list[dict[str, Any]] = []
    for key in sets:
        line: list[charts.Cloud] = []
        row = [Cell(set_title(*key))]
        for method in NINE_METHODS:
            query = RunQuery(*key, method, (), 1.0, item.extras, item.first_split)
            found = runs.find(query)
            silhouette = None
            if found:
                (arrays,) = (record.arrays for record in found)
                labels = arrays["labels"]
                classes = arrays["classes"].tolist() if "classes" in arrays else sorted(map(str, {*labels}))
                silhouette = float(silhouette_score(arrays["features"], labels))
                below = f"silhouette {silhouette:.2f}"
                line.append((method_title(method), below, (_tsne(arrays["features"]), labels)))
            else:
                line.append((method_title(method), "", None))
            row.append(Cell("–" if silhouette is None else f"{silhouette:.3f}".replace("-", "−")))
            values.append(_csv_row(runs, query, "silhouette", silhouette))
        panels.append(line)
        rows.append(row)
    figure = charts.scatter_grid(panels, classes, ["" if r is None else f"r = {r}" for _, r in sets])
    caption = "Silhouette of the test bags' features by true class: 1 for classes far apart, 0 for none."
    table = Table(caption, ["data set", *map(method_title, NINE_METHODS)], rows, values)
    note = (
        "A panel is the first split's test bags by t-SNE of their features z (Eq. 13), each by itself: only "
        "near and far within a panel mean something. The silhouette is of z, before t-SNE."
    )
    return Output(item.title, [table], figure, [*figure_notes(runs, sets, first_split=True), note], runs)


def _tsne(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return features (m, L) embedded in the plane (m, 2)."""
    features = features.astype(np.float64)
    perplexity = min(30.0, (len(features) - 1) / 3)
    # the exact method gives the same result on any number of threads, and is fast for some hundred bags
    method = "exact" if len(features) <= 1000 else "barnes_hut"
    seed = seed_for("t-SNE") % 2**32
    model = TSNE(2, perplexity=perplexity, init="pca", method=method, random_state=seed)
    return np.asarray(model.fit_transform(features))


def draw_probabilities(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A2: mean probability of true, false-positive and other labels on the training set."""
    (key,) = item.drawn_sets(runs)
    bars: dict[str, list[charts.Point]] = {}
    rows = []
    values: list[dict[str, Any]] = []
    for method in NINE_METHODS:
        query = RunQuery(*key, method, (), 1.0, item.extras, item.first_split)
        found = np.array([_label_probabilities(record) for record in runs.find(query)]).reshape(-1, 4)
        points: list[charts.Point] = [None] * 4
        if len(found):
            points = [(float(column.mean()), sample_std(column)) for column in found.T]
        bars[method_title(method)] = points[:3]
        cells = (Cell("–" if point is None else number(*point, digits=3)) for point in points)
        rows.append([Cell(method_title(method)), *cells])
        for kind, point in zip((*LABEL_KINDS, "false-positive share"), points, strict=True):
            values.append(_csv_row(runs, query, kind, None if point is None else point[0]))
    looks = {method_title(method): bar_look(method) for method in NINE_METHODS}
    panel = ("", "mean probability", bars)
    figure = charts.bar_panels([panel], [LABEL_KINDS], looks, columns=1, width=6.6, numbers=".2f")
    caption = f"Mean probability after the last epoch on the training bags of {set_title(*key)}"
    table = Table(
        f"{caption}{mark_of(runs.used.values())}.",
        ["method", *LABEL_KINDS, "false positives' share of the candidates' probability"],
        rows,
        values,
    )
    return Output(item.title, [table], figure, figure_notes(runs, (key,), first_split=True), runs)


def _label_probabilities(record: Record) -> tuple[float, ...]:
    """Return the mean probability of true, false-positive and non-candidate labels of the training bags.

    The last value is the false positives' proportion of the probability of all candidates.
    """
    p, candidates, labels = (
        record.arrays[f"training_{name}"] for name in ("probabilities", "candidates", "labels")
    )
    true = np.eye(p.shape[1], dtype=np.bool_)[labels]
    false = candidates & ~true
    others = ~candidates & ~true
    means = [float(p[kind].mean()) if kind.any() else 0.0 for kind in (true, false, others)]
    return (*means, float(p[false].sum() / p[candidates].sum()))


class EpochTimes(NamedTuple):
    """Processor time in seconds."""

    training: float  # median of the epochs
    testing: float


def _epoch_times(record: Record) -> EpochTimes:
    seconds = record.info["seconds"]
    return EpochTimes(seconds["epoch_processor"], seconds["predict_processor"])


Times = Mapping[str, Sequence[EpochTimes | None]]  # method -> times for each of SHARES


def draw_run_time(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A7: time of training and of testing against the fraction of the training bags."""
    (key,) = item.drawn_sets(runs)
    times: dict[str, list[EpochTimes | None]] = {method: [] for method in NINE_METHODS}
    values: list[dict[str, Any]] = []
    for method in NINE_METHODS:
        for share in SHARES:
            query = RunQuery(*key, method, TIMED, share, item.extras, item.first_split)
            found = [_epoch_times(record) for record in runs.find(query)]
            mean = EpochTimes(*np.mean(found, axis=0).tolist()) if found else None
            times[method].append(mean)
            training, testing = mean or (None, None)
            values.append(_csv_row(runs, query, "training, seconds an epoch", training))
            values.append(_csv_row(runs, query, "testing, seconds", testing))
    title = f"{set_title(*key)}{mark_of(runs.used.values())}"
    caption = f"Processor time on {title} and the share of the training bags."
    header = ["method", "an epoch on 10%, s", "on 50%", "on 100%"]
    header += ["added by CDL", "R² of a line", "testing, s"]
    table = Table(caption, header, [_time_row(method, times) for method in NINE_METHODS], values)
    notes = [
        *figure_notes(runs, (key,), first_split=True),
        "Time is the processor's, of one thread, which other processes lengthen less than the clock's. "
        f"Training is the median of {dict(TIMED)['epochs']} epochs, all layers on images. "
        "Testing is on the same bags for every share; the last column is its mean.",
    ]
    return Output(item.title, [table], _time_figure(times), notes, runs)


def _time_figure(times: Times) -> Figure:
    """Return lines of training time above and testing time below, one column per attention."""
    panels = []
    for place, label in enumerate(("training, s per epoch", "testing, s")):
        for attention, family in zip(BASELINE, FAMILIES, strict=True):
            lines: dict[str, list[charts.Point]] = {
                method_title(m): [None if t is None else (t[place], None) for t in times[m]] for m in family
            }
            panels.append((attention.upper() if place == 0 else "", label, lines))
    percent = [round(100 * share) for share in SHARES]
    return charts.line_panels(panels, percent, ("training bags, in %",) * 3, from_zero=True)


def _time_row(method: str, times: Times) -> list[Cell]:
    """Return the times of a method, what CDL adds to the baseline, and the fit of a line."""
    own, base = times[method], baseline_of(method)
    known = np.array([(s, *t) for s, t in zip(SHARES, own, strict=True) if t is not None]).reshape(-1, 3)
    cells = [Cell(method_title(method))]
    cells += [Cell("–" if (t := own[i]) is None else f"{t.training:.2f}") for i in (0, 4, 9)]
    last = [None if (t := times[m][-1]) is None else t.training for m in (method, base) if m]
    cells.append(Cell(_added(*last).strip(" ()") if base else ""))
    fits = len(known) > 2 and np.ptp(known[:, 1]) > 0
    cells.append(Cell(f"{np.corrcoef(known[:, 0], known[:, 1])[0, 1] ** 2:.3f}" if fits else "–"))
    return [*cells, Cell(f"{known[:, 2].mean():.2f}" if len(known) else "–")]


class Cost(NamedTuple):
    """The cost of a run; None: not known."""

    flops: float | None  # in millions
    parameters: float | None  # in millions
    memory: float | None  # in MiB
    seconds: float | None


# The paper's table of costs.
PAPER_COST = {
    "demipl": Cost(95.58, 0.13, 1822, 198.47),
    "dam-cc": Cost(95.58, 0.13, 1858, 237.11),
    "dam-cn": Cost(95.58, 0.13, 1858, 235.65),
    "elimipl": Cost(95.58, 0.13, 1824, 207.47),
    "sam-cc": Cost(95.58, 0.13, 1863, 243.40),
    "sam-cn": Cost(95.58, 0.13, 1863, 246.16),
    "miplma": Cost(95.58, 0.13, 1848, 218.86),
    "mam-cc": Cost(95.58, 0.13, 1870, 246.16),
    "mam-cn": Cost(95.58, 0.13, 1870, 251.02),
}
COST_HEADER = ("FLOPs (M)", "parameters (M)", "memory (MiB)", "run time (s)")
EPOCH = "an epoch (s)"


def draw_cost(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Table A2: the cost of a run, and what CDL adds to its baseline."""
    (key,) = item.drawn_sets(runs)
    compared = key in item.sets  # a stand-in is not compared with the paper's values
    costs: dict[str, Cost] = {}
    epochs: dict[str, float | None] = {}
    rows = []
    values: list[dict[str, Any]] = []
    for method in PAPER_COST:
        query, measured = (
            RunQuery(*key, method),
            RunQuery(*key, method, (), 1.0, item.extras, first_split=True),
        )
        # without any run, the command for all splits makes this one too
        costs[method] = _mean_cost(runs.find(measured, required=bool(runs.find(query))))
        row = [Cell(method_title(method)), *_cost_cells(method, costs, compared)]
        for place, column in enumerate(COST_HEADER):
            values.append(_csv_row(runs, measured, column, costs[method][place]))
            values[-1]["paper_mean"] = PAPER_COST[method][place] if compared else ""
        timed = RunQuery(*key, method, TIMED, 1.0, item.extras, first_split=True)
        epochs[method] = next((_epoch_times(record).training for record in runs.find(timed)), None)
        row.append(_epoch_cell(method, epochs, compared))
        values.append(_csv_row(runs, timed, EPOCH, epochs[method]))
        mean, paper = runs.mean(query, "accuracy"), printed(query, "accuracy")
        rows.append([*row, cell_of(mean, None, paper, None, len(runs.splits), "accuracy")])
        values.append(csv_row(runs, query, "accuracy", mean, None))
    table = Table(_cost_caption(key, runs), ["method", *COST_HEADER, EPOCH, "accuracy (%)"], rows, values)
    return Output(item.title, [table], None, [*notes_of(runs), COST_NOTE], runs)


def _cost_caption(key: SetKey, runs: RunIndex) -> str:
    mark = mark_of(runs.used.values())
    return f"Cost of a run on {set_title(*key)}{mark}, and what CDL adds to its baseline."


COST_NOTE = (
    "Ours but accuracy are of the first split: FLOPs are the multiplications and additions of matrix "
    "products and convolutions in predicting a bag of mean size; memory is the process's peak, with the "
    "libraries and the data, where the paper has a GPU's; run time is the processor's, of one thread, "
    "for training and prediction; the recipe trains convolutions of the six and not of the earlier "
    "three. An epoch is the median of Fig. A7's on all training bags, in which methods are trained "
    "alike; below it what the paper's run times have. In brackets: what CDL adds to its "
    "baseline."
)


def _cost_cells(method: str, costs: Mapping[str, Cost], compared: bool) -> list[Cell]:
    """Return the costs of a method, the paper's below them, with what CDL adds to the baseline."""
    base, cells = baseline_of(method), []
    for column, form in zip(Cost._fields, (".2f", ".3f", ".0f", ".0f"), strict=True):
        ours, paper = (getattr(table[method], column) for table in (costs, PAPER_COST))
        added = paper_added = ""
        # whole runs differ in more than the loss: their times are not compared
        if base and column in ("flops", "memory"):
            added = _added(ours, getattr(costs[base], column))
        if base and column == "memory":
            paper_added = _added(paper, getattr(PAPER_COST[base], column))
        text = "–" if ours is None else f"{ours:{form}}{added}"
        paper_form = ".2f" if column == "parameters" else form
        cells.append(Cell(text, below=f"paper {paper:{paper_form}}{paper_added}" if compared else ""))
    return cells


def _epoch_cell(method: str, epochs: Mapping[str, float | None], compared: bool) -> Cell:
    """Return the time of an epoch with what CDL adds, and below it what CDL adds to the paper's run time."""
    epoch, base = epochs[method], baseline_of(method)
    added = below = ""
    if base:
        added = _added(epoch, epochs[base])
        paper_added = _added(PAPER_COST[method].seconds, PAPER_COST[base].seconds).strip(" ()")
        below = f"paper {paper_added}" if compared else ""
    return Cell("–" if epoch is None else f"{epoch:.2f}{added}", below=below)


def _mean_cost(records: Sequence[Record]) -> Cost:
    """Return the mean cost of some runs."""

    def mean(measured: Iterable[float | None]) -> float | None:
        known = [value for value in measured if value is not None]
        return sum(known) / len(known) if known else None

    return Cost(
        mean(record.info["flops"] / 1e6 for record in records),
        mean(record.info["parameters"] / 1e6 for record in records),
        mean(record.info["peak_memory_mb"] for record in records),
        mean(
            sum(record.info["seconds"][f"{part}_processor"] for part in ("fit", "predict"))
            for record in records
        ),
    )


def _added(value: float | None, base: float | None) -> str:
    """Return the relative difference to a baseline as " (+1.0%)"; "" if one is not known."""
    return "" if value is None or base is None else f" ({100 * (value / base - 1):+.1f}%)".replace("-", "−")


def _csv_row(runs: RunIndex, query: RunQuery, metric: str, value: float | None) -> dict[str, Any]:
    """Return a number as a row of the CSV, with its records or the command that makes them."""
    records = [] if value is None else runs.find(query)
    return {
        "dataset": query.dataset,
        "r": "" if query.r is None else query.r,
        "method": query.method,
        "settings": " ".join(f"{name}={given}" for name, given in runs.settings(query).items()),
        "share": query.share,
        "metric": metric,
        "runs": len(records),
        "mean": "" if value is None else round(value, 6),
        "records": " ".join(record.info["hash"] for record in records),
        "command": runs.command(query) if value is None else "",
    }
