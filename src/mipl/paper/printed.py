"""The values that the paper prints in its tables."""

from __future__ import annotations

import csv
import functools
from importlib import resources

import numpy as np
import numpy.typing as npt

from mipl.reports.results import PublishedResults


@functools.cache
def paper_results() -> PublishedResults:
    """Return the paper's printed values.

    They are from the tables of W. Tang, Y.-F. Yang, W. Zhang and M.-L. Zhang, "Calibratable Disambiguation
    Loss for Multi-Instance Partial-Label Learning"; the column ``table`` of printed.csv is the table's label.

    Returns:
        (data set, r, method, metric) -> (mean, standard deviation), in percent.
    """
    text = (resources.files("mipl.paper") / "printed.csv").read_text(encoding="utf-8")
    return {
        (
            row["dataset"].lower(),
            int(row["false_positives"]) if row["false_positives"] else None,
            row["method"].lower(),
            row["metric"],
        ): (float(row["mean"]), float(row["std"]))
        for row in csv.DictReader(text.splitlines())
        if row["mean"]
    }


def paper_scores(metric: str) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return the paper's means of a metric for the Friedman test.

    Methods without a value on every data set are left out, as in the paper's own tests (MIPLGP).

    Returns:
        The means, one row per data set and r, one column per method; and the names of the methods.
    """
    table = {key[:3]: value[0] for key, value in paper_results().items() if key[3] == metric}
    table = {key: value for key, value in table.items() if "/" not in key[0]}  # pooled bags: another table
    datasets = list(dict.fromkeys((dataset, r) for dataset, r, _ in table))
    methods = list(dict.fromkeys(method for _, _, method in table))
    methods = [method for method in methods if all((*dataset, method) in table for dataset in datasets)]
    return np.array([[table[*dataset, method] for method in methods] for dataset in datasets]), methods
