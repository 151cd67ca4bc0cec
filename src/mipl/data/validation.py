"""The door of `Bags`: every complaint names the bag and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.candidates import IntArray
from mipl.errors import DataError

if TYPE_CHECKING:
    from mipl.data.bags import Bags

Array = NDArray[Any]


def instance_array(array: Any, position: int) -> Array:
    """Return one bag's instances (n, …) as floats, or as uint8 (images)."""
    if hasattr(array, "detach"):  # a torch tensor, of any device
        array = array.detach().cpu().numpy()
    try:
        values = np.asarray(array)
        if values.dtype == object or values.dtype.kind not in "fiub":
            values = np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Bag {position} is not an array of numbers, instances × features: {error}."
        ) from error
    if values.ndim < 2:
        raise DataError(
            f"Bag {position} has shape {values.shape}: a bag is instances × features, "
            "so one instance of d features is (1, d) and one feature is (n, 1)."
        )
    keep = values.dtype.kind == "f" or values.dtype == np.uint8
    return values if keep else values.astype(np.float32)


def flat_array(parts: Iterable[Any] | None, sizes: IntArray, ids: list[str], what: str, dtype: Any) -> Any:
    """Return one value per instance, given bag by bag, as one array over all instances."""
    if parts is None:
        return None
    arrays = [np.asarray(part, dtype=dtype) for part in parts]
    if len(arrays) != len(sizes):
        raise DataError(f"There are {what} for {len(arrays)} bags, but {len(sizes)} bags.")
    for array, size, bag in zip(arrays, sizes, ids, strict=True):
        if len(array) != size:
            raise DataError(f"Bag '{bag}' has {size} instances, but {len(array)} {what}.")
    return np.concatenate(arrays)


def validate(bags: Bags) -> None:
    """Raise a `DataError` for the first thing that is wrong."""
    m, k, ids = len(bags.sizes), len(bags.classes), bags.ids
    for name, array, shape in (
        ("starts", bags.starts, (m,)),
        ("ids", bags.ids, (m,)),
        ("candidates", bags.candidates, (m, k)),
        ("labels", bags.labels, (m,)),
        ("groups", bags.groups, (m,)),
        ("weights", bags.weights, (m, k)),
    ):
        if array is not None and array.shape != shape:
            raise DataError(
                f"The {name} have shape {array.shape}, but {m} bags and {k} classes ask for {shape}."
            )
    for name, array in (("instance labels", bags.instance_labels), ("coordinates", bags.coordinates)):
        if array is not None and len(array) != len(bags.source):
            raise DataError(f"There are {len(array)} {name} for {len(bags.source)} instances.")
    unique, count = np.unique(ids, return_counts=True)
    if len(unique) != m:
        raise DataError(
            f"The id '{unique[count > 1][0]}' is used by {count.max()} bags: ids must be distinct."
        )
    if (bags.sizes < 1).any():
        raise DataError(f"Bag '{ids[bags.sizes < 1][0]}' is empty: every bag needs at least one instance.")
    if bags.source.ndim < 2 or 0 in bags.source.shape[1:]:
        raise DataError("The instances have no features: a bag is instances × features.")
    if m and ((bags.starts < 0).any() or (bags.starts + bags.sizes > len(bags.source)).any()):
        raise DataError(
            "A bag reaches outside the instances that are there: the offsets do not fit the data."
        )
    _validate_features(bags)
    _validate_labels(bags)


def _validate_features(bags: Bags) -> None:
    if bags.source.dtype.kind != "f":
        return
    limit = np.finfo(np.float32).max
    for i, (start, size) in enumerate(zip(bags.starts, bags.sizes, strict=True)):
        block = bags.source[start : start + size]
        # min and max see NaN too, and need no temporary array as large as the bag
        if not (-limit <= block.min() and block.max() <= limit):
            instance = int(np.flatnonzero(~(np.abs(block.reshape(size, -1)) <= limit).all(axis=1))[0])
            raise DataError(
                f"Bag '{bags.ids[i]}' has a NaN, infinite or too large value in instance {instance}: "
                "replace it or remove the instance."
            )


def _validate_labels(bags: Bags) -> None:
    if bags.candidates is not None and not bags.candidates.any(axis=1).all():
        bag = bags.ids[~bags.candidates.any(axis=1)][0]
        raise DataError(f"Bag '{bag}' has no candidate label: give at least one, or leave the bag out.")
    if bags.labels is not None and ((bags.labels < 0) | (bags.labels >= bags.k)).any():
        bag = bags.ids[(bags.labels < 0) | (bags.labels >= bags.k)][0]
        raise DataError(f"Bag '{bag}' has a label outside the {bags.k} classes.")
    if bags.candidates is not None and bags.labels is not None and not bags.missing_truth:
        inside = bags.candidates[np.arange(len(bags)), bags.labels]
        if not inside.all():
            i = int(np.flatnonzero(~inside)[0])
            raise DataError(
                f"Bag '{bags.ids[i]}' has the true label '{bags.classes[bags.labels[i]]}' outside its "
                f"candidate set ({int((~inside).sum())} such bags): mend the sets, "
                "or allow it with missing_truth=True."
            )
    if bags.weights is not None:
        total = bags.weights.sum(axis=1)
        if (bags.weights < 0).any() or not np.allclose(total, 1.0, atol=1e-4):
            i = int(np.flatnonzero((bags.weights < 0).any(axis=1) | ~np.isclose(total, 1.0, atol=1e-4))[0])
            raise DataError(
                f"The initial weights of bag '{bags.ids[i]}' are not a distribution over the classes."
            )
        if bags.candidates is not None and (bags.weights[~bags.candidates] > 0).any():
            i = int(np.flatnonzero(((bags.weights > 0) & ~bags.candidates).any(axis=1))[0])
            raise DataError(f"Bag '{bags.ids[i]}' has initial weight on a label that is not a candidate.")
