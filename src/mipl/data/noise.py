"""The paper's two stress tests (Appendix B.6): class noise and attribute noise."""

from __future__ import annotations

import dataclasses

import numpy as np

from mipl.data.bags import Bags
from mipl.errors import DataError, SettingError
from mipl.seeding import rng_for


def remove_true_label(bags: Bags, fraction: float, seed: int = 0) -> Bags:
    """Remove the true label from the candidate sets of a ``fraction`` of all bags (class noise).

    Only bags with at least two candidates can lose one.
    """
    if bags.candidates is None or bags.labels is None:
        raise DataError("Class noise needs bags with candidate sets and true labels.")
    count = round(_check_fraction(fraction) * len(bags))
    inside = bags.candidates[np.arange(len(bags)), bags.labels]
    eligible = np.flatnonzero(inside & (bags.candidates.sum(axis=1) >= 2))
    if count > len(eligible):
        raise DataError(
            f"{count} bags should lose their true label, but only {len(eligible)} have it and another one."
        )
    chosen = rng_for("class noise", seed).permutation(eligible)[:count]
    candidates = bags.candidates.copy()
    candidates[chosen, bags.labels[chosen]] = False
    note = {"class_noise": fraction, "class_noise_seed": seed}
    return dataclasses.replace(
        bags, candidates=candidates, weights=None, missing_truth=True, provenance={**bags.provenance, **note}
    )


def drop_instances(bags: Bags, fraction: float, seed: int = 0) -> Bags:
    """Drop a ``fraction`` of the instances of every bag, but never all of them (attribute noise)."""
    _check_fraction(fraction)
    rng = rng_for("attribute noise", seed)
    kept = []
    for size in bags.sizes:
        keep = max(1, int(size) - round(fraction * int(size)))
        kept.append(np.sort(rng.permutation(int(size))[:keep]))
    note = {"attribute_noise": fraction, "attribute_noise_seed": seed}
    return bags.keep_instances(kept, provenance={**bags.provenance, **note})


def _check_fraction(fraction: float) -> float:
    if not 0.0 <= fraction < 1.0:
        raise SettingError(f"The fraction is {fraction}: it must be at least 0 and below 1.")
    return fraction
