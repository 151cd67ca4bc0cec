"""DEMIPL, ELIMIPL, MIPLMA, ProMIPL and label smoothing against loops in NumPy from their formulas."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from mipl import make_classifier
from mipl.data.batch import BagBatch, BagLoader
from mipl.errors import SettingError
from mipl.losses import mdl_loss
from mipl.methods import METHODS, StepContext
from mipl.methods.base import AttentionMethod
from mipl.methods.elimipl import log_complement
from mipl.methods.miplma import margin_penalty
from mipl.pseudo_labels import PseudoLabels
from mipl.seeding import rng_for
from mipl.training.recipe import make_recipe
from mipl.training.trainer import train

K, D = 4, 3
EARLIER = ["demipl", "elimipl", "miplma", "promipl"]
NAMES = [*EARLIER, "sam-ls", "mam-ls"]
ON_THE_SHARED_NETWORK = [name for name in METHODS if issubclass(METHODS[name].cls, AttentionMethod)]
CONTEXT = StepContext(epoch=3, epochs=10, alpha=0.7, gamma=1.0, alpha_after=0.8)
HEADS = pytest.mark.parametrize("head", ["linear", "sigmoid"])
ORDERS = pytest.mark.parametrize("update", ["before", "after"])

CANDIDATES = torch.tensor(
    [
        [True, True, False, False],
        [False, True, False, False],  # one candidate
        [True, True, True, True],  # every label
        [True, False, True, True],
        [False, True, True, False],
    ]
)
SIZES = torch.tensor([4, 1, 7, 2, 3])  # a bag of one instance among them


def bag_batch(index):
    """Random instances of the bags at ``index``, the same ones whichever bags are asked for together."""
    bags = [torch.randn(int(SIZES[i]), D, generator=torch.Generator().manual_seed(i)) for i in index]
    where = torch.tensor(index)
    return BagBatch(torch.cat(bags).double(), SIZES[where], where, CANDIDATES[where])


def make(name, **settings):
    """A method with its network in float64, without dropout, far enough from its start to tell bags apart."""
    method = METHODS[name].make(width=6, **settings)
    torch.manual_seed(1)
    net = method.build((D,), K).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    method.on_epoch_start(net, CONTEXT.epoch)
    return method, net


def make_table():
    """Weights on the candidates, one of them 0 within its set."""
    raw = np.random.default_rng(0).random(CANDIDATES.shape) * CANDIDATES.numpy()
    raw[3, 0] = 0.0
    table = PseudoLabels(CANDIDATES, torch.tensor(raw / raw.sum(axis=1, keepdims=True)))
    table.release()  # as after the warm-up
    return table


# --- the formulas, one bag at a time ---


def softmax(values):
    e = np.exp(np.asarray(values) - np.max(values))
    return e / e.sum()


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values)))


def momentum(alpha, w, values, S):
    """α w + (1 − α) × values normalised over the candidates."""
    new = np.zeros(len(w))
    total = sum(values[c] for c in S)
    for c in S:
        new[c] = alpha * w[c] + (1 - alpha) * values[c] / total
    return new


def perceptron(layers, x):
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    for i, layer in enumerate(linear):
        x = layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()
        x = np.maximum(x, 0) if i < len(linear) - 1 else x
    return x


def slow_promipl(method, net, z, w, S, noise):
    """The rebuilt sigmoid values, from which the new weights come, and the inferred label."""
    q = sigmoid(perceptron(net.inference, np.concatenate([z, w]))) * w
    q_ = np.clip(q, 2.0**-23, 1 - 2.0**-23)
    y = sigmoid(1.5 * (np.log(q_ / (1 - q_)) + np.log(noise / (1 - noise))))
    return sigmoid(perceptron(net.generative, np.concatenate([z, y]))), q


def slow(name, method, net, batch, weights, noise=None):
    """Return one loss per bag and the table's rows afterwards."""
    with torch.no_grad():
        out = net(batch.instances, batch.sizes)
    logits, z, scores = out.logits.numpy(), out.embedding.numpy(), out.scores.numpy()
    starts = np.cumsum([0, *batch.sizes.tolist()])
    losses, rows, ms = [], [], []
    for i in range(len(batch.sizes)):
        S = np.flatnonzero(batch.candidates[i].numpy())
        p, old = softmax(logits[i]), weights[i]
        outside = [c for c in range(K) if c not in S]
        source = p
        if name == "promipl":
            source, q = slow_promipl(method, net, z[i], old, S, noise[i])
        first = method.update == "before"
        moved = momentum(CONTEXT.alpha if first else CONTEXT.alpha_after, old, source, S)
        w = moved if first else old
        loss = sum(-w[c] * math.log(p[c]) for c in S)
        if name == "demipl":
            a = sigmoid(scores[starts[i] : starts[i + 1]])
            loss += method.entropy_weight * sum(-x * math.log(x) for x in a)
        if name == "elimipl":
            loss += method.sparsity * sum(p[c] for c in S)
            loss += method.inhibition * sum(-math.log(1 - p[c]) for c in outside)
        if name == "miplma":
            ms.append(0.5 * (1 - max(p[S]) + max([p[c] for c in outside], default=0.0)))
        if name == "promipl":
            entropy = [-x * math.log(x) - (1 - x) * math.log(1 - x) if 0 < x < 1 else 0.0 for x in q]
            rebuilt = softmax(source)
            loss = sum(-q[c] * math.log(p[c]) for c in range(K))
            loss -= method.entropy_weight * np.mean(entropy)
            loss += method.rebuild_weight * sum(-w[c] * math.log(rebuilt[c]) for c in range(K))
        if name.endswith("-ls"):
            e = method.smoothing
            loss = sum(-((1 - e) * w[c] + e / len(S)) * math.log(p[c]) for c in S)
        losses.append(loss)
        rows.append(moved)
    if name == "miplma":
        seen = ms if len(ms) > 1 else [0.0, *ms]
        losses = np.array(losses) + method.margin_weight * np.mean(seen) / (1 - np.std(seen, ddof=1))
    return np.array(losses), np.array(rows)


