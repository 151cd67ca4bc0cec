"""Several networks as one computation: values and gradients are those of each network on its own."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.methods import METHODS
from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import Standardize, make_encoder
from mipl.nn.heads import make_head
from mipl.nn.members import Members, can_be_member, for_prediction, have_one_input
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
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4)
    | st.lists(st.integers(1, 4), min_size=9, max_size=18),
    in_parts=st.booleans(),
    used=st.sets(st.sampled_from(["logits", "background_kl"]), min_size=1),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_values_and_gradients_are_those_of_every_network(attention, head, count, sizes, in_parts, used, seed):
    torch.manual_seed(seed)
    nets = networks(count, attention, head)
    members = Members(nets)
    x, sizes, b = torch.randn(sum(sizes), D), torch.tensor(sizes), len(sizes)
    small = {"BAGS": 1, "ROWS": 40} if in_parts else {"BAGS": 64}
    with mock.patch.multiple("mipl.nn.members", **small):
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
    with torch.no_grad():  # the gradients as parameters, in the order that the networks have them
        members.flat.copy_(members.flat.grad)
    wanted = [[torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()] for net in nets]
    members.copy_to_networks()
    for net, of_net in zip(nets, wanted, strict=True):
        for own, gradient in zip(net.parameters(), of_net, strict=True):
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(own.data / scale, gradient / scale, atol=3e-5, rtol=1e-3)


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
    asked_members = Members(nets)
    output, asked = members(x, sizes), asked_members(x, sizes)
    assert output.background is None
    torch.testing.assert_close(output.logits, asked.logits)
    (gradient,) = torch.autograd.grad(asked.logits.square().sum(), [asked_members.flat])
    (mine,) = torch.autograd.grad(output.logits.square().sum(), [members.flat])
    torch.testing.assert_close(mine, gradient)
    assert mine.abs().max() > 0


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
        members.flat.normal_()
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


def test_the_gradient_of_every_member_is_clipped_on_its_own():
    torch.manual_seed(0)
    nets = networks(3)
    members = Members(nets)
    members.flat.grad = torch.randn_like(members.flat)
    for matrices in members.views(members.flat.grad):
        matrices *= torch.tensor([1e-3, 1.0, 100.0])[:, None, None]
    before = [rows.clone() for rows in members.views(members.flat.grad)]
    members.clip(0.5)
    after = members.views(members.flat.grad)
    for e in range(3):
        alone = [torch.nn.Parameter(torch.zeros_like(rows[e])) for rows in before]
        for parameter, rows in zip(alone, before, strict=True):
            parameter.grad = rows[e].clone()
        torch.nn.utils.clip_grad_norm_(alone, 0.5)
        for parameter, rows in zip(alone, after, strict=True):
            torch.testing.assert_close(rows[e], parameter.grad)


def test_rows_that_are_read_in_chunks_give_the_same_output(monkeypatch):
    torch.manual_seed(0)
    nets = networks(2, "mam")
    members = Members(nets, background=False).eval()
    monkeypatch.setattr(BagNetwork, "CHUNK", 7)

    class Rows:
        def parts(self, instances):
            yield from torch.split(x, instances)

    x, sizes = torch.randn(30, D), torch.tensor([19, 11])
    with torch.no_grad():
        whole, chunked = members(x, sizes), members(Rows(), sizes)
    for name in ("logits", "embedding", "attention", "scores"):
        torch.testing.assert_close(getattr(chunked, name), getattr(whole, name), atol=1e-5, rtol=1e-4)


def test_networks_that_scale_differently_have_no_input_in_common():
    first, second = networks(2, "mam"), networks(1, "mam")
    assert have_one_input(first)
    assert not have_one_input([*first, *second])
    first[1].attention.set_epoch(9)
    assert not have_one_input(first)


def test_networks_that_have_changed_are_stacked_again():
    torch.manual_seed(0)
    nets = [net.eval() for net in networks(2)]
    x, sizes = torch.randn(12, D), torch.tensor([5, 7])
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: nets[1].head.bias.add_(1.0),
            lambda: nets[0].scaling.mean.zero_(),
        ):
            change()
            wanted = torch.cat([net(x, sizes).logits for net in nets])
            torch.testing.assert_close(for_prediction(nets)(x, sizes).logits, wanted, atol=1e-5, rtol=1e-4)
    first, second = for_prediction(nets), for_prediction(nets)
    assert first.flat is second.flat
    assert first._storage is not second._storage


def test_the_state_is_the_parameters_and_what_surrounds_them():
    members = Members(networks(2, "mam"))
    members(torch.randn(12, D), torch.tensor([5, 7]))  # what a step writes is no state
    assert sorted(members.state_dict()) == ["attention.tau", "flat", "scaling.mean", "scaling.std"]
