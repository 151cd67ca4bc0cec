"""The statistics of the training instances that a network scales by."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.nn.encoders import Standardize


def fit_scaling(scaling: Standardize, bags: Bags) -> None:
    """Set mean and standard deviation of the training instances, in the pass that computes the digest."""
    total, squares = torch.zeros((2, *bags.feature_shape), dtype=torch.float64)
    unit = 255.0 if bags.source.dtype == np.uint8 else 1.0  # as BagLoader has it
    # against cancellation
    shift = torch.from_numpy(np.array(bags[0].instances[0], dtype=np.float64)) / unit

    def add(block: NDArray[Any]) -> None:
        values = torch.from_numpy(np.array(block, dtype=np.float32)).double() / unit - shift
        total.add_(values.sum(dim=0))
        squares.add_((values**2).sum(dim=0))

    bags.digest(visit=add)
    mean = total / int(bags.sizes.sum())
    std = (squares / int(bags.sizes.sum()) - mean**2).clamp(min=0).sqrt()
    # A constant feature is centred but not scaled. Its variation is compared with its magnitude, since
    # features may be small; float32 cannot divide by less than tiny.
    varies = std > (1e-7 * (mean + shift).abs()).clamp(min=torch.finfo(torch.float32).tiny)
    scaling.mean.copy_(mean + shift)
    scaling.std.copy_(torch.where(varies, std, torch.ones_like(std)))


def scaled_once(bags: Bags, scaling: nn.Module, device: torch.device | str) -> Bags | None:
    """Return bags over scaled instances, so that no step has to scale; None if they are not in memory."""
    if type(bags.source) is not np.ndarray:
        return None
    rows, loader = bags.rows(), BagLoader(bags, device)
    parts = np.split(rows, np.arange(8192, len(rows), 8192))
    with torch.no_grad():
        source = np.concatenate([scaling(loader.read(part)).cpu().numpy() for part in parts])
    return dataclasses.replace(
        bags,
        source=source,
        starts=bags.offsets[:-1],
        instance_labels=None,
        coordinates=None,
        feature_names=None,
    )
