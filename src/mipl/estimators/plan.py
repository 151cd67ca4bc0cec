"""What would be trained on bags, why, how long it takes, and what is doubtful; nothing is kept."""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from mipl.data.bags import Bags
from mipl.data.formats.origin import describe
from mipl.errors import counted, listed
from mipl.seeding import rng_for
from mipl.training.crossfit import LEFT_OUT, folds_of
from mipl.training.fit import regularisations
from mipl.training.progress import duration

if TYPE_CHECKING:
    from mipl.estimators.bag import BagClassifier

QUICK = 1_000_000  # instances that pass a network in all: below, training takes seconds and is not timed
TIMED = (2, 4)  # epochs of the two trainings whose difference is the time of an epoch
SAMPLE = 32  # bags that they train on
FEW_BAGS, FEW_OF_A_CLASS, LARGE_BAG = 60, 10, 20_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was found, what will be trained, and what is doubtful, in sentences; and the expected time."""

    found: tuple[str, ...]
    training: tuple[str, ...]
    doubts: tuple[str, ...]
    seconds: float | None  # None: not measured
    time: str  # the expected time in words

    def summary(self) -> tuple[str, str, str]:
        """Return three lines."""
        more = f" (and {len(self.doubts) - 1} more: mipl plan)" if len(self.doubts) > 1 else ""
        return (
            f"Found: {self.found[0]}; {self.found[1]}",
            f"Training: {self.training[0]}; {self.time}",
            f"Doubtful: {self.doubts[0]}{more}" if self.doubts else "Doubtful: nothing",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return dataclasses.asdict(self)


def make_plan(classifier: BagClassifier, bags: Bags, *, measure: bool = True) -> Plan:
    """Return the plan of training a classifier on bags with candidate sets.

    Args:
        classifier: not trained; it is not changed.
        bags: the training bags.
        measure: estimate the time, unless it is short, from a few epochs on some of the bags, whose networks
            are thrown away.
    """
    method, recipe = classifier.parts(bags.provenance)
    folds, choices = folds_of(bags, recipe.ensemble), regularisations(recipe, bags)
    members = recipe.ensemble if folds > 1 else 1
    what = f"{classifier._method_name()}, {counted(recipe.epochs, 'epoch')}"
    what += f", an ensemble of {members} networks" if members > 1 else ", a single network"
    training = [what, *([method.advice] if method.advice else [])]
    if members > 1:
        training.append(
            f"{folds} more, each without {LEFT_OUT} of {folds} parts of the bags: their predictions for "
            "these show what can be learned, and calibrate the ensemble without a true label"
        )
    if len(choices) > 1:
        decays = " and ".join(f"{decay:g}" for decay, _ in choices)
        training.append(
            f"they are trained with weight decays {decays}; the one that predicts left-out sets better is "
            "kept"
        )
    passes = int(bags.sizes.sum()) * recipe.epochs * (members + folds * len(choices))
    seconds, text = None, "a few seconds"
    if passes >= QUICK:
        seconds = estimated_seconds(classifier, bags, recipe.epochs) if measure else None
        text = "time as in the progress below" if seconds is None else f"about {duration(seconds)}"
    return Plan(_found(bags), tuple(training), _doubts(bags, recipe, members), seconds, text)


def estimated_seconds(classifier: BagClassifier, bags: Bags, epochs: int) -> float:
    """Return the time that training takes, from two short trainings on a sample of the bags."""
    sample = bags[np.sort(rng_for("plan").permutation(len(bags))[:SAMPLE])]
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a sample, which training of all bags need not deserve
        for number in TIMED:
            short = clone(classifier).set_params(epochs=number, verbose=False)
            started = time.perf_counter()
            short.fit(sample)
            taken.append(time.perf_counter() - started)
    of_epoch = max(taken[1] - taken[0], 0.0) / (TIMED[1] - TIMED[0])
    larger = float(bags.sizes.sum()) / float(sample.sizes.sum())
    return max(taken[0] - TIMED[0] * of_epoch, 0.0) + of_epoch * larger * epochs


def _found(bags: Bags) -> tuple[str, ...]:
    sets = bags.candidate_sets
    sizes = sets.sum(axis=1)
    least, most = int(bags.sizes.min()), int(bags.sizes.max())
    instances = counted(most, "instance") if least == most else f"{least:,}–{most:,} instances"
    shape = "×".join(map(str, bags.feature_shape))
    known = describe(bags.provenance.get("features"))
    found = [
        f"{counted(len(bags), 'bag')} of {instances} with {shape} features"
        + (f" ({known})" if known else ""),
        f"{counted(bags.k, 'class')}, bags with the candidate: "
        + ", ".join(f"{name} {count}" for name, count in zip(bags.classes, sets.sum(axis=0), strict=True)),
        f"{sizes.mean():.2f} candidates per bag; agreement: {np.mean(sizes == 1):.0%} of the bags have one",
    ]
    if pairs := _pairs(sets):
        (i, j), count = pairs[0]
        found.append(
            f"most often together: {bags.classes[i]} and {bags.classes[j]}, in {counted(count, 'bag')}"
        )
    if bags.groups is None:
        found.append("patients unknown: every bag counts as a patient of its own")
    else:
        number = len(np.unique(bags.groups))
        found.append(f"{counted(number, 'patient')}, whose bags stay together")
    if bags.labels is not None:
        found.append("true labels of all bags, which training does not read")
    return tuple(found)


def _pairs(sets: Any) -> list[tuple[tuple[int, int], int]]:
    """Return the pairs of classes that are candidates together, the most frequent first."""
    together = sets.astype(np.int64).T @ sets
    pairs = {(i, j): int(together[i, j]) for i, j in itertools.combinations(range(sets.shape[1]), 2)}
    return sorted(((pair, n) for pair, n in pairs.items() if n), key=lambda entry: -entry[1])


def _doubts(bags: Bags, recipe: Any, members: int) -> tuple[str, ...]:
    sets = bags.candidate_sets
    counts = sets.sum(axis=0)
    doubts = []
    if unseen := [bags.classes[j] for j in np.flatnonzero(counts == 0)]:
        doubts.append(f"no bag has the candidate {listed(unseen)}: it cannot be learned")
    for (i, j), n in _pairs(sets):
        if n == counts[i] == counts[j]:
            doubts.append(
                f"{bags.classes[i]} and {bags.classes[j]} are always candidates together: they look alike"
            )
    if len(bags) < FEW_BAGS:
        doubts.append(f"{counted(len(bags), 'bag')} only: expect wide intervals, and label more if you can")
    if few := [bags.classes[j] for j in np.flatnonzero((counts > 0) & (counts < FEW_OF_A_CLASS))]:
        doubts.append(f"fewer than {FEW_OF_A_CLASS} bags have the candidate {listed(few)}")
    if members == 1 and recipe.ensemble > 1:
        doubts.append("too few bags or patients for an ensemble: a single network is trained, not calibrated")
    if bags.sizes.max() > LARGE_BAG and recipe.max_instances is None:
        doubts.append(
            f"a bag has {bags.sizes.max():,} instances: --set max_instances={LARGE_BAG // 5} trains on a "
            "sample of them, another one in each epoch"
        )
    if bags.groups is None and "features" in bags.provenance:
        doubts.append("patients unknown: if any has several bags, add a column patient, or folds share it")
    if (sets.sum(axis=1) == 1).all():
        doubts.append("every bag has one candidate: this is ordinary supervision")
    return tuple(doubts)
