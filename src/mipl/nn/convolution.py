"""5×5 convolutions for training on a CPU: im2col for few channels, Winograd's algorithm for many.

Images have the layout (height, width, N, channels): shifting the kernel moves contiguous rows of memory, and
pooling acts on N · channels contiguous values. Values equal those of ``conv2d`` up to rounding (3e-5 of the
largest), in about half the time: the gradient of ``conv2d`` for one channel, and pooling of few channels, are
slow (``make bench`` compares both).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

KERNEL, TILE = 5, 4
# F(4, 5) evaluates polynomials at these points and at infinity: 4 outputs need 8 products instead of 20, and
# 4×4 outputs 64 instead of 400. Small numbers and their reciprocals keep rounding errors small.
POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))


def conv5x5_im2col(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images with few channels: (h, w, N, c), (o, c, 5, 5), (o,) -> (h−4, w−4, N, o)."""
    h, w, n, c = x.shape
    out_h, out_w = h - KERNEL + 1, w - KERNEL + 1
    x = x.permute(3, 0, 1, 2).contiguous()  # (c, h, w, N)
    shape = c, KERNEL, KERNEL, out_h, out_w, n
    columns = x.new_empty((c * KERNEL**2 + 1, out_h * out_w * n))
    columns[-1] = 1.0  # for the bias
    columns[:-1].view(shape).copy_(x.as_strided(shape, (h * w * n, w * n, n, w * n, n, 1)))
    return (columns.T @ torch.cat([weight.flatten(1), bias[:, None]], dim=1).T).view(out_h, out_w, n, -1)


def conv5x5_winograd(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images with many channels: (h, w, N, c), (o, c, 5, 5), (o,) -> (h−4, w−4, N, o).

    h − 4 and w − 4 must be multiples of four.
    """
    out: Tensor = _Winograd.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def pool(x: Tensor) -> Tensor:
    """Return the 2×2 max pooling: (h, w, N, c) -> (h/2, w/2, N, c)."""
    h, w, n, c = x.shape
    flat = x.reshape(1, h, w, n * c).permute(0, 3, 1, 2)  # channels last, N · c of them
    return nn.functional.max_pool2d(flat, 2).permute(0, 2, 3, 1).reshape(h // 2, w // 2, n, c)


class _Winograd(torch.autograd.Function):
    """S [(G g Gᵀ) ∘ (R d Rᵀ)] Sᵀ for all tiles at once; ∘ is a matrix product over channels at each point.

    R (8 tiles, h) evaluates the rows of an image, tile by tile, at the eight points, G evaluates the kernel,
    and S combines the products to rows of the output. The gradient uses the transposed matrices.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h, w, n, c = x.shape
        o = len(weight)
        (R, S), (Rw, Sw) = (_image_matrices(side, x.dtype, x.device) for side in (h, w))
        G = _kernel_matrix(x.dtype, x.device)
        a, b = len(R) // 8, len(Rw) // 8  # tiles down and across
        U = torch.einsum("pi,ocij,qj->pqco", G, weight, G)  # (8, 8, c, o)
        U = U[None, :, None].expand(a, 8, b, 8, c, o).reshape(64 * a * b, c, o)
        X = Rw @ (R @ x.reshape(h, -1)).view(8 * a, w, n * c)  # (8a, 8b, N·c)
        X = X.view(64 * a * b, n, c)
        Y = Sw @ (X @ U).view(8 * a, 8 * b, n * o)  # (8a, w', N·o)
        y = (S @ Y.view(8 * a, -1)).view(len(S), len(Sw), n, o)
        ctx.save_for_backward(X, U, R, S, Rw, Sw, G)
        return y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        X, U, R, S, Rw, Sw, G = ctx.saved_tensors
        gy = grads[0].contiguous()  # (h', w', N, o)
        n, c = X.shape[1:]
        o, a, b = U.shape[2], len(R) // 8, len(Rw) // 8
        grad_bias = gy.view(-1, o).T @ gy.new_ones(gy[..., 0].numel())
        gY = Sw.T @ (S.T @ gy.view(len(S), -1)).view(8 * a, len(Sw), n * o)
        gY = gY.view(64 * a * b, n, o)
        gU = (X.mT @ gY).view(a, 8, b, 8, c, o).sum(dim=0).sum(dim=1)
        gX = Rw.T @ (gY @ U.mT).view(8 * a, 8 * b, n * c)  # (8a, w, N·c)
        gx = (R.T @ gX.view(8 * a, -1)).view(R.shape[1], Rw.shape[1], n, c)
        return gx, torch.einsum("pi,pqco,qj->ocij", G, gU, G), grad_bias


@functools.cache
def _image_matrices(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return R (8t, side) and S (4t, 8t) for the t tiles along a side."""
    tiles = (side - KERNEL + 1) // TILE
    R, S = np.zeros((8 * tiles, side)), np.zeros((TILE * tiles, 8 * tiles))
    evaluate = [[*_polynomial([q for q in POINTS if q != p]), Fraction(0)] for p in POINTS]
    combine = [[p**i for p in POINTS] + [Fraction(i == TILE - 1)] for i in range(TILE)]
    of_tile = np.array([*evaluate, _polynomial(POINTS)], dtype=float), np.array(combine, dtype=float)
    for t in range(tiles):
        R[8 * t : 8 * t + 8, TILE * t : TILE * t + 8] = of_tile[0]
        S[TILE * t : TILE * t + TILE, 8 * t : 8 * t + 8] = of_tile[1]
    return torch.tensor(R, dtype=dtype, device=device), torch.tensor(S, dtype=dtype, device=device)


@functools.cache
def _kernel_matrix(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return G (8, 5), the evaluation of a kernel."""
    rows = []
    for p in POINTS:
        divisor = Fraction(1)
        for q in POINTS:
            divisor *= p - q if q != p else 1
        rows.append([p**i / divisor for i in range(KERNEL)])
    rows.append([Fraction(i == KERNEL - 1) for i in range(KERNEL)])
    return torch.tensor(np.array(rows, dtype=float), dtype=dtype, device=device)


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of Π (x − root), the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [*(root * c for c in coefficients), Fraction(0)]
        coefficients = [s - r for s, r in zip(shifted, scaled, strict=True)]
    return coefficients
