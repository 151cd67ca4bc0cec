"""Training on images: what they look like, learned before any candidate set is asked.

Candidate sets that name most classes say too little to teach convolutions: networks then learn their training
bags by heart, and merge classes. The images themselves say more. The convolutions learn to tell each image
from all others through random views of it (the contrast of SimCLR; Chen et al., 2020). Then they stay as they
are through the warm-up, in which the method trains what lies above them, on the principal components of their
maps. When it is known what the bags are about, all layers go on with the images, half of a bag at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.candidates import IntArray
from mipl.nn.attention import MAM
from mipl.nn.encoders import FeatureEncoder, ImageEncoder
from mipl.seeding import rng_for
from mipl.training.parallel import Alone, randomness
from mipl.training.progress import Report
from mipl.training.recipes import Recipe

IMAGES = 256  # a step, each seen twice
RATE = 1e-3
TEMPERATURE = 0.2
COMPONENTS = 192  # principal ones of the maps, that the warm-up learns from
SAMPLE = 20_000  # images that they are found from


def has_images(net: nn.Module) -> bool:
    """Return whether a network encodes images by convolutions of ours."""
    return any(isinstance(part, ImageEncoder) for part in net.modules())


def soften(net: nn.Module, tau: float) -> None:
    """Keep the temperature of MAM's attention at ``tau`` and above.

    Near 0 a bag rests on a single image, and its others of the class teach nothing. An attention that has one
    temperature throughout keeps it.
    """
    for part in net.modules():
        if isinstance(part, MAM):
            part.floor = max(part.floor, min(tau, part.start))


@contextlib.contextmanager
def on_features(
    net: nn.Module, bags: Bags, recipe: Recipe, seed: int, group: Alone, report: Report | None = None
) -> Iterator[Bags]:
    """Train an image encoder's convolutions on the images, and yield bags of their features (d,).

    Inside, ``net`` takes such features; afterwards it takes images again. Nothing is kept between processes
    of a training or before and after an interruption: it all follows from the bags and the seed.
    """
    ((name, encoder),) = (
        (name, part) for name, part in net.named_modules() if isinstance(part, ImageEncoder)
    )
    rng = rng_for("images", seed)
    with randomness(group, "images", seed):
        contrast(encoder, bags, recipe.pretrain, rng, group, report)
        components = _principal(encoder, bags, COMPONENTS, rng, group.device)
        simple = FeatureEncoder(components.axes.shape[1], encoder.linear.out_features, encoder.dropout.p)
    net.set_submodule(name, simple.to(group.device))
    try:
        yield dataclasses.replace(
            bags,
            source=_features(encoder, bags, components, group.device),
            starts=bags.offsets[:-1],
            instance_labels=None,
            coordinates=None,
        )
    finally:
        components.move_into(encoder.linear, simple[0])  # type: ignore[arg-type]
        net.set_submodule(name, encoder.train(net.training))


def contrast(
    encoder: ImageEncoder,
    bags: Bags,
    steps: int,
    rng: np.random.Generator,
    group: Alone,
    report: Report | None = None,
) -> None:
    """Train ``encoder`` in place to know two views of an image from those of others, without any label.

    The loss is the cross-entropy of an image's other view among all views of the step, by cosine similarity
    of a linear projection.
    """
    rows, loader = bags.rows(), BagLoader(bags, group.device)
    _even_out(encoder, loader.read(rows[rng.permutation(len(rows))[:2048]]))
    encoder.train()
    width = encoder.linear.out_features
    projection = nn.Linear(width, max(2, width // 2)).to(group.device)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *projection.parameters()], lr=RATE, fused=True)
    for step, chosen in enumerate(_draws(len(rows), steps, rng)):
        for layers in optimizer.param_groups:
            layers["lr"] = RATE * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        images = loader.read(rows[chosen])
        views = torch.cat([random_views(images), random_views(images)])
        z = F.normalize(projection(encoder(views)), dim=1)  # (2n, ·)
        similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
        other = torch.arange(len(z), device=z.device).roll(len(images))
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(similarity, other))
        optimizer.step()
        if report and group.rank == 0:
            report(0, f"images, step {step + 1} of {steps}")
    with torch.no_grad():  # processes on different devices may differ in the last digits
        for parameter in encoder.parameters():
            parameter.mul_(group.rank == 0)
    group.add([parameter.data for parameter in encoder.parameters()])


def _even_out(encoder: ImageEncoder, images: Tensor) -> None:
    """Scale and shift every layer so that each of its outputs has mean 0 and deviation 1 over ``images``.

    (The data-dependent start of Salimans and Kingma, 2016.) Otherwise the first steps go into a few large
    directions that all images share.
    """
    with torch.no_grad():
        x = images if images.ndim == 4 else images[:, None]
        for layer in (encoder.conv1, encoder.conv2, encoder.linear):
            outputs = layer(x).transpose(0, 1).flatten(1)  # (outputs, ·)
            deviation = outputs.std(dim=1).clamp(min=1e-6)
            layer.weight.div_(deviation.view(-1, *[1] * (layer.weight.ndim - 1)))
            assert layer.bias is not None
            layer.bias.sub_(outputs.mean(dim=1)).div_(deviation)
            if layer is not encoder.linear:
                x = encoder.pool(layer(x)).relu()
                x = x if layer is encoder.conv1 else x.flatten(1)


def random_views(images: Tensor) -> Tensor:
    """Return each image (n, …, h, w) a little turned, stretched and moved, its edges continued."""
    n, device = len(images), images.device

    def draw(largest: float, *shape: int) -> Tensor:
        return (2.0 * torch.rand(n, *shape, device=device) - 1.0) * largest

    angle, stretch, moved = draw(0.3), 1.0 + draw(0.15, 2), draw(0.15, 2)
    turn = torch.zeros(n, 2, 3, device=device)
    turn[:, 0, 0], turn[:, 0, 1] = angle.cos() * stretch[:, 0], -angle.sin()
    turn[:, 1, 0], turn[:, 1, 1] = angle.sin(), angle.cos() * stretch[:, 1]
    turn[:, :, 2] = moved
    planes = images if images.ndim == 4 else images[:, None]
    grid = F.affine_grid(turn, list(planes.shape), align_corners=False)
    return F.grid_sample(planes, grid, padding_mode="border", align_corners=False).view_as(images)


@dataclasses.dataclass(frozen=True)
class Components:
    """Maps (·, D) less their ``mean`` along ``axes`` (D, d), by the scale at which their spread is 1."""

    mean: Tensor
    axes: Tensor
    scale: float

    def of(self, maps: Tensor) -> Tensor:
        """(n, D) -> (n, d)."""
        return (maps - self.mean) @ self.axes / self.scale

    def move_into(self, linear: nn.Linear, trained: nn.Linear) -> None:
        """Make ``linear`` of the maps (·, D) what ``trained`` is of their components (·, d)."""
        with torch.no_grad():
            weight = trained.weight @ self.axes.T / self.scale
            linear.weight.copy_(weight)
            linear.bias.copy_(trained.bias - weight @ self.mean)


def _principal(
    encoder: ImageEncoder, bags: Bags, components: int, rng: np.random.Generator, device: torch.device
) -> Components:
    rows = bags.rows()
    chosen = np.sort(rng.permutation(len(rows))[:SAMPLE])
    loader = BagLoader(bags, device)
    with torch.no_grad():
        maps = torch.cat([encoder.maps(loader.read(rows[part])) for part in _parts(chosen)])  # (n, D)
        mean = maps.mean(dim=0)
        centred = (maps - mean).double()
        axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :components].to(maps)
        scale = float(((maps - mean) @ axes).square().mean().sqrt())
    return Components(mean, axes, scale or 1.0)


def _features(
    encoder: ImageEncoder, bags: Bags, components: Components, device: torch.device
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    rows, loader = bags.rows(), BagLoader(bags, device)
    features = np.empty((len(rows), components.axes.shape[1]), dtype=np.float32)
    with torch.no_grad():
        for part in _parts(np.arange(len(rows))):
            features[part] = components.of(encoder.maps(loader.read(rows[part]))).cpu().numpy()
    return features


def _parts(rows: IntArray) -> list[IntArray]:
    """Return the rows in order, some at a time, so that their maps take little memory."""
    return np.split(rows, np.arange(2048, len(rows), 2048))


def _draws(images: int, steps: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield which images each step sees: all of them in random order, again and again."""
    order = np.zeros(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < IMAGES:
            order = np.concatenate([order, rng.permutation(images)])
        yield order[:IMAGES]
        order = order[IMAGES:]
