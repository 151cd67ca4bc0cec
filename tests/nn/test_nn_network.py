"""Encoders, heads and the network: sizes against the paper's, values against NumPy, invariances of bags."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mipl.errors import DataError, SettingError
from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import Dropout, FeatureEncoder, ImageEncoder, Standardize, make_encoder, output_width
from mipl.nn.heads import SigmoidHead, make_head
from mipl.nn.network import BagNetwork

ATTENTIONS = pytest.mark.parametrize("attention", ["dam", "sam", "mam"])
CEILINGS = [(2, 0.731), (5, 0.405), (7, 0.312), (13, 0.185), (25, 0.102)]


def network(feature_shape, width=128, k=5, attention="sam", head="linear", seed=0):
    torch.manual_seed(seed)
    return BagNetwork(
        scaling=Standardize(feature_shape) if len(feature_shape) == 1 else nn.Identity(),
        encoder=make_encoder(feature_shape, width, dropout=0.5),
        score=GatedScore(width, k),
        attention=make_attention(attention, width),
        head=make_head(head, width, k),
    ).eval()


def enlarge(net, factor=2.0):
    """Larger weights than at the start, so that logits and attention differ from bag to bag."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(factor)
    return net


# --- the paper's sizes ---

LAYERS = {  # by hand: inputs per output value, values per instance or bag, output channels
    "encoder.conv1": (1 * 5 * 5, 20 * 24 * 24, 20),
    "encoder.conv2": (20 * 5 * 5, 50 * 8 * 8, 50),
    "encoder.linear": (50 * 4 * 4, 128, 128),
    "score.gates": (128, 2 * 5, 2 * 5),
    "score.score.0": (5, 128, 128),
    "score.score.2": (128, 1, 1),
    "head": (128, 5, 5),
}


def test_parameters_are_the_papers():
    net = network((28, 28))
    counts = {
        name: sum(p.numel() for p in module.parameters())
        for name, module in net.named_modules()
        if not list(module.children()) and list(module.parameters())
    }
    assert counts == {name: fan_in * out + out for name, (fan_in, _, out) in LAYERS.items()}
    total = sum(p.numel() for p in net.parameters())
    assert total == 520 + 25_050 + 102_528 + 2 * 645 + 768 + 129 + 645 == 130_930
    assert round(total / 1e6, 2) == 0.13


def multiply_adds(net, instances):
    """Multiply-adds of each layer for one bag, read from the shapes that pass through it."""
    counts = {}

    def count(name):
        def hook(module, inputs, output):
            fan_in = module.weight[0].numel()  # weights that each output value is summed over
            counts[name] = counts.get(name, 0) + output.numel() * fan_in

        return hook

    handles = [
        module.register_forward_hook(count(name))
        for name, module in net.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    ]
    net(instances, torch.tensor([len(instances)]))
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize("n", [1, 48])
def test_multiply_adds_of_each_layer(n):
    expected = {name: fan_in * values * n for name, (fan_in, values, _) in LAYERS.items()}
    expected["head"] = 128 * 5  # once a bag
    assert multiply_adds(network((28, 28)), torch.rand(n, 28, 28)) == expected


def test_multiply_adds_are_the_papers():
    counts = multiply_adds(network((28, 28)), torch.rand(48, 28, 28))
    instance = (sum(counts.values()) - counts["head"]) / 48
    assert instance == 288_000 + 1_600_000 + 102_400 + 2 * 640 + 640 + 128 == 1_992_448
    assert round(instance / 1e6, 2) == 1.99
    # The paper's 95.58 M for a bag of 48 is all layers but the two gates; with them it is 95.64 M.
    gates = counts["score.gates"]
    assert gates == 48 * 2 * 640
    assert round(sum(counts.values()) / 1e6, 2) == 95.64
    assert round((sum(counts.values()) - gates) / 1e6, 2) == 95.58


