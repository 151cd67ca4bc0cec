"""Image generators by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mipl.data.images.generators import (
    BLOB,
    GRID,
    SIDE,
    Generator,
    Image,
    Instances,
    kmeans_seg,
    row,
    sbn,
    sift,
)
from mipl.data.images.patches import efficientnet_lite0, patches, resnet34
from mipl.errors import SettingError, suggest


def _plain(name: str, one: Callable[[Image], Instances], min_side: int) -> Generator:
    def make(images: Sequence[Image]) -> list[Instances]:
        return [one(image) for image in images]

    return Generator(name, make, min_side)


def _lite0(n: int) -> Generator:
    return patches(n, efficientnet_lite0(), f"lite0-{n}")


def _r34(n: int, *, weights: str | Path | None = None) -> Generator:
    return patches(n, resnet34(weights), f"r34-{n}")


GENERATORS: dict[str, Callable[..., Generator]] = {
    "row": functools.partial(_plain, "row", row, SIDE),
    "sbn": functools.partial(_plain, "sbn", sbn, SIDE),
    "kmeans": functools.partial(_plain, "kmeans", kmeans_seg, 2 * BLOB),
    "sift": functools.partial(_plain, "sift", sift, BLOB * GRID),
    **{f"lite0-{n}": functools.partial(_lite0, n) for n in (9, 16, 25)},
    **{f"r34-{n}": functools.partial(_r34, n) for n in (9, 16, 25)},
}


def make_generator(name: str, **settings: Any) -> Generator:
    """Create a generator by name; the only setting is ``weights`` of the ``r34`` generators."""
    if name not in GENERATORS:
        raise SettingError(f"There is no image generator '{name}'.{suggest(name, GENERATORS)}")
    known = inspect.signature(GENERATORS[name]).parameters
    for setting in settings:
        if setting not in known:
            raise SettingError(
                f"{name} has no setting '{setting}'.{suggest(setting, known) if known else ' It has none.'}"
            )
    return GENERATORS[name](**settings)
