import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mipl import make_classifier
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.methods import METHODS, StepContext
from mipl.methods.agopmipl import MetricScore, class_prototypes, gradient_outer_product
from mipl.nn.heads import make_head
from mipl.pseudo_labels import PseudoLabels


def metric_score(width=6, k=3, seed=0):
    """Return a score in double precision with random prototypes and a random metric."""
    torch.manual_seed(seed)
    score = MetricScore(width, k).double()
    score.prototypes.copy_(torch.randn(k, width))
    factor = torch.randn(width, 2, dtype=torch.float64)
    score.update_metric(factor @ factor.T, momentum=0.3)
    return score


@pytest.mark.parametrize("kind", ["linear", "sigmoid"])
def test_the_outer_product_is_that_of_the_gradients(kind):
    torch.manual_seed(0)
    head, z = make_head(kind, 5, 3).double(), torch.randn(7, 5, dtype=torch.float64)
    G = np.zeros((5, 5))
    for row in z:
        gradients = torch.autograd.functional.jacobian(lambda x: head(x[None]).softmax(dim=1)[0], row).numpy()
        G += sum(np.outer(g, g) for g in gradients) / len(z)
    np.testing.assert_allclose(gradient_outer_product(head, z).detach(), G, atol=1e-14)


def test_the_metric_is_an_average_and_its_root_is_its_root():
    score, before = MetricScore(4, 2).double(), torch.eye(4, dtype=torch.float64)
    factor = torch.tensor([[1.0], [2.0], [0.0], [-1.0]], dtype=torch.float64)
    G = factor @ factor.T
    for _ in range(3):
        score.update_metric(1e-6 * G, momentum=0.75)  # its size does not matter
        before = 0.75 * before + 0.25 * G * 4 / 6
        torch.testing.assert_close(score.metric, before)
        torch.testing.assert_close(score.root @ score.root, score.metric)
        torch.testing.assert_close(score.root, score.root.T)
        assert float(score.metric.trace()) == pytest.approx(4.0)
    for nothing in (torch.zeros(4, 4), torch.full((4, 4), torch.nan), torch.full((4, 4), torch.inf)):
        score.update_metric(nothing.double(), momentum=0.75)
        torch.testing.assert_close(score.metric, before)


def test_the_score_is_the_raw_one_plus_that_of_the_transformed_feature():
    score, h = metric_score(), torch.randn(5, 6, dtype=torch.float64)
    C, root, x = score.prototypes.numpy(), score.root.numpy(), h.numpy()
    with torch.no_grad():
        first, second = score.gates(h).chunk(2, dim=1)
        wanted = score.score(first.tanh() * second.sigmoid()).squeeze(1).numpy()  # ξ, Eq. 7
        cosines = np.zeros((5, 3))
        for j in range(5):
            for c in range(3):
                a, b = root @ (x[j] - C.mean(axis=0)), root @ (C[c] - C.mean(axis=0))
                cosines[j, c] = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        wanted += score.likeness(torch.tensor(cosines)).squeeze(1).numpy()
        np.testing.assert_allclose(score(h), wanted, rtol=1e-10)


def test_an_instance_at_the_prototypes_centre_has_a_finite_gradient():
    score = metric_score()
    h = score.prototypes.mean(dim=0, keepdim=True).requires_grad_()
    score(h).sum().backward()
    assert h.grad.isfinite().all()
    assert h.grad.norm() < 1e4


def slow_prototypes(z, candidates, weights):
    m, k = candidates.shape
    centres = [
        sum(weights[i, c] * z[i] for i in range(m)) / max(weights[:, c].sum(), 1e-12) for c in range(k)
    ]
    before = None
    for _ in range(10):
        nearest = [
            min(np.flatnonzero(candidates[i]), key=lambda c: np.linalg.norm(z[i] - centres[c]))
            for i in range(m)
        ]
        if nearest == before:
            break
        before = nearest
        for c in range(k):
            members = [z[i] for i in range(m) if nearest[i] == c]
            if members:
                centres[c] = np.mean(members, axis=0)
    return np.array(centres)


def test_prototypes_are_those_of_a_slow_k_means():
    rng = np.random.default_rng(0)
    candidates = rng.random((40, 5)) < 0.4
    candidates[np.arange(40), rng.integers(0, 4, 40)] = True
    candidates[:, 4] = False  # a class that no bag has
    weights = candidates / candidates.sum(axis=1, keepdims=True)
    z = rng.standard_normal((40, 3))
    found = class_prototypes(*(torch.tensor(array) for array in (z, candidates, weights)))
    np.testing.assert_allclose(found, slow_prototypes(z, candidates, weights), atol=1e-8)