# --- encoders ---


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (3, 28, 28), (8, 8), (1, 8, 8), (3, 8, 8)], ids=str)
def test_pooling_before_relu_is_relu_before_pooling(shape):
    torch.manual_seed(0)
    encoder = make_encoder(shape, 32, dropout=0.5).eval()
    assert isinstance(encoder, ImageEncoder)
    x = torch.randn(6, *shape)
    padding = 0 if shape[-1] == 28 else 1
    image = x.reshape(6, -1, *shape[-2:])
    for conv in (encoder.conv1, encoder.conv2):
        weight = conv.weight.contiguous()  # the usual memory order
        image = nn.functional.conv2d(image, weight, conv.bias, padding=padding).relu()
        image = nn.functional.max_pool2d(image, 2)
    expected = nn.functional.linear(image.flatten(1), encoder.linear.weight, encoder.linear.bias).relu()
    features = encoder(x)
    assert features.shape == (6, 32)
    assert features.max() > 0
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [28, 8])
def test_images_with_and_without_a_channel_axis_agree(side):
    torch.manual_seed(0)
    flat, deep = make_encoder((side, side), 16, 0.5).eval(), make_encoder((1, side, side), 16, 0.5).eval()
    deep.load_state_dict(flat.state_dict())
    x = torch.rand(4, side, side)
    assert torch.equal(flat(x), deep(x[:, None]))
    assert torch.equal(flat(x), flat(x[:, None]))


def test_images_of_8_by_8_have_the_stated_layers_and_learn():
    encoder = make_encoder((8, 8), 16, 0.0)
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "conv1.weight": (20, 1, 3, 3),
        "conv2.weight": (50, 20, 3, 3),
        "linear.weight": (16, 50 * 2 * 2),
    }
    torch.autograd.backward(encoder(torch.rand(5, 8, 8)).sum())
    assert all(p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_convolution_weights_lie_in_memory_as_the_images_do():
    encoder = ImageEncoder(3, 28, 16, 0.5)
    for conv in (encoder.conv1, encoder.conv2):
        assert conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_vectors_go_through_one_linear_layer():
    torch.manual_seed(0)
    encoder = make_encoder((7,), 4, dropout=0.5).eval()
    x = torch.randn(9, 7)
    weight, bias = encoder[0].weight.detach().numpy(), encoder[0].bias.detach().numpy()
    expected = np.maximum(x.numpy() @ weight.T + bias, 0)
    np.testing.assert_allclose(encoder(x).detach().numpy(), expected, rtol=0, atol=1e-6)
    assert (expected == 0).any()  # the ReLU has something to do
    assert (expected > 0).any()


def test_a_vector_is_never_taken_for_an_image():
    assert isinstance(make_encoder((784,), 16, 0.5), FeatureEncoder)
    assert isinstance(make_encoder((64,), 16, 0.5), FeatureEncoder)


@pytest.mark.parametrize("shape", [(8,), (28, 28), (8, 8)], ids=str)
def test_dropout_drops_while_training_only(shape):
    torch.manual_seed(0)
    encoder, x = make_encoder(shape, 64, dropout=0.5), torch.rand(40, *shape)
    encoder.train()
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))
    kept = make_encoder(shape, 64, dropout=0.0).train()
    assert torch.equal(kept(x), kept(x))


@pytest.mark.parametrize(
    "shape", [(27, 27), (3, 32, 32), (28, 8), (28, 28, 3), (2, 1, 28, 28), (1, 1, 1, 8, 8), ()], ids=str
)
def test_other_shapes_are_refused_with_the_way_out(shape):
    with pytest.raises(SettingError) as caught:
        make_encoder(shape, 16, 0.5)
    assert str(shape) in str(caught.value)
    assert "pass encoder=, a torch.nn.Module that maps them to vectors." in str(caught.value)


# --- scaling ---


def test_standardize_changes_nothing_until_it_knows_the_data():
    x = torch.randn(5, 3)
    assert torch.equal(Standardize((3,))(x), x)


@pytest.mark.parametrize("shape", [(3,), (2, 4)], ids=str)
def test_standardize_centres_and_scales_with_kept_statistics(shape):
    torch.manual_seed(0)
    x, scaling = 5 * torch.randn(50, *shape) + 20, Standardize(shape)
    scaling.mean.copy_(x.mean(dim=0))
    scaling.std.copy_(x.std(dim=0))
    y = scaling(x).numpy()
    np.testing.assert_allclose(y.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(y.std(axis=0, ddof=1), 1.0, atol=1e-5)
    expected = (x[7].numpy() - x.numpy().mean(axis=0)) / x.numpy().std(axis=0, ddof=1)
    np.testing.assert_allclose(y[7], expected, atol=1e-5)
    loaded = Standardize(shape)
    loaded.load_state_dict(scaling.state_dict())
    assert torch.equal(loaded(x), scaling(x))
    assert list(scaling.parameters()) == []


# --- encoders of the user's own ---


@pytest.mark.parametrize(
    ("encoder", "shape", "width"),
    [
        (nn.Linear(6, 3), (6,), 3),
        (nn.Sequential(nn.Flatten(), nn.Linear(20, 9)), (4, 5), 9),
        (nn.Flatten(), (2, 3, 4), 24),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(11)), (5, 5), 11),
    ],
    ids=["linear", "sequential", "flatten", "lazy"],
)
def test_width_of_an_own_encoder(encoder, shape, width):
    result = output_width(encoder, shape)
    assert type(result) is int
    assert result == width


