"""What training leaves behind, from records: bag features, training-set probabilities, run time, cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from mipl.paper.claims import BASELINE, baseline_of
from mipl.paper.figures import bar_look, figure_notes
from mipl.paper.runs import Runs, Settings, Want, mark_of, method_title, set_title
from mipl.paper.tables import FAMILIES, NINE, Item, Product, cell_of, notes_of, printed, value_of
from mipl.records.store import Record
from mipl.records.summary import sample_std
from mipl.reports import charts
from mipl.reports.tables import Cell, Table, number
from mipl.seeding import seed_for

SHARES = tuple(round(0.1 * i, 1) for i in range(1, 11))
# An epoch takes as long in a short run as in a long one. All layers are trained on images, as in the paper:
# that the recipe trains convolutions of the six and not of the earlier methods says nothing of the loss.
TIMED: Settings = (("epochs", 5), ("pretrain", 0))
KINDS = ("true labels", "false-positive labels", "non-candidate labels")


def draw_features(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A1: t-SNE of the test bags' features, and how far their classes are apart."""
    sets = item.drawn(runs)
    panels, rows = [], []
    classes: list[str] = []
    values: list[dict[str, Any]] = []
    for each in sets:
        line: list[charts.Cloud] = []
        row = [Cell(set_title(*each))]
        for method in NINE:
            want = Want(*each, method, (), 1.0, item.extras, item.first)
            found = runs.of(want)
            apart = None
            if found:
                (arrays,) = (record.arrays for record in found)
                labels = arrays["labels"]
                classes = arrays["classes"].tolist() if "classes" in arrays else sorted(map(str, {*labels}))
                apart = float(silhouette_score(arrays["features"], labels))
                line.append((method_title(method), f"silhouette {apart:.2f}", (_tsne(arrays), labels)))
            else:
                line.append((method_title(method), "", None))
            row.append(Cell("–" if apart is None else f"{apart:.3f}".replace("-", "−")))
            values.append(_plain(runs, want, "silhouette", apart))
        panels.append(line)
        rows.append(row)
    titles = ["" if r is None else f"r = {r}" for _, r in sets]
    figure = charts.scatter_grid(panels, classes, titles)
    caption = "Silhouette of the test bags' features by true class: 1 for classes far apart, 0 for none."
    table = Table(caption, ["data set", *map(method_title, NINE)], rows, values)
    said = (
        "A panel is the first split's test bags by t-SNE of their features z (Eq. 13), each by itself: only "
        "near and far within a panel mean something. The silhouette is of z, before t-SNE."
    )
    return Product(item.title, [table], figure, [*figure_notes(runs, sets, first=True), said], runs)