def test_k_means_finds_the_classes_of_separated_bags():
    rng = np.random.default_rng(1)
    labels = np.arange(60) % 3
    centres = 10.0 * np.eye(3)
    candidates = rng.random((60, 3)) < 0.4
    candidates[np.arange(60), labels] = True
    z = centres[labels] + 0.1 * rng.standard_normal((60, 3))
    weights = candidates / candidates.sum(axis=1, keepdims=True)
    found = class_prototypes(*(torch.tensor(array) for array in (z, candidates, weights)))
    np.testing.assert_allclose(found, centres, atol=0.2)


def prepared(bags, **settings):
    method = METHODS["agopmipl"].make(width=8, **settings)
    torch.manual_seed(0)
    net, loader = method.build(bags.feature_shape, bags.k), BagLoader(bags)
    table = PseudoLabels(torch.tensor(bags.candidates))
    method.prepare(net, loader, table, 0)
    return method, net, loader, table


def test_the_loss_is_the_disambiguation_loss_with_weights_moved_first():
    bags = gaussian_bags(bags=9, sizes=(1, 4))
    method, net, loader, table = prepared(bags)
    batch = loader.batch(np.arange(9))
    losses = method.objective(net, batch, table, StepContext(3, 10, alpha=0.7, gamma=1.0)).detach().numpy()
    p = method.log_proba(net, batch).exp().detach().numpy().astype(np.float64)
    for i, S in enumerate(bags.candidates):
        w = 0.7 * S / S.sum() + 0.3 * np.where(S, p[i], 0) / p[i][S].sum()
        assert losses[i] == pytest.approx(-sum(w[c] * np.log(p[i, c]) for c in np.flatnonzero(S)), rel=1e-5)
    assert (table.memory["z"].norm(dim=1) > 0).all()


def test_rounds_move_prototypes_and_metric_but_not_after_the_last_epoch():
    bags = gaussian_bags(bags=12)
    method, net, loader, table = prepared(bags, round_epochs=2)
    assert net.score.prototypes.abs().sum() > 0
    context, moved = StepContext(1, 6, alpha=1.0, gamma=1.0), []
    for epoch in range(1, 7):
        net.score.prototypes.zero_()
        before = net.score.metric.clone()
        for batch in loader.in_order():
            method.objective(net, batch, table, context)
        method.on_epoch_end(net, table, dataclasses.replace(context, epoch=epoch))
        assert table.memory == {}  # no features of bags in a checkpoint
        changed = bool(net.score.prototypes.abs().sum() > 0)
        assert changed == (not torch.equal(before, net.score.metric))
        moved.append(changed)
    assert moved == [False, True, False, True, False, False]


def test_metric_and_prototypes_are_kept_with_the_model(tmp_path):
    bags = gaussian_bags(bags=20)
    model = make_classifier("agopmipl", epochs=3, width=8).fit(bags, checkpoint=tmp_path / "run")
    model.save(tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    (path,) = (tmp_path / "run").rglob("checkpoint.safetensors")
    checkpoint = load_file(path)
    for name in ("prototypes", "metric", "root"):
        assert torch.equal(stored[f"score.{name}"], getattr(model.network_.score, name))
        assert f"net.score.{name}" in checkpoint
    assert not torch.equal(stored["score.metric"], torch.eye(8))
    assert [len(weights) for weights in model.attention_weights(bags)] == bags.sizes.tolist()


@pytest.mark.parametrize("settings", [{"recipe": "paper"}, {"head": "sigmoid"}, {"attention": "mam"}])
def test_other_recipes_heads_and_attentions_stay_finite(settings):
    bags = gaussian_bags(bags=30, sizes=(1, 6))
    model = make_classifier("agopmipl", epochs=4, width=16, momentum=0.0, **settings).fit(bags)
    assert np.isfinite(model.predict_proba(bags)).all()


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"momentum": -0.1}, {"round_epochs": 0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(SettingError, match=r"^(momentum|round_epochs) = .* must be"):
        METHODS["agopmipl"].make(**settings)


def test_it_says_what_it_is():
    cls = METHODS["agopmipl"].cls
    assert cls.summary.startswith("Experimental: built from a description")
    assert cls.recommended("paper", "c-kmeans", None)["width"] == 512
    assert cls.recommended("paper", "mnist-mipl", 1)["width"] == 128
