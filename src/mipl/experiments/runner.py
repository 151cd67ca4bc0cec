"""One run: open the data, split, train, predict, measure, leave a record."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mipl
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.data.splits import Split, official_split, stratified_fold, stratified_split
from mipl.errors import DataError
from mipl.estimators import BagClassifier, fit_together, make_classifier
from mipl.metrics import evaluate
from mipl.nn.network import BagNetwork
from mipl.records.spec import RunSpec
from mipl.records.store import Store
from mipl.registry import in_force
from mipl.training.progress import Report

Outcome = tuple[dict[str, Any], dict[str, NDArray[Any]]]  # a record's info and arrays


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made, and where its data and its record are."""

    source: Source
    method: str
    params: dict[str, Any]  # of make_classifier: recipe, settings
    split: int
    splits: str  # "stratified", "official" or "fold of K"
    seed: int
    data_digest: str
    store: str
    split_folder: str = ""  # of official splits
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the bags
    together: tuple[int, ...] = ()  # splits to be trained at once, this one among them; none: alone

    @property
    def title(self) -> str:
        """A few words for the progress bar."""
        return f"{self.source.title} {self.method} split {self.split}"

    def classifier(self) -> BagClassifier:
        """Return the untrained classifier."""
        return make_classifier(self.method, random_state=self.seed, **self.params)

    @property
    def spec(self) -> RunSpec:
        """What identifies the run."""
        classifier = self.classifier()
        method, recipe = classifier.parts(self.provenance)
        return RunSpec(
            dataset=self.source.name,
            r=self.source.false_positives,
            data_digest=self.data_digest,
            method=self.method,
            recipe=classifier.recipe,
            hyper_parameters=in_force(method),
            recipe_settings=in_force(recipe),
            split=self.split,
            splits=self.splits,
            seed=self.seed,
            together=self.together,
        )


def run(jobs: Sequence[Job], report: Report | None = None) -> None:
    """Make one run, or several of one method at once, and leave their records in the store."""
    for job, (info, arrays) in zip(jobs, measure(jobs, report), strict=True):
        keep(job, info, arrays)


def keep(job: Job, info: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Leave the record of a finished run in the store."""
    Store(Path(job.store)).put(job.spec, info, arrays)


def measure(jobs: Sequence[Job], report: Report | None = None) -> list[Outcome]:
    """Make one run, or several of one method at once, and return what their records hold."""
    bags = jobs[0].source.open()
    if bags.digest() != jobs[0].data_digest:
        raise DataError(f"{jobs[0].source.name} has changed since the runs were planned: start again.")
    splits = [split_of(bags, job) for job in jobs]
    classifiers = [job.classifier() for job in jobs]
    started = time.perf_counter()
    if len(jobs) == 1:
        classifiers[0].fit(bags[splits[0][0]], report=report)
    else:
        fit_together(classifiers, [bags[train] for train, _ in splits], report)
    seconds = (time.perf_counter() - started) / len(jobs)
    return [
        _outcome(job, bags, split, classifier, seconds)
        for job, split, classifier in zip(jobs, splits, classifiers, strict=True)
    ]


def _outcome(job: Job, bags: Bags, split: Split, classifier: BagClassifier, seconds: float) -> Outcome:
    train, test = split
    started = time.perf_counter()
    test_bags = bags[test]
    probabilities = classifier.predict_proba(test_bags)
    predicted = time.perf_counter()
    assert test_bags.labels is not None
    arrays = {
        "ids": test_bags.ids,
        "probabilities": probabilities.astype(np.float32),
        "labels": test_bags.labels,
        "classes": np.array([str(name) for name in bags.classes]),
    }
    if isinstance(classifier.network_, BagNetwork):
        arrays["attention"] = np.concatenate(classifier.attention_weights(test_bags)).astype(np.float32)
    # what was estimated of the candidate sets, at the end of the training
    trust = {name: course[-1] for name, course in classifier.history_.items() if name.startswith("trust")}
    info = {
        "given": {name: value for name, value in job.params.items() if name != "recipe"},
        "metrics": evaluate(probabilities, test_bags.labels),
        "data": {"train_bags": len(train), "test_bags": len(test), "provenance": dict(bags.provenance)},
        "seconds": {"fit": seconds, "predict": predicted - started},
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": sum(p.numel() for p in classifier.network_.parameters()),
        "loss": classifier.history_["loss"],
        **({"trust": trust} if trust else {}),
        "threads": torch.get_num_threads(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "versions": mipl.versions(),
    }
    return info, arrays


def split_of(bags: Bags, job: Job) -> Split:
    """Return the (train, test) indices of the job's split."""
    if bags.labels is None:
        raise DataError(f"{job.source.name} has no true labels: a run needs them to measure accuracy.")
    if job.splits == "official":
        return official_split(bags, Path(job.split_folder), job.split)
    if job.splits.startswith("fold of "):
        return stratified_fold(bags, job.split, int(job.splits.removeprefix("fold of ")))
    return stratified_split(bags, job.split)
