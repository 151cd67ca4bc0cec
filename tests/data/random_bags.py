"""Bags drawn at random, what they should give back, and other things that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from mipl.data.bags import Bags
from mipl.errors import DataError, StorageError

DTYPES = ("float16", "float32", "float64", "uint8")
SHAPES = ((1,), (3,), (2, 3), (2, 1, 3))
SHARED = Path(os.environ.get("MIPL_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def real(folder):
    """Return a folder of real data, or skip the test that asks for it."""
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"the real data are not here: {path} (MIPL_SHARED_DATA names their folder)")
    return path


def attempt(call, *arguments_):
    """Return what a call gives and "", or None and what it complains of; any other exception escapes."""
    try:
        return call(*arguments_), ""
    except (DataError, StorageError) as error:
        return None, str(error)


@st.composite
def arguments(draw, dtypes=DTYPES, shapes=SHAPES, complete=False):
    """Draw the arguments of `Bags.from_list`; the optional ones may be left out unless ``complete``."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, k = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    shape, dtype = draw(st.sampled_from(shapes)), np.dtype(draw(st.sampled_from(dtypes)))
    sizes = rng.integers(1, 6, size=m)
    labels = rng.integers(0, k, size=m)
    candidates = rng.random((m, k)) < 0.4
    candidates[np.arange(m), labels] = True
    given = {
        "arrays": [(100 * rng.random((size, *shape))).astype(dtype) for size in sizes],
        "candidates": candidates,
        "labels": labels,
        "classes": draw(st.sampled_from([list(range(k)), [f"class {j} é|," for j in range(k)]])),
        "ids": [f"bag {i} – ü" for i in rng.permutation(m)],
        "instance_labels": [rng.integers(-1, k, size=size) for size in sizes],
        "coordinates": [rng.random((size, 2)) for size in sizes],
        "groups": [f"patient {g}" for g in rng.integers(0, 3, size=m)],
        "weights": (candidates / candidates.sum(axis=1, keepdims=True)).astype(np.float32),
        "provenance": {"from": "a draw", "nested": {"list": [1, 2.5, None, True]}},
    }
    for name in ("candidates", "labels", "ids", "instance_labels", "coordinates", "groups", "weights"):
        if not complete and draw(st.booleans()):
            del given[name]
    return given


def many(sizes, width=3, **others):
    """Return bags of the given sizes whose values tell which row is which."""
    rows = np.arange(sum(sizes) * width, dtype=np.float32).reshape(-1, width)
    return Bags.from_list(np.split(rows, np.cumsum(sizes)[:-1]), **others)


def expected(given, i):
    """Return what bag i should be, taken from the arguments by plain indexing."""
    return {
        "id": given["ids"][i] if "ids" in given else str(i),
        "instances": given["arrays"][i],
        "candidates": given["candidates"][i] if "candidates" in given else None,
        "label": given["labels"][i] if "labels" in given else None,
        "instance_labels": given["instance_labels"][i] if "instance_labels" in given else None,
        "coordinates": given["coordinates"][i] if "coordinates" in given else None,
        "group": given["groups"][i] if "groups" in given else None,
    }


def assert_is(bag, wanted):
    """Assert that a `Bag` is what `expected` says, bit for bit."""
    for name, value in wanted.items():
        got = getattr(bag, name)
        if isinstance(value, np.ndarray):
            assert got.dtype == value.dtype, name
            assert got.shape == value.shape, name
            assert got.tobytes() == value.tobytes(), name
        else:
            assert got == value, name


def assert_same(one, other):
    """Assert that two `Bags` are equal in every field, up to where their rows lie."""
    assert len(one) == len(other)
    assert one.classes == other.classes
    assert one.missing_truth == other.missing_truth
    assert dict(one.provenance) == dict(other.provenance)
    for name in ("weights",):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and np.array_equal(a, b))
    for a, b in zip(one, other, strict=True):
        assert_is(a, {name: getattr(b, name) for name in expected({"arrays": [None]}, 0)})
