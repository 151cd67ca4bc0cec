"""The paper's statistical tests over data sets, on its own tables and on our runs."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

from mipl.metrics.statistics import Friedman, critical_difference, friedman
from mipl.paper.base import Item, Output
from mipl.paper.claims import claims_table
from mipl.paper.names import ALL_SETS, CDL_METHODS, METRIC_TITLES, RANKED_METHODS, method_title
from mipl.paper.printed import paper_scores
from mipl.paper.runs import RunIndex
from mipl.paper.tables import our_values
from mipl.reports import charts
from mipl.reports.tables import Cell, Table

PRINTED_F = {"accuracy": "116.6938", "ece": "50.3444"}
PAPER, OUR_RUNS = "the paper's tables", "our runs"


class Comparison(NamedTuple):
    """A Friedman test of methods over data sets."""

    metric: str
    source: str  # of the values: PAPER or OUR_RUNS
    printed: str  # the statistic F_F as the paper prints it; "" for our runs
    test: Friedman
    methods: list[str]

    @property
    def critical_difference(self) -> float:
        """The difference of mean ranks that is significant by Nemenyi's test."""
        return critical_difference(len(self.methods), self.test.datasets)


def comparisons(runs: RunIndex) -> list[Comparison]:
    """Return the tests on the paper's tables and, if two data sets have all methods, on our runs."""
    found = []
    values = our_values(runs)
    for metric in ("accuracy", "ece"):
        table, methods = paper_scores(metric)
        test = friedman(table, higher_is_better=metric == "accuracy")
        found.append(Comparison(metric, PAPER, PRINTED_F[metric], test, methods))
    for metric in ("accuracy", "ece"):
        complete = [key for key in ALL_SETS if all((*key, m, metric) in values for m in RANKED_METHODS)]
        if len(complete) > 1:
            scores = [[values[*key, m, metric] for m in RANKED_METHODS] for key in complete]
            test = friedman(scores, higher_is_better=metric == "accuracy")
            found.append(Comparison(metric, OUR_RUNS, "", test, list(RANKED_METHODS)))
    return found


def draw_differences(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Fig. A8: mean ranks and the critical difference, from the paper's tables and from our runs."""
    found = comparisons(runs)
    figure = Figure(figsize=(6.6, 2.7 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, each in zip(axes, found, strict=True):
        charts.critical_difference_diagram(
            ax,
            each.test.ranks,
            [method_title(method) for method in each.methods],
            each.critical_difference,
            [method in CDL_METHODS for method in each.methods],
        )
        title = f"{METRIC_TITLES[each.metric]}, {each.source}, {each.test.datasets} data sets"
        ax.set_title(title, loc="left", fontsize=9.5)
    notes = [
        "Mean rank over the data sets, the best to the right; a bar joins methods that Nemenyi's test "
        "does not tell apart at the level 0.05; the six with CDL in colour.",
        *_too_few(found),
    ]
    return Output(item.title, (), figure, notes, runs)


def draw_friedman(item: Item, name: str, runs: RunIndex) -> Output:
    """Draw Table A3: the Friedman statistics as printed, from the paper's tables, and from our runs."""
    found = comparisons(runs)
    header = ["", "F_F printed", "F_F", "χ²", "χ², ties corrected", "F_F of that"]
    header += ["critical value", "CD", "sets"]
    caption = "Friedman statistics by the paper's formula, and with SciPy's correction for ties."
    tables = [Table(caption, header, [_friedman_row(each) for each in found])]
    claims = claims_table(name, lambda: our_values(runs))
    notes = [
        "The paper's F_F for accuracy is its χ², which its formula turns into the F_F in bold.",
        "The paper prints CD = 3.4638, with q rounded to 3.219.",
        *_too_few(found),
    ]
    return Output(item.title, tables + ([claims] if claims else []), None, notes, runs)


def _friedman_row(each: Comparison) -> list[Cell]:
    test = each.test
    numbers = [test.f, test.chi2, test.chi2_ties, test.f_ties, test.critical, each.critical_difference]
    f, *others = (f"{value:.4f}" for value in numbers)
    title = f"{METRIC_TITLES[each.metric]}, {each.source}"
    differs = each.printed not in ("", f)
    texts = [title, each.printed, f, *others, str(test.datasets)]
    return [Cell(text, column == 2 and differs) for column, text in enumerate(texts)]


def _too_few(found: list[Comparison]) -> list[str]:
    if any(each.source == OUR_RUNS for each in found):
        return []
    return [
        "Our runs have all eleven methods on fewer than two data sets, too few to rank: see tables 2 to 5."
    ]
