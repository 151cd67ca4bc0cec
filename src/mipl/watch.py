"""Are the new bags still like the held-out ones? A conformal test martingale that needs no label.

Guarantees and calibration are for the distribution that the held-out bags come from. :func:`watch` tests, bag
by bag, the hypothesis that held-out and new bags are exchangeable, by several scores of a bag (its
confidence, the probability of each class, the distance of its features to the training bags).

**P-values.** The p-value of the t-th new bag is the rank of its score among the held-out bags *and all new
bags up to it*, with ties broken at random. If all bags are exchangeable, these p-values are independent and
uniform (Vovk, Gammerman and Shafer, 2005): given the set of the first t bags, each is equally likely to be
the t-th. Comparing with the held-out bags alone would not give independent p-values.

**Bets.** A martingale starts at 1 and is multiplied by 1 + b(p − ½) per bag, a factor of mean 1 for a uniform
p. The *simple jumper* (Vovk et al., 2021) spreads its capital over slopes b, and moves a fraction of it to
equal parts before each bag, so that it profits from large or small p-values that begin at any time.

**Alarm.** The hypotheses of the scores have weights w that sum to 1: a third for the confidence, a third for
the features, a third shared by the classes. The alarm is the first time that some w·S is at least 1/α. By
Ville's inequality a non-negative martingale S that starts at 1 ever reaches 1/(αw) with probability at most
αw; by the union bound there is a false alarm, in a stream of any length, with probability at most α.
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError, SettingError
from mipl.files import atomic_file
from mipl.seeding import rng_for

Floats = npt.NDArray[np.float64]
SLOPES = (-2.0, -1.0, 0.0, 1.0, 2.0)  # a factor 1 + b(p − ½) is never negative
JUMP = 0.01  # fraction of the capital that is moved to equal parts before each bag


@dataclasses.dataclass(frozen=True, eq=False)
class Course:
    """The evidence against exchangeability after each of m new bags."""

    level: float  # α, the probability of a false alarm
    reference: int  # number of held-out bags
    p_values: dict[str, Floats]  # (m,) by score
    evidence: dict[str, Floats]  # (m,) by score: w·S, the alarm is at 1/α

    @property
    def combined(self) -> Floats:
        """The largest evidence of all scores (m,)."""
        return np.asarray(np.max(list(self.evidence.values()), axis=0))

    @property
    def alarm(self) -> int | None:
        """Index of the new bag at which the evidence first reaches 1/α, or None."""
        above = self.combined >= 1 / self.level
        return int(above.argmax()) if above.any() else None

    @property
    def strongest(self) -> str:
        """The score with the largest evidence at the alarm, or at the last bag."""
        at = -1 if self.alarm is None else self.alarm
        return max(self.evidence, key=lambda name: self.evidence[name][at])

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON; the evidence after each bag is in the CSV."""
        at = -1 if self.alarm is None else self.alarm
        return {
            "bags": len(self.combined),
            "reference_bags": self.reference,
            "level": self.level,
            "alarm": self.alarm is not None,
            "alarm_at": None if self.alarm is None else self.alarm + 1,
            "strongest": self.strongest,
            "evidence": {name: float(values[at]) for name, values in self.evidence.items()},
        }


def watch(
    reference: Mapping[str, npt.ArrayLike],
    new: Mapping[str, npt.ArrayLike],
    *,
    level: float = 0.01,
    seed: int = 0,
) -> Course:
    """Test whether new bags are exchangeable with held-out ones.

    Args:
        reference: Scores of n held-out bags by name (`mipl.calibration.reference.bag_scores`).
        new: The same scores of m new bags, in the order in which they arrived.
        level: α, the probability of a false alarm in a stream of any length.
        seed: Seed of the random order of equal scores.
    """
    if not 0 < level < 1:
        raise SettingError(f"level is {level}: give the probability of a false alarm, such as 0.01.")
    if reference.keys() != new.keys() or not reference:
        raise DataError("Held-out and new bags do not have the same scores: calibrate the model again.")
    n, m = (len(np.asarray(next(iter(scores.values())))) for scores in (reference, new))
    if not n or not m:
        raise DataError("There is nothing to compare: give at least one held-out and one new bag.")
    p_values, evidence = {}, {}
    for name, weight in weights(list(reference)).items():
        p = conformal_p_values(reference[name], new[name], rng_for("watch", name, seed).random(m))
        p_values[name], evidence[name] = p, weight * jumper(p)
    return Course(level, n, p_values, evidence)


def weights(names: Sequence[str]) -> dict[str, float]:
    """Return the weight of each score: equal for confidence, features and the classes together."""
    kinds = ["class" if name.startswith("p(") else name for name in names]
    return {name: 1 / len(set(kinds)) / kinds.count(kind) for name, kind in zip(names, kinds, strict=True)}


def conformal_p_values(reference: npt.ArrayLike, new: npt.ArrayLike, uniform: npt.ArrayLike) -> Floats:
    """Return the p-value of each new score (m,) among the reference (n,) and the new scores up to it.

    Args:
        reference: (n,) scores of held-out bags.
        new: (m,) scores of new bags in order.
        uniform: (m,) uniform random numbers that break ties.
    """
    seen = sorted(np.asarray(reference, dtype=np.float64).tolist())
    p = []
    for score, u in zip(
        np.asarray(new, dtype=np.float64).tolist(), np.asarray(uniform).tolist(), strict=True
    ):
        bisect.insort(seen, score)
        low, high = bisect.bisect_left(seen, score), bisect.bisect_right(seen, score)
        p.append((len(seen) - high + u * (high - low)) / len(seen))
    return np.array(p)


def jumper(p_values: Floats) -> Floats:
    """Return the capital (m,) of the simple jumper after each p-value (m,); it starts at 1."""
    slopes = np.array(SLOPES)
    capital = np.full(len(slopes), 1 / len(slopes))
    course = []
    for p in p_values.tolist():
        capital = (1 - JUMP) * capital + JUMP * capital.sum() / len(slopes)
        capital = np.minimum(capital * (1 + slopes * (p - 0.5)), 1e100)  # no infinity; far beyond any alarm
        course.append(float(capital.sum()))
    return np.array(course)


def write_course(path: Path, ids: Sequence[str], course: Course) -> None:
    """Write one row per new bag: bag_id, the evidence, whether the alarm is on, and each score's values."""
    names = list(course.evidence)
    columns = [f"{kind}: {name}" for name in names for kind in ("p-value", "evidence")]
    alarm = len(ids) if course.alarm is None else course.alarm
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["bag_id", "evidence", "alarm", *columns])
        for i, (bag, value) in enumerate(zip(ids, course.combined.tolist(), strict=True)):
            values = [
                repr(float(part[name][i])) for name in names for part in (course.p_values, course.evidence)
            ]
            writer.writerow([bag, repr(value), int(i >= alarm), *values])
