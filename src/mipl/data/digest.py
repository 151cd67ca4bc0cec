"""A hash of the content of bags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mipl.data.bags import Bags


def content_hash(bags: Bags, visit: Callable[[NDArray[Any]], None] | None = None) -> str:
    """Hash instances, sizes, candidate sets, labels, weights, votes and classes.

    Args:
        bags: the bags.
        visit: called with each block of instances (n, *feature_shape).
    """
    state = hashlib.blake2b(digest_size=16)
    state.update(json.dumps([list(bags.classes), bags.feature_shape, str(bags.source.dtype)]).encode())
    state.update(str((int(bags.sizes.sum()), *bags.feature_shape)).encode())
    for block in bags.blocks():
        state.update(np.ascontiguousarray(block).data)
        if visit is not None:
            visit(block)
    for array in (bags.sizes, bags.candidates, bags.labels, bags.weights):
        state.update(str(None if array is None else array.shape).encode())
        state.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    if bags.votes is not None:  # only then, so that bags without votes keep their hash
        state.update(f"votes {len(bags.annotators)}".encode())
        state.update(np.ascontiguousarray(bags.votes).tobytes())
    if bags.sample_weight is not None:  # so that bags without them keep their digest
        state.update(b"sample_weight" + np.ascontiguousarray(bags.sample_weight).tobytes())
    return state.hexdigest()
