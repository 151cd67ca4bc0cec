"""Heads: bag features z (b, L) -> logits (b, k)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mipl.errors import SettingError, suggest


class SigmoidHead(nn.Linear):
    """Sigmoid class scores used as logits, as in the methods before CDL.

    A softmax over values in (0, 1) cannot exceed e/(e + k − 1): 0.405 for five classes.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name nn.Linear uses)
        """Return logits (b, k) in (0, 1) from bag features (b, L)."""
        return torch.sigmoid(super().forward(input))


def make_head(name: str, width: int, k: int) -> nn.Module:
    """Return the head called ``linear`` or ``sigmoid``."""
    if name == "linear":
        return nn.Linear(width, k)
    if name == "sigmoid":
        return SigmoidHead(width, k)
    raise SettingError(f"There is no head '{name}'.{suggest(name, ('linear', 'sigmoid'))}")