# --- values ---


@pytest.mark.parametrize("name", NAMES)
@HEADS
@ORDERS
@pytest.mark.parametrize("index", [[3, 0, 4, 2, 1], [1], [2]], ids=["all", "one candidate", "every label"])
def test_objective_and_table_equal_the_loop(name, head, update, index):
    method, net = make(name, head=head, update=update)
    batch, table = bag_batch(index), make_table()
    before = table.weights.clone()
    torch.manual_seed(5)
    noise = torch.rand(len(index), K, dtype=torch.float64).numpy()  # the first draw that ProMIPL makes
    losses, rows = slow(name, method, net, batch, before[index].numpy(), noise)
    torch.manual_seed(5)
    values = method.objective(net, batch, table, CONTEXT)
    assert values.shape == (len(index),)
    # the table is in float32; ProMIPL's entropy takes q = 0 as 2^−23
    np.testing.assert_allclose(values.detach().numpy(), losses, rtol=1e-5, atol=3e-6)
    np.testing.assert_allclose(table.weights[index].numpy(), rows, rtol=1e-5, atol=1e-6)
    others = [i for i in range(len(CANDIDATES)) if i not in index]
    assert torch.equal(table.weights[others], before[others])
    torch.testing.assert_close(table.weights.sum(dim=1), torch.ones(len(CANDIDATES)))


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("demipl", "entropy_weight"),
        ("elimipl", "inhibition"),
        ("elimipl", "sparsity"),
        ("miplma", "margin_weight"),
        ("promipl", "entropy_weight"),
        ("promipl", "rebuild_weight"),
        ("sam-ls", "smoothing"),
    ],
)
def test_every_weight_counts(name, setting):
    def losses(value):
        method, net = make(name, **{setting: value})
        torch.manual_seed(0)
        return method.objective(net, bag_batch([0, 3]), make_table(), CONTEXT)

    assert not torch.allclose(losses(0.0), losses(0.7), atol=1e-4)


def test_without_their_own_terms_they_are_mdl():
    off = {
        "demipl": {"entropy_weight": 0.0},
        "elimipl": {"inhibition": 0.0, "sparsity": 0.0},
        "miplma": {"margin_weight": 0.0},
        "sam-ls": {"smoothing": 0.0},
    }
    for name, settings in off.items():
        method, net = make(name, attention="sam", head="linear", update="after", **settings)
        table, batch = make_table(), bag_batch([0, 1, 2, 3, 4])
        expected = mdl_loss(net(batch.instances, batch.sizes).logits, CANDIDATES, table.weights.clone())
        torch.testing.assert_close(method.objective(net, batch, table, CONTEXT), expected, rtol=0, atol=0)


