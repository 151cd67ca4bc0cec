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
    splits: str  # "stratified", "official" or "fold of K"
    seed: int
    together: tuple[int, ...] = ()  # the splits that were trained at once with this one, itself included
    share: float = 1.0  # of the split's training bags that were trained on
    split_digest: str = ""  # of the ids of the training and test bags; "": recorded without it
    recipe_version: int = 1  # of the defaults and the training procedure; 1: recorded without it

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values, without the fields that have their default value.

        A record written before such a field existed therefore keeps its hash.
        """
        optional = {field.name: field.default for field in dataclasses.fields(self)}
        values = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if optional[name] is dataclasses.MISSING or value != optional[name]
        }
        return values | ({"together": list(self.together)} if self.together else {})

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of the spec's canonical JSON."""
        text = json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
