"""Where bags come from: a file, or a data set by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mipl.data.bags import Bags
from mipl.data.benchmarks import BUILDERS, build
from mipl.data.formats.npz import load_npz
from mipl.errors import StorageError, suggest


@dataclasses.dataclass(frozen=True)
class Source:
    """What the word DATA of the command line stands for; opened again in every process that needs it."""

    data: str  # an .npz file, or a name such as digits-mipl
    r: int = 1  # false positives of a data set built by name
    seed: int = 0
    raw: str | None = None  # folder of raw files of a data set built by name

    @property
    def name(self) -> str:
        """The data set's name, or the file's without folder."""
        return self.data if self.data in BUILDERS else Path(self.data).name

    def open(self) -> Bags:
        """Return the bags."""
        if self.data in BUILDERS:
            return build(self.data, self.r, self.seed, None if self.raw is None else Path(self.raw))
        path = Path(self.data)
        if path.suffix == ".npz":
            return load_npz(path)
        if path.exists():
            raise StorageError(f"{path} is not an .npz file of bags: make one with Bags.save.")
        raise StorageError(f"'{self.data}' is neither a file nor a data set.{suggest(self.data, BUILDERS)}")
