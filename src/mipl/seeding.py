"""Seeds hashed from names, so that a new random draw does not change the others."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(*names: str | int) -> int:
    """Return a 63-bit seed from the name of a random draw, as in ``seed_for("split", 3)``."""
    # int(): np.int64(3) and 3 give the same seed
    text = "\x1f".join(f"str:{name}" if isinstance(name, str) else f"int:{int(name)}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def rng_for(*names: str | int) -> np.random.Generator:
    """Return a NumPy generator with the seed :func:`seed_for`."""
    return np.random.default_rng(seed_for(*names))
