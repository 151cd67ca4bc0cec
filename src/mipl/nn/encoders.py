"""Instance encoders Ψ: flat instances (N, …) -> features H (N, L)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mipl.errors import DataError, SettingError
from mipl.nn.convolution import convolve_few, convolve_many, pool


class Standardize(nn.Module):
    """(x − mean) / std with the training instances' statistics, kept with the model as buffers."""

    mean: Tensor
    std: Tensor

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(feature_shape))
        self.register_buffer("std", torch.ones(feature_shape))

    def forward(self, x: Tensor) -> Tensor:
        """(N, d) -> (N, d)."""
        return (x - self.mean) / self.std


class Projection(Standardize):
    """Standardised features along a few axes, divided by a scale: what a network of wide vectors trains on.

    Training sees (N, c) in place of (N, d). :meth:`fold` makes the projection part of the first layer.
    """

    axes: Tensor

    def __init__(self, scaling: Standardize, axes: Tensor) -> None:
        super().__init__(tuple(scaling.mean.shape))
        self.load_state_dict(scaling.state_dict())
        self.register_buffer("axes", axes)  # (d, c)

    def forward(self, x: Tensor) -> Tensor:
        """(N, d) -> (N, c)."""
        return super().forward(x) @ self.axes

    def fold(self, linear: nn.Linear) -> tuple[Standardize, nn.Linear]:
        """Return the scaling of (N, d) and a layer on it that equals ``linear`` on the projection."""
        scaling = Standardize(tuple(self.mean.shape))
        scaling.mean.copy_(self.mean)
        scaling.std.copy_(self.std)
        whole = nn.Linear(len(self.axes), linear.out_features)
        with torch.no_grad():
            whole.weight.copy_(linear.weight @ self.axes.T)
            whole.bias.copy_(linear.bias)
        return scaling.to(self.mean.device), whole.to(self.mean.device)


class Dropout(nn.Module):
    """Dropout from random bytes, eight of one draw: a tenth of the time of a float for every value.

    The share that is dropped is p to the next 1/256, and what is kept is scaled by just that.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(…) -> (…)."""
        kept, factor = self.kept(x, x.shape)
        return x if kept is None else x * kept.to(x.dtype).mul_(factor)

    def kept(self, like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor | None, float]:
        """Return 1 for values of a shape (…) that are kept and 0 (none: all are), and the factor on these."""
        share = min(round(self.p * 256), 255)
        if not self.training or not share:
            return None, 1.0
        size = math.prod(shape)
        draws = torch.empty(-(-size // 8), dtype=torch.int64, device=like.device).random_(-(2**63), None)
        # 1 from the share on and 0 below: comparing, and making numbers of booleans, takes longer
        kept = draws.view(torch.uint8)[:size].view(shape).clamp(share - 1, share).sub_(share - 1)
        return kept, 256 / (256 - share)


class FeatureEncoder(nn.Sequential):
    """Linear d→L, ReLU, dropout for feature vectors."""

    def __init__(self, d: int, width: int, dropout: float) -> None:
        super().__init__(nn.Linear(d, width), nn.ReLU(), Dropout(dropout))


class ImageEncoder(nn.Module):
    """Two convolutions and a linear layer for 28×28 or 8×8 images, (N, h, w) or (N, c, h, w).

    Pooling comes before ReLU: the same function as after it, on a quarter of the values.
    """

    PART = 128  # images at once in training on a CPU: their maps stay in its cache from layer to layer

    def __init__(self, channels: int, side: int, width: int, dropout: float) -> None:
        super().__init__()
        # 28×28 as the paper's predecessors have it (800 features); 8×8 with 3×3 kernels, padded (200).
        kernel, padding = (5, 0) if side == 28 else (3, 1)
        self.conv1 = nn.Conv2d(channels, 20, kernel, padding=padding)
        self.conv2 = nn.Conv2d(20, 50, kernel, padding=padding)
        self.pool = nn.MaxPool2d(2)
        self.linear = nn.Linear(800 if side == 28 else 200, width)
        self.dropout = Dropout(dropout)
        for conv in (self.conv1, self.conv2):  # as the images in forward: a third faster on a CPU
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """(N, h, w) or (N, c, h, w) -> (N, L)."""
        features: Tensor = self.dropout(self.linear(self.maps(x)).relu())
        return features

    def maps(self, x: Tensor) -> Tensor:
        """(N, h, w) or (N, c, h, w) -> (N, 800), or (N, 200) of 8×8: what the convolutions give."""
        if x.ndim == 3:
            x = x[:, None]
        on_cpu = x.device.type == "cpu"
        if self.training and on_cpu and self.conv1.padding == (0, 0) and not torch.is_autocast_enabled("cpu"):
            return torch.cat([self._products(part).flatten(1) for part in torch.split(x, self.PART)])
        return self._maps(x.contiguous(memory_format=torch.channels_last)).flatten(1)

    def _maps(self, x: Tensor) -> Tensor:
        """(N, c, h, w) -> (N, 50, h', w')."""
        x = self.pool(self.conv1(x)).relu()
        maps: Tensor = self.pool(self.conv2(x)).relu()
        return maps

    def _products(self, x: Tensor) -> Tensor:
        """The same for 28×28 images."""
        x = x.permute(2, 3, 0, 1)
        x = pool(convolve_few(x, self.conv1.weight, _bias(self.conv1))).relu_()
        x = pool(convolve_many(x, self.conv2.weight, _bias(self.conv2))).relu_()
        return x.permute(2, 3, 0, 1)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias


def make_encoder(feature_shape: tuple[int, ...], width: int, dropout: float) -> nn.Module:
    """Return the paper's encoder for instances of this shape; a vector is never guessed to be an image."""
    if len(feature_shape) == 1:
        return FeatureEncoder(feature_shape[0], width, dropout)
    if len(feature_shape) in (2, 3) and feature_shape[-2:] in ((28, 28), (8, 8)):
        channels = 1 if len(feature_shape) == 2 else feature_shape[0]
        return ImageEncoder(channels, feature_shape[-1], width, dropout)
    raise SettingError(
        f"There is no built-in encoder for instances of shape {feature_shape}: "
        "pass encoder=, a torch.nn.Module that maps them to vectors."
    )


def output_width(encoder: nn.Module, feature_shape: tuple[int, ...]) -> int:
    """Return L of a user's own encoder, found by encoding two instances of zeros."""
    training = encoder.training
    try:
        with torch.no_grad():
            features = encoder.eval()(torch.zeros(2, *feature_shape))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # what torch's own layers raise
        raise DataError(f"The encoder does not take instances of shape {feature_shape}: {error}.") from error
    finally:
        encoder.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        raise SettingError("The encoder must map instances (N, …) to one vector each, (N, L).")
    return int(features.shape[1])
