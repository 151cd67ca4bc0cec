"""The spec of a run: data × method × settings × split × seed, and the hash that names its folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's result, and nothing that does not (no path, no machine)."""

    dataset: str
    r: int | None  # number of false positives, for data sets that are built with some
    data_digest: str  # of the bags: changed data are another run
    method: str
    recipe: str
    hyper_parameters: dict[str, Any]  # of the method, all that have an effect
    recipe_settings: dict[str, Any]  # of the recipe, all that have an effect
    split: int
    splits: str  # "stratified", "official" or "fold of K"
    seed: int
    share: float = 1.0  # fraction of the split's training bags that is used
    split_digest: str = ""  # of the ids of the training and test bags; "" in records without it
    recipe_version: int = 1  # of the defaults and the training procedure; 1 in records without it

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values, without the fields that have their default value.

        A record written before such a field existed therefore keeps its hash.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if defaults[name] is dataclasses.MISSING or value != defaults[name]
        }

    @property
    def hash(self) -> str:
        """The hash of :meth:`to_dict`."""
        return spec_hash(self.to_dict())


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return the hash of a stored spec: 16 hexadecimal digits of its canonical JSON.

    A stored spec may have fields that :class:`RunSpec` no longer has; it keeps its hash.
    """
    text = json.dumps(spec, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
