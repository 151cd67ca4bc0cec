"""One run: open the data, split, train, predict, measure, leave a record."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

import mipl
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.data.splits import (
    Split,
    official_split,
    own_split,
    split_digest,
    stratified_fold,
    stratified_split,
    training_fraction,
)
from mipl.errors import DataError, SettingError
from mipl.estimators import BagClassifier, make_classifier
from mipl.machine import peak_memory_mb
from mipl.methods.base import AttentionMethod
from mipl.metrics import evaluate
from mipl.records.spec import RunSpec
from mipl.records.store import Record, Store
from mipl.registry import active_settings, restored, settings_of
from mipl.training.progress import Report
from mipl.training.recipe import RECIPE_VERSION, Recipe

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
    split_digest: str
    store: str
    split_folder: str = ""  # of official splits
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the bags
    share: float = 1.0  # of the split's training bags to train on
    vectors: bool = False  # whether instances are vectors: what is for images only is then not of the run
    extras: tuple[str, ...] = ()  # that the record is to hold besides, of EXTRAS

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
        for extra in {"features", "attention", "cost"} & set(self.extras):
            if not isinstance(method, AttentionMethod):
                raise SettingError(f"{self.method} has no attention over instances: leave '{extra}' out.")
        return RunSpec(
            dataset=self.source.name,
            r=self.source.false_positives,
            data_digest=self.data_digest,
            method=self.method,
            recipe=classifier.recipe,
            hyper_parameters=active_settings(method),
            recipe_settings=active_settings(recipe.in_effect(vectors=self.vectors)),
            split=self.split,
            splits=self.splits,
            seed=self.seed,
            share=self.share,
            split_digest=self.split_digest,
            recipe_version=RECIPE_VERSION,
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
    splits = [_planned_split(bags, job) for job in jobs]
    classifiers = [job.classifier() for job in jobs]
    marks: list[tuple[int, float]] = []  # epochs done, and when by the processor

    def timed(done: int, note: str = "") -> None:
        marks.append((done, time.process_time()))
        if report:
            report(done, note)

    started = _clocks()
    for classifier, (train, _) in zip(classifiers, splits, strict=True):
        classifier.fit(bags[train], report=timed)
    fit, fit_processor = ((_clocks() - started) / len(jobs)).tolist()
    seconds = {"fit": fit, "fit_processor": fit_processor}
    if epoch := epoch_seconds(marks):
        seconds["epoch_processor"] = epoch / len(jobs)
    return [
        _outcome(job, bags, split, classifier, seconds)
        for job, split, classifier in zip(jobs, splits, classifiers, strict=True)
    ]


def epoch_seconds(marks: Sequence[tuple[int, float]]) -> float | None:
    """Return the time of an epoch from marks (epochs done, when), or None where no two tell it.

    The median, as the first epoch finds nothing ready and any may be disturbed. What is marked before the
    first, as pretraining is, and a second attempt's return to it count for nothing.
    """
    ends = [mark for mark in marks if mark[0] > 0]
    pairs = [(before, after) for before, after in pairwise(ends) if after[0] > before[0]]
    times = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]
    return float(np.median(times)) if times else None


def _clocks() -> NDArray[np.float64]:
    """Return the time by the clock and that of this process's work, which other processes do not lengthen."""
    return np.array([time.perf_counter(), time.process_time()])


