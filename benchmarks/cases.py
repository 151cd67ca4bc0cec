"""The data of the benchmarks: the real sets where their raw files are, else stand-ins of the same shape."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.data.candidates import add_false_positives
from mipl.data.datasets import build

REPO = Path(__file__).resolve().parents[1]


# What keeps a long training from learning by heart makes a short one longer.
QUICKLY = ("pretrain=0", "batch_size=4", "instance_dropout=0", "dropout=0.2")


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set written to a file that both sides read, and how it is trained."""

    title: str
    path: str
    bags: Bags
    method: str
    real: bool  # a stand-in has the shape of the data, but its accuracy means nothing
    reference_ms: float | None  # what the loop may take a bag on a machine of REFERENCE_GFLOPS
    least_speed: float  # what is asked of the ratio of training times
    least_to_accuracy: float  # and of times to an accuracy
    accuracy: float | None  # that accuracy; none: the loop's final one
    to_accuracy: str  # the method on the way to it
    settings: tuple[str, ...]  # and mipl's there, where they are not the defaults
    ladder: tuple[int, ...]  # epochs of mipl's whole trainings, of which the shortest that gets there counts
    train_bags: int
    warm: int  # bags of the loop before the clock starts
    measured_bags: int
    measured_splits: int
    measured_epochs: int

    @property
    def vectors(self) -> bool:
        """Whether instances are feature vectors."""
        return len(self.bags.feature_shape) == 1


REFERENCE_GFLOPS = 136.0


def raw_folder(given: Path | None) -> Path:
    """Return the folder above ``hja-birdsong`` and ``mnist``, found as the tests find it."""
    return given or Path(os.environ.get("MIPL_SHARED_DATA", REPO.parent / "shared" / "data"))


def make_cases(raw: Path, folder: Path, quick: bool) -> list[Case]:
    """Write the bags of every case to ``folder``."""
    return [
        _case(
            "birdsong-mipl", raw / "hja-birdsong", folder, quick, method="sam-cn", reference_ms=2.6,
            least_speed=15, least_to_accuracy=40, accuracy=None, to_accuracy="mam-cn", settings=(),
            ladder=(4, 8, 16, 32, 64, 100), warm=200, measured_bags=910, measured_splits=10,
            measured_epochs=10,
        ),
        _case(
            "mnist-mipl", raw / "mnist", folder, quick, method="mam-cn", reference_ms=None,
            least_speed=2, least_to_accuracy=4, accuracy=0.97, to_accuracy="mam-cn", settings=QUICKLY,
            ladder=(16, 20, 24, 28, 32, 48, 64, 100), warm=20, measured_bags=330, measured_splits=4,
            measured_epochs=3,
        ),
    ]  # fmt: skip


def _case(name: str, raw: Path, folder: Path, quick: bool, **settings: Any) -> Case:
    real = raw.is_dir() and not quick
    if quick:
        bags = digits_mipl()[::5] if name == "mnist-mipl" else gaussian_bags(bags=50, k=4)
        settings |= {"warm": 2, "measured_bags": 20, "measured_splits": 2, "measured_epochs": 2}
    else:
        bags = build(name, raw=raw) if real else stand_in(name)
    path = folder / f"{name}.npz"
    bags.save(path)
    title = name if real else f"{name} (stand-in)"
    return Case(
        title=title, path=str(path), bags=bags, real=real, train_bags=round(0.7 * len(bags)), **settings
    )


def stand_in(name: str) -> Bags:
    """Return bags of the shape of a set: the times are as with its own, the accuracies are not."""
    if name == "birdsong-mipl":
        return gaussian_bags(bags=1300, k=13, d=38, sizes=(25, 49))
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 100)
    return Bags.from_list(
        [rng.integers(0, 256, (int(n), 28, 28), dtype=np.uint8) for n in rng.integers(35, 49, size=500)],
        add_false_positives(labels, 5, 1, name, 0),
        labels,
        range(5),
        provenance={"dataset": name, "r": 1, "origin": "random numbers"},
    )
