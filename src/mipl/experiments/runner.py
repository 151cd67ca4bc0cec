"""One run: open the data, split, train, predict, evaluate, write a record."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
from mipl.methods import PLUGINS
from mipl.methods.base import METHODS, AttentionMethod
from mipl.metrics import evaluate
from mipl.records.spec import RunSpec
from mipl.records.store import Record, Store
from mipl.registry import active_settings, restored, settings_of, without_removed
from mipl.training.progress import Report
from mipl.training.recipe import RECIPE_VERSION, Recipe


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made, with the places of its data and of its record."""

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
    share: float = 1.0  # fraction of the split's training bags to use
    vectors: bool = False  # whether instances are vectors; settings for images are then not part of the run
    extras: tuple[str, ...] = ()  # optional contents of the record, of EXTRAS

    @property
    def title(self) -> str:
        """A short name for the progress bar and for messages."""
        return f"{self.source.title} {self.method} split {self.split}"

    def classifier(self) -> BagClassifier:
        """Return the untrained classifier."""
        return make_classifier(self.method, random_state=self.seed, **self.params)

    @property
    def spec(self) -> RunSpec:
        """The identity of the run."""
        classifier = self.classifier()
        method, recipe = classifier.parts(self.provenance)
        for extra in {"features", "attention", "cost"} & set(self.extras):
            if not isinstance(method, AttentionMethod) or method.aggregator != "attention":
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


class Outcome(NamedTuple):
    """The contents of a record."""

    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def run(job: Job, report: Report | None = None, open_data: Callable[[Source], Bags] = Source.open) -> None:
    """Train and evaluate a job, and write its record."""
    save_record(job, measure(job, report, open_data))


def save_record(job: Job, outcome: Outcome) -> None:
    """Write the record of a finished job."""
    Store(Path(job.store)).put(job.spec, outcome.info, outcome.arrays)


def measure(
    job: Job, report: Report | None = None, open_data: Callable[[Source], Bags] = Source.open
) -> Outcome:
    """Train and evaluate a job, and return the contents of its record.

    Args:
        job: the run.
        report: called after each epoch.
        open_data: reads the data; a process that makes several runs reads them once.

    Raises:
        DataError: if the data or the split have changed since the job was planned.
    """
    bags = open_data(job.source)
    train, test = _planned_split(bags, job)
    classifier = job.classifier()
    marks: list[tuple[int, float]] = []  # (epochs done, processor time)

    def timed(done: int, note: str = "") -> None:
        marks.append((done, time.process_time()))
        if report:
            report(done, note)

    started = _clocks()
    classifier.fit(bags[train], report=timed)
    fitted = _clocks() - started
    started = _clocks()
    test_bags = bags[test]
    probabilities = classifier.predict_proba(test_bags)
    predicted = _clocks() - started
    epoch = epoch_seconds(marks)
    seconds = {
        "fit": float(fitted[0]),
        "fit_processor": float(fitted[1]),
        **({"epoch_processor": epoch} if epoch else {}),
        "predict": float(predicted[0]),
        "predict_processor": float(predicted[1]),
    }
    arrays = _arrays(job, bags, train, test_bags, classifier, probabilities)
    data = {"train_bags": len(train), "test_bags": len(test), "provenance": dict(bags.provenance)}
    return Outcome(_info(job, data, seconds, classifier, test_bags, probabilities), arrays)


def epoch_seconds(marks: Sequence[tuple[int, float]]) -> float | None:
    """Return the median time of an epoch from marks (epochs done, time), or None for fewer than two.

    The median, because the first epoch is slower and any epoch may be disturbed. Marks before the first
    epoch, as of pretraining, and the return to the beginning by a second attempt are ignored.
    """
    ends = [mark for mark in marks if mark[0] > 0]
    pairs = [(before, after) for before, after in pairwise(ends) if after[0] > before[0]]
    times = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]
    return float(np.median(times)) if times else None


def _clocks() -> NDArray[np.float64]:
    """Return wall-clock time and processor time of this process; other processes do not affect the second."""
    return np.array([time.perf_counter(), time.process_time()])


