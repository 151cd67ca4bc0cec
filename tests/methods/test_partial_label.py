import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mipl import load, make_classifier
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.methods import METHODS, StepContext
from mipl.nn.pooled import pool
from mipl.pseudo_labels import PseudoLabels

NAMES = ("proden", "lws", "pop", "pop-cc", "pop-cn")
CONTEXT = StepContext(epoch=3, epochs=10, alpha=0.7, gamma=1.0)
WARM = dataclasses.replace(CONTEXT, gamma=0.0)


def odd_bags(k=4, seed=0):
    """Return bags of 1 to 6 instances, the first with one candidate, the second with every label."""
    rng = np.random.default_rng(seed)
    candidates = rng.random((7, k)) < 0.5
    candidates[np.arange(7), rng.integers(0, k, 7)] = True
    candidates[0], candidates[1] = np.arange(k) == 2, True
    arrays = [rng.standard_normal((n, 3)) for n in (4, 1, 6, 2, 1, 3, 5)]
    return Bags.from_list(arrays, candidates, classes=range(k))


def setup(name, bags, seed=0, **settings):
    """Return a method, its network in double precision, a batch of all bags and a random table."""
    method = METHODS[name].make(width=8, **settings)
    torch.manual_seed(seed)
    net = method.build(bags.feature_shape, bags.k).double().eval()
    loader = BagLoader(bags)
    table = PseudoLabels(torch.tensor(bags.candidates))
    draw = torch.rand(table.candidates.shape, dtype=torch.float64).masked_fill(~table.candidates, 0.0)
    table.weights = draw / draw.sum(dim=1, keepdim=True)
    method.prepare(net, loader, table, seed)
    batch = loader.batch(np.arange(len(bags)))
    return method, net, dataclasses.replace(batch, instances=batch.instances.double()), table


def numpy_pool(bags, pooling):
    flat = [bag.instances.astype(np.float32).astype(np.float64).reshape(len(bag), -1) for bag in bags]
    if pooling == "mean":
        return np.array([x.mean(axis=0) for x in flat])
    return np.array([np.concatenate([x.max(axis=0), x.min(axis=0)]) for x in flat])


def numpy_scores(net, bags, pooling):
    """Return the network's output by hand: linear, ReLU, linear (no dropout, no scaling of instances)."""
    hidden, head = net.encoder[0], net.head
    vectors = numpy_pool(bags, pooling)
    if pooling == "maxmin":
        vectors = (vectors - net.pooled_scaling.mean.numpy()) / net.pooled_scaling.std.numpy()
    x = vectors @ hidden.weight.detach().numpy().T + hidden.bias.detach().numpy()
    return np.maximum(x, 0) @ head.weight.detach().numpy().T + head.bias.detach().numpy()


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def slow_loss(name, s, S, w, outside, beta):
    """Return the loss of one bag: scores s (k,), candidates S, weights inside and outside S."""
    k, p = len(s), softmax(s)
    if name == "lws":
        pulled = sum(w[c] / (1 + np.exp(s[c])) for c in range(k) if c in S)
        return pulled + beta * sum(outside[c] / (1 + np.exp(-s[c])) for c in range(k) if c not in S)
    entropy = -sum(w[c] * np.log(p[c]) for c in S)
    if name in ("proden", "pop"):
        return entropy
    inside = sorted((p[c] for c in S), reverse=True)
    others = inside[1:] if name == "pop-cc" else [p[c] for c in range(k) if c not in S]
    return (1 - inside[0] + max(others, default=0.0)) * entropy


# ---- pooling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["proden", "lws", "pop"])
def test_maxima_and_minima_are_scaled_as_vectors(name, gaussian):
    model = make_classifier(name, pooling="maxmin", epochs=1).fit(gaussian)
    net, batch = model.network_, BagLoader(gaussian).batch(np.arange(len(gaussian)))
    with torch.no_grad():
        vectors = net.pooled_scaling(net.pooled(batch.instances, batch.sizes))
    torch.testing.assert_close(vectors.mean(dim=0), torch.zeros(10), atol=1e-4, rtol=0)
    torch.testing.assert_close(vectors.std(dim=0, unbiased=False), torch.ones(10), atol=1e-4, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "maxmin"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 2)])
