"""The optimiser takes the steps of torch's own classes."""

import pytest
import torch
from torch import nn

from mipl.training.optimizer import Optimizer

CLASSES = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1, eps=1e-6),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
}


def layers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2).double())
    net[1].weight = net[0].weight
    net[2].requires_grad_(False)
    return net


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_steps_are_those_of_torch(kind):
    """With shared, frozen and double parameters, and two rates."""
    net, twin = layers(), layers()
    mine = Optimizer(
        kind, [(1.0, [*net[:2].parameters(), net[0].weight]), (0.5, list(net.parameters()))], 0.1, 1e-6
    )
    assert [len(own.parameters) for own in mine.layers] == [3, 2]
    groups = [
        {"params": [twin[0].weight, twin[0].bias, twin[1].bias], "lr": 0.05},
        {"params": list(twin[3].parameters()), "lr": 0.025},
    ]
    theirs = CLASSES[kind](groups)
    for _ in range(5):
        mine.zero_grad()
        theirs.zero_grad()
        for each in (net, twin):
            x = torch.linspace(-1, 2, 12).view(4, 3)
            (each[:3](x).square().sum() + each[3](x.double()).square().sum()).backward()
        mine.step(0.05)
        theirs.step()
        for a, b in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def test_the_state_is_restored_through_its_tensors():
    net, twin = layers(), layers()
    first, second = (Optimizer("adamw", [(1.0, list(each.parameters()))], 0.1) for each in (net, twin))

    def step(each, optimizer):
        optimizer.zero_grad()
        each[0](torch.ones(1, 3)).sum().backward()
        optimizer.step(0.1)

    step(net, first)
    twin.load_state_dict(net.state_dict())
    for name, value in second.tensors().items():
        value.copy_(first.tensors()[name])
    step(net, first)
    step(twin, second)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
