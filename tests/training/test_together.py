"""Several networks trained as one: each as it would be alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mipl import make_classifier
from mipl.data.benchmarks import gaussian_bags
from mipl.estimators import fit_together
from mipl.methods import METHODS
from mipl.nn.attention import GatedScore, make_attention
from mipl.nn.encoders import Standardize, make_encoder
from mipl.nn.heads import make_head
from mipl.nn.members import Members, can_be_member, layer_parameters
from mipl.nn.network import BagNetwork
from mipl.training.recipes import make_recipe
from mipl.training.together import MemberLoader, can_train_together


def network(attention="sam", head="linear", dropout=0.0, width=16, k=4, d=5):
    net = BagNetwork(
        scaling=Standardize((d,)),
        encoder=make_encoder((d,), width, dropout),
        score=GatedScore(width, k),
        attention=make_attention(attention, width),
        head=make_head(head, width, k),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3.0)  # attention and logits that differ from bag to bag
        net.scaling.mean.normal_()
        net.scaling.std.uniform_(0.5, 2.0)
    return net.train()


@given(
    attention=st.sampled_from(["dam", "sam", "mam"]),
    head=st.sampled_from(["linear", "sigmoid"]),
    sizes=st.integers(1, 4).flatmap(
        lambda b: st.lists(st.lists(st.integers(1, 9), min_size=b, max_size=b), min_size=1, max_size=3)
    ),
    used=st.sets(st.sampled_from(["logits", "embedding", "attention", "scores", "decided"]), min_size=1),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_values_and_gradients_are_those_of_every_network(attention, head, sizes, used, seed):
    torch.manual_seed(seed)
    nets = [network(attention, head) for _ in sizes]
    members = Members(nets)
    instances = [torch.randn(sum(own), 5) for own in sizes]
    output = members(nn.utils.rnn.pad_sequence(instances, batch_first=True), torch.tensor(sizes))
    given = {**output._asdict(), "decided": members.decided(output, torch.tensor(sizes))}
    together, apart = [], []
    for e, (net, x, own) in enumerate(zip(nets, instances, sizes, strict=True)):
        single = net(x, torch.tensor(own))
        alone = {**single._asdict(), "decided": net.decided(single, torch.tensor(own))}
        bags = slice(e * len(own), (e + 1) * len(own))
        for name in ("logits", "embedding", "attention", "scores", "decided"):
            rows, value = given[name], alone[name]
            mine = rows[bags] if name in ("logits", "embedding", "decided") else rows[e, : len(x)]
            torch.testing.assert_close(mine, value, atol=1e-5, rtol=1e-4, msg=name)
            if name in used:
                coefficients = torch.randn(value.shape)
                together.append((mine * coefficients).sum())
                apart.append((value * coefficients).sum())
    sum(together).backward()
    sum(apart).backward()
    for e, net in enumerate(nets):
        for own, stacked in zip(layer_parameters(net), members.stacked, strict=True):
            wanted = torch.zeros_like(own) if own.grad is None else own.grad
            scale = max(1.0, float(wanted.abs().max()))
            torch.testing.assert_close(stacked.grad[e] / scale, wanted / scale, atol=3e-5, rtol=1e-3)


def test_without_a_price_on_the_background_nothing_is_said_of_it():
    torch.manual_seed(0)
    members = Members([network(), network()], background=False)
    x, sizes = torch.randn(2, 30, 5), torch.tensor([[20, 10], [15, 15]])
    output, asked = members(x, sizes), Members(members._nets)(x, sizes)
    assert output.background is None
    torch.testing.assert_close(output.logits, asked.logits)
    gradients = torch.autograd.grad(output.logits.square().sum(), list(members.stacked))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_dropout_drops_its_share_and_is_seen_by_the_gradient():
    torch.manual_seed(0)
    nets = [network(dropout=0.5, width=64) for _ in range(2)]
    members = Members(nets)
    x, sizes = torch.randn(2, 30, 5), torch.tensor([[30], [30]])
    torch.manual_seed(1)
    first = members(x, sizes).embedding
    torch.manual_seed(1)
    first_again = members(x, sizes).embedding
    assert torch.equal(first, first_again)
    assert not torch.equal(first, members(x, sizes).embedding)
    mean = torch.stack([members(x, sizes).logits.detach() for _ in range(2000)]).mean(dim=0)
    members.eval()
    torch.testing.assert_close(mean, members(x, sizes).logits.detach(), atol=0.3, rtol=0.1)


def splits(count=3, **kinds):
    return [gaussian_bags(bags=40, k=4, seed=seed, **kinds) for seed in range(count)]


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].cls.logits_alone])
def test_without_dropout_each_is_the_model_of_one(name):
    sets = splits()
    alone = [make_classifier(name, epochs=3, dropout=0.0).fit(bags) for bags in sets]
    together = [make_classifier(name, epochs=3, dropout=0.0) for _ in sets]
    fit_together(together, sets)
    for a, b, bags in zip(alone, together, sets, strict=True):
        np.testing.assert_allclose(b.predict_proba(bags), a.predict_proba(bags), atol=2e-4)
        np.testing.assert_allclose(b.history_["loss"], a.history_["loss"], rtol=1e-3)
        np.testing.assert_allclose(b.history_["weight_on_top"], a.history_["weight_on_top"], rtol=1e-3)
        assert b.history_["lr"] == a.history_["lr"]
        assert b.trained_on_ == a.trained_on_


def test_with_dropout_they_learn_and_differ_from_each_other():
    sets = splits()
    together = [make_classifier("mam-cn", epochs=40) for _ in sets]
    fit_together(together, sets)
    assert all(model.score(bags) > 0.8 for model, bags in zip(together, sets, strict=True))
    again = [make_classifier("mam-cn", epochs=40) for _ in sets]
    fit_together(again, sets)
    for a, b, bags in zip(together, again, sets, strict=True):
        assert np.array_equal(a.predict_proba(bags), b.predict_proba(bags))


def test_what_cannot_be_trained_together_is_trained_in_turn():
    sets = splits(2)
    for name in ("demipl", "fastmipl", "proden"):
        alone = [make_classifier(name, epochs=2).fit(bags) for bags in sets]
        together = [make_classifier(name, epochs=2) for _ in sets]
        fit_together(together, sets)
        for a, b, bags in zip(alone, together, sets, strict=True):
            assert np.array_equal(a.predict_proba(bags), b.predict_proba(bags))
    method = METHODS["sam-cn"].make()
    nets = [method.build((5,), 4) for _ in sets]
    recipe = make_recipe("stable")
    assert can_train_together(method, nets, sets, recipe)
    assert not can_train_together(method, nets, [sets[0], sets[1][:30]], recipe)
    large = gaussian_bags(150, k=5, r=3)  # it begins from starts
    assert not can_train_together(method, nets, [large, large], recipe)
    assert not can_be_member(method.build((28, 28), 4))


def test_members_see_the_same_batches_or_each_its_own():
    bags = gaussian_bags(30, k=3, r=1, seed=0)
    for alike in (True, False):
        loader = MemberLoader([bags, bags], alike=alike)
        batches = list(loader.epoch(8, np.random.default_rng(0)))
        first, second = (np.concatenate([b.index.view(2, -1)[i] for b in batches]) % 30 for i in (0, 1))
        assert np.array_equal(np.sort(first), np.arange(30))
        assert np.array_equal(np.sort(second), np.arange(30))
        assert np.array_equal(first, second) == alike
