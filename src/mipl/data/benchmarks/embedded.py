"""Data sets that need no files: bags of scikit-learn's digits, and Gaussian bags for tests."""

from __future__ import annotations

import dataclasses

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import Pools, sample_bags
from mipl.data.candidates import add_false_positives
from mipl.seeding import rng_for

TARGETS = (0, 2, 4, 6, 8)


def digits_mipl(r: int = 1, seed: int = 0) -> Bags:
    """Build 250 bags of scikit-learn's 8×8 digits: 50 bags for each even digit, 3 positives of 32–43.

    No positive image is used twice, so training and test bags never share one. Negatives are drawn with
    replacement from the odd digits.
    """
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8)
    rng = rng_for("digits-mipl", seed)
    sizes = rng.integers(32, 44, size=250)
    pools = Pools(
        images,
        positive=[rng.permutation(np.flatnonzero(digits == target)) for target in TARGETS],
        negative=rng.choice(np.flatnonzero(digits % 2 == 1), size=int(sizes.sum())),
        classes=[str(target) for target in TARGETS],
    )
    return sample_bags("digits-mipl", pools, sizes, np.full(250, 3), r, seed, rng)


def digits_vectors(r: int = 1, seed: int = 0) -> Bags:
    """Build the bags of :func:`digits_mipl` with each image as a vector of 64 pixels, for fast training."""
    bags = digits_mipl(r, seed)
    provenance = {**bags.provenance, "dataset": "digits-mipl-vectors"}
    return dataclasses.replace(bags, source=np.asarray(bags.source).reshape(-1, 64), provenance=provenance)


def noisy_digits(r: int = 1, seed: int = 0) -> Bags:
    """Build 250 small bags of digits as vectors with noise, on which models make mistakes.

    50 bags for each even digit, with 3 positives of 10–19 images. The pixels, from 0 to 1, have Gaussian
    noise of standard deviation 0.3. No positive image is used twice.
    """
    from sklearn.datasets import load_digits

    name = "digits-mipl-noisy"
    pixels, digits = load_digits(return_X_y=True)
    rng = rng_for(name, seed)
    sizes = rng.integers(10, 20, size=250)
    pools = Pools(
        (pixels / 16.0).astype(np.float32),
        positive=[rng.permutation(np.flatnonzero(digits == target)) for target in TARGETS],
        negative=rng.choice(np.flatnonzero(digits % 2 == 1), size=int(sizes.sum())),
        classes=[str(target) for target in TARGETS],
    )
    bags = sample_bags(name, pools, sizes, np.full(250, 3), r, seed, rng)
    noise = 0.3 * rng.standard_normal(bags.instances.shape)
    return dataclasses.replace(bags, source=(bags.instances + noise).astype(np.float32))


def gaussian_bags(
    bags: int = 60, k: int = 3, d: int = 5, sizes: tuple[int, int] = (3, 9), r: int = 1, seed: int = 0
) -> Bags:
    """Build small bags for tests: a third of the instances near the class centre, the others near 0."""
    rng = rng_for("gaussian", bags, k, d, *sizes, seed)
    centres = 4.0 * rng.standard_normal((k, d)) + 4.0 * (np.arange(k)[:, None] - (k - 1) / 2)
    labels = np.arange(bags) % k
    arrays, instance_labels = [], []
    for label in labels:
        n = int(rng.integers(sizes[0], sizes[1] + 1))
        positive = rng.permutation(n) < max(1, n // 3)
        arrays.append((rng.standard_normal((n, d)) + positive[:, None] * centres[label]).astype(np.float32))
        instance_labels.append(np.where(positive, label, -1))
    return Bags.from_list(
        arrays,
        add_false_positives(labels, k, r, "gaussian", seed),
        labels,
        range(k),
        instance_labels=instance_labels,
        provenance={"dataset": "gaussian", "r": r, "seed": seed},
    )