@pytest.mark.parametrize("training", [True, False])
def test_finding_the_width_leaves_the_encoder_as_it_was(training):
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled(), tuple(x.shape)))
            return self.norm(x)

    encoder = Spy().train(training)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    assert output_width(encoder, (3,)) == 3
    assert seen == [(False, False, (2, 3))]
    assert encoder.training is training
    assert encoder.norm.training is training
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        (nn.Linear(6, 3), (5,)),  # RuntimeError in torch
        (nn.Conv2d(1, 4, 3), (8,)),
        (nn.BatchNorm1d(4), (4, 5, 6)),  # ValueError
        (nn.Flatten(start_dim=3), (4,)),  # IndexError
        (nn.Bilinear(4, 4, 2), (4,)),  # TypeError: it wants two inputs
    ],
    ids=["width", "axes", "value", "index", "type"],
)
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_for_other_instances_is_refused(encoder, shape, training):
    encoder.train(training)
    with pytest.raises(DataError) as caught:
        output_width(encoder, shape)
    assert str(caught.value).startswith(f"The encoder does not take instances of shape {shape}: ")
    assert caught.value.__cause__ is not None
    assert encoder.training is training


class Returns(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, None],  # (N, 1, d)
        lambda x: x.sum(dim=1),  # (N,)
        lambda x: x.mean(dim=0, keepdim=True),  # one vector for all
        lambda x: x.sum(),
        lambda x: (x, x),
        lambda x: x.numpy(),
        lambda x: None,
    ],
    ids=["3d", "1d", "pooled", "0d", "tuple", "numpy", "none"],
)
def test_an_encoder_that_gives_no_vectors_is_refused(change):
    with pytest.raises(SettingError, match=r"must map instances \(N, …\) to one vector each, \(N, L\)\."):
        output_width(Returns(change), (4,))


# --- heads ---


@pytest.mark.parametrize(("k", "ceiling"), CEILINGS)
def test_sigmoid_head_has_a_ceiling_and_comes_near_it(k, ceiling):
    assert math.e / (math.e + k - 1) == pytest.approx(ceiling, abs=5e-4)
    limit = math.e / (math.e + k - 1)
    torch.manual_seed(k)
    head = make_head("sigmoid", 12, k)
    for scale in (0.1, 1.0, 100.0, 1e4):
        top = head(scale * torch.randn(300, 12)).softmax(dim=1).max().item()
        assert top <= limit + 1e-6
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, 0] = -30.0
        head.weight[0, 0] = 30.0
    top = head(torch.ones(1, 12)).softmax(dim=1).max().item()
    assert top == pytest.approx(limit, abs=1e-5)


def test_linear_head_has_no_ceiling():
    head = make_head("linear", 12, 5)
    assert head(1e4 * torch.randn(20, 12)).softmax(dim=1).max() > 0.99


def test_heads_equal_numpy():
    torch.manual_seed(0)
    z = torch.randn(6, 12)
    sigmoid, linear = make_head("sigmoid", 12, 4), make_head("linear", 12, 4)
    assert type(sigmoid) is SigmoidHead
    assert type(linear) is nn.Linear
    linear.load_state_dict(sigmoid.state_dict())
    values = z.numpy() @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
    np.testing.assert_allclose(linear(z).detach().numpy(), values, atol=1e-5)
    np.testing.assert_allclose(sigmoid(z).detach().numpy(), 1 / (1 + np.exp(-values)), atol=1e-5)


def test_unknown_heads_are_refused():
    with pytest.raises(SettingError, match=r"There is no head 'sigmoids'\. Did you mean 'sigmoid'\?"):
        make_head("sigmoids", 12, 5)
    with pytest.raises(SettingError, match=r"'cosine'\. Known: linear, sigmoid\."):
        make_head("cosine", 12, 5)


# --- the whole network ---