def test_pooling_is_what_numpy_gives(pooling, shape):
    rng = np.random.default_rng(1)
    bags = Bags.from_list([rng.standard_normal((n, *shape)).astype(np.float32) for n in (3, 1, 5)])
    batch = BagLoader(bags).batch(np.arange(3))
    pooled = pool(batch.instances.double(), batch.sizes, pooling).numpy()
    np.testing.assert_allclose(pooled, numpy_pool(bags, pooling), atol=1e-12)
    one = numpy_pool(bags[1:2], "mean")  # one instance is its own mean, maximum and minimum
    np.testing.assert_allclose(pooled[1], np.concatenate([one[0]] * (2 if pooling == "maxmin" else 1)))


def test_an_encoder_of_ones_own_gets_the_pooled_vector(tmp_path):
    rng = np.random.default_rng(0)
    images = [rng.random((n, 4, 4)).astype(np.float32) for n in (2, 1, 3)]
    encoder = nn.Sequential(nn.Linear(32, 6), nn.Tanh())
    model = make_classifier("pop-cn", pooling="maxmin", encoder=encoder, epochs=2)
    model.fit(images, [[0, 1], [1, 2], [0, 2]])
    assert model.network_.head.in_features == 6
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", encoder=encoder)
    assert (again.predict_proba(images) == model.predict_proba(images)).all()


def test_images_of_any_size_are_flattened():
    rng = np.random.default_rng(0)
    images = [rng.random((2, 3, 5, 7)).astype(np.float32) for _ in range(4)]
    model = make_classifier("proden", epochs=1, width=4).fit(images, [[0, 1], [1], [0], [0, 1]])
    assert model.network_.encoder[0].in_features == 3 * 5 * 7
    assert np.isfinite(model.predict_proba(images)).all()


# ---- losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "maxmin"])
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_that_of_the_formulas(name, pooling):
    bags = odd_bags()
    method, net, batch, table = setup(name, bags, pooling=pooling)
    if name == "lws":
        draw = torch.rand(table.weights.shape, dtype=torch.float64).masked_fill(table.candidates, 0.0)
        table.memory["outside"] = draw
    scores = numpy_scores(net, bags, pooling)
    outside = table.memory.get("outside", table.weights).numpy()
    rows = zip(scores, bags.candidates, table.weights.numpy(), outside, strict=True)
    wanted = [slow_loss(name, s, set(np.flatnonzero(S)), w, v, beta=2.0) for s, S, w, v in rows]
    losses = method.objective(net, batch, table, CONTEXT)
    np.testing.assert_allclose(losses.detach().numpy(), wanted, rtol=1e-10)
    np.testing.assert_allclose(method.log_proba(net, batch).exp().detach(), [softmax(s) for s in scores])
    for i in range(len(bags)):  # a batch of one bag, among them one of one instance
        small = BagLoader(bags).batch(np.array([i]))
        small = dataclasses.replace(small, instances=small.instances.double())
        alone = method.objective(net, small, table, CONTEXT)
        np.testing.assert_allclose(alone.detach().numpy(), wanted[i : i + 1], rtol=1e-10)


def test_in_the_warm_up_the_margin_is_left_out():
    bags = odd_bags()
    method, net, batch, table = setup("pop-cn", bags)
    plain = METHODS["proden"].make(width=8)
    expected = plain.objective(net, batch, table, CONTEXT)
    torch.testing.assert_close(method.objective(net, batch, table, WARM), expected)


def test_the_loss_takes_the_purified_sets():
    bags = odd_bags()
    method, net, batch, table = setup("pop-cn", bags)
    table.memory["candidates"][1] = torch.tensor([True, False, True, False])
    table.weights[1] = torch.tensor([0.25, 0.0, 0.75, 0.0])
    s = numpy_scores(net, bags, "mean")[1]
    wanted = slow_loss("pop-cn", s, {0, 2}, table.weights[1].numpy(), None, None)
    assert method.objective(net, batch, table, CONTEXT)[1].item() == pytest.approx(wanted, rel=1e-10)
    method.after_step(net, batch, table, CONTEXT)
    assert table.weights[1, [1, 3]].tolist() == [0.0, 0.0]
    assert table.candidates[1].all()  # the sets that were given stay