def _tsne(arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the features (m, L) in the plane (m, 2)."""
    features = arrays["features"].astype(np.float64)
    perplexity = min(30.0, (len(features) - 1) / 3)
    # the exact method is the same on any number of threads, and quick for some hundred bags
    method = "exact" if len(features) <= 1000 else "barnes_hut"
    seed = seed_for("t-SNE") % 2**32
    model = TSNE(2, perplexity=perplexity, init="pca", method=method, random_state=seed)
    return np.asarray(model.fit_transform(features))


def draw_probabilities(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A2: mean probability of true, false-positive and other labels on the training set."""
    (each,) = item.drawn(runs)
    bars: dict[str, list[charts.Point]] = {}
    rows = []
    values: list[dict[str, Any]] = []
    for method in NINE:
        want = Want(*each, method, (), 1.0, item.extras, item.first)
        found = np.array([_by_kind(record) for record in runs.of(want)]).reshape(-1, 4)
        points: list[charts.Point] = [None] * 4
        if len(found):
            points = [(float(column.mean()), sample_std(column)) for column in found.T]
        bars[method_title(method)] = points[:3]
        rows.append([Cell(method_title(method)), *(_share(point) for point in points)])
        for kind, point in zip((*KINDS, "false-positive share"), points, strict=True):
            values.append(_plain(runs, want, kind, None if point is None else point[0]))
    looks = {method_title(method): bar_look(method) for method in NINE}
    panel = ("", "mean probability", bars)
    figure = charts.bar_panels([panel], [KINDS], looks, columns=1, width=6.6, numbers=".2f")
    records = list(runs.used.values())
    caption = f"Mean probability after the last epoch on the training bags of {set_title(*each)}"
    table = Table(
        f"{caption}{mark_of(records)}.",
        ["method", *KINDS, "false positives' share of the candidates' probability"],
        rows,
        values,
    )
    return Product(item.title, [table], figure, figure_notes(runs, (each,), first=True), runs)


def _by_kind(record: Record) -> tuple[float, ...]:
    """Return the mean probability of true, false-positive and non-candidate labels of the training bags.

    Last is the share of the false positives in all that the candidates got.
    """
    p, candidates, labels = (
        record.arrays[f"training_{name}"] for name in ("probabilities", "candidates", "labels")
    )
    true = np.eye(p.shape[1], dtype=np.bool_)[labels]
    false = candidates & ~true
    others = ~candidates & ~true
    means = [float(p[kind].mean()) if kind.any() else 0.0 for kind in (true, false, others)]
    return (*means, float(p[false].sum() / p[candidates].sum()))


def _share(point: charts.Point) -> Cell:
    if point is None:
        return Cell("–")
    return Cell(number(*point, digits=3))


def draw_run_time(item: Item, name: str, runs: Runs) -> Product:
    """Draw Fig. A7: time of training and of testing against the share of the training bags."""
    (each,) = item.drawn(runs)
    times: dict[str, list[tuple[float, float] | None]] = {}
    values: list[dict[str, Any]] = []
    for method in NINE:
        times[method] = []
        for share in SHARES:
            want = Want(*each, method, TIMED, share, item.extras, item.first)
            found = [_times(record) for record in runs.of(want)]
            both = None if not found else tuple(np.mean(found, axis=0).tolist())
            times[method].append(both)
            for kind, value in zip(("training", "testing"), both or (None, None), strict=True):
                unit = "seconds an epoch" if kind == "training" else "seconds"
                values.append(_plain(runs, want, f"{kind}, {unit}", value))
    panels = []
    for place, label in enumerate(("training, s per epoch", "testing, s")):
        for attention, family in zip(BASELINE, FAMILIES, strict=True):
            lines: dict[str, list[charts.Point]] = {
                method_title(m): [None if t is None else (t[place], None) for t in times[m]] for m in family
            }
            panels.append((attention.upper() if place == 0 else "", label, lines))
    percent = [round(100 * share) for share in SHARES]
    figure = charts.line_panels(panels, percent, ("training bags, in %",) * 3, from_zero=True)
    rows = [_time_row(method, times) for method in NINE]
    records = list(runs.used.values())
    caption = f"Processor time on {set_title(*each)}{mark_of(records)} and the share of the training bags."
    header = [
        "method",
        "an epoch on 10%, s",
        "on 50%",
        "on 100%",
        "added by CDL",
        "R² of a line",
        "testing, s",
    ]
    notes = [
        *figure_notes(runs, (each,), first=True),
        "Time is the processor's, of one thread, which other processes lengthen less than the clock's. "
        f"Training is the median of {dict(TIMED)['epochs']} epochs, all layers on images. "
        "Testing is on the same bags for every share; the last column is its mean.",
    ]
    return Product(item.title, [Table(caption, header, rows, values)], figure, notes, runs)


def _times(record: Record) -> tuple[float, float]:
    """Return the seconds of an epoch, the median, and of testing."""
    seconds = record.info["seconds"]
    return seconds["epoch_processor"], seconds["predict_processor"]


def _time_row(method: str, times: dict[str, list[tuple[float, float] | None]]) -> list[Cell]:
    own, base = times[method], baseline_of(method)
    known = np.array([(s, *t) for s, t in zip(SHARES, own, strict=True) if t is not None]).reshape(-1, 3)
    cells = [Cell(method_title(method))]
    cells += [Cell("–" if (t := own[i]) is None else f"{t[0]:.2f}") for i in (0, 4, 9)]
    last = [None if (t := times[m][-1]) is None else t[0] for m in (method, base) if m]
    cells.append(Cell(_added(*last).strip(" ()") if base else ""))
    fits = len(known) > 2 and np.ptp(known[:, 1]) > 0
    cells.append(Cell(f"{np.corrcoef(known[:, 0], known[:, 1])[0, 1] ** 2:.3f}" if fits else "–"))
    return [*cells, Cell(f"{known[:, 2].mean():.2f}" if len(known) else "–")]


# FLOPs in millions, parameters in millions, memory in MiB, run time in seconds: the paper's cost table
COST = {
    "demipl": (95.58, 0.13, 1822, 198.47),
    "dam-cc": (95.58, 0.13, 1858, 237.11),
    "dam-cn": (95.58, 0.13, 1858, 235.65),
    "elimipl": (95.58, 0.13, 1824, 207.47),
    "sam-cc": (95.58, 0.13, 1863, 243.40),
    "sam-cn": (95.58, 0.13, 1863, 246.16),
    "miplma": (95.58, 0.13, 1848, 218.86),
    "mam-cc": (95.58, 0.13, 1870, 246.16),
    "mam-cn": (95.58, 0.13, 1870, 251.02),
}
MEASURES = ("FLOPs (M)", "parameters (M)", "memory (MiB)", "run time (s)")
EPOCH = "an epoch (s)"


def draw_cost(item: Item, name: str, runs: Runs) -> Product:
    """Draw Table A2: what a run costs, and how much CDL adds to its baseline."""
    (each,) = item.drawn(runs)
    beside = each in item.sets  # a stand-in is not compared with the paper's values
    ours: dict[str, tuple[float | None, ...]] = {}
    epochs: dict[str, float | None] = {}
    rows = []
    values: list[dict[str, Any]] = []
    for method, paper in COST.items():
        want, measured = Want(*each, method), Want(*each, method, (), 1.0, item.extras, first=True)
        # where there is no run at all, the command for all splits makes this one too
        ours[method] = _costs(runs.of(measured, needed=bool(runs.of(want))))
        base, row = baseline_of(method), [Cell(method_title(method))]
        for place, form in enumerate((".2f", ".3f", ".0f", ".0f")):
            mine = ours[method][place]
            # whole runs are of unlike work, and say nothing of what the loss adds
            added = _added(mine, ours[base][place]) if base and place in (0, 2) else ""
            paper_added = _added(paper[place], COST[base][place]) if base and place == 2 else ""
            shown = "–" if mine is None else f"{mine:{form}}{added}"
            below = f"paper {paper[place]:{'.2f' if place == 1 else form}}{paper_added}" if beside else ""
            row.append(Cell(shown, below=below))
            values.append(_plain(runs, measured, MEASURES[place], mine))
            values[-1]["paper_mean"] = paper[place] if beside else ""
        timed = Want(*each, method, TIMED, 1.0, item.extras, first=True)
        epoch = epochs[method] = next((_times(record)[0] for record in runs.of(timed)), None)
        added = _added(epoch, epochs[base]) if base else ""
        below = f"paper {_added(paper[3], COST[base][3]).strip(' ()')}" if base and beside else ""
        row.append(Cell("–" if epoch is None else f"{epoch:.2f}{added}", below=below))
        values.append(_plain(runs, timed, EPOCH, epoch))
        mean = runs.mean(want, "accuracy")
        rows.append(
            [*row, cell_of(mean, None, printed(want, "accuracy"), None, len(runs.splits), "accuracy")]
        )
        values.append(value_of(runs, want, "accuracy", mean, None))
    records = list(runs.used.values())
    caption = f"Cost of a run on {set_title(*each)}{mark_of(records)}, and what CDL adds to its baseline."
    notes = [
        *notes_of(runs),
        "Ours but accuracy are of the first split: FLOPs are the multiplications and additions of matrix "
        "products and convolutions in predicting a bag of mean size; memory is the process's peak, with the "
        "libraries and the data, where the paper has a GPU's; run time is the processor's, of one thread, "
        "for training and prediction; the recipe trains convolutions of the six and not of the earlier "
        "three. An epoch is the median of Fig. A7's on all training bags, in which methods are trained "
        "alike; below it what the paper's run times have. In brackets: what CDL adds to its "
        "baseline.",
    ]
    table = Table(caption, ["method", *MEASURES, EPOCH, "accuracy (%)"], rows, values)
    return Product(item.title, [table], None, notes, runs)


def _costs(records: Sequence[Record]) -> tuple[float | None, ...]:
    """Return FLOPs and parameters in millions, memory in MiB and processor seconds; None for no record."""

    def mean(measured: Iterable[float | None]) -> float | None:
        known = [value for value in measured if value is not None]
        return sum(known) / len(known) if known else None

    return (
        mean(record.info["flops"] / 1e6 for record in records),
        mean(record.info["parameters"] / 1e6 for record in records),
        mean(record.info["peak_memory_mb"] for record in records),
        mean(
            sum(record.info["seconds"][f"{part}_processor"] for part in ("fit", "predict"))
            for record in records
        ),
    )


def _added(value: float | None, base: float | None) -> str:
    return "" if value is None or base is None else f" ({100 * (value / base - 1):+.1f}%)".replace("-", "−")


def _plain(runs: Runs, want: Want, metric: str, value: float | None) -> dict[str, Any]:
    """Return a number of these figures as a row of the CSV, with its records or its command."""
    records = [] if value is None else runs.of(want)
    return {
        "dataset": want.dataset,
        "r": "" if want.r is None else want.r,
        "method": want.method,
        "settings": " ".join(f"{name}={given}" for name, given in runs.settings(want).items()),
        "share": want.share,
        "metric": metric,
        "runs": len(records),
        "mean": "" if value is None else round(value, 6),
        "records": " ".join(record.info["hash"] for record in records),
        "command": runs.command(want) if value is None else "",
    }
