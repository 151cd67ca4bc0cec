"""The network: sizes against the paper's, values against NumPy, invariances of bags."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import ImageEncoder, Standardize, make_encoder
from mipl.nn.heads import make_head
from mipl.nn.network import BagNetwork

ATTENTIONS = pytest.mark.parametrize("attention", ["dam", "sam", "mam"])


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
    for name in ("logits", "embedding", "attention", "scores", "features"):
        torch.testing.assert_close(
            getattr(result, name).clone(), getattr(expected, name).detach(), rtol=0, atol=1e-5
        )
    lengths.clear()
    net(instances, sizes)
    assert lengths == [22]


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


def selective(net):
    """Enlarge the scores, so that some instances have hardly any attention."""
    with torch.no_grad():
        net.score.score[2].weight.mul_(20.0)
    return net


@ATTENTIONS
@pytest.mark.parametrize("head", ["linear", "sigmoid"])
def test_the_divergence_of_the_background_equals_a_loop(attention, head):
    """KL(uniform ‖ prediction of the mean background); background has less than a tenth of 1/n."""
    net = selective(enlarge(network((5,), width=16, attention=attention, head=head), 3.0))
    net.attention.set_epoch(99)
    sizes = [1, 9, 30, 60]
    bags = [torch.randn(n, 5) for n in sizes]
    output = net(torch.cat(bags), torch.tensor(sizes))
    got = net.background_kl(output, torch.tensor(sizes)).detach().numpy()
    assert got[0] == 0.0  # the only instance of a bag is not its background
    found = 0
    for bag, value in zip(bags[1:], got[1:], strict=True):
        alone = net(bag, torch.tensor([len(bag)]))
        ignored = [i for i in range(len(bag)) if alone.attention[i] < 0.1 / len(bag)]
        found += len(ignored)
        if not ignored:
            assert value == 0.0
            continue
        mean = torch.stack([net.encode(bag[i : i + 1])[0] for i in ignored]).mean(dim=0)
        q = net.head(mean[None])[0].double().softmax(dim=0).detach().numpy()
        assert value == pytest.approx(sum(np.log(0.2 / q) / 5), rel=1e-3, abs=1e-6)
    assert 0 < found < sum(sizes)


def test_a_constant_head_has_a_divergence_of_0_and_attention_has_no_gradient():
    net = selective(enlarge(network((5,), width=16), 3.0))
    sizes = torch.tensor([4, 9])
    output = net(torch.randn(13, 5), sizes)
    assert (net.background_kl(output, sizes) > 0).all()
    (slope,) = torch.autograd.grad(net.background_kl(output, sizes).sum(), output.scores, allow_unused=True)
    assert slope is None  # which instances they are is taken as it is
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.fill_(0.7)
    assert net.background_kl(net(torch.randn(13, 5), sizes), sizes).tolist() == pytest.approx(
        [0, 0], abs=1e-6
    )


def test_images_trained_on_in_parts_give_the_same_values_and_gradients(monkeypatch):
    net = enlarge(network((28, 28))).train()
    net.encoder.dropout.p = 0.0
    images = torch.rand(23, 28, 28)
    given = []
    for part in (23, 7):
        monkeypatch.setattr(ImageEncoder, "CHUNK", part)
        features = net.encode(images)
        slopes = torch.autograd.grad(features.square().sum(), list(net.encoder.parameters()))
        given.append((features, *slopes))
    for whole, parts in zip(*given, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)