# ---- weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_output_after_the_step_without_dropout(name):
    bags = odd_bags()
    method, net, _, table = setup(name, bags)
    batch = BagLoader(bags).batch(np.array([0, 1, 4]))
    batch = dataclasses.replace(batch, instances=batch.instances.double())
    before, memory = table.weights.clone(), {key: value.clone() for key, value in table.memory.items()}
    net.train()
    method.after_step(net, batch, table, CONTEXT)
    assert net.training
    scores = numpy_scores(net, bags, "mean")
    for i, S in enumerate(bags.candidates):
        if i in (0, 1, 4):
            wanted = np.zeros(bags.k)
            wanted[S] = softmax(scores[i][S])
            np.testing.assert_allclose(table.weights[i], wanted, rtol=1e-10)
            if name == "lws":
                wanted = np.zeros(bags.k)
                wanted[~S] = softmax(scores[i][~S]) if not S.all() else 0.0
                np.testing.assert_allclose(table.memory["outside"][i], wanted, rtol=1e-10)
        else:
            assert torch.equal(table.weights[i], before[i])
            assert all(
                torch.equal(table.memory[key][i], memory[key][i]) for key in ("outside",) if key in memory
            )


def test_lws_starts_uniform_on_the_non_candidates():
    _, _, _, table = setup("lws", odd_bags())
    outside = table.memory["outside"].numpy()
    for row, S in zip(outside, odd_bags().candidates, strict=True):
        np.testing.assert_allclose(row, 0.0 if S.all() else ~S / max(1, (~S).sum()))


# ---- purification --------------------------------------------------------------------------------------


def slow_purification(tables, candidates, purify_after, theta, theta_max):
    """Return candidates, weights and θ after each epoch, by loops over entries."""
    S, m, k = candidates.copy(), *candidates.shape
    history = []
    for epoch, weights in enumerate(tables, start=1):
        weights = np.where(S, weights, 0.0)
        weights = weights / weights.sum(axis=1, keepdims=True)
        history.append(weights)
        if epoch >= purify_after:
            average = np.mean(history[-5:], axis=0)
            dropped = 0
            for i in range(m):
                largest = max(average[i, c] for c in range(k) if S[i, c])
                for c in range(k):
                    if S[i, c] and average[i, c] < theta * largest:
                        S[i, c] = False
                        dropped += 1
            weights = np.where(S, weights, 0.0)
            total = weights.sum(axis=1, keepdims=True)
            weights = np.where(
                total > 0, weights / np.where(total > 0, total, 1), S / S.sum(axis=1, keepdims=True)
            )
            if dropped < 1e-4 * m * k:
                theta = min(theta * 1.001, theta_max)
        yield S.copy(), weights, theta


@pytest.mark.parametrize(
    ("purify_after", "theta", "theta_max"), [(3, 0.05, 0.4), (7, 0.3, 0.4), (1, 0.02, 0.02004)]
)
def test_purification_is_that_of_the_description(purify_after, theta, theta_max):
    bags = gaussian_bags(bags=30, k=6, r=4)
    settings = {"purify_after": purify_after, "theta_start": theta, "theta_max": theta_max}
    method, net, _, table = setup("pop", bags, **settings)
    rng = np.random.default_rng(0)
    tables = rng.dirichlet(np.full(6, 0.3), size=(12, 30)) + 1e-9
    expected = slow_purification(tables, bags.candidates, purify_after, theta, theta_max)
    shrunk = []
    for epoch, (weights, (S, wanted, threshold)) in enumerate(zip(tables, expected, strict=True), start=1):
        kept = torch.tensor(weights).masked_fill(~table.memory["candidates"], 0.0)
        table.weights = kept / kept.sum(dim=1, keepdim=True)
        method.on_epoch_end(net, table, dataclasses.replace(CONTEXT, epoch=epoch, epochs=12))
        assert (table.memory["candidates"].numpy() == S).all()
        np.testing.assert_allclose(table.weights, wanted, atol=1e-9)
        assert float(table.memory["theta"]) == pytest.approx(threshold, rel=1e-12)
        shrunk.append(int(S.sum()))
    assert shrunk[purify_after - 2 if purify_after > 1 else 0] >= shrunk[-1] >= 30
    assert shrunk[-1] < bags.candidates.sum()
    assert (table.memory["candidates"].any(dim=1)).all()