def test_smoothing_spreads_over_the_candidates_alone():
    method, net = make("sam-ls", smoothing=1.0)
    batch, table = bag_batch([0, 1, 2, 3, 4]), make_table()
    even = CANDIDATES / CANDIDATES.sum(dim=1, keepdim=True)
    expected = mdl_loss(net(batch.instances, batch.sizes).logits, CANDIDATES, even)
    torch.testing.assert_close(method.objective(net, batch, table, CONTEXT), expected)
    lone = bag_batch([1])
    assert torch.equal(
        method.objective(net, lone, make_table(), CONTEXT),
        make("sam-ls", smoothing=0.0)[0].objective(net, lone, make_table(), CONTEXT),
    )


# --- numerical safety ---


def test_log_complement_is_exact_where_p_rounds_to_0_and_1():
    leads = [0.0, 1e-3, 1.0, 20.0, 50.0, 200.0, 1e4]
    for a, b in itertools.product(leads, leads):
        logits = torch.tensor([[a, -b, 0.0]], requires_grad=True)
        values = log_complement(logits.log_softmax(dim=1))
        row = np.array([a, -b, 0.0])
        for c in range(3):
            rest = np.delete(row, c)  # log(1 − p_c) = log Σ_{others} e^s − log Σ e^s
            exact = np.logaddexp.reduce(rest) - np.logaddexp.reduce(row)
            assert values[0, c].item() == pytest.approx(exact, rel=1e-4, abs=1e-6)
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert torch.isfinite(gradient).all()


