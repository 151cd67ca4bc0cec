"""Feature names: columns in another order are reordered, other names are rejected."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mipl.errors import DataError, listed

if TYPE_CHECKING:
    from mipl.data.bags import Bags


def named_frames(arrays: list[Any], ids: Sequence[str]) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return arrays with the columns in one order, and their names if every array is a data frame.

    Args:
        arrays: one per bag; those with ``columns`` (pandas) have named features.
        ids: one per bag, for error messages.

    Raises:
        DataError: a frame has other columns than the first, or only some of the bags are frames.
    """
    frames = [hasattr(array, "columns") and hasattr(array, "loc") for array in arrays]
    if not any(frames):
        return arrays, None
    if not all(frames):
        raise DataError(
            f"Bag '{ids[frames.index(False)]}' has no column names, but bag '{ids[frames.index(True)]}' "
            "is a data frame: give every bag as a frame, or none."
        )
    columns = list(arrays[0].columns)
    names = tuple(map(str, columns))
    if len(set(names)) != len(names):
        raise DataError(f"Bag '{ids[0]}' has two columns of one name ({listed(names)}): rename one of them.")
    for array, bag in zip(arrays, ids, strict=True):
        _check_same(tuple(map(str, array.columns)), names, f"Bag '{bag}'", f"bag '{ids[0]}'")
    return [array[columns] for array in arrays], names


def aligned(bags: Bags, names: Sequence[str] | None) -> Bags:
    """Return the bags with their features in the order of ``names``, or unchanged if either has no names.

    Raises:
        DataError: a name is missing, or is not among ``names``.
    """
    own, wanted = bags.feature_names, None if names is None else tuple(names)
    if own is None or wanted is None or own == wanted:
        return bags
    _check_same(own, wanted, "The data", "the model")
    position = {name: j for j, name in enumerate(own)}
    order = np.array([position[name] for name in wanted])
    if isinstance(bags.source, np.ndarray):
        source: Any = np.take(bags.source, order, axis=1)
    else:
        source = bags.source.with_columns(order)
    return dataclasses.replace(bags, source=source, feature_names=wanted)


def _check_same(own: tuple[str, ...], wanted: tuple[str, ...], who: str, whose: str) -> None:
    here, there = set(own), set(wanted)
    missing = [name for name in wanted if name not in here]
    other = [name for name in own if name not in there]
    if missing or other:
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"also has {listed(other)}"] * bool(other)
        raise DataError(
            f"{who} does not have the features of {whose}: it {' and '.join(parts)}; name the columns as "
            "there, and leave out those that are not features (--ignore COLUMN)."
        )


def names_in(meta: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the feature names in the metadata of a file of bags, if there are any."""
    names = meta.get("feature_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError("The feature names are not a list of strings: write the file again.")
    return None if names is None else tuple(names)
