"""Several networks as one computation: values and gradients are those of each network on its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.methods import METHODS
from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import Standardize, make_encoder
from mipl.nn.heads import make_head
from mipl.nn.members import Members, can_be_member, layer_parameters
from mipl.nn.network import BACKGROUND_LEVEL, BagNetwork, is_background

D = 5
OF_BAGS = ("logits", "embedding", "background_kl")  # (e·b, …); attention and scores are (e, n)


def networks(count, attention="sam", head="linear", dropout=0.0, width=16, k=4):
    """Return networks with one scaling whose attention and logits differ from bag to bag."""
    scaling = Standardize((D,))
    scaling.mean.normal_()
    scaling.std.uniform_(0.5, 2.0)
    nets = [
        BagNetwork(
            scaling=scaling,
            encoder=make_encoder((D,), width, dropout),
            score=GatedScore(width, k),
            attention=make_attention(attention, width),
            head=make_head(head, width, k),
        ).train()
        for _ in range(count)
    ]
    with torch.no_grad():
        for net in nets:
            for parameter in net.parameters():
                parameter.mul_(3.0)
            net.score.score[2].weight.mul_(10.0)  # some instances are background
    return nets


@given(
    attention=st.sampled_from(["dam", "sam", "mam"]),
    head=st.sampled_from(["linear", "sigmoid"]),
    count=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    used=st.sets(st.sampled_from([*OF_BAGS, "attention", "scores"]), min_size=1),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_values_and_gradients_are_those_of_every_network(attention, head, count, sizes, used, seed):
    torch.manual_seed(seed)
    nets = networks(count, attention, head)
    members = Members(nets)
    x, sizes, b = torch.randn(sum(sizes), D), torch.tensor(sizes), len(sizes)
    output = members(x, sizes)
    stacked = {**output._asdict(), "background_kl": members.background_kl(output, sizes)}
    together, apart = [], []
    for e, net in enumerate(nets):
        single = net(x, sizes)
        edge = single.attention * sizes.repeat_interleave(sizes)
        if ((edge - BACKGROUND_LEVEL).abs() < 1e-4).any():  # rounding decides what is background
            return
        alone = {**single._asdict(), "background_kl": net.background_kl(single, sizes)}
        for name in (*OF_BAGS, "attention", "scores"):
            mine = stacked[name][e * b : (e + 1) * b] if name in OF_BAGS else stacked[name][e]
            torch.testing.assert_close(mine, alone[name], atol=1e-5, rtol=1e-4, msg=name)
            if name in used:
                coefficients = torch.randn(mine.shape)
                together.append((mine * coefficients).sum())
                apart.append((alone[name] * coefficients).sum())
    sum(together).backward()
    sum(apart).backward()
    for e, net in enumerate(nets):
        for own, rows in zip(layer_parameters(net), members.stacked, strict=True):
            wanted = torch.zeros_like(own) if own.grad is None else own.grad
            scale = max(1.0, float(wanted.abs().max()))
            torch.testing.assert_close(rows.grad[e] / scale, wanted / scale, atol=3e-5, rtol=1e-3)


@given(n=st.integers(1, 40), seed=st.integers(0, 99))
def test_background_has_less_than_a_tenth_of_a_uniform_weight(n, seed):
    weights = torch.distributions.Dirichlet(torch.full((n,), 0.3)).sample()
    assert is_background(weights, torch.tensor(n)).tolist() == [w < 0.1 / n for w in weights.tolist()]
    assert not is_background(torch.full((n,), 1.0 / n), torch.tensor(n)).any()


def test_without_the_regulariser_the_background_is_not_computed():
    torch.manual_seed(0)
    nets = networks(2)
    members = Members(nets, background=False)
    x, sizes = torch.randn(30, D), torch.tensor([20, 10])
    output, asked = members(x, sizes), Members(nets)(x, sizes)
    assert output.background is None
    torch.testing.assert_close(output.logits, asked.logits)
    gradients = torch.autograd.grad(output.logits.square().sum(), list(members.stacked))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_dropout_has_the_right_mean_and_is_drawn_again_in_each_pass():
    torch.manual_seed(0)
    nets = networks(2, dropout=0.5, width=64)
    for net in nets:  # uniform attention, which dropout does not change
        torch.nn.init.zeros_(net.score.score[2].weight)
    members = Members(nets)
    x, sizes = torch.randn(30, D), torch.tensor([30])
    torch.manual_seed(1)
    first = members(x, sizes).embedding
    torch.manual_seed(1)
    assert torch.equal(first, members(x, sizes).embedding)
    assert not torch.equal(first, members(x, sizes).embedding)
    mean = torch.stack([members(x, sizes).embedding.detach() for _ in range(2000)]).mean(dim=0)
    members.eval()
    torch.testing.assert_close(mean, members(x, sizes).embedding.detach(), atol=0.05, rtol=0.05)


def test_trained_parameters_are_handed_back_to_the_networks():
    torch.manual_seed(0)
    nets = networks(3, "mam")
    members = Members(nets)
    members.attention.set_epoch(9)
    with torch.no_grad():
        for rows in members.stacked:
            rows.normal_()
    x, sizes = torch.randn(12, D), torch.tensor([5, 7])
    wanted = members(x, sizes).logits.view(3, 2, -1)
    members.copy_to_networks()
    for net, logits in zip(nets, wanted, strict=True):
        torch.testing.assert_close(net(x, sizes).logits, logits, atol=1e-4, rtol=1e-4)
        assert net.attention.tau == members.attention.tau


@pytest.mark.parametrize(
    ("shape", "settings_", "wanted"),
    [
        ((D,), {}, True),
        ((D,), {"attention": "mam"}, True),
        ((D,), {"attention": "mam", "mam_order": "weights"}, False),
        ((28, 28), {}, False),
    ],
)
def test_only_networks_on_vectors_with_known_layers_are_stacked(shape, settings_, wanted):
    assert can_be_member(METHODS["sam-cn"].make(**settings_).build(shape, 4)) == wanted
    own = torch.nn.Sequential(torch.nn.Linear(D, 8), torch.nn.ReLU())
    assert not can_be_member(METHODS["sam-cn"].make().build((D,), 4, own))
