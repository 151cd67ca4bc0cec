"""Gaussian processes over instances, one per class, with a shared kernel; exact or with inducing points."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mipl.errors import SettingError

EPSILON = 1e-4  # Dirichlet parameter of a class without weight
JITTER = 1e-6  # added to k(Z, Z), relative to its diagonal


def dirichlet_targets(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets log α − σ²/2 and noise σ² = log(1/α + 1), (C, n) each, for α = 1e-4 + weights (n, C)."""
    alpha = EPSILON + weights.T
    noise = torch.log1p(1 / alpha)
    return alpha.log() - noise / 2, noise


class Posterior(NamedTuple):
    """The posterior of class c at x: mean m_c + k(x, Z) a_c, variance s − k(x, Z) B_c k(Z, x)."""

    coefficients: Tensor  # (C, M) a
    reduction: Tensor  # (C, M, M) B


class InstanceGP(nn.Module):
    """C = k + 1 Gaussian processes: constant means, learned noise, a scaled Matérn-5/2 kernel, in double.

    The last class is the negative class, which is not predicted. Z are all training instances (exact), or
    inducing points. An exact model stores Z and the weights, from which a and B are computed; a model with
    inducing points stores Z, a and B.
    """

    SAMPLES, CHUNK = 512, 256
    SIZED = ("points", "weights", "coefficients", "reduction")  # buffers whose size depends on the data
    points: Tensor  # (M, d) Z
    weights: Tensor  # (N, C) of the training instances
    coefficients: Tensor  # (k, M) a
    reduction: Tensor  # (k, M, M) B
    draws: Tensor  # (S, k)

    def __init__(self, scaling: nn.Module, d: int, k: int) -> None:
        super().__init__()
        try:
            from gpytorch import kernels, likelihoods, means
        except ImportError as error:
            raise SettingError("miplgp needs gpytorch: pip install 'mipl[gp]'.") from error
        self.scaling = scaling
        classes = torch.Size((k + 1,))
        self.mean = means.ConstantMean(batch_shape=classes).double()
        self.kernel = kernels.ScaleKernel(kernels.MaternKernel(nu=2.5)).double()
        self.likelihood = likelihoods.GaussianLikelihood(batch_shape=classes).double()
        for name, shape in zip(self.SIZED, ((0, d), (0, k + 1), (k, 0), (k, 0, 0)), strict=True):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        # the same draws for every instance, so that a prediction does not depend on the other bags
        self.register_buffer("draws", torch.randn(self.SAMPLES, k, dtype=torch.float64))
        self._posterior: Posterior | None = None

    @property
    def means(self) -> Tensor:
        """The prior means m (C, 1)."""
        constant: Tensor = self.mean.constant
        return constant[:, None]

    @property
    def scale(self) -> Tensor:
        """The prior variance s ()."""
        scale: Tensor = self.kernel.outputscale
        return scale

    @property
    def exact(self) -> bool:
        """Whether Z are all training instances."""
        return len(self.points) == len(self.weights)

    def features(self, instances: Tensor) -> Tensor:
        """Return instances (n, …) scaled and flattened, (n, d)."""
        x: Tensor = self.scaling(instances)
        return x.flatten(1).double()

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel k(a, b) (n, m) of a (n, d) and b (m, d)."""
        values: Tensor = self.kernel(a, b).to_dense()
        return values

    def marginal(self, noise: Tensor) -> Any:
        """Return the marginal distribution of the targets at Z, given noise (C, M) and the learned one."""
        from gpytorch.distributions import MultivariateNormal

        covariance = self.covariance(self.points, self.points)
        added = torch.diag_embed(noise + self.likelihood.noise[: len(noise)])
        return MultivariateNormal(self.means[: len(noise)].expand_as(noise), covariance + added)

    def posterior(self) -> Posterior:
        """Return the posterior of the k classes, cached until the parameters change."""
        if not self.exact:
            return Posterior(self.coefficients, self.reduction)
        if self._posterior is None:
            targets, noise = (part[:-1] for part in dirichlet_targets(self.weights))
            factor = self.marginal(noise).scale_tril  # (k, M, M)
            residual = (targets - self.means[:-1])[:, :, None]
            solution = torch.cholesky_solve(residual, factor)[:, :, 0]
            self._posterior = Posterior(solution, torch.cholesky_inverse(factor))
        return self._posterior

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the posterior means and variances (n, k) at x (n, d)."""
        coefficients, reduction = self.posterior()
        across = self.covariance(x, self.points)  # (n, M)
        explained = ((across @ reduction) * across).sum(dim=2).T
        return self.means[:-1, 0] + across @ coefficients.T, (self.scale - explained).clamp(min=0.0)

    def forward(self, instances: Tensor) -> Tensor:
        """Return log-probabilities (n, k): the mean softmax of samples of the posterior."""
        parts = []
        for part in torch.split(instances, self.CHUNK):
            mean, variance = self.moments(self.features(part))
            samples = mean[:, None] + variance.sqrt()[:, None] * self.draws  # (n, S, k)
            parts.append(samples.log_softmax(dim=2).logsumexp(dim=1) - math.log(self.SAMPLES))
        return torch.cat(parts)

    def train(self, mode: bool = True) -> InstanceGP:
        """Set the training mode, and discard the cached posterior if parameters may change."""
        if mode:
            self._posterior = None
        return super().train(mode)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for name in self.SIZED:
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.points.device))
        self._posterior = None
        super()._load_from_state_dict(state_dict, prefix, *rest)


