"""Validation of `Bags`: every error names the bag and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mipl.data.annotations import validate_votes
from mipl.data.candidates import IntArray
from mipl.errors import DataError, listed

if TYPE_CHECKING:
    from mipl.data.bags import Bags

Array = NDArray[Any]
STORED = tuple(
    np.dtype(name) for name in ("float16", "float32", "float64", "uint8")
)  # types that torch supports too
KINDS = {  # dtype kinds of NumPy: i and u integers, f floats, b booleans, U text
    "starts": "i",
    "sizes": "i",
    "ids": "U",
    "candidates": "b",
    "labels": "i",
    "instance_labels": "i",
    "coordinates": "iuf",
    "groups": "U",
    "weights": "f",
    "votes": "i",
    "geometry": "f",
    "sample_weight": "f",
}


def unmasked(values: Any) -> Any:
    """Return values unchanged; reject a masked array with masked values, since NumPy drops the mask."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        position = tuple(int(side) for side in np.argwhere(np.ma.getmaskarray(values))[0])
        raise DataError(
            f"a masked array has a masked value at {position}: fill it (array.filled(…)), or remove it."
        )
    return values


def instance_array(array: Any, bag: str) -> Array:
    """Return one bag's instances (n, …) as floats, or as uint8 (images)."""
    try:
        # a torch tensor on any device, or anything that NumPy converts
        values = np.asarray(array.detach().cpu().numpy() if hasattr(array, "detach") else unmasked(array))
        if values.dtype not in STORED:
            if values.dtype.kind not in "fiubO":
                raise TypeError(f"its values are of type {values.dtype}")
            native = values.dtype.newbyteorder("=")
            with np.errstate(over="ignore"):  # infinite values are rejected later
                values = values.astype(native if native in STORED else np.float32)
    except DataError as error:
        raise DataError(f"Bag '{bag}': {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"Bag '{bag}' is not an array of numbers, instances × features: {error}.") from error
    if values.ndim and not len(values):
        raise DataError(f"Bag '{bag}' is empty: every bag needs at least one instance.")
    if values.ndim < 2:
        raise DataError(
            f"Bag '{bag}' has shape {values.shape}: a bag is instances × features, "
            "so one instance of d features is (1, d) and one feature is (n, 1)."
        )
    return values


def check_alike(parts: list[Array], ids: list[str]) -> None:
    """Raise a `DataError` for the first bag whose instances differ from the first bag's in shape or type."""
    for part, bag in zip(parts, ids, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"Bag '{bag}' has instances of shape {part.shape[1:]}, but bag '{ids[0]}' has "
                f"{parts[0].shape[1:]}: every instance needs the same features."
            )
        if (part.dtype == np.uint8) != (parts[0].dtype == np.uint8):
            raise DataError(
                f"Bag '{bag}' is of type {part.dtype}, but bag '{ids[0]}' of type {parts[0].dtype}: "
                "uint8 represents value/255, so make all bags uint8 or none."
            )


def flat_array(parts: Iterable[Any] | None, sizes: IntArray, ids: list[str], what: str, ndim: int) -> Any:
    """Concatenate one array per bag to one integer (ndim 1) or one row (ndim 2) per instance."""
    if parts is None:
        return None
    try:
        arrays = [np.asarray(unmasked(part)) for part in parts]
    except DataError as error:
        raise DataError(f"The {what}: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"The {what} are not one array of numbers per bag: {error}.") from error
    if len(arrays) != len(sizes):
        raise DataError(f"There are {what} for {len(arrays)} bags, but {len(sizes)} bags.")
    for array, size, bag in zip(arrays, sizes, ids, strict=True):
        if array.dtype.kind not in ("iu" if ndim == 1 else "iuf"):
            numbers = "integers" if ndim == 1 else "numbers"
            raise DataError(f"The {what} of bag '{bag}' are of type {array.dtype}: give {numbers}.")
        if array.ndim != ndim or array.shape != (size, *arrays[0].shape[1:]):
            wanted = f"({size},)" if ndim == 1 else f"({size}, c), the same c in every bag"
            raise DataError(
                f"The {what} of bag '{bag}' have shape {array.shape}: its {size} instances require {wanted}."
            )
    flat = np.concatenate(arrays)
    return flat.astype(np.int64) if ndim == 1 else flat


def positions_array(positions: Any, size: int, bag: str) -> IntArray:
    """Return positions of instances within a bag of ``size`` as int64."""
    values = np.asarray(positions)
    if values.ndim != 1 or values.dtype.kind not in "iu" or ((values < 0) | (values >= size)).any():
        raise DataError(f"Bag '{bag}' has {size} instances: give at least one position from 0 to {size - 1}.")
    return values.astype(np.int64)


def weight_array(weights: Any) -> Array | None:
    """Return initial weights (m, k) as a copy, float32."""
    try:
        return None if weights is None else np.array(unmasked(weights), dtype=np.float32)
    except DataError as error:
        raise DataError(f"The initial weights: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The initial weights are not a table of numbers, bags × classes: {error}."
        ) from error


def validate(bags: Bags) -> None:
    """Raise a `DataError` for the first violated condition."""
    _validate_types(bags)
    _validate_shapes(bags)
    _validate_sizes(bags)
    _validate_features(bags)
    _validate_instances(bags)
    _validate_labels(bags)
    if bags.votes is not None:
        validate_votes(bags.votes, bags.annotators, bags.ids.tolist(), bags.k)


def _validate_types(bags: Bags) -> None:
    if bags.source.ndim < 2 or 0 in bags.source.shape[1:]:
        raise DataError("The instances have no features: a bag is instances × features.")
    if bags.source.dtype not in STORED:
        raise DataError(f"The instances are of type {bags.source.dtype}: use a float, or uint8 for images.")
    for name, kinds in KINDS.items():
        if (array := getattr(bags, name)) is not None and array.dtype.kind not in kinds:
            raise DataError(f"The {name.replace('_', ' ')} cannot be of type {array.dtype}.")


def _validate_shapes(bags: Bags) -> None:
    m, k = len(bags.sizes), len(bags.classes)
    for name, array, shape in (
        ("sizes", bags.sizes, (m,)),
        ("starts", bags.starts, (m,)),
        ("ids", bags.ids, (m,)),
        ("candidates", bags.candidates, (m, k)),
        ("labels", bags.labels, (m,)),
        ("groups", bags.groups, (m,)),
        ("weights", bags.weights, (m, k)),
        ("geometry", bags.geometry, (m, 4)),
    ):
        if array is not None and array.shape != shape:
            raise DataError(
                f"The {name} have shape {array.shape}, but {m} bags and {k} classes require {shape}."
            )
    for name, flat, ndim in (
        ("instance labels", bags.instance_labels, 1),
        ("coordinates", bags.coordinates, 2),
    ):
        if flat is not None and (flat.ndim != ndim or len(flat) != len(bags.source)):
            raise DataError(
                f"The {name} have shape {flat.shape}, but there are {len(bags.source)} instances."
            )
    if (names := bags.feature_names) is not None:
        if (len(names),) != bags.source.shape[1:]:
            raise DataError(
                f"There are {len(names)} feature names for instances of shape {bags.source.shape[1:]}."
            )
        if len(set(names)) != len(names):
            raise DataError(f"A feature name occurs twice: {listed(names)}.")


def _validate_sizes(bags: Bags) -> None:
    m, ids = len(bags.sizes), bags.ids
    unique, count = np.unique(ids, return_counts=True)
    if len(unique) != m:
        raise DataError(
            f"The id '{unique[count > 1][0]}' is used by {count.max()} bags: ids must be distinct."
        )
    if (bags.sizes < 1).any():
        raise DataError(f"Bag '{ids[bags.sizes < 1][0]}' is empty: every bag needs at least one instance.")
    if m and ((bags.starts < 0).any() or (bags.starts + bags.sizes > len(bags.source)).any()):
        raise DataError("A bag extends beyond the instances: the offsets do not fit the data.")


def _validate_features(bags: Bags) -> None:
    if bags.source.dtype.kind != "f" or not isinstance(bags.source, np.ndarray):
        return  # files are checked as they are read
    limit = np.finfo(np.float32).max
    for i, (start, size) in enumerate(zip(bags.starts, bags.sizes, strict=True)):
        block = bags.source[start : start + size]
        # min and max propagate NaN, and need no temporary array as large as the bag
        if not (-limit <= block.min() and block.max() <= limit):
            instance = int(np.flatnonzero(~(np.abs(block.reshape(size, -1)) <= limit).all(axis=1))[0])
            raise DataError(
                f"Bag '{bags.ids[i]}' has a NaN, infinite or too large value in instance {instance}: "
                "replace it or remove the instance."
            )


def _validate_instances(bags: Bags) -> None:
    if bags.instance_labels is not None:
        given = bags.instance_labels[bags.rows()]
        outside = (given < -1) | (given >= bags.k)
        if outside.any():
            bag = np.repeat(bags.ids, bags.sizes)[outside][0]
            raise DataError(
                f"Bag '{bag}' has the instance label {given[outside][0]}: "
                f"it must be the index of one of the {bags.k} classes, or −1 for none of them."
            )
    if isinstance(bags.coordinates, np.ndarray):
        finite = np.isfinite(bags.coordinates[bags.rows()]).all(axis=1)
        if not finite.all():
            bag = np.repeat(bags.ids, bags.sizes)[~finite][0]
            raise DataError(f"Bag '{bag}' has a NaN or infinite coordinate: correct it, or omit them.")


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
                f"candidate set ({int((~inside).sum())} such bags): correct the sets, "
                "or allow it with --missing-truth (in Python: missing_truth=True)."
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
