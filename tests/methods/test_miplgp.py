"""MIPLGP against dense linear algebra, exact against inducing points, and as a method."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from mipl import load, make_classifier
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.methods import miplgp
from mipl.methods.base import StepContext
from mipl.methods.miplgp import MIPLGP
from mipl.nn import gp
from mipl.pseudo_labels import PseudoLabels

BAGS = gaussian_bags(bags=12, k=3, d=2, seed=7)
X = BAGS.instances.astype(float)
N, K = len(X), BAGS.k
LENGTH, SCALE, ADDED = 2.5, 3.0, np.array([0.1, 0.2, 0.3, 0.4])


def made(points=N, seed=0):
    """Return processes with fixed parameters at the first instances, and random weights (N, k+1)."""
    torch.manual_seed(seed)
    net = gp.InstanceGP(nn.Identity(), 2, K)
    net.points = torch.from_numpy(X[:points])
    net.weights = torch.rand(N, K + 1, dtype=torch.float64).softmax(dim=1)
    net.weights[::3, 1] = 0.0  # instances that share the largest noise
    net.kernel.base_kernel.lengthscale, net.kernel.outputscale = LENGTH, SCALE
    net.likelihood.noise = torch.from_numpy(ADDED)[:, None]
    with torch.no_grad():
        net.mean.constant.copy_(torch.randn(K + 1))
    return net


def matern(a, b):
    """The kernel, pair by pair."""
    out = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            r = math.sqrt(5 * ((x - y) ** 2).sum()) / LENGTH
            out[i, j] = SCALE * (1 + r + r * r / 3) * math.exp(-r)
    return out


def slow_targets(weights):
    """Targets and noise (k+1, N), without and with the learned noise."""
    alpha = 1e-4 + weights.numpy()
    noise = np.log(1 / alpha + 1)
    return (np.log(alpha) - noise / 2).T, noise.T, noise.T + ADDED[:, None]


def slow_posterior(at, covariance, across, targets, total, mean):
    """Mean and variance at some instances from a prior covariance of N instances, class by class."""
    means, variances = [], []
    for c in range(len(targets)):
        solve = np.linalg.inv(covariance + np.diag(total[c]))
        means.append(mean[c] + across @ solve @ (targets[c] - mean[c]))
        variances.append(SCALE - np.diag(across @ solve @ across.T))
    return np.array(means).T[at], np.array(variances).T[at]


def test_targets_and_noise_are_the_dirichlet_ones():
    weights = torch.tensor([[0.0, 1.0, 1 / 3, 0.5]], dtype=torch.float64)
    targets, noise = gp.dirichlet_targets(weights)
    np.testing.assert_allclose(targets, slow_targets(weights)[0], rtol=1e-12)
    np.testing.assert_allclose(noise, slow_targets(weights)[1], rtol=1e-12)
    assert float(noise[0]) == pytest.approx(math.log(10001))


def test_initial_weights_are_equal_over_the_candidates_and_the_negative_class():
    table = PseudoLabels(torch.tensor([[True, False, True], [False, True, False], [True, True, True]]))
    weights, candidates = miplgp.instance_weights(table.weights, table.candidates, torch.tensor([2, 1, 1]))
    third = [1 / 3, 0, 1 / 3, 1 / 3]
    np.testing.assert_allclose(weights, [third, third, [0, 0.5, 0, 0.5], [0.25] * 4], atol=1e-7)
    assert (candidates == (weights > 0)).all()


def test_exact_likelihood_and_posterior_are_the_dense_ones():
    net = made()
    targets, noise, total = slow_targets(net.weights)
    mean, covariance = net.means[:, 0].detach().numpy(), matern(X, X)
    with torch.no_grad():
        loss, fitted = gp.exact_likelihood(net, torch.from_numpy(targets), torch.from_numpy(noise))
        moments = net.moments(torch.from_numpy(X[:5] + 0.3))
    density = [
        multivariate_normal(np.full(N, mean[c]), covariance + np.diag(total[c])).logpdf(targets[c])
        for c in range(K + 1)
    ]
    assert float(loss) == pytest.approx(-np.mean(density) / N, rel=1e-8)
    wanted, _ = slow_posterior(slice(None), covariance, covariance, targets, total, mean)
    np.testing.assert_allclose(fitted, wanted, rtol=1e-7)
    wanted = slow_posterior(slice(None), covariance, matern(X[:5] + 0.3, X), targets, total, mean)
    for got, right in zip(moments, wanted, strict=True):
        np.testing.assert_allclose(got, right[:, :K], rtol=1e-6, atol=1e-9)  # no negative class


def test_inducing_points_give_the_dense_bound_and_posterior(monkeypatch):
    monkeypatch.setattr(gp, "JITTER", 1e-11)
    net = made(points=10)
    targets, noise, total = slow_targets(net.weights)
    mean = net.means[:, 0].detach().numpy()
    low = matern(X, X[:10]) @ np.linalg.solve(matern(X[:10], X[:10]), matern(X[:10], X))
    bound = 0.0
    for c in range(K + 1):
        bound += multivariate_normal(np.full(N, mean[c]), low + np.diag(total[c])).logpdf(targets[c])
        bound -= 0.5 * ((SCALE - np.diag(low)) / total[c]).sum()
    instances = torch.from_numpy(X)
    loss, fitted = miplgp.inducing_likelihood(
        net, instances, torch.from_numpy(targets), torch.from_numpy(noise)
    )
    assert float(loss.detach()) == pytest.approx(-bound / (N * (K + 1)), rel=1e-7)
    wanted, variances = slow_posterior(slice(None), low, low, targets, total, mean)
    np.testing.assert_allclose(fitted, wanted, rtol=1e-5)
    with torch.no_grad():
        MIPLGP().finish(net, BagLoader(BAGS))
        means, got = net.moments(instances)
    np.testing.assert_allclose(means, wanted[:, :K], rtol=1e-5)
    np.testing.assert_allclose(got, variances[:, :K], rtol=1e-4, atol=1e-7)


def test_inducing_points_at_all_instances_are_exact(monkeypatch):
    monkeypatch.setattr(gp, "JITTER", 1e-10)
    net = made()
    targets, noise = gp.dirichlet_targets(net.weights)
    loss, fitted = gp.exact_likelihood(net, targets, noise)
    bound, low = miplgp.inducing_likelihood(net, net.points, targets, noise)
    assert float(bound.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    np.testing.assert_allclose(low, fitted, rtol=1e-5)
    gradients = [torch.autograd.grad(value, list(net.parameters())) for value in (loss, bound)]
    for exact, approximate in zip(*gradients, strict=True):
        np.testing.assert_allclose(approximate, exact, rtol=1e-3, atol=1e-5)
    at = torch.from_numpy(X[:7] + 0.1)
    with torch.no_grad():
        exact = net.moments(at)
        factor = gp.cholesky_of_points(net)
        q = gp.optimal_inducing(net, gp.whiten(net, factor, net.points), targets, noise)
        net._posterior = gp.Posterior(*(part[:-1] for part in gp.inducing_posterior(q, factor)))
        for got, wanted in zip(net.moments(at), exact, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_new_weights_leave_every_bag_a_positive_instance():
    rng = np.random.default_rng(0)
    sizes = [3, 1, 4]
    sets = np.array([[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]], dtype=bool)
    output, candidates = rng.standard_normal((8, 4)), np.repeat(sets, sizes, axis=0)
    wanted, start = np.zeros((8, 4)), 0
    for size in sizes:
        rows = range(start, start + size)
        leads = [output[j, :3][candidates[j, :3]].max() - output[j, 3] for j in rows]
        for j in rows:
            allowed = candidates[j].copy()
            allowed[3] = leads[j - start] < max(leads)
            wanted[j, allowed] = np.exp(output[j, allowed]) / np.exp(output[j, allowed]).sum()
        start += size
    got = miplgp.disambiguate(torch.from_numpy(output), torch.from_numpy(candidates), torch.tensor(sizes))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_a_bag_is_predicted_as_its_strongest_instance():
    model = make_classifier("miplgp", epochs=2).fit(BAGS)
    net = model.network_
    assert net.draws.shape == (512, K)
    for bag in list(BAGS)[:3]:
        with torch.no_grad():
            means, variances = net.moments(net.features(torch.tensor(bag.instances)))
        best = np.zeros(1)
        for mean, variance in zip(means.numpy(), variances.numpy(), strict=True):
            gamma = np.exp(mean + np.sqrt(variance) * net.draws.numpy())  # (512, k), no negative class
            p = (gamma / gamma.sum(axis=1, keepdims=True)).mean(axis=0)
            best = p if p.max() > best.max() else best
        np.testing.assert_allclose(model.predict_proba([bag.instances])[0], best, rtol=1e-6)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_step_moves_the_weights_whatever_the_order_of_bags(shuffled):
    method, net, loader = MIPLGP(kept=0.25), made(), BagLoader(BAGS)
    table = PseudoLabels(torch.tensor(BAGS.candidates))
    before = net.weights.clone()
    targets, noise = gp.dirichlet_targets(before)
    with torch.no_grad():
        loss, fitted = gp.exact_likelihood(net, targets, noise)
    order = np.random.default_rng(0).permutation(len(BAGS)) if shuffled else np.arange(len(BAGS))
    losses = method.objective(net, loader.batch(order), table, StepContext(1, 5, 0.0, 1.0))
    np.testing.assert_allclose(losses.detach(), [float(loss)] * len(BAGS), rtol=1e-9)
    sizes = torch.tensor(BAGS.sizes)
    initial, candidates = miplgp.instance_weights(table.weights, table.candidates, sizes)
    wanted = 0.25 * initial + 0.75 * miplgp.disambiguate(fitted, candidates, sizes)
    np.testing.assert_allclose(net.weights, wanted, rtol=1e-7)


def test_released_follows_the_prior_means_and_predicts_from_the_initial_targets():
    """The released procedure, step by step with torch's own Adam and schedule."""
    epochs, sizes = 4, torch.tensor(BAGS.sizes)
    model = make_classifier("miplgp", recipe="paper", epochs=epochs, scale="none").fit(BAGS)
    table = PseudoLabels(torch.tensor(BAGS.candidates))
    initial, candidates = miplgp.instance_weights(table.weights, table.candidates, sizes)
    net = gp.InstanceGP(nn.Identity(), 2, K)
    net.points = torch.from_numpy(X)
    assert float(net.scale.detach()) == pytest.approx(math.log(2))  # gpytorch's own start
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, eps=1e-6)  # the library's; theirs is 1e-8
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    targets, noise = gp.dirichlet_targets(initial)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = -net.marginal(noise).log_prob(targets).mean() / N
        output = net.means.detach().T.exp() * candidates
        targets, _ = gp.dirichlet_targets(output / output.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(model.history_["loss"], losses, rtol=1e-5)
    for (name, got), wanted in zip(model.network_.named_parameters(), net.parameters(), strict=True):
        np.testing.assert_allclose(got.detach(), wanted.detach(), rtol=1e-4, err_msg=name)
    np.testing.assert_array_equal(model.network_.weights, initial)


def test_small_data_are_exact_and_others_have_inducing_points(monkeypatch):
    def points(**settings):
        return len(make_classifier("miplgp", epochs=1, **settings).fit(BAGS).network_.points)

    assert points() == points(inducing=None) == points(inducing=N + 1) == N
    assert points(inducing=7) == 7
    monkeypatch.setattr(miplgp, "MAX_EXACT", 20)
    monkeypatch.setattr(miplgp, "MIN_INDUCING", 9)
    assert points() == 9
    assert points(inducing=None) == N
    monkeypatch.setattr(miplgp, "device_memory", lambda device: 1000.0)
    with pytest.raises(SettingError, match=rf"over {N} instances and 4 classes .* GiB .*set inducing=auto"):
        points(inducing=None)
    assert points() == 9


def test_the_memory_of_an_exact_model_is_said_for_a_real_size():
    with pytest.raises(SettingError, match="would take about 37253 GiB of memory"):
        MIPLGP(inducing=None)._inducing_points(1_000_000, 1, torch.device("cpu"))


@pytest.mark.parametrize("recipe", ["stable", "paper"])
def test_inducing_points_learn_resume_and_are_kept(recipe, gaussian, tmp_path):
    class StopHereError(Exception):
        pass

    def stop(done, note=""):
        if done == 3:
            raise StopHereError

    def fresh():
        return make_classifier("miplgp", recipe=recipe, epochs=6, inducing=30)

    model = fresh().fit(gaussian)
    assert model.score(gaussian) > 0.9
    with pytest.raises(StopHereError):
        fresh().fit(gaussian, checkpoint=tmp_path, report=stop)
    resumed = fresh().fit(gaussian, checkpoint=tmp_path)
    state = model.network_.state_dict()
    assert all((state[name] == value).all() for name, value in resumed.network_.state_dict().items())
    assert resumed.history_["loss"] == model.history_["loss"]
    model.save(tmp_path / "model")
    together = load(tmp_path / "model").predict_proba(gaussian)
    assert (together == model.predict_proba(gaussian)).all()
    alone = np.concatenate([model.predict_proba([bag.instances]) for bag in gaussian])
    np.testing.assert_allclose(alone, together, atol=1e-8)


@pytest.mark.parametrize(
    "bags",
    [
        Bags.from_list([np.ones((1, 2))], [[0, 1]], classes=range(3)),  # one bag of one instance
        Bags.from_list([np.zeros((3, 2)), np.zeros((2, 2))], [[0], [0, 1]], classes=range(2)),  # all the same
    ],
)
@pytest.mark.parametrize("inducing", [None, 2])
@pytest.mark.filterwarnings("ignore:No bag has the candidate")
def test_hardly_any_data_are_enough(bags, inducing):
    p = make_classifier("miplgp", epochs=2, inducing=inducing).fit(bags).predict_proba(bags)
    assert np.isfinite(p).all()


def test_images_are_flattened(digits):
    bags = digits[::50]
    model = make_classifier("miplgp", epochs=1).fit(bags)
    assert model.network_.points.shape[1] == 64
    assert model.predict_proba(bags).shape == (5, 5)


def test_without_gpytorch_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(SettingError, match=r"^miplgp needs gpytorch: pip install 'mipl\[gp\]'\.$"):
        make_classifier("miplgp").fit(BAGS)


def test_recommended_settings_and_those_out_of_range():
    paper = MIPLGP.recommended("paper", "mnist-mipl", 1)
    assert (paper["epochs"], paper["lr"], paper["inducing"], paper["released"]) == (500, 0.1, None, True)
    assert "released" not in MIPLGP.recommended("stable", "mnist-mipl", 1)
    for bad in (0, -1, "many", 2.5, True):
        with pytest.raises(SettingError, match="must be an integer of at least 1, 'auto' or None"):
            MIPLGP(inducing=bad)
    with pytest.raises(SettingError, match=r"kept = 2 must be a number in \[0, 1\]"):
        MIPLGP(kept=2)
    with pytest.raises(SettingError, match="trains no encoder"):
        make_classifier("miplgp", encoder=nn.Linear(2, 3)).fit(BAGS)
    for partial in ({"batch_size": 4}, {"instance_dropout": 0.5}):
        with pytest.raises(SettingError, match="all instances in a step: batch_size none"):
            make_classifier("miplgp", epochs=1, **partial).fit(BAGS)
