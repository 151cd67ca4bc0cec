"""Items that can be reproduced (tables and figures), and the output of drawing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from mipl.data.datasets import stand_in_for
from mipl.paper.names import QUICK_SET, Sets, Settings
from mipl.paper.runs import RunIndex, RunQuery
from mipl.reports.tables import Table

Variant = tuple[str, Settings]  # a method and the settings that differ from its defaults


@dataclass(frozen=True)
class Output:
    """A drawn item."""

    title: str
    tables: Sequence[Table]
    figure: Figure | None
    notes: Sequence[str]  # below the tables and the figure
    runs: RunIndex  # knows the records that were used and the queries that found none


@dataclass(frozen=True)
class Item:
    """A table or figure: its data sets, its methods and the function that draws it."""

    title: str
    sets: Sets
    variants: tuple[Variant, ...]
    draw: Callable[[Item, str, RunIndex], Output]
    options: Mapping[str, Any] = field(default_factory=dict)  # of ``draw``
    quick_sets: Sets = QUICK_SET
    other_stand_ins: Sets = ()  # besides those of the tissue images
    shares: tuple[float, ...] = (1.0,)  # fractions of the training bags
    extras: tuple[str, ...] = ()  # that the records of the first split must have
    first_split: bool = False  # whether the first split is enough
    first_split_variants: tuple[Variant, ...] = ()  # further variants, for which it is

    def queries(self, quick: bool = False) -> list[RunQuery]:
        """Return the runs that are needed: on the paper's sets and their stand-ins, or on embedded data."""
        sets = self.quick_sets if quick else (*self.sets, *self.stand_ins(), *self.other_stand_ins)
        return [
            *(
                RunQuery(*key, *variant, share, self.extras, self.first_split)
                for key in sets
                for variant in self.variants
                for share in self.shares
            ),
            *(
                RunQuery(*key, *variant, 1.0, self.extras, True)
                for key in sets
                for variant in self.first_split_variants
            ),
        ]

    def stand_ins(self) -> Sets:
        """Return the data sets that replace the tissue images, which are not public."""
        return tuple((other.name, r) for name, r in self.sets if (other := stand_in_for(name)) is not None)

    def drawn_sets(self, runs: RunIndex) -> Sets:
        """Return the data sets to draw: each of the paper's, or its stand-in if only that has runs.

        Without any run on these, return the embedded data if there are runs on them, else the paper's sets,
        which are then drawn empty.
        """
        chosen = []
        for key in self.sets:
            other = stand_in_for(key[0])
            options = [key, *([(other.name, key[1])] if other is not None else [])]
            chosen.append(next((option for option in options if runs.has(*option)), key))
        if not any(runs.has(*key) for key in chosen) and runs.has(*QUICK_SET[0]):
            return QUICK_SET
        return tuple(chosen)


def plain(methods: Iterable[str], *given: tuple[str, Any]) -> tuple[Variant, ...]:
    """Return variants of methods with the same settings."""
    return tuple((method, given) for method in methods)