def _outcome(
    job: Job, bags: Bags, split: Split, classifier: BagClassifier, seconds: dict[str, float]
) -> Outcome:
    train, test = split
    started = _clocks()
    test_bags = bags[test]
    probabilities = classifier.predict_proba(test_bags)
    predicted = _clocks() - started
    assert test_bags.labels is not None
    arrays = {
        "ids": test_bags.ids,
        "probabilities": probabilities.astype(np.float32),
        "labels": test_bags.labels,
        "classes": np.array([str(name) for name in bags.classes]),
    }
    if "attention" in job.extras:
        arrays["attention"] = np.concatenate(classifier.attention_weights(test_bags)).astype(np.float32)
    if "features" in job.extras:
        arrays["features"] = classifier.embed(test_bags).astype(np.float32)
    if "training" in job.extras:
        train_bags = bags[train]
        assert train_bags.labels is not None
        assert train_bags.candidates is not None
        arrays |= {
            "training_probabilities": classifier.predict_proba(train_bags).astype(np.float32),
            "training_candidates": train_bags.candidates,
            "training_labels": train_bags.labels,
        }
    # what was estimated of the candidate sets, at the end of the training
    history = classifier.history_
    trust = {name: course[-1] for name, course in history.items() if name.startswith("trust")}
    info = {
        "given": {name: value for name, value in job.params.items() if name != "recipe"},
        "metrics": evaluate(probabilities, test_bags.labels),
        "data": {"train_bags": len(train), "test_bags": len(test), "provenance": dict(bags.provenance)},
        "seconds": {
            **seconds,
            "predict": float(predicted[0]),
            "predict_processor": float(predicted[1]),
        },
        "peak_memory_mb": peak_memory_mb(),
        "parameters": sum(p.numel() for p in classifier.network_.parameters()),
        "loss": history["loss"],
        "batch_size": classifier.recipe_.batch_size,
        "weight_decay": classifier.recipe_.weight_decay,
        **_temperature(classifier),
        **({"trust": trust} if trust else {}),
        **({"signal": classifier.out_of_fold_["signal"]} if classifier.out_of_fold_ else {}),
        "threads": torch.get_num_threads(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "versions": mipl.versions(),
    }
    if classifier.has_attention:
        info["flops"] = _flops(classifier, test_bags)
    return info, arrays


def _temperature(classifier: BagClassifier) -> dict[str, float]:
    """Return the temperature that training has fitted, if it has."""
    scaling = None if classifier.calibration_ is None else classifier.calibration_.scaling
    temperature = None if scaling is None else scaling.temperature
    return {} if temperature is None else {"temperature": temperature}


def _flops(classifier: BagClassifier, bags: Bags) -> int:
    """Return the operations of matrix products and convolutions in predicting a bag of nearly mean size."""
    middle = int(np.abs(bags.sizes - bags.sizes.mean()).argmin())
    with FlopCounterMode(display=False) as counter:
        classifier.predict_log_proba(bags[[middle]])
    return int(counter.get_total_flops())


def is_present(record: Record) -> bool:
    """Tell whether a run is what its command would make now: defaults and training may have changed since."""
    spec = record.spec
    if record.recipe_version != RECIPE_VERSION:
        return False
    try:
        classifier = make_classifier(spec["method"], recipe=spec["recipe"], **record.info.get("given", {}))
        method, recipe = classifier.parts(record.info.get("data", {}).get("provenance"))
    except SettingError:
        return False  # a setting was given that is no more
    named = (type(method), spec["hyper_parameters"]), (Recipe, spec["recipe_settings"])
    if any(stored.keys() - settings_of(owner).keys() for owner, stored in named):
        return False
    if restored(type(method), spec["hyper_parameters"]) != method:
        return False
    return restored(Recipe, spec["recipe_settings"]) in (recipe, recipe.in_effect(vectors=True))


def split_of(bags: Bags, splits: str, number: int, *, share: float = 1.0, folder: str = "") -> Split:
    """Return the (train, test) indices of a split.

    Args:
        bags: the bags to be split; they need true labels.
        splits: "stratified", "official" or "fold of K".
        number: the number of the split, from 1.
        share: the share of the training bags to keep.
        folder: the folder of the files of official splits.

    Raises:
        DataError: if the bags have no true labels or do not fit the split.
    """
    if bags.labels is None:
        raise DataError("The bags have no true labels: a run needs them to measure accuracy.")
    if (own := own_split(bags)) is not None:
        if (splits, number, folder) != ("official", 1, ""):
            name = bags.provenance.get("dataset", "This data set")
            raise SettingError(
                f"{name} has one split of its own, number 1: leave --splits and --official out."
            )
        train, test = own
    elif splits == "official":
        train, test = official_split(bags, Path(folder), number)
    elif splits.startswith("fold of "):
        train, test = stratified_fold(bags, number, int(splits.removeprefix("fold of ")))
    else:
        train, test = stratified_split(bags, number)
    return training_fraction(bags, train, share, number), test


def _planned_split(bags: Bags, job: Job) -> Split:
    """Return the split of a job, or raise an error if it is no longer the one that was planned."""
    if bags.digest() == job.data_digest:
        split = split_of(bags, job.splits, job.split, share=job.share, folder=job.split_folder)
        if split_digest(bags, split) == job.split_digest:
            return split
        changed = f"Split {job.split} of {job.source.name}"
    else:
        changed = job.source.name
    raise DataError(f"{changed} has changed since the runs were planned: start again.")