def test_spread_is_finite_for_equal_and_for_opposite_margins():
    for values in ([0.3, 0.3], [0.0, 0.0], [0.0, 1.0], [1.0], [0.0], [0.5] * 7, [0.0, 0.0, 1.0, 1.0]):
        m = torch.tensor(values, requires_grad=True)
        value = margin_penalty(m)
        (gradient,) = torch.autograd.grad(value, m)
        assert 0 <= value.item() < 2
        assert torch.isfinite(gradient).all()
    assert margin_penalty(torch.tensor([0.4])).item() == pytest.approx(0.2 / (1 - 0.4 / math.sqrt(2)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_networks_give_finite_losses_and_gradients(name, scale):
    """All outputs alike, or every softmax and sigmoid saturated; in float32, with one-hot weights."""
    method, net = make(name, head="linear")
    net.float()
    with torch.no_grad():
        for module in (net.head, getattr(net, "inference", net.head), getattr(net, "generative", net.head)):
            for parameter in module.parameters():
                parameter.mul_(scale)
    batch = bag_batch([0, 1, 2, 3, 4])
    batch = dataclasses.replace(batch, instances=batch.instances.float())
    one_hot = torch.eye(K)[CANDIDATES.int().argmax(dim=1)]
    losses = method.objective(net, batch, PseudoLabels(CANDIDATES, one_hot), CONTEXT)
    assert torch.isfinite(losses).all()
    torch.autograd.backward(losses.mean())
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


# --- head and order ---


@pytest.mark.parametrize("name", ON_THE_SHARED_NETWORK)
@HEADS
@ORDERS
def test_every_method_on_the_shared_network_runs_with_either_head_and_order(name, head, update):
    method, net = make(name, head=head, update=update)
    batch, table = bag_batch([0, 1, 2, 3, 4]), make_table()
    before = table.weights.clone()
    losses = method.objective(net, batch, table, CONTEXT)
    torch.autograd.backward(losses.mean())
    assert torch.isfinite(losses).all()
    assert net.head.weight.grad.abs().sum() > 0
    assert not torch.equal(table.weights, before)
    if head == "sigmoid":
        ceiling = math.e / (math.e + K - 1)
        assert method.log_proba(net, batch).exp().max() <= ceiling + 1e-12


@pytest.mark.parametrize("name", ["sam-cn", "sam-mdl", "sam-fl", *NAMES])
def test_an_update_after_the_loss_is_seen_by_the_next_one(name):
    method, net = make(name, update="after")
    batch, table = bag_batch([0, 3, 4]), make_table()

    def loss(table, context):
        torch.manual_seed(0)
        return method.objective(net, batch, table, context).detach()

    never = dataclasses.replace(CONTEXT, alpha_after=1.0)
    assert torch.equal(loss(make_table(), never), loss(make_table(), CONTEXT))
    expected = loss(table, CONTEXT)
    assert not torch.equal(loss(table, CONTEXT), expected)


def test_the_earlier_methods_have_their_own_head_order_and_attention():
    attention = {"demipl": "dam", "elimipl": "sam", "miplma": "mam", "promipl": "mam"}
    for name in EARLIER:
        method = METHODS[name].make()
        assert (method.attention, method.head, method.update) == (attention[name], "sigmoid", "after")
    for name in ("sam-ls", "mam-ls", "sam-cn", "sam-mdl", "sam-fl"):
        method = METHODS[name].make()
        assert (method.attention, method.head, method.update) == (name[:3], "linear", "before")


def test_training_equals_the_earlier_methods_loop_written_out_by_hand(gaussian):
    """ELIMIPL as its authors ran it: w moves after the loss, with α = (T − t + 1)/T."""
    method, T = METHODS["elimipl"].make(dropout=0.0, width=8, inhibition=0.5, sparsity=0.3), 3
    torch.manual_seed(0)
    net = method.build(gaussian.feature_shape, gaussian.k)
    torch.manual_seed(0)
    twin = method.build(gaussian.feature_shape, gaussian.k)
    train(method, net, gaussian, make_recipe("paper", epochs=T), seed=7)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    w = torch.tensor(gaussian.candidates / gaussian.candidates.sum(axis=1, keepdims=True)).float()
    for t in range(1, T + 1):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + np.cos(np.pi * (t - 1) / T))
        for i in rng_for("shuffle", 7, t).permutation(len(gaussian)):
            batch = BagLoader(gaussian).batch(np.array([i]))
            p = twin(batch.instances, batch.sizes).logits.softmax(dim=1)[0]
            S = torch.tensor(gaussian.candidates[i])
            loss = -(w[i] * p.log()).sum() + 0.3 * p[S].sum() - 0.5 * (1 - p[~S]).log().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            alpha = (T - t + 1) / T
            w[i] = alpha * w[i] + (1 - alpha) * (p * S / (p * S).sum()).detach()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


# --- ProMIPL's networks ---


def test_the_classifier_does_not_pull_the_inferred_labels():
    method, net = make("promipl", entropy_weight=0.0, rebuild_weight=0.0)
    losses = method.objective(net, bag_batch([0, 3]), make_table(), CONTEXT)
    torch.autograd.backward(losses.mean())
    aside = [*net.inference.parameters(), *net.generative.parameters()]
    assert all(p.grad is None or not p.grad.any() for p in aside)
    method, net = make("promipl")
    torch.autograd.backward(method.objective(net, bag_batch([0, 3]), make_table(), CONTEXT).mean())
    assert all(p.grad.any() for p in [*net.inference.parameters(), *net.generative.parameters()])


def test_promipl_has_the_published_layers_and_predicts_by_the_shared_network():
    method, net = make("promipl")
    shapes = [[m.in_features for m in part if isinstance(m, torch.nn.Linear)] + [part[-1].out_features]
              for part in (net.inference, net.generative)]  # fmt: skip
    assert shapes == [[6 + K, 256, 512, 256, K], [6 + K, 256, 512, K]]
    assert (method.tau_start, method.tau_decay) == (0.1, 1.0)
    before = method.log_proba(net, bag_batch([0, 3]))
    with torch.no_grad():
        for parameter in [*net.inference.parameters(), *net.generative.parameters()]:
            parameter.zero_()
    assert torch.equal(method.log_proba(net, bag_batch([0, 3])), before)
    net.attention.set_epoch(99)
    assert net.attention.tau.item() == pytest.approx(0.1)


def test_promipl_takes_an_encoder_of_its_own_width():
    encoder = torch.nn.Sequential(torch.nn.Linear(D, 11), torch.nn.ReLU())
    method = METHODS["promipl"].make()
    net = method.build((D,), K, encoder)
    assert net.inference[0].in_features == 11 + K


# --- settings ---


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("demipl", {"entropy_weight": -1.0}, "entropy_weight = -1.0 must be a finite number of at least 0."),
        ("elimipl", {"inhibition": math.inf}, "inhibition = inf must be a finite number of at least 0."),
        ("elimipl", {"sparsity": math.nan}, "sparsity = nan must be a finite number of at least 0."),
        ("miplma", {"margin_weight": -0.1}, "margin_weight = -0.1 must be a finite number of at least 0."),
        ("promipl", {"rebuild_weight": -2.0}, "rebuild_weight = -2.0 must be a finite number of at least 0."),
        (
            "promipl",
            {"entropy_weight": math.nan},
            "entropy_weight = nan must be a finite number of at least 0.",
        ),
        ("sam-ls", {"smoothing": 1.5}, "smoothing = 1.5 must be a number in [0, 1]."),
        ("mam-ls", {"smoothing": math.nan}, "smoothing = nan must be a number in [0, 1]."),
        ("sam-cn", {"update": "during"}, "update = 'during' must be 'before' or 'after'."),
    ],
)
def test_settings_out_of_range_are_refused_with_a_sentence(name, settings, sentence):
    with pytest.raises(SettingError) as error:
        METHODS[name].make(**settings)
    assert str(error.value) == sentence


