"""FastMIPL: a mixed-effects model of bags, fitted to the whole training set in one batch."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import torch
from torch import Tensor, nn

from mipl.data.batch import BagBatch, BagLoader
from mipl.errors import SettingError
from mipl.methods.base import METHODS, Method, StepContext
from mipl.nn.encoders import FeatureEncoder, Standardize, make_encoder, output_width
from mipl.nn.segments import segment_ids, segment_sum
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

# data set -> the authors' epochs, lr and samples at r = 1, 2, 3
PUBLISHED = {
    "mnist-mipl": (200, (5e-4, 5e-4, 5e-4), (40, 30, 50)),
    "fmnist-mipl": (200, (5e-4, 5e-4, 5e-4), (30, 40, 20)),
    "birdsong-mipl": (500, (1e-3, 2e-3, 5e-3), (10, 20, 30)),
    "sival-mipl": (500, (2e-3, 5e-3, 5e-3), (30, 20, 30)),
}
OTHERWISE = (500, (1e-3, 1e-3, 1e-3), (10, 10, 10))  # CRC; for other data sets our choice
LAYERS = {
    "mnist-mipl": "256-128",
    "fmnist-mipl": "256-128",
    "sival-mipl": "512-1024-256",
    "c-sift": "1024-512-64",
}
EPS = 1e-8


class MixedEffects(nn.Module):
    """Encoder, and for each class a Gaussian over (β_u, β_z) in R^2L with covariance diag(d²) + V Vᵀ.

    β_u defines the attention over the instances of a bag, β_z their effects on the class.
    """

    START = 0.01  # initial d: our choice, small enough not to hide the initial β_z
    shift: Tensor
    scale: Tensor

    def __init__(self, scaling: nn.Module, encoder: nn.Module, width: int, k: int, rank: int) -> None:
        super().__init__()
        self.scaling = scaling
        self.encoder = encoder
        self.width = width
        self.mean = nn.Parameter(torch.zeros(k, 2 * width))
        self.log_deviation = nn.Parameter(torch.full((k, 2 * width), self.START).log())  # log d
        self.factor = nn.Parameter(self.START / rank**0.5 * torch.randn(k, 2 * width, rank))  # V
        self.log_prior = nn.Parameter(torch.zeros(k, 2))  # log σ_u, log σ_z
        self.fixed = nn.Parameter(torch.zeros(k))  # α
        # mean and standard deviation of the effects of the training bags, for prediction
        self.register_buffer("shift", torch.zeros(k))
        self.register_buffer("scale", torch.ones(k))

    def encode(self, instances: Tensor) -> Tensor:
        """Return instance features (N, L) of instances (N, …)."""
        features: Tensor = self.encoder(self.scaling(instances))
        return features

    def sample(self, samples: int) -> Tensor:
        """Return draws of (β_u, β_z) from the posterior, (S, k, 2L)."""
        k, coefficients, rank = self.factor.shape
        own = torch.randn(samples, k, coefficients).to(self.mean)
        common = torch.randn(samples, k, rank).to(self.mean)
        return self.mean + own * self.log_deviation.exp() + torch.einsum("klr,skr->skl", self.factor, common)

    def effects(self, h: Tensor, sizes: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the effects of bags (b, S, k), before standardisation, and rms(β_z) (S, k).

        The effect of a bag is the sum of x·β_z/rms(β_z) over its instances, weighted by the softmax of x·β_u
        within the bag.

        Args:
            h: (N, L) instance features x.
            sizes: (b,) bag sizes.
            beta: (S, k, 2L) coefficients.
        """
        scores, values, rms = self.terms(h, beta)
        effects = self.attended(scores, values, sizes)
        return effects.view(-1, *beta.shape[:2]), rms.view(beta.shape[:2])

    def terms(self, h: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores x·β_u and values x·β_z/rms(β_z) of instances, (N, S·k), and rms(β_z) (S·k, 1)."""
        beta_u, beta_z = torch.split(beta.flatten(0, 1), self.width, dim=1)  # (Sk, L) each
        rms = beta_z.square().mean(dim=1, keepdim=True).add(EPS).sqrt()  # (Sk, 1)
        return h @ beta_u.T, h @ (beta_z / rms).T, rms

    def attended(self, scores: Tensor, values: Tensor, sizes: Tensor) -> Tensor:
        """Return the sums of values within bags, weighted by the softmax of the scores: (b, S·k)."""
        top = torch.segment_reduce(scores.detach(), "max", lengths=sizes, axis=0)  # (b, Sk)
        segments = segment_ids(sizes)
        weights = (scores - top[segments]).exp()  # not yet normalised
        effects = segment_sum(weights * values, segments, len(sizes))
        return effects / segment_sum(weights, segments, len(sizes))

    def divergence(self) -> Tensor:
        """Return KL(posterior ‖ N(0, diag(σ_u², σ_z²))) of each class (k,)."""
        prior = (2 * self.log_prior).exp().repeat_interleave(self.width, dim=1)  # (k, 2L)
        own = (2 * self.log_deviation).exp()
        inner = self.factor.mT @ (self.factor / own[:, :, None])  # (k, rank, rank)
        one = torch.eye(inner.shape[1]).to(inner)
        log_det = own.log().sum(dim=1) + (one + inner).logdet()  # of D + V Vᵀ: log|D| + log|I + Vᵀ D⁻¹ V|
        squares = own + self.factor.square().sum(dim=2) + self.mean.square()
        return 0.5 * ((squares / prior - 1 + prior.log()).sum(dim=1) - log_det)


@dataclasses.dataclass(frozen=True)
class FastMIPL(Method[MixedEffects]):
    """Random effects of instances, a fixed effect of the class, and a sampled variational posterior."""

    summary = (
        "For each class a bag has a random effect, the attention-weighted sum of the effects of its "
        "instances, standardised over the training set, and a fixed effect. Their coefficients have a "
        "Gaussian posterior with low-rank covariance, which is sampled in every step, for all bags at once; "
        "the weights on the candidates follow the mean prediction of the samples. Prediction uses the "
        "posterior mean."
    )
    citation = (
        "Yin-Fang Yang, Wei Tang, Min-Ling Zhang: Fast Multi-Instance Partial-Label Learning. AAAI 2025."
    )
    advice = (
        "For many small bags of good features, and as a baseline. Its loss is not normalised, so that "
        "confidence grows with the number of epochs: check the calibration."
    )
    cost = (
        "One step per epoch, with the whole training set in memory: the activations of the encoder, and "
        "samples × classes × 2 numbers per instance (Birdsong-MIPL: below 1 GB)."
    )

    samples: int = setting(10, "S, draws from the posterior per step", within="[1, inf)")
    layers: str = setting("128", "widths of the linear layers of the encoder, for example 512-256")
    dropout: float = setting(0.5, "dropout rate after each layer", within="[0, 1)")
    rank: int = setting(
        5, "rank of V in the posterior covariance; not published, our choice", within="[1, inf)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", self.layers):
            raise SettingError(f"layers = {self.layers!r} must be widths such as 128 or 512-256.")

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return full batches, and the authors' values under ``paper``.

        Under ``stable`` a narrower encoder and a higher learning rate need only 100 epochs. The optimiser for
        the authors' learning rates is our choice: they are too small for SGD.
        """
        whole = {
            "batch_size": None,
            "clip_norm": None,
            "instance_dropout": 0.0,
            "warmup": 0.0,
            "background": 0.0,
        }
        if recipe != "paper":
            return {**whole, "lr": 0.03, "weight_decay": 0.0}
        epochs, lr, samples = PUBLISHED.get(dataset, OTHERWISE)
        i = min(max(r or 1, 1), 3) - 1
        layers = LAYERS.get(dataset, "512-256")
        return {
            **whole,
            "optimizer": "adamw",
            "epochs": epochs,
            "lr": lr[i],
            "samples": samples[i],
            "layers": layers,
        }

    def build(self, feature_shape: tuple[int, ...], k: int, encoder: nn.Module | None = None) -> MixedEffects:
        """Return a network of scaling, encoder and posterior."""
        if encoder is None:
            widths = [int(width) for width in str(self.layers).split("-")]
            first = make_encoder(feature_shape, widths[0], self.dropout)
            others = [FeatureEncoder(a, b, self.dropout) for a, b in itertools.pairwise(widths)]
            encoder = nn.Sequential(first, *others)
        scaling = Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity()
        return self.network(scaling, encoder, output_width(encoder, feature_shape), k)

    def network(self, scaling: nn.Module, encoder: nn.Module, width: int, k: int) -> MixedEffects:
        """Return the network for instance features of a width."""
        return MixedEffects(scaling, encoder, width, k, self.rank)

    def prepare(self, net: MixedEffects, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Initialise with a softmax regression on the mean-pooled bags, so that its logits are predicted.

        Its coefficients are scaled so that rms(β_z) is the standard deviation of its logits, which is the
        meaning of rms(β_z) in this model.
        """
        net.eval()
        with torch.no_grad():
            pooled = torch.cat([mean_pooled(net, batch) for batch in loader.in_order()])  # (m, L)
            centred = pooled - pooled.mean(dim=0)
        coefficients, intercept = softmax_regression(centred, table.weights)
        with torch.no_grad():
            std = (centred @ coefficients.T).std(dim=0, correction=0)  # (k,)
            rms = coefficients.square().mean(dim=1).add(EPS).sqrt()
            net.mean[:, net.width :] = coefficients * (std / rms)[:, None]
            net.fixed.copy_(intercept)

    def objective(
        self, net: MixedEffects, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return Σ_samples Σ_S −w·logit + KL/m of each bag (b,), and update w by Eq. 15.

        The effects are standardised over the batch, which must contain all bags.
        """
        effects, rms = net.effects(net.encode(batch.instances), batch.sizes, net.sample(self.samples))
        centred = effects - effects.mean(dim=0)
        std = centred.square().mean(dim=0).add(EPS).sqrt()
        logits = rms * centred / std + net.fixed  # (b, S, k)
        weights = table.weights[batch.index]
        mean_prediction = logits.log_softmax(dim=2).logsumexp(dim=1)  # its logarithm, up to a constant
        table.update(batch.index, mean_prediction, context.alpha_after)
        fit = -(weights[:, None] * logits).sum(dim=(1, 2))
        return fit + net.divergence().sum() / len(table.weights)

    def finish(self, net: MixedEffects, loader: BagLoader) -> None:
        """Store the mean and standard deviation of the effects of the training bags at the posterior mean."""
        effects = torch.cat([mean_effects(net, batch)[0] for batch in loader.in_order()])  # (m, k)
        net.shift.copy_(effects.mean(dim=0))
        net.scale.copy_(effects.var(dim=0, correction=0).add(EPS).sqrt())

    def log_proba(self, net: MixedEffects, batch: BagBatch) -> Tensor:
        """Return log-probabilities (b, k) at the posterior mean."""
        effects, rms = mean_effects(net, batch)
        return (rms * (effects - net.shift) / net.scale + net.fixed).log_softmax(dim=1)


def mean_effects(net: MixedEffects, batch: BagBatch) -> tuple[Tensor, Tensor]:
    """Return the effects of bags (b, k) and rms(β_z) (k,) at the posterior mean."""
    effects, rms = net.effects(net.encode(batch.instances), batch.sizes, net.mean[None])
    return effects[:, 0], rms[0]


def mean_pooled(net: MixedEffects, batch: BagBatch) -> Tensor:
    """Return the mean of the instance features of each bag (b, L)."""
    total = segment_sum(net.encode(batch.instances), segment_ids(batch.sizes), len(batch.sizes))
    return total / batch.sizes[:, None]


def softmax_regression(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return coefficients (k, L) and intercepts (k,) of a softmax regression of targets (m, k) on x (m, L).

    The loss is the mean cross-entropy plus the squared coefficients / 2m: a standard normal prior.
    """
    inputs, targets_double = x.double(), targets.double()
    coefficients = inputs.new_zeros(targets_double.shape[1], inputs.shape[1]).requires_grad_()
    intercept = inputs.new_zeros(targets_double.shape[1]).requires_grad_()
    optimizer = torch.optim.LBFGS([coefficients, intercept], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_p = (inputs @ coefficients.T + intercept).log_softmax(dim=1)
        value = -(targets_double * log_p).sum(dim=1).mean() + coefficients.square().sum() / (2 * len(inputs))
        torch.autograd.backward(value)
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return coefficients.detach().to(x), intercept.detach().to(x)


METHODS.register("fastmipl", FastMIPL)
