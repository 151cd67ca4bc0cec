"""Seeds hashed from names, so that adding one draw moves no other."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(*names: str | int) -> int:
    """Return a 63-bit seed for what is drawn: ``seed_for("split", 3)``."""
    # A number of NumPy's is the same number: split np.int64(3) is split 3.
    text = "\x1f".join(f"str:{name}" if isinstance(name, str) else f"int:{int(name)}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def rng_for(*names: str | int) -> np.random.Generator:
    """Return NumPy's generator seeded by :func:`seed_for`."""
    return np.random.default_rng(seed_for(*names))