def exact_likelihood(net: InstanceGP, targets: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative log marginal likelihood and the posterior means of an exact model.

    Args:
        net: the processes.
        targets: (C, N) regression targets.
        noise: (C, N) variance of the targets.

    Returns:
        The loss (), averaged over instances and classes, and the posterior means (N, C).
    """
    from gpytorch.settings import fast_computations

    marginal = net.marginal(noise)
    with fast_computations(log_prob=False):  # Cholesky at any size, not conjugate gradients
        loss = -marginal.log_prob(targets).mean() / targets.shape[1]
    with torch.no_grad():
        residual = (targets - net.means)[:, :, None]
        solution = torch.cholesky_solve(residual, marginal.scale_tril)[:, :, 0]
        fitted = targets - (noise + net.likelihood.noise) * solution
    return loss, fitted.T


# gpytorch's variational strategies are not used: the noise is Gaussian, so that one pass over the instances
# gives the optimal q in closed form. They would need hundreds of steps, again after every change of weights.


class Inducing(NamedTuple):
    """The optimal q(v_c) = N(mean, covariance) of inducing values u = L v, and its bound."""

    mean: Tensor  # (C, M)
    covariance: Tensor  # (C, M, M)
    loss: Tensor  # () negative bound on the log marginal likelihood, averaged over instances and classes


def cholesky_of_points(net: InstanceGP) -> Tensor:
    """Return L (M, M) with L Lᵀ = k(Z, Z)."""
    jitter = JITTER * net.scale * torch.eye(len(net.points)).to(net.points)
    factor: Tensor = torch.linalg.cholesky(net.covariance(net.points, net.points) + jitter)
    return factor


def whiten(net: InstanceGP, factor: Tensor, instances: Tensor) -> Tensor:
    """Return A = L⁻¹ k(Z, x) (M, n) of instances (n, …)."""
    parts = [net.covariance(net.points, net.features(part)) for part in torch.split(instances, 4096)]
    a: Tensor = torch.linalg.solve_triangular(factor, torch.cat(parts, dim=1), upper=False)
    return a


def optimal_inducing(net: InstanceGP, a: Tensor, targets: Tensor, noise: Tensor) -> Inducing:
    """Return the optimal q for all instances: a (M, N), targets and noise (C, N).

    q has precision I + A Σ⁻¹ Aᵀ for each class. Most classes are not candidates of an instance and have the
    same, largest noise there: these terms are computed once, as a product that all classes share.
    """
    total = noise + net.likelihood.noise
    residual = targets - net.means
    shift = (residual / total) @ a.T  # (C, M)
    shared = a @ a.T
    precision = []
    for own in total:
        common = own.max()
        (others,) = torch.where(own < common)
        part = a[:, others]
        precision.append(shared / common + (part * (1 / own[others] - 1 / common)) @ part.T)
    root = torch.linalg.cholesky(torch.stack(precision) + torch.eye(len(a)).to(a))  # (C, M, M)
    mean = torch.cholesky_solve(shift[:, :, None], root)[:, :, 0]
    unexplained = (net.scale - a.square().sum(dim=0)).clamp(min=0.0)  # (N,) variance
    bound = ((2 * math.pi * total).log() + (residual.square() + unexplained) / total).sum()
    bound = bound + 2 * root.diagonal(dim1=1, dim2=2).log().sum() - (shift * mean).sum()
    return Inducing(mean, torch.cholesky_inverse(root), 0.5 * bound / targets.numel())


def expected_loss(net: InstanceGP, q: Inducing, a: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
    """Return −E_q log p(targets) (), averaged: a (M, n), targets and noise (C, n).

    At the optimal q this has the same gradient as the bound, whose other term does not depend on the kernel.
    """
    total = noise + net.likelihood.noise
    mean = net.means + q.mean @ a
    variance = net.scale - a.square().sum(dim=0) + ((q.covariance @ a) * a).sum(dim=1)
    loss: Tensor = ((2 * math.pi * total).log() + ((targets - mean).square() + variance) / total).mean()
    return 0.5 * loss


def inducing_posterior(q: Inducing, factor: Tensor) -> Posterior:
    """Return the posterior that q and L (M, M) define: a (C, M) and B (C, M, M)."""
    inverse = torch.linalg.inv(factor).T  # L⁻ᵀ: from v to coefficients of k(x, Z)
    identity = torch.eye(len(inverse)).to(inverse)
    return Posterior(q.mean @ inverse.T, inverse @ (identity - q.covariance) @ inverse.T)