def numpy_network(net, bag, attention, head):
    """Logits, z, a and ξ of one bag in float64, from the equations and the network's weights alone."""
    w = {name: value.detach().double().numpy() for name, value in net.state_dict().items()}
    x = (bag - w["scaling.mean"]) / w["scaling.std"]
    h = np.maximum(x @ w["encoder.0.weight"].T + w["encoder.0.bias"], 0.0)
    first, second = np.split(h @ w["score.gates.weight"].T + w["score.gates.bias"], 2, axis=1)
    t, s = np.tanh(first), 1 / (1 + np.exp(-second))
    hidden = np.maximum((t * s) @ w["score.score.0.weight"].T + w["score.score.0.bias"], 0.0)
    xi = (hidden @ w["score.score.2.weight"].T + w["score.score.2.bias"])[:, 0]
    if attention == "dam":
        a = 1 / (1 + np.exp(-xi))
    elif attention == "sam":
        a = np.exp(xi / np.sqrt(h.shape[1]))
    else:
        deviation = xi.std(ddof=1) if len(xi) > 1 else 0.0
        a = np.exp((xi - xi.mean()) / (deviation + 1e-3) / np.sqrt(h.shape[1]) / w["attention.tau"])
    a = a / a.sum()
    z = a @ h
    logits = w["head.weight"] @ z + w["head.bias"]
    return 1 / (1 + np.exp(-logits)) if head == "sigmoid" else logits, z, a, xi


@ATTENTIONS
@pytest.mark.parametrize("head", ["linear", "sigmoid"])
def test_network_equals_numpy(attention, head):
    net = enlarge(network((10,), width=16, attention=attention, head=head))
    net.scaling.mean.uniform_(-1, 1)
    net.scaling.std.uniform_(0.5, 2)
    net.attention.set_epoch(30)
    sizes = [1, 7, 30, 2]
    instances = torch.randn(sum(sizes), 10)
    out = net(instances, torch.tensor(sizes))
    assert out.logits.shape == (4, 5)
    assert out.embedding.shape == (4, 16)
    assert out.attention.shape == out.scores.shape == (40,)
    expected = [
        numpy_network(net, bag.double().numpy(), attention, head) for bag in torch.split(instances, sizes)
    ]
    for i, name in enumerate(["logits", "embedding"]):
        np.testing.assert_allclose(
            getattr(out, name).detach().numpy(), np.stack([e[i] for e in expected]), rtol=0, atol=1e-4
        )
    for i, name in enumerate(["attention", "scores"], start=2):
        np.testing.assert_allclose(
            getattr(out, name).detach().numpy(), np.concatenate([e[i] for e in expected]), rtol=0, atol=1e-4
        )


NETWORKS = {
    (name, shape): enlarge(network(shape, width=16, attention=name), 1.5)
    for name in ("dam", "sam", "mam")
    for shape in ((10,), (8, 8))
}


@ATTENTIONS
@pytest.mark.parametrize("shape", [(10,), (8, 8)], ids=str)
@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=4), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_neither_order_nor_company_changes_a_bag(attention, shape, sizes, seed):
    net = NETWORKS[attention, shape]
    rng = np.random.default_rng(seed)
    instances = torch.tensor(rng.standard_normal((sum(sizes), *shape)), dtype=torch.float32)
    bags = torch.split(instances, sizes)
    with torch.no_grad():
        together = net(instances, torch.tensor(sizes)).logits
        alone = torch.cat([net(bag, torch.tensor([len(bag)])).logits for bag in bags])
        shuffled = [bag[torch.tensor(rng.permutation(len(bag)))] for bag in bags]
        permuted = net(torch.cat(shuffled), torch.tensor(sizes)).logits
        backwards = net(torch.cat(bags[::-1]), torch.tensor(sizes[::-1])).logits.flip(0)
    for other in (alone, permuted, backwards):
        assert (other - together).abs().max() <= 1e-5
    assert (together[0] - together[1]).abs().max() > 1e-3  # different bags do differ


@ATTENTIONS
def test_every_parameter_learns(attention):
    net = network((8, 8), width=16, attention=attention)
    out = net(torch.rand(30, 8, 8), torch.tensor([10, 20]))
    torch.autograd.backward(out.logits.square().sum())
    # a score's last bias shifts all scores of a bag alike, which SAM and MAM do not see
    unseen = set() if attention == "dam" else {"score.score.2.bias"}
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        if name in unseen:
            assert parameter.grad.abs().max() < 1e-6
        else:
            assert parameter.grad.abs().max() > 1e-10, name


