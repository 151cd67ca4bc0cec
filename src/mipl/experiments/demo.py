"""The demo: one network trained three ways, compared on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

SOURCE = Source("digits-mipl", r=1)
EPOCHS = 30  # a little more than a minute on two free cores
# (title, what to know of it, method, settings): the same network, recipe and seed each time
WAYS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "Sigmoid head + MDL",
        "as the earlier methods do it: a softmax over sigmoid scores",
        "sam-mdl",
        {"head": "sigmoid"},
    ),
    ("Linear head + MDL", "plain logits, disambiguation loss alone", "sam-mdl", {}),
    ("Linear head + CDL", "plain logits, calibratable disambiguation loss (SAM-CN)", "sam-cn", {}),
)


def run_demo(out: Path, folds: int, workers: int) -> tuple[list[dict[str, Any]], Path]:
    """Make the runs that are not there yet, write ``out/index.html``, return one row per way and the page."""
    bags = SOURCE.open()
    store = Store(out / "runs")
    kind = f"fold of {folds}"
    jobs = [
        [
            Job(
                source=SOURCE,
                method=method,
                # one network: the temperature of an ensemble would calibrate all three alike
                params={"epochs": EPOCHS, "ensemble": 1, **settings},
                split=fold,
                splits=kind,
                seed=0,
                data_digest=bags.digest(),
                split_digest=split_digest(bags, split_of(bags, kind, fold)),
                store=str(store.root),
                provenance=dict(bags.provenance),
                extras=("attention",) if (method, fold) == (WAYS[-1][2], 1) else (),
            )
            for fold in range(1, folds + 1)
        ]
        for _, _, method, settings in WAYS
    ]
    failures = run_local([job for way in jobs for job in way], workers)
    if failures:
        raise TrainingError(f"{failures[0][0].title} failed: {failures[0][1]}.")
    results, rows = [], []
    for (title, note, method, _), way in zip(WAYS, jobs, strict=True):
        records = [record for job in way if (record := store.get(job.spec)) is not None]
        probabilities = np.concatenate([record.arrays["probabilities"] for record in records])
        labels = np.concatenate([record.arrays["labels"] for record in records])
        seconds = float(sum(record.info["seconds"]["fit"] for record in records))
        results.append(ModelResult(method, title, note, probabilities, labels, seconds))
        rows.append(
            {
                "title": title,
                "method": method,
                "test_bags": len(labels),
                "mean_confidence": float(probabilities.max(axis=1).mean()),
                "seconds": seconds,
                **evaluate(probabilities, labels),
            }
        )
    first = store.get(jobs[-1][0].spec)
    assert first is not None
    epochs = first.spec["recipe_settings"]["epochs"]
    facts = {
        "Data": f"digits-mipl from scikit-learn's digits: {bags!r}",
        "Test": f"{folds}-fold cross-validation, so that every bag is tested once",
        "Training": f"recipe {first.spec['recipe']}, {epochs} epochs, seed 0",
        "Command": f"mipl demo --folds {folds}",
        "Versions": ", ".join(f"{name} {version}" for name, version in mipl.versions().items()),
    }
    page = out / "index.html"
    demo_page(results, _views(bags, first, WAYS[-1][0]), facts, page)
    return rows, page


def _views(bags: Bags, record: Record, title: str) -> list[BagView]:
    """Return four test bags to draw: the surest, one at the median, and the two most doubtful."""
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
                instances=np.asarray(bag.instances),
                attention=attention[int(i)],
                positives=None if bag.instance_labels is None else np.equal(bag.instance_labels, bag.label),
                model=title,
            )
        )
    return views