def test_a_bag_whose_last_weights_are_on_what_is_dropped_goes_on_with_equal_ones():
    bags = Bags.from_list([np.ones((1, 2))], np.array([[True, True, True, False]]))
    method, net, _, table = setup("pop", bags, purify_after=1, theta_start=0.4)
    table.memory["recent"][:] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    table.weights = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    method.on_epoch_end(net, table, CONTEXT)  # averages 0.4, 0.4, 0.2 stay; θ of 0.4 asks for 0.16
    assert table.memory["candidates"].tolist() == [[True, True, True, False]]
    table.memory["recent"][:] = torch.tensor([0.6, 0.4, 0.0, 0.0])
    table.memory["theta"].fill_(0.5)
    table.weights = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    method.on_epoch_end(net, table, WARM)  # the recipe's warm-up: the weights are not the network's yet
    assert table.memory["candidates"].tolist() == [[True, True, True, False]]
    assert float(table.memory["theta"]) == 0.5
    method.on_epoch_end(net, table, CONTEXT)  # 0.48, 0.32, 0.2: the last one goes
    assert table.memory["candidates"].tolist() == [[True, True, False, False]]
    np.testing.assert_allclose(table.weights, [[0.5, 0.5, 0.0, 0.0]])


@pytest.mark.parametrize("name", ["pop", "pop-cn"])
def test_a_purified_training_is_resumed_bit_for_bit(name, tmp_path):
    bags = gaussian_bags(bags=40, k=4, r=2)
    made = {"epochs": 8, "purify_after": 2, "theta_start": 0.9, "theta_max": 0.95, "warmup": 0.0}

    class StopHereError(Exception):
        pass

    def stored(folder):
        (path,) = folder.rglob("checkpoint.safetensors")
        return load_file(path)

    def stop(done, note=""):
        if done == 2:
            raise StopHereError

    whole = make_classifier(name, **made).fit(bags, checkpoint=tmp_path / "whole")
    with pytest.raises(StopHereError):
        make_classifier(name, **made).fit(bags, checkpoint=tmp_path / "parts", report=stop)
    halfway = stored(tmp_path / "parts")
    assert 40 < halfway["memory.candidates"].sum() < bags.candidates.sum()
    parts = make_classifier(name, **made).fit(bags, checkpoint=tmp_path / "parts")
    a, b = (stored(tmp_path / folder) for folder in ("whole", "parts"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert whole.history_["loss"] == parts.history_["loss"]


# ---- as a user sees them -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_partial_label_data_are_learned_from_directly(name):
    bags = gaussian_bags(bags=80, k=4, sizes=(1, 1))
    assert make_classifier(name, epochs=10).fit(bags).score(bags) > 0.85


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_s_recipe_runs(name):
    bags = gaussian_bags(bags=40, k=4)
    model = make_classifier(name, recipe="paper", epochs=4, pooling="maxmin").fit(bags)
    assert np.isfinite(model.predict_proba(bags)).all()
    assert model.recipe_.batch_size == 1


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("proden", {"pooling": "max"}, "pooling = 'max' must be 'mean' or 'maxmin'."),
        ("proden", {"width": 0}, "width = 0 must be an integer of at least 1"),
        ("proden", {"dropout": 1.0}, "dropout = 1.0 must be a number in [0, 1)."),
        ("lws", {"beta": -1.0}, "beta = -1.0 must be a finite number of at least 0."),
        ("lws", {"beta": float("nan")}, "beta = nan must be a finite number"),
        ("pop", {"competitor": "cd"}, "competitor = 'cd' must be 'none', 'cc' or 'cn'"),
        ("pop-cc", {"gamma": -1.0}, "gamma = -1.0 must be a finite number of at least 0."),
        ("pop", {"purify_after": 0}, "purify_after = 0 must be an integer of at least 1"),
        ("pop", {"theta_start": 0.5}, "theta_start = 0.5 must be at most theta_max = 0.4."),
        ("pop", {"theta_max": 1.0}, "theta_max = 1.0 must be a number in [0, 1)."),
    ],
)
def test_settings_out_of_range_are_refused(name, settings, sentence):
    with pytest.raises(SettingError) as caught:
        METHODS[name].make(**settings)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_published_settings(name):
    recommended = METHODS[name].cls.recommended
    assert recommended("paper", "c-r34-25", None) == {"width": 512}
    assert recommended("paper", "mnist-mipl", 1) == {"width": 128}
    pooled = {"background": 0.0}  # a pooled bag has none
    assert recommended("stable", "c-r34-25", None) == {**pooled, **({"beta": 1.0} if name == "lws" else {})}
    pop = METHODS["pop"].make()
    assert (pop.purify_after, pop.theta_start, pop.theta_max) == (20, 1e-3, 0.4)
    assert METHODS["lws"].make().beta == 2.0
    assert [METHODS[n].make().competitor for n in NAMES[2:]] == ["none", "cc", "cn"]
