"""Convolutions by matrix products against torch's own, in values and gradients."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mipl.nn import convolution
from mipl.nn.encoders import ImageEncoder


def outcome(function, *tensors):
    """Return a function's value and its gradients with respect to all tensors, for one direction."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    value = function(*leaves)
    slope = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).cos().view(value.shape)
    return [value, *torch.autograd.grad(value, leaves, slope)]


def by_torch(x, weight, bias):
    return nn.functional.conv2d(x.permute(2, 3, 0, 1), weight, bias).permute(2, 3, 0, 1)


@settings(deadline=None, max_examples=40)
@given(
    tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    n=st.integers(1, 5),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_conv2d(tiles, n, channels, seed):
    torch.manual_seed(seed)
    h, w = (4 * t + 4 for t in tiles)
    c, o = channels
    exact = [torch.randn(shape, dtype=torch.float64) for shape in ((h, w, n, c), (o, c, 5, 5), (o,))]
    wanted = outcome(by_torch, *exact)
    for function in (convolution.conv5x5_im2col, convolution.conv5x5_winograd):
        for dtype, atol in ((torch.float64, 1e-10), (torch.float32, 3e-5)):
            given = outcome(function, *(tensor.to(dtype) for tensor in exact))
            for mine, theirs in zip(given, wanted, strict=True):
                scale = max(1.0, float(theirs.detach().abs().max()))
                torch.testing.assert_close(mine.double() / scale, theirs / scale, atol=atol, rtol=0)


@given(sides=st.tuples(st.integers(1, 5), st.integers(1, 5)), n=st.integers(1, 4), c=st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_pooling_is_that_of_torch(sides, n, c):
    x = torch.randn(2 * sides[0], 2 * sides[1], n, c)

    def theirs(x):
        return nn.functional.max_pool2d(x.permute(2, 3, 0, 1), 2).permute(2, 3, 0, 1)

    for mine, wanted in zip(outcome(convolution.pool, x), outcome(theirs, x), strict=True):
        torch.testing.assert_close(mine, wanted, atol=0, rtol=0)


def test_the_encoder_trains_on_the_function_that_it_predicts_with():
    torch.manual_seed(0)
    for channels in (1, 3):
        encoder = ImageEncoder(channels, 28, 16, dropout=0.0)
        images = torch.rand(150, channels, 28, 28)  # more than a part; noise: no two values tie in a pool
        parameters = list(encoder.parameters())
        found = []
        for training in (True, False):
            features = encoder.train(training)(images)
            found.append([features, *torch.autograd.grad(features.square().sum(), parameters)])
        for mine, plain in zip(*found, strict=True):
            scale = float(plain.detach().abs().max())
            torch.testing.assert_close(mine / scale, plain / scale, atol=1e-4, rtol=0)
