"""FastMIPL against a slow computation, and alone against among others."""

import numpy as np
import pytest
import torch

from mipl import make_classifier
from mipl.data.batch import BagBatch
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.methods.base import StepContext
from mipl.methods.fastmipl import FastMIPL, softmax_regression
from mipl.pseudo_labels import PseudoLabels


def made(k=3, d=4, sizes=(3, 1, 5, 2), seed=0):
    """Return a method, its network in evaluation mode and double precision, a batch and its table."""
    torch.manual_seed(seed)
    method = FastMIPL(samples=2, layers="6")
    net = method.build((d,), k).double().eval()
    with torch.no_grad():
        for parameter in (net.mean, net.fixed, net.log_prior):
            parameter.copy_(torch.randn_like(parameter))
    candidates = torch.rand(len(sizes), k) < 0.5
    candidates[torch.arange(len(sizes)), torch.randint(k, (len(sizes),))] = True
    batch = BagBatch(
        torch.randn(sum(sizes), d, dtype=torch.float64),
        torch.tensor(sizes),
        torch.arange(len(sizes)),
        candidates,
    )
    table = PseudoLabels(candidates)
    table.weights = table.weights.double()
    return method, net, batch, table


def slow_objective(h, sizes, beta, alpha, weights, divergence):
    """The formulas of the method, sample by sample, class by class, bag by bag."""
    samples, k, double = beta.shape
    width, m = double // 2, len(sizes)
    bags = np.split(h, np.cumsum(sizes)[:-1])
    loss, softmaxes = np.zeros(m), np.zeros((m, k))
    for s in range(samples):
        logits = np.zeros((m, k))
        for c in range(k):
            beta_u, beta_z = beta[s, c, :width], beta[s, c, width:]
            rms = np.sqrt((beta_z**2).mean())
            effect = np.zeros(m)
            for i, x in enumerate(bags):
                score = np.exp(x @ beta_u - (x @ beta_u).max())
                effect[i] = (score / score.sum()) @ (x @ (beta_z / rms))
            logits[:, c] = rms * (effect - effect.mean()) / effect.std() + alpha[c]
        loss -= (weights * logits).sum(axis=1)
        softmaxes += np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return loss + divergence.sum() / m, softmaxes / samples


def test_the_objective_is_the_slow_one():
    method, net, batch, table = made()
    beta = torch.randn(2, 3, 12, dtype=torch.float64)
    net.sample = lambda samples: beta
    before = table.weights.clone()
    got = method.objective(net, batch, table, StepContext(3, 10, 0.7, 1.0, 0.8))
    with torch.no_grad():
        h = net.encode(batch.instances).numpy()
        divergence = net.divergence().numpy()
    wanted, softmax = slow_objective(
        h, batch.sizes.tolist(), beta.numpy(), net.fixed.detach().numpy(), before.numpy(), divergence
    )
    np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-5)
    inside = softmax * batch.candidates.numpy()
    moved = 0.8 * before.numpy() + 0.2 * inside / inside.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(table.weights.numpy(), moved, rtol=1e-5)


def test_the_divergence_is_that_of_full_covariances():
    _, net, _, _ = made(seed=1)
    got = net.divergence().detach()
    for c in range(3):
        V, d = net.factor[c], net.log_deviation[c].exp()
        posterior = torch.distributions.MultivariateNormal(net.mean[c], torch.diag(d**2) + V @ V.T)
        sigma = net.log_prior[c].exp().repeat_interleave(net.width)
        prior = torch.distributions.MultivariateNormal(torch.zeros_like(sigma), torch.diag(sigma**2))
        wanted = torch.distributions.kl_divergence(posterior, prior)
        np.testing.assert_allclose(float(got[c]), float(wanted.detach()), rtol=1e-8)


def test_samples_have_the_covariance_they_should():
    _, net, _, _ = made(seed=2)
    with torch.no_grad():
        drawn = net.sample(40_000)[:, 0]
        wanted = torch.diag((2 * net.log_deviation[0]).exp()) + net.factor[0] @ net.factor[0].T
    np.testing.assert_allclose(torch.cov(drawn.T).numpy(), wanted.numpy(), atol=0.05 * float(wanted.max()))


def test_softmax_regression_is_sklearns():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 4)), rng.integers(3, size=60)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x, y)
    coefficients, intercept = softmax_regression(torch.tensor(x), torch.eye(3, dtype=torch.float64)[y])
    logits = x @ coefficients.numpy().T + intercept.numpy()
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, reference.predict_proba(x), atol=1e-3)


def test_a_bag_alone_is_predicted_as_among_others():
    bags = gaussian_bags(bags=40, seed=3)
    model = make_classifier("fastmipl", epochs=5).fit(bags)
    together = model.predict_proba(bags)
    alone = np.concatenate([model.predict_proba([bag.instances]) for bag in bags])
    np.testing.assert_allclose(alone, together, atol=1e-6)


@pytest.mark.parametrize(
    ("dataset", "r", "wanted"),
    [
        ("mnist-mipl", 3, (200, 5e-4, 50, "256-128")),
        ("birdsong-mipl", 2, (500, 2e-3, 20, "512-256")),
        ("sival-mipl", 1, (500, 2e-3, 30, "512-1024-256")),
        ("c-sift", None, (500, 1e-3, 10, "1024-512-64")),
    ],
)
def test_the_published_settings(dataset, r, wanted):
    given = FastMIPL.recommended("paper", dataset, r)
    assert (given["epochs"], given["lr"], given["samples"], given["layers"]) == wanted
    assert given["batch_size"] is None


@pytest.mark.parametrize("bad", [{"samples": 0}, {"rank": 0}, {"dropout": 1.0}, {"layers": "12-"}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(SettingError):
        FastMIPL(**bad)