def _arrays(
    job: Job,
    bags: Bags,
    train: NDArray[np.int64],
    test_bags: Bags,
    classifier: BagClassifier,
    probabilities: NDArray[Any],
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record: predictions for the test bags, and the extras of the job."""
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
        arrays |= {
            "training_probabilities": classifier.predict_proba(train_bags).astype(np.float32),
            "training_candidates": train_bags.candidate_sets,
            "training_labels": train_bags.labels,
        }
    return arrays


def _info(
    job: Job,
    data: dict[str, Any],
    seconds: dict[str, float],
    classifier: BagClassifier,
    test_bags: Bags,
    probabilities: NDArray[Any],
) -> dict[str, Any]:
    """Return the info of a record: metrics, data, cost, fitted values, versions."""
    assert test_bags.labels is not None
    history = classifier.history_
    # estimates about the candidate sets at the end of training
    trust = {name: values[-1] for name, values in history.items() if name.startswith("trust")}
    return {
        "given": {name: value for name, value in job.params.items() if name != "recipe"},
        "metrics": evaluate(probabilities, test_bags.labels),
        "data": data,
        "seconds": seconds,
        "peak_memory_mb": peak_memory_mb(),
        "parameters": sum(p.numel() for p in classifier.network_.parameters()),
        "loss": history["loss"],
        "batch_size": classifier.recipe_.batch_size,
        "weight_decay": classifier.recipe_.weight_decay,
        **({"plugin": PLUGINS[job.method].package} if job.method in PLUGINS else {}),
        **_temperature(classifier),
        **({"trust": trust} if trust else {}),
        **({"signal": classifier.out_of_fold_["signal"]} if classifier.out_of_fold_ else {}),
        "threads": torch.get_num_threads(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "versions": mipl.versions(),
        **({"flops": _flops(classifier, test_bags)} if classifier.has_attention else {}),
    }


def _temperature(classifier: BagClassifier) -> dict[str, float]:
    """Return the temperature that training has fitted, if any."""
    scaling = None if classifier.calibration_ is None else classifier.calibration_.scaling
    temperature = None if scaling is None else scaling.temperature
    return {} if temperature is None else {"temperature": temperature}


def _flops(classifier: BagClassifier, bags: Bags) -> int:
    """Return the FLOPs of matrix products and convolutions in predicting the bag closest to the mean size."""
    middle = int(np.abs(bags.sizes - bags.sizes.mean()).argmin())
    with FlopCounterMode(display=False) as counter:
        classifier.predict_log_proba(bags[[middle]])
    return int(counter.get_total_flops())


def is_present(record: Record) -> bool:
    """Return whether a run is of the present recipe: the same command would make the same run now.

    Defaults and the training procedure may have changed since the record was written.
    """
    spec = record.spec
    if record.is_external:
        return True
    if record.recipe_version != RECIPE_VERSION:
        return False
    try:
        given = without_removed(METHODS[spec["method"]].cls, record.info.get("given", {}))
        classifier = make_classifier(spec["method"], recipe=spec["recipe"], **given)
        method, recipe = classifier.parts(record.info.get("data", {}).get("provenance"))
    except SettingError:
        return False  # a setting was given that no longer exists
    settings = (type(method), spec["hyper_parameters"]), (Recipe, spec["recipe_settings"])
    if any(stored.keys() - settings_of(owner).keys() - owner.removed.keys() for owner, stored in settings):
        return False
    if restored(type(method), spec["hyper_parameters"]) != method:
        return False
    return restored(Recipe, spec["recipe_settings"]) in (recipe, recipe.in_effect(vectors=True))


def split_of(bags: Bags, splits: str, number: int, *, share: float = 1.0, folder: str = "") -> Split:
    """Return the (train, test) indices of a split.

    Args:
        bags: the bags to split; they need true labels.
        splits: "stratified", "official" or "fold of K".
        number: the number of the split, from 1.
        share: the fraction of the training bags to use.
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
    """Return the split of a job, or raise an error if it differs from the one that was planned."""
    if bags.digest() == job.data_digest:
        split = split_of(bags, job.splits, job.split, share=job.share, folder=job.split_folder)
        if split_digest(bags, split) == job.split_digest:
            return split
        changed = f"Split {job.split} of {job.source.name}"
    else:
        changed = job.source.name
    raise DataError(f"{changed} has changed since the runs were planned: run the command again.")
