"""Training on images: pretraining on the images alone, a warm-up on their features, then all layers.

Candidate sets that contain most classes carry too little information to train convolutions: networks then
memorise their training bags and merge classes. The convolutions therefore first learn from the images alone,
to tell each image from all others through random views of it (the contrastive loss of SimCLR; Chen et al.,
2020). They stay fixed during the warm-up, in which the method trains the layers above them, on the principal
components of their maps. Then all layers are trained on the images, half of a bag at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.candidates import IntArray
from mipl.nn.attention import MAM
from mipl.nn.encoders import FeatureEncoder, ImageEncoder
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for, seed_for
from mipl.training.checkpoint import History, last_epoch
from mipl.training.crossfit import initial_weights, of_member, train_members
from mipl.training.distributed import ProcessGroup, randomness
from mipl.training.optimizer import Optimizer
from mipl.training.progress import Report
from mipl.training.recipe import IMAGE_LR
from mipl.training.trainer import Training

IMAGES = 256  # per step, each seen twice
RATE = 1e-3
TEMPERATURE = 0.2
SAMPLE = 20_000  # images that principal components are computed from
DROPPED = 0.5  # proportion of a bag's images left out of a step: half the time, less overfitting
LATER = 0.48  # proportion of the epochs after the warm-up that are used on images, whose steps cost most
AVERAGED = 0.6  # proportion of the epochs on images, the last ones, whose weights are averaged (SWA)
SHARING = 2  # members that begin with one pretrained encoder: which classes it confuses is a matter of chance
LOWEST_TAU = 1.0  # of MAM on images: near 0 only one image of a bag is learned from


def has_images(net: nn.Module) -> bool:
    """Return whether a network encodes images by convolutions of ours."""
    return any(isinstance(part, ImageEncoder) for part in net.modules())


def train_on_images(training: Training, nets: Sequence[nn.Module], bags: Bags, seen: Tensor) -> list[History]:
    """Train networks with built-in image encoders in place; return their histories.

    Args:
        training: method, recipe, seed, device, checkpoint and report.
        nets: e networks of one shape.
        bags: m bags of images with candidate sets.
        seen: (e, m) 1 where a network learns from a bag.
    """
    recipe, method = training.recipe, training.method
    for part in (part for net in nets for part in net.modules() if isinstance(part, MAM)):
        part.keep_above(LOWEST_TAU)
    last = recipe.warmup_epochs
    released = method.trains_convolutions and last > 0
    if released:
        end = last + math.ceil(LATER * (recipe.epochs - last))
        recipe = dataclasses.replace(recipe, epochs=end, warmup=last / end)
        training = dataclasses.replace(training, recipe=recipe)
    else:
        last = recipe.epochs
    histories: list[History] = []
    tables: list[PseudoLabels] = []
    for number, first in enumerate(range(0, len(nets), SHARING)):
        some = slice(first, first + SHARING)
        found = _train_on_features(_of_group(training, number, len(nets)), nets[some], bags, seen[some], last)
        histories += found[0]
        tables += found[1]
    if not released:
        return histories
    half = dataclasses.replace(recipe, instance_dropout=DROPPED)
    averaged_from = recipe.epochs - math.ceil(AVERAGED * (recipe.epochs - last)) + 1
    for e, (net, table, history) in enumerate(zip(nets, tables, histories, strict=True)):
        own = bags[np.flatnonzero(seen[e].numpy())]
        images = dataclasses.replace(of_member(training, e, len(nets)), recipe=half)
        (later,) = images.run(
            [net], own, table, last + 1, recipe.epochs,
            prepare=False, lr=IMAGE_LR, guided=True, averaged_from=averaged_from,
        )  # fmt: skip
        for name, values in later.items():
            history.setdefault(name, []).extend(values)
    return histories


def _of_group(training: Training, number: int, members: int) -> Training:
    """Return the training of one group of members on features: with a seed and a checkpoint of its own."""
    folder = None if training.checkpoint is None else training.checkpoint / "features"
    if members <= SHARING:
        return dataclasses.replace(training, checkpoint=folder)
    return dataclasses.replace(
        training,
        seed=seed_for("encoder", training.seed, number) % 2**32,
        checkpoint=None if folder is None else folder / f"group-{number}",
    )


def _train_on_features(
    training: Training, nets: Sequence[nn.Module], bags: Bags, seen: Tensor, last: int
) -> tuple[list[History], list[PseudoLabels]]:
    """Pretrain one image encoder for some networks and train them on its features to epoch ``last``."""
    with on_features(training, nets, bags) as features:
        begun = training.checkpoint is not None and last_epoch(training.checkpoint) > 0
        initial = None  # in the checkpoint, or uniform without a warm-up
        if training.recipe.warmup_epochs and not begun:
            initial = initial_weights(training, features, seen, nets[0])
        return train_members(training, nets, features, seen, last, initial)


@contextlib.contextmanager
def on_features(training: Training, nets: Sequence[nn.Module], bags: Bags) -> Iterator[Bags]:
    """Pretrain the image encoder that the networks begin with, and yield bags of its features (d,).

    Inside, the networks take such features; afterwards they take images again, each with convolutions of its
    own. Nothing is stored between processes of a training or before and after an interruption: everything
    follows from the bags and the seed. Candidate sets are not read.
    """
    recipe, group = training.recipe, training.group
    encoders = [
        next((name, part) for name, part in net.named_modules() if isinstance(part, ImageEncoder))
        for net in nets
    ]
    first = encoders[0][1].to(group.device)
    rng = rng_for("images", training.seed)
    with randomness(group, "images", training.seed):
        contrast(first, bags, recipe.pretrain, rng, group, training.report)
        components = _principal(first, bags, recipe.components, rng, group.device)
        simple = [
            FeatureEncoder(components.axes.shape[1], first.linear.out_features, first.dropout.p) for _ in nets
        ]
    for net, (name, _), layers in zip(nets, encoders, simple, strict=True):
        net.set_submodule(name, layers.to(group.device))
    try:
        yield dataclasses.replace(
            bags,
            source=_features(first, bags, components, group.device),
            starts=bags.offsets[:-1],
            instance_labels=None,
            coordinates=None,
        )
    finally:
        for net, (name, encoder), layers in zip(nets, encoders, simple, strict=True):
            encoder.to(group.device).load_state_dict(first.state_dict())
            components.move_into(encoder.linear, layers[0])  # type: ignore[arg-type]
            net.set_submodule(name, encoder.train(net.training))


def contrast(
    encoder: ImageEncoder,
    bags: Bags,
    steps: int,
    rng: np.random.Generator,
    group: ProcessGroup,
    report: Report | None = None,
) -> None:
    """Train ``encoder`` in place to know two views of an image from those of others, without any label.

    The loss is the cross-entropy of an image's other view among all views of the step, by cosine similarity
    of a linear projection.
    """
    rows, loader = bags.rows(), BagLoader(bags, group.device)
    _normalise_layers(encoder, loader.read(rows[rng.permutation(len(rows))[:2048]]))
    encoder.train()
    width = encoder.linear.out_features
    projection = nn.Linear(width, max(2, width // 2)).to(group.device)
    layers = [*encoder.parameters(), *projection.parameters()]
    optimizer = Optimizer("adamw", [(1.0, layers)], weight_decay=0.01)
    for step, chosen in enumerate(_draws(len(rows), steps, rng)):
        images = loader.read(rows[chosen])
        views = torch.cat([random_views(images), random_views(images)])
        z = F.normalize(projection(encoder(views)), dim=1)  # (2n, ·)
        similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
        other = torch.arange(len(z), device=z.device).roll(len(images))
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(similarity, other))
        optimizer.step(RATE * 0.5 * (1.0 + math.cos(math.pi * step / steps)))
        if report and group.rank == 0:
            report(0, f"images, step {step + 1} of {steps}")
    with torch.no_grad():  # processes on different devices may differ in the last digits
        for parameter in encoder.parameters():
            parameter.mul_(group.rank == 0)
    group.add([parameter.data for parameter in encoder.parameters()])


def _normalise_layers(encoder: ImageEncoder, images: Tensor) -> None:
    """Scale and shift every layer so that its outputs have mean 0 and standard deviation 1 over ``images``.

    (The data-dependent initialisation of Salimans and Kingma, 2016.) Otherwise the first steps go into a few
    large directions that all images share.
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
        axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1).to(maps)
        axes = axes[:, :components] if components else axes
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