def published(name, dataset, r, *wanted):
    method, recipe = make_classifier(name, recipe="paper").parts({"dataset": dataset, "r": r})
    return tuple(getattr(method, n) if hasattr(method, n) else getattr(recipe, n) for n in wanted)


def test_the_published_settings_are_as_the_authors_have_them():
    def demipl(dataset, r):
        return published("demipl", dataset, r, "lr", "entropy_weight", "width", "epochs")

    assert [demipl("mnist-mipl", r) for r in (1, 2, 3)] == [
        (0.01, 1e-3, 500, 100),
        (0.01, 1e-3, 500, 100),
        (0.05, 1e-3, 500, 100),
    ]
    assert demipl("birdsong-mipl", 3) == (0.01, 1e-4, 500, 100)
    assert demipl("c-row", None) == (0.01, 1e-4, 500, 200)

    def elimipl(dataset, r):
        return published("elimipl", dataset, r, "lr", "inhibition", "sparsity", "width")

    assert [elimipl("mnist-mipl", r) for r in (1, 2, 3)] == [
        (0.05, 0.1, 1.0, 128),
        (0.05, 0.1, 1.0, 128),
        (0.05, 0.1, 0.1, 128),
    ]
    assert [elimipl("fmnist-mipl", r) for r in (1, 2, 3)] == [
        (0.01, 0.5, 1.0, 128),
        (0.01, 0.5, 1.0, 128),
        (0.05, 0.5, 1.0, 128),
    ]
    assert {elimipl("birdsong-mipl", r) for r in (1, 2, 3)} == {(0.01, 10.0, 10.0, 128)}
    assert [elimipl("sival-mipl", r) for r in (1, 2, 3)] == [
        (0.01, 10.0, 10.0, 128),
        (0.01, 10.0, 10.0, 128),
        (0.05, 10.0, 10.0, 128),
    ]
    assert elimipl("c-r34-25", None) == (0.01, 10.0, 10.0, 512)

    def miplma(dataset, r):
        return published("miplma", dataset, r, "lr", "margin_weight", "width", "tau_decay")

    assert [miplma("mnist-mipl", r)[1] for r in (1, 2, 3)] == [0.05, 0.1, 0.01]
    assert miplma("mnist-mipl", 3) == (0.01, 0.01, 128, 0.95)
    assert miplma("fmnist-mipl", 2) == (0.01, 0.05, 128, 0.95)
    assert miplma("c-sift", None) == (0.01, 0.05, 512, 0.95)

    def promipl(dataset, r):
        return published(
            "promipl", dataset, r, "lr", "schedule", "tau_decay", "entropy_weight", "rebuild_weight"
        )

    assert [promipl("mnist-mipl", r)[0] for r in (1, 2, 3)] == [0.005, 0.005, 0.0085]
    assert promipl("mnist-mipl", 1) == (0.005, "constant", 1.0, 1.0, 1.0)
    assert promipl("sival-mipl", 1)[0] == promipl("", None)[0] == 0.01


@pytest.mark.parametrize("name", NAMES)
def test_under_the_stable_recipe_only_weights_of_the_loss_are_the_authors(name):
    for dataset, r in (("mnist-mipl", 3), ("c-row", None), ("", None)):
        wanted = METHODS[name].cls.recommended("stable", dataset, r)
        shared = {} if name == "promipl" else AttentionMethod.recommended("stable", dataset, r)
        assert shared.items() <= wanted.items()
        given = set(wanted) - set(shared) - ({"lr", "warmup"} if name == "promipl" else set())
        assert given <= {"entropy_weight", "inhibition", "sparsity", "margin_weight"}
    assert METHODS[name].make().trains_convolutions == (name not in EARLIER)  # they have a sigmoid head
    assert METHODS[name].make(head="linear").trains_convolutions
    assert make_classifier("promipl").parts()[0].tau_decay == 1.0
    assert make_classifier("elimipl").parts({"dataset": "mnist-mipl", "r": 3})[0].sparsity == 0.1
    assert make_classifier("elimipl", sparsity=2.0).parts({"dataset": "mnist-mipl", "r": 3})[0].sparsity == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_when_and_at_what_cost(name):
    cls = METHODS[name].cls
    assert all(text.endswith(".") for text in (cls.summary, cls.citation, cls.advice, cls.cost))
