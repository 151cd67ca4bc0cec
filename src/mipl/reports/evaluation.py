"""The evaluation of predictions: metrics, per-class values and a page with diagrams."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mipl import metrics
from mipl.files import atomic_folder, write_json
from mipl.reports import figures

MARKER = "evaluation.json"
# name of the metric: title and meaning on the page
SHOWN = {
    "accuracy": ("Accuracy", "correct predictions"),
    "balanced_accuracy": ("Balanced accuracy", "mean recall of the classes"),
    "expected_calibration_error": ("ECE", "expected calibration error, 15 bins"),
    "calibration_error_if_calibrated": ("ECE if calibrated", "expected for these confidences"),
    "negative_log_likelihood": ("NLL", "negative log-likelihood of the true class"),
    "brier": ("Brier score", "squared error of the probabilities, 0 to 2"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of predictions for m bags of k classes."""

    classes: tuple[str, ...]  # k
    values: dict[str, float]  # of mipl.metrics.evaluate, and the area under the risk–coverage curve
    confusion: npt.NDArray[np.int64]  # (k, k) true label by predicted label
    curve: metrics.ReliabilityCurve
    coverage: metrics.CoverageCurve

    @classmethod
    def of(
        cls,
        classes: Sequence[str],
        probabilities: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        bootstrap: int = 0,
    ) -> Evaluation:
        """Evaluate probabilities (m, k) by labels (m,), column indices; intervals by bootstrap draws."""
        values = metrics.evaluate(probabilities, labels, bootstrap=bootstrap)
        values["area_under_risk_coverage"] = metrics.area_under_risk_coverage(probabilities, labels)
        return cls(
            tuple(classes),
            values,
            metrics.confusion_matrix(probabilities, labels),
            metrics.reliability_curve(probabilities, labels),
            metrics.accuracy_at_coverage(probabilities, labels),
        )

    @property
    def bags(self) -> int:
        """Number of evaluated bags."""
        return int(self.confusion.sum())

    def by_class(self) -> list[dict[str, Any]]:
        """Return counts, precision and recall of each class; None where there is no bag to divide by."""
        rows = []
        for j, name in enumerate(self.classes):
            hits, labelled = int(self.confusion[j, j]), int(self.confusion[j].sum())
            predicted = int(self.confusion[:, j].sum())
            rows.append(
                {
                    "name": name,
                    "labelled": labelled,
                    "predicted": predicted,
                    "precision": hits / predicted if predicted else None,
                    "recall": hits / labelled if labelled else None,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the curves for JSON."""
        return {
            "bags": self.bags,
            **self.values,
            "classes": self.by_class(),
            "confusion": {"rows": "true", "columns": "predicted", "counts": self.confusion.tolist()},
        }


def write_page(folder: Path, found: Evaluation, notes: Sequence[str], facts: Mapping[str, str]) -> None:
    """Write ``index.html`` and ``evaluation.json`` into a folder, in one step.

    Args:
        folder: The folder; an earlier evaluation in it is replaced.
        found: What is shown.
        notes: Sentences on the labels, for example on reviews that were left out.
        facts: Where predictions and labels come from.
    """
    curves = {"reliability": found.curve.to_dict(), "coverage": found.coverage.to_dict()}
    with atomic_folder(folder, MARKER) as temporary:
        (temporary / "index.html").write_text(_render(found, notes, facts), encoding="utf-8")
        write_json(temporary / MARKER, {**found.to_dict(), "notes": list(notes), **facts, **curves})


def _render(found: Evaluation, notes: Sequence[str], facts: Mapping[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # classes and file names come from the user
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with figures.style():
        reliability = Figure(figsize=(3.6, 4.3), layout="constrained")
        figures.reliability_diagram(reliability.add_subplot(), found.curve)
        risk = Figure(figsize=(3.7, 3.1), layout="constrained")
        _risk_coverage(risk.add_subplot(), found.coverage)
    largest = max(1, int(found.confusion.max()))
    return environment.get_template("evaluation.html.jinja").render(
        bags=found.bags,
        metrics=[
            {
                "name": title,
                "meaning": meaning,
                "value": _number(name, found),
                "interval": _interval(name, found),
            }
            for name, (title, meaning) in SHOWN.items()
        ],
        classes=found.by_class(),
        confusion=[
            [{"count": n, "shade": round(45 * n / largest), "right": i == j} for j, n in enumerate(row)]
            for i, row in enumerate(found.confusion.tolist())
        ],
        reliability=Markup(
            figures.svg(reliability, "reliability", "Reliability diagram of the predictions.")
        ),
        risk=Markup(figures.svg(risk, "risk", "Error among the most confident bags against their share.")),
        area=f"{found.values['area_under_risk_coverage']:.3f}",
        notes=notes,
        facts=facts,
    )


def _risk_coverage(ax: Axes, curve: metrics.CoverageCurve) -> None:
    """Draw the error among the reported bags against their share."""
    marker = "s" if len(curve.coverage) == 1 else None  # all confidences are equal
    ax.plot(curve.coverage, curve.risk, color=figures.BLUE, linewidth=2, marker=marker)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    top = max(0.05, 1.1 * float(curve.risk.max()))
    ax.set(xlim=(0, 1.02), ylim=(0, min(1.0, top)))
    ax.set(xlabel="coverage (share reported)", ylabel="error among the reported")
    ax.grid()


def _number(name: str, found: Evaluation) -> str:
    return _shown(name, found.values[name])


def _interval(name: str, found: Evaluation) -> str:
    low, high = found.values.get(f"{name}_low"), found.values.get(f"{name}_high")
    return "" if low is None or high is None else f"{_shown(name, low)} – {_shown(name, high)}"


def _shown(name: str, value: float) -> str:
    return f"{value:.3f}" if name in ("negative_log_likelihood", "brier") else f"{value:.1%}"
