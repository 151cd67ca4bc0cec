"""Instance encoders Ψ: instances (N, …) -> features H (N, L)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mipl.errors import DataError, SettingError
from mipl.nn.convolution import conv5x5_im2col, conv5x5_winograd, pool


class Standardize(nn.Module):
    """Standardise features with the mean and standard deviation of the training instances."""

    mean: Tensor
    std: Tensor

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(feature_shape))
        self.register_buffer("std", torch.ones(feature_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std, (N, d)."""
        return (x - self.mean) / self.std


class Projection(Standardize):
    """Standardise features and project them on c < d axes, on which wide vectors are faster to train.

    After training, :meth:`fold` merges the projection into the first layer.
    """

    axes: Tensor

    def __init__(self, scaling: Standardize, axes: Tensor) -> None:
        super().__init__(tuple(scaling.mean.shape))
        self.load_state_dict(scaling.state_dict())
        self.register_buffer("axes", axes)  # (d, c)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected features (N, c) of (N, d)."""
        return super().forward(x) @ self.axes

    def fold(self, linear: nn.Linear) -> tuple[Standardize, nn.Linear]:
        """Return the standardisation and a layer (d inputs) that together equal projection and ``linear``."""
        scaling = Standardize(tuple(self.mean.shape))
        scaling.mean.copy_(self.mean)
        scaling.std.copy_(self.std)
        whole = nn.Linear(len(self.axes), linear.out_features)
        with torch.no_grad():
            whole.weight.copy_(linear.weight @ self.axes.T)
            whole.bias.copy_(linear.bias)
        return scaling.to(self.mean.device), whole.to(self.mean.device)


class Dropout(nn.Module):
    """Dropout with one random byte per value, ten times faster than with one random float.

    The drop rate is p rounded to 1/256; the scale factor is that of the rounded rate.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with values dropped in training, of the same shape."""
        mask, factor = self.mask(x, x.shape)
        return x if mask is None else x * mask.to(x.dtype).mul_(factor)

    def mask(self, like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor | None, float]:
        """Return a mask of 0 and 1 of a shape, on the device of ``like``, and the scale factor.

        The mask is None if nothing is dropped.
        """
        threshold = min(round(self.p * 256), 255)
        if not self.training or not threshold:
            return None, 1.0
        size = math.prod(shape)
        draws = torch.empty(-(-size // 8), dtype=torch.int64, device=like.device).random_(-(2**63), None)
        # 1 from the threshold on, else 0: faster than comparing and converting booleans to numbers
        values = draws.view(torch.uint8)[:size].view(shape)
        return values.clamp(threshold - 1, threshold).sub_(threshold - 1), 256 / (256 - threshold)


class FeatureEncoder(nn.Sequential):
    """Encoder of feature vectors: linear d→L, ReLU, dropout."""

    def __init__(self, d: int, width: int, dropout: float) -> None:
        super().__init__(nn.Linear(d, width), nn.ReLU(), Dropout(dropout))


class ImageEncoder(nn.Module):
    """Encoder of 28×28 or 8×8 images, (N, h, w) or (N, c, h, w): two convolutions and a linear layer.

    Pooling comes before ReLU, which gives the same result with a quarter of the values.
    """

    CHUNK = 128  # images at once in training on a CPU, so that feature maps stay in its cache

    def __init__(self, channels: int, side: int, width: int, dropout: float) -> None:
        super().__init__()
        # 28×28: the architecture of the earlier methods (800 features); 8×8: padded 3×3 kernels (200)
        kernel, padding = (5, 0) if side == 28 else (3, 1)
        self.conv1 = nn.Conv2d(channels, 20, kernel, padding=padding)
        self.conv2 = nn.Conv2d(20, 50, kernel, padding=padding)
        self.pool = nn.MaxPool2d(2)
        self.linear = nn.Linear(800 if side == 28 else 200, width)
        self.dropout = Dropout(dropout)
        for conv in (self.conv1, self.conv2):  # the memory format of the images: a third faster on a CPU
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, L) of images (N, h, w) or (N, c, h, w)."""
        features: Tensor = self.dropout(self.linear(self.maps(x)).relu())
        return features

    def maps(self, x: Tensor) -> Tensor:
        """Return the flattened feature maps (N, 800), or (N, 200) of 8×8 images."""
        if x.ndim == 3:
            x = x[:, None]
        on_cpu = x.device.type == "cpu"
        if self.training and on_cpu and self.conv1.padding == (0, 0) and not torch.is_autocast_enabled("cpu"):
            return torch.cat([self._maps_28(part).flatten(1) for part in torch.split(x, self.CHUNK)])
        return self._maps(x.contiguous(memory_format=torch.channels_last)).flatten(1)

    def _maps(self, x: Tensor) -> Tensor:
        """Return feature maps (N, 50, h', w') of images (N, c, h, w)."""
        x = self.pool(self.conv1(x)).relu()
        maps: Tensor = self.pool(self.conv2(x)).relu()
        return maps

    def _maps_28(self, x: Tensor) -> Tensor:
        """Return the same for 28×28 images, with the faster convolutions of `mipl.nn.convolution`."""
        x = x.permute(2, 3, 0, 1)
        x = pool(conv5x5_im2col(x, self.conv1.weight, _bias(self.conv1))).relu_()
        x = pool(conv5x5_winograd(x, self.conv2.weight, _bias(self.conv2))).relu_()
        return x.permute(2, 3, 0, 1)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias


def make_encoder(feature_shape: tuple[int, ...], width: int, dropout: float) -> nn.Module:
    """Return the paper's encoder for instances of a shape; a vector is never taken for a flattened image."""
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
    """Return L of a user-defined encoder, by encoding two instances of zeros."""
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
