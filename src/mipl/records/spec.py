"""What a run is: data × method × settings × split × seed, and the hash that names its folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's result, and nothing that does not (no path, no machine)."""

    dataset: str
    r: int | None  # false positives, where the data set is built with some
    data_digest: str  # the bags themselves, so that changed data are another run
    method: str
    recipe: str
    hyper_parameters: dict[str, Any]  # of the method, every one that does something
    recipe_settings: dict[str, Any]  # of the recipe, as well
    split: int
    splits: str  # "stratified" or "official"
    seed: int
    together: tuple[int, ...] = ()  # the splits that were trained at once with this one, itself included

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values; a run alone says nothing of others."""
        values = dataclasses.asdict(self)
        together = list(values.pop("together"))
        return {**values, "together": together} if together else values

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of the spec's canonical JSON."""
        text = json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