@pytest.mark.parametrize("chunk", [1, 7, 22, 100])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("shape", [(10,), (8, 8)], ids=str)
def test_encoding_in_chunks_changes_nothing(chunk, mode, shape, monkeypatch):
    net = enlarge(network(shape, width=16), 1.5)
    if shape == (10,):
        net.scaling.mean.uniform_(-1, 1)
    instances, sizes = torch.randn(22, *shape), torch.tensor([15, 7])
    lengths = []
    net.encoder.register_forward_hook(lambda module, inputs, output: lengths.append(len(inputs[0])))
    expected = net(instances, sizes)  # with gradients: in one piece
    assert lengths == [22]
    lengths.clear()
    monkeypatch.setattr(BagNetwork, "CHUNK", chunk)
    with mode():
        result = net(instances, sizes)
    assert lengths == [min(chunk, 22 - start) for start in range(0, 22, chunk)]
    for name in expected._fields:
        torch.testing.assert_close(
            getattr(result, name).clone(), getattr(expected, name).detach(), rtol=0, atol=1e-5
        )
    lengths.clear()
    net(instances, sizes)
    assert lengths == [22]


# --- dropout from bytes ---


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_its_share(p):
    torch.manual_seed(0)
    dropout = Dropout(p).train()
    x = torch.ones(200_003)
    y = dropout(x)
    values, counts = y.unique(return_counts=True)
    assert len(values) == 2
    assert values[0] == 0.0
    assert float(counts[0]) / len(x) == pytest.approx(p, abs=0.005)
    assert float(y.mean()) == pytest.approx(1.0, abs=0.01 + 0.01 * (p > 0.8))
    # neighbours in one 64-bit draw are independent
    dropped = (y == 0).double() - (y == 0).double().mean()
    for lag in range(1, 9):
        assert abs(float((dropped[:-lag] * dropped[lag:]).mean())) / (p * (1 - p)) < 0.01
    assert dropout.eval()(x) is x


def test_dropout_repeats_with_its_seed_and_scales_gradients():
    dropout, x = Dropout(0.5).train(), torch.randn(5, 7, requires_grad=True)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(dropout(x))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    results[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.where(results[0] == 0, 0.0, 2.0))


class Parts:
    """Instances that are handed out a part at a time."""

    def __init__(self, instances):
        self.instances = instances

    def parts(self, instances):
        return iter(self.instances.split(instances))


@ATTENTIONS
def test_instances_by_parts_give_the_same(attention, monkeypatch):
    net = enlarge(network((5,), attention=attention))
    sizes = torch.tensor([1, 40, 3, 17])
    instances = torch.randn(int(sizes.sum()), 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = net(instances, sizes)
        monkeypatch.setattr(BagNetwork, "CHUNK", 7)
        parts = net(Parts(instances), sizes)
    assert parts.features is None  # never all in memory
    for name in ("logits", "embedding", "attention", "scores"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-6, rtol=1e-5, msg=name)


# --- the background ---


@ATTENTIONS
@pytest.mark.parametrize("head", ["linear", "sigmoid"])
def test_how_decided_a_background_is_against_a_loop(attention, head):
    net = enlarge(network((5,), width=16, attention=attention, head=head), 3.0)
    sizes = [1, 2, 7, 30]
    bags = [torch.randn(n, 5) for n in sizes]
    output = net(torch.cat(bags), torch.tensor(sizes))
    got = net.decided(output, torch.tensor(sizes)).detach().numpy()
    assert got[0] == 0.0  # the only instance of a bag is not its background
    for bag, value in zip(bags[1:], got[1:], strict=True):
        alone = net(bag, torch.tensor([len(bag)]))
        little = [i for i in range(len(bag)) if alone.attention[i] < 1 / len(bag)]
        mean = torch.stack([net.encode(bag[i : i + 1])[0] for i in little]).mean(dim=0)
        q = net.head(mean[None])[0].double().softmax(dim=0).detach().numpy()
        assert value == pytest.approx(sum(np.log(0.2 / q) / 5), rel=1e-3, abs=1e-6)


def test_an_even_head_has_an_undecided_background_and_attention_is_no_way_out():
    net = enlarge(network((5,), width=16), 3.0)
    sizes = torch.tensor([4, 9])
    output = net(torch.randn(13, 5), sizes)
    (slope,) = torch.autograd.grad(net.decided(output, sizes).sum(), output.scores, allow_unused=True)
    assert slope is None  # which instances they are is taken as it is
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.fill_(0.7)
    assert net.decided(net(torch.randn(13, 5), sizes), sizes).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_images_trained_on_in_parts_give_the_same_values_and_gradients(monkeypatch):
    net = enlarge(network((28, 28))).train()
    net.encoder.dropout.p = 0.0
    images = torch.rand(23, 28, 28)
    given = []
    for part in (23, 7):
        monkeypatch.setattr(ImageEncoder, "PART", part)
        features = net.encode(images)
        slopes = torch.autograd.grad(features.square().sum(), list(net.encoder.parameters()))
        given.append((features, *slopes))
    for whole, parts in zip(*given, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)
