"""The paper's two stress tests (Appendix B.6): class noise and attribute noise."""

from __future__ import annotations

import dataclasses

import numpy as np

from mipl.data.bags import Bags
from mipl.errors import DataError, SettingError
from mipl.seeding import rng_for


def remove_true_label(bags: Bags, share: float, seed: int = 0) -> Bags:
    """Return bags of which a ``share`` has lost the true label from its candidate set (class noise).

    Only bags with at least two candidates can lose one; the share is of all bags.
    """
    if bags.candidates is None or bags.labels is None:
        raise DataError("Class noise needs bags with candidate sets and true labels.")
    count = round(_checked(share) * len(bags))
    inside = bags.candidates[np.arange(len(bags)), bags.labels]
    able = np.flatnonzero(inside & (bags.candidates.sum(axis=1) >= 2))
    if count > len(able):
        raise DataError(
            f"{count} bags should lose their true label, but only {len(able)} have it and another candidate."
        )
    chosen = rng_for("class noise", seed).permutation(able)[:count]
    candidates = bags.candidates.copy()
    candidates[chosen, bags.labels[chosen]] = False
    note = {"class_noise": share, "class_noise_seed": seed}
    return dataclasses.replace(
        bags, candidates=candidates, weights=None, missing_truth=True, provenance={**bags.provenance, **note}
    )


def drop_instances(bags: Bags, share: float, seed: int = 0) -> Bags:
    """Return bags that have each lost a ``share`` of their instances, never the last (attribute noise)."""
    _checked(share)
    rng = rng_for("attribute noise", seed)
    kept = []
    for size in bags.sizes:
        keep = max(1, int(size) - round(share * int(size)))
        kept.append(np.sort(rng.permutation(int(size))[:keep]))
    note = {"attribute_noise": share, "attribute_noise_seed": seed}
    return bags.keep_instances(kept, provenance={**bags.provenance, **note})


def _checked(share: float) -> float:
    if not 0.0 <= share < 1.0:
        raise SettingError(f"The share is {share}: it must be at least 0 and below 1.")
    return share
