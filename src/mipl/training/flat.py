"""A network's parameters as a few long vectors, so that a step of the optimiser is a few operations."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """Vectors that the network's parameters, and their gradients, are views of until :meth:`release`.

    With a dozen small parameters most of a step's time is calls, not arithmetic: clipping, step and zeroing
    of gradients took a fifth of the training on Birdsong-MIPL, and take a twentieth on vectors.
    """

    def __init__(
        self, shares: Iterable[tuple[float, list[nn.Parameter]]], members: int | None = None
    ) -> None:
        """``members``: every parameter is stacked (members, …), and clipped row by row."""
        self._members = members
        self._parameters: list[nn.Parameter] = []
        vectors: dict[tuple[float, torch.dtype], list[nn.Parameter]] = {}
        for share, parameters in shares:
            for p in parameters:
                if p.requires_grad and all(p is not q for q in self._parameters):
                    vectors.setdefault((share, p.dtype), []).append(p)
                    self._parameters.append(p)
        self.groups = [
            {"params": [self._flatten(own)], "share": share} for (share, _), own in vectors.items()
        ]
        self.vectors: list[nn.Parameter] = [group["params"][0] for group in self.groups]  # type: ignore[index]

    def _flatten(self, parameters: list[nn.Parameter]) -> nn.Parameter:
        flat = nn.Parameter(torch.cat([p.new_zeros(p.numel()) for p in parameters]))
        flat.grad = torch.zeros_like(flat)
        start = 0
        for p in parameters:
            # the strides stay: a convolution's weights keep their channels last
            place = p.shape, p.stride() if _dense(p) else p.contiguous().stride(), start
            view = flat.detach().as_strided(*place)
            p.data, p.grad = view.copy_(p.detach()), flat.grad.as_strided(*place)
            start += p.numel()
        return flat

    def clip(self, largest: float) -> None:
        """Shorten the gradient, or every member's, to a norm of at most ``largest``."""
        if self._members is None:
            nn.utils.clip_grad_norm_(self.vectors, largest, foreach=True)
            return
        rows = [p.grad.view(self._members, -1) for p in self._parameters if p.grad is not None]
        squares = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows])  # (parameters, members)
        norm = torch.linalg.vector_norm(squares, dim=0)
        factor = (largest / (norm + 1e-6)).clamp_(max=1.0)[:, None]
        torch._foreach_mul_(rows, [factor] * len(rows))

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the vectors."""
        return [vector.grad for vector in self.vectors if vector.grad is not None]

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for gradient in self.gradients:
            gradient.zero_()

    def release(self) -> None:
        """Give every parameter its own memory again, and no gradient."""
        for p in self._parameters:
            p.data, p.grad = p.detach().clone(), None


def _dense(p: Tensor) -> bool:
    """Return whether the values fill their memory without gaps or overlaps."""
    return p.is_contiguous() or (p.ndim == 4 and p.is_contiguous(memory_format=torch.channels_last))
