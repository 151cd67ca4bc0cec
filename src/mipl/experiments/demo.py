"""The demo: one network trained in three ways, and an ensemble of it, compared on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import mipl
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.data.splits import split_digest
from mipl.errors import TrainingError
from mipl.experiments.engines import run_local
from mipl.experiments.runner import Job, split_of
from mipl.metrics import evaluate
from mipl.records.store import Record, Store
from mipl.reports.html import BagView, ModelResult, demo_page

SOURCE = Source("digits-mipl-noisy", r=2)  # two of the four other labels are candidates too
EPOCHS = 30
SIDE = 8  # pixels of a digit, which is a vector here


class Variant(NamedTuple):
    """A way of training; recipe and seed are the same for all."""

    title: str
    note: str
    method: str
    settings: dict[str, Any]


VARIANTS = (
    Variant(
        "Sigmoid head + MDL",
        "as the earlier methods do it: a softmax over sigmoid scores",
        "sam-mdl",
        {"head": "sigmoid"},
    ),
    Variant("Linear head + MDL", "plain logits, disambiguation loss alone", "sam-mdl", {}),
    Variant("Linear head + CDL", "plain logits, calibratable disambiguation loss (SAM-CN)", "sam-cn", {}),
    Variant(
        "Ensemble + CDL",
        "the default of mipl fit: four such networks, calibrated by candidate sets alone",
        "sam-cn",
        {"ensemble": 8},
    ),
)


def run_demo(out: Path, folds: int, workers: int) -> tuple[list[dict[str, Any]], Path]:
    """Make the missing runs and write the page.

    Args:
        out: the folder of the page, ``index.html``, and of the records.
        folds: the number of folds of the cross-validation.
        workers: the number of processes.

    Returns:
        One row of metrics per variant, and the path of the page.

    Raises:
        TrainingError: if a run fails.
    """
    bags = SOURCE.open()
    store = Store(out / "runs")
    jobs = [_jobs(variant, bags, store, folds) for variant in VARIANTS]
    failures = run_local([job for of_variant in jobs for job in of_variant], workers)
    if failures:
        raise TrainingError(f"{failures[0][0].title} failed: {failures[0][1]}.")
    records = [[record for job in of_variant if (record := store.get(job.spec))] for of_variant in jobs]
    results = [_result(variant, found) for variant, found in zip(VARIANTS, records, strict=True)]
    first = records[-1][0]
    page = out / "index.html"
    demo_page(results, _views(bags, first, VARIANTS[-1].title), _facts(bags, first, folds), page)
    return [_row(result) for result in results], page


def _jobs(variant: Variant, bags: Bags, store: Store, folds: int) -> list[Job]:
    """Return one job per fold; the first of the last variant also stores its attention."""
    kind = f"fold of {folds}"
    return [
        Job(
            source=SOURCE,
            method=variant.method,
            params={"epochs": EPOCHS, "ensemble": 1, **variant.settings},
            split=fold,
            splits=kind,
            seed=0,
            data_digest=bags.digest(),
            split_digest=split_digest(bags, split_of(bags, kind, fold)),
            store=str(store.root),
            provenance=dict(bags.provenance),
            vectors=True,
            extras=("attention",) if variant is VARIANTS[-1] and fold == 1 else (),
        )
        for fold in range(1, folds + 1)
    ]


def _result(variant: Variant, records: Sequence[Record]) -> ModelResult:
    """Return the predictions of a variant for the test bags of all folds."""
    return ModelResult(
        name=variant.method,
        title=variant.title,
        note=variant.note,
        probabilities=np.concatenate([record.arrays["probabilities"] for record in records]),
        labels=np.concatenate([record.arrays["labels"] for record in records]),
        seconds=float(sum(record.info["seconds"]["fit"] for record in records)),
    )


def _row(result: ModelResult) -> dict[str, Any]:
    return {
        "title": result.title,
        "method": result.name,
        "test_bags": len(result.labels),
        "mean_confidence": float(result.probabilities.max(axis=1).mean()),
        "seconds": result.seconds,
        **evaluate(result.probabilities, result.labels),
    }


def _facts(bags: Bags, record: Record, folds: int) -> dict[str, str]:
    """Return the provenance of the numbers."""
    epochs = record.spec["recipe_settings"]["epochs"]
    return {
        "Data": f"{SOURCE.title} from scikit-learn's digits: {bags!r}",
        "Test": f"{folds}-fold cross-validation, so that every bag is tested once",
        "Training": f"recipe {record.spec['recipe']}, {epochs} epochs, seed 0",
        "Command": f"mipl demo --folds {folds}",
        "Versions": ", ".join(f"{name} {version}" for name, version in mipl.versions().items()),
    }


def _views(bags: Bags, record: Record, title: str) -> list[BagView]:
    """Return four test bags to draw: with the highest, the median and the two lowest confidences."""
    probabilities: NDArray[Any] = record.arrays["probabilities"]
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    place = {bag: i for i, bag in enumerate(bags.ids.tolist())}
    selected = bags[np.array([place[bag] for bag in record.arrays["ids"].tolist()])]
    attention = np.split(record.arrays["attention"], np.cumsum(selected.sizes)[:-1])
    views = []
    for i in (order[0], order[len(order) // 2], order[-2], order[-1]):
        bag = selected[int(i)]
        assert bag.candidates is not None
        assert bag.label is not None
        views.append(
            BagView(
                bag_id=bag.id,
                label=str(bags.classes[bag.label]),
                candidates=tuple(str(bags.classes[c]) for c in np.flatnonzero(bag.candidates)),
                predicted=str(bags.classes[int(probabilities[i].argmax())]),
                confidence=float(probabilities[i].max()),
                instances=np.clip(bag.instances.reshape(-1, SIDE, SIDE), 0, 1),
                attention=attention[int(i)],
                positives=None if bag.instance_labels is None else np.equal(bag.instance_labels, bag.label),
                model=title,
            )
        )
    return views
