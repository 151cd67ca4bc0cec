"""Encoders, scaling, dropout and heads: values against NumPy, what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mipl.errors import DataError, SettingError
from mipl.nn.encoders import Dropout, FeatureEncoder, ImageEncoder, Standardize, make_encoder, output_width
from mipl.nn.heads import SigmoidHead, make_head

CEILINGS = [(2, 0.731), (5, 0.405), (7, 0.312), (13, 0.185), (25, 0.102)]


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
