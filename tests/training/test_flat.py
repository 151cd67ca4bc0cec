"""Parameters as views of vectors: the same network, the same steps."""

import copy

import pytest
import torch
from torch import nn

from mipl.methods.base import METHODS
from mipl.training.flat import FlatParameters
from mipl.training.recipe import Recipe


def test_a_network_computes_the_same_before_during_and_after():
    torch.manual_seed(0)
    net = METHODS["sam-cn"].make().build((28, 28), 5).eval()
    images, sizes = torch.rand(9, 28, 28), torch.tensor([4, 5])
    before = net(images, sizes).logits
    strides = {name: p.stride() for name, p in net.named_parameters()}
    flat = FlatParameters(Recipe().shares(net))
    assert sum(v.numel() for v in flat.vectors) == sum(p.numel() for p in net.parameters())
    assert {name: p.stride() for name, p in net.named_parameters()} == strides
    torch.testing.assert_close(net(images, sizes).logits, before, rtol=0, atol=0)
    flat.release()
    torch.testing.assert_close(net(images, sizes).logits, before, rtol=0, atol=0)
    storages = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert len(storages) == len(list(net.parameters()))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_steps_equal_those_of_an_optimiser_of_the_parameters_themselves(optimizer):
    torch.manual_seed(1)
    net = METHODS["dam-cn"].make(dropout=0.0).build((8, 8), 3)
    twin = copy.deepcopy(net)
    recipe = Recipe(optimizer=optimizer, lr=0.05, weight_decay=0.1)
    flat = FlatParameters(recipe.shares(net))
    assert len(flat.vectors) == (3 if optimizer == "adamw" else 1)  # one per factor on the learning rate
    mine = recipe.make_optimizer(flat)
    groups = [{"params": own, "share": share} for share, own in recipe.shares(twin)]
    theirs = (
        torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1, eps=1e-6)
        if optimizer == "adamw"
        else torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1)
    )
    for opt in (mine, theirs):
        for group in opt.param_groups:
            group["lr"] = 0.05 * group["share"]
    for step in range(5):
        x, sizes = torch.rand(7, 8, 8), torch.tensor([3, 4])
        flat.zero_grad()
        net(x, sizes).logits.square().sum().backward()
        norm = nn.utils.clip_grad_norm_(flat.vectors, 0.5)
        mine.step()
        theirs.zero_grad()
        twin(x, sizes).logits.square().sum().backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(twin.parameters(), 0.5))
        theirs.step()
        for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b, msg=lambda text: f"{name}, step {step}: {text}")  # noqa: B023


def test_frozen_tied_and_double_parameters():
    encoder = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2).double())
    encoder[1].weight = encoder[0].weight
    encoder[2].requires_grad_(False)
    frozen = encoder[2].weight.data_ptr()
    flat = FlatParameters([(1.0, list(encoder.parameters()))])
    assert sorted((str(v.dtype), v.numel()) for v in flat.vectors) == [
        ("torch.float32", 15),
        ("torch.float64", 8),
    ]
    assert encoder[1].weight is encoder[0].weight
    assert encoder[2].weight.data_ptr() == frozen
    flat.release()
    assert encoder[1].weight is encoder[0].weight


def test_the_gradient_of_every_member_is_clipped_on_its_own():
    torch.manual_seed(0)
    shapes = [(3, 4, 2), (3, 5)]
    stacked = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    flat = FlatParameters([(1.0, [stacked[0]]), (0.5, [stacked[1]])], members=3)
    scale = torch.tensor([0.01, 1.0, 100.0])
    gradients = [torch.randn(shape) * scale.view(3, *[1] * (len(shape) - 1)) for shape in shapes]
    for parameter, gradient in zip(stacked, gradients, strict=True):
        parameter.grad.copy_(gradient)
    flat.clip(0.5)
    for member in range(3):
        alone = [nn.Parameter(torch.zeros(shape[1:])) for shape in shapes]
        for parameter, gradient in zip(alone, gradients, strict=True):
            parameter.grad = gradient[member].clone()
        nn.utils.clip_grad_norm_(alone, 0.5)
        for parameter, rows in zip(alone, stacked, strict=True):
            torch.testing.assert_close(rows.grad[member], parameter.grad)
