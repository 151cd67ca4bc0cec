"""ξ, DAM, SAM, MAM and the aggregation (Eqs. 7–13), each computed again in NumPy from its formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mipl.errors import SettingError
from mipl.nn.attention import DAM, MAM, SAM, Attention, GatedScore, aggregate, make_attention

WIDTH = 16
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**32 - 1)

properties = settings(max_examples=40, deadline=None)


def draw(sizes, seed, scale=3.0):
    return np.random.default_rng(seed).standard_normal(sum(sizes)) * scale


def per_bag(sizes, values):
    return np.split(values, np.cumsum(sizes)[:-1])


def segments_of(sizes):
    return torch.tensor([bag for bag, size in enumerate(sizes) for _ in range(size)])


def weigh(attention, scores, sizes):
    """The attention's weights for scores of any kind, in the scores' own precision."""
    scores = torch.as_tensor(scores)
    return attention(scores, segments_of(sizes), torch.tensor(sizes))


def numpy_softmax(x):
    return np.exp(x) / np.exp(x).sum()


def all_attentions(width=WIDTH):
    return [DAM(), SAM(width), MAM(width), MAM(width, order="weights")]


ATTENTIONS = pytest.mark.parametrize(
    "attention", all_attentions(), ids=["dam", "sam", "mam-scores", "mam-weights"]
)


# --- Eq. 7 ---


def numpy_xi(score, h):
    weights = {name: value.detach().double().numpy() for name, value in score.named_parameters()}
    result = []
    for row in h:
        first, second = np.split(weights["gates.weight"] @ row + weights["gates.bias"], 2)
        t, s = np.tanh(first), 1 / (1 + np.exp(-second))
        hidden = np.maximum(weights["score.0.weight"] @ (t * s) + weights["score.0.bias"], 0.0)
        result.append((weights["score.2.weight"] @ hidden + weights["score.2.bias"])[0])
    return np.array(result)


@pytest.mark.parametrize("n", [1, 9])
def test_score_equals_equation_7(n):
    torch.manual_seed(n)
    score = GatedScore(WIDTH, 5)
    h = 3 * torch.randn(n, WIDTH)
    result = score(h)
    assert result.shape == (n,)
    np.testing.assert_allclose(
        result.detach().numpy(), numpy_xi(score, h.double().numpy()), rtol=0, atol=1e-5
    )


def test_layers_of_the_score_have_the_stated_sizes():
    shapes = {name: tuple(p.shape) for name, p in GatedScore(WIDTH, 5).named_parameters()}
    assert shapes == {
        "gates.weight": (2 * 5, WIDTH),
        "gates.bias": (2 * 5,),
        "score.0.weight": (128, 5),
        "score.0.bias": (128,),
        "score.2.weight": (1, 128),
        "score.2.bias": (1,),
    }


# --- Eqs. 8–12 ---


@given(sizes=SIZES, seed=SEEDS)
@properties
def test_dam_equals_equation_8(sizes, seed):
    scores = draw(sizes, seed)
    expected = []
    for bag in per_bag(sizes, scores):
        sigmoid = 1 / (1 + np.exp(-bag))
        expected += list(sigmoid / sigmoid.sum())
    np.testing.assert_allclose(weigh(DAM(), scores, sizes).numpy(), expected, rtol=1e-10)


@given(sizes=SIZES, seed=SEEDS, width=st.sampled_from([1, 16, 128, 512]))
@properties
def test_sam_equals_equation_9(sizes, seed, width):
    scores = draw(sizes, seed, 20.0)
    expected = np.concatenate([numpy_softmax(bag / np.sqrt(width)) for bag in per_bag(sizes, scores)])
    np.testing.assert_allclose(weigh(SAM(width), scores, sizes).numpy(), expected, rtol=1e-10)


@given(sizes=SIZES, seed=SEEDS, width=st.sampled_from([1, 16, 128]), tau=st.sampled_from([0.125, 1.0, 5.0]))
@properties
def test_mam_zscores_the_scores_then_softmax(sizes, seed, width, tau):
    scores = draw(sizes, seed)
    expected = []
    for bag in per_bag(sizes, scores):
        deviation = np.std(bag, ddof=1) if len(bag) > 1 else 0.0
        z = (bag - bag.mean()) / (deviation + 1e-3)
        expected += list(numpy_softmax(z / np.sqrt(width) / tau))
    result = weigh(MAM(width, start=tau), scores, sizes)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@given(sizes=SIZES, seed=SEEDS, tau=st.sampled_from([0.125, 1.0, 5.0]))
@properties
def test_mam_in_the_order_of_the_text_equals_equations_10_and_12(sizes, seed, tau):
    scores = draw(sizes, seed)
    result = weigh(MAM(WIDTH, start=tau, order="weights"), scores, sizes)
    for bag, weights in zip(per_bag(sizes, scores), per_bag(sizes, result.numpy()), strict=True):
        if len(bag) == 1:
            assert weights.tolist() == [1.0]
            continue
        breve = numpy_softmax(bag / tau)  # Eq. 10
        deviation = np.sqrt(sum((breve - breve.mean()) ** 2) / (len(bag) - 1))
        # Eq. 12 as printed, times what the guard on the division takes away
        expected = (breve - breve.mean()) / deviation * (deviation / (deviation + 1e-3))
        np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-9)
        assert weights.sum() == pytest.approx(0.0, abs=1e-9)


@ATTENTIONS
@pytest.mark.parametrize("score", [0.0, 7.0, -1e4, 1e4])
def test_a_lone_instance_has_weight_1_and_no_gradient(attention, score):
    scores = torch.tensor([0.3, score, -0.2], requires_grad=True)
    weights = weigh(attention, scores, [1, 1, 1])
    assert weights.tolist() == [1.0, 1.0, 1.0]
    (gradient,) = torch.autograd.grad(weights, scores, torch.ones(3))
    assert gradient.tolist() == [0.0, 0.0, 0.0]


@ATTENTIONS
@given(sizes=SIZES, seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_extreme_scores_give_finite_weights_and_gradients(attention, sizes, seed):
    raw = np.random.default_rng(seed).choice([-1e4, 0.0, 1e4], size=sum(sizes))
    scores = torch.tensor(raw, dtype=torch.float32, requires_grad=True)
    weights = weigh(attention, scores, sizes)
    (gradient,) = torch.autograd.grad(weights, scores, torch.randn(len(raw)))
    assert torch.isfinite(weights).all()
    assert torch.isfinite(gradient).all()
    if getattr(attention, "order", "scores") == "scores":
        sums = [bag.sum() for bag in per_bag(sizes, weights.detach().double().numpy())]
        np.testing.assert_allclose(sums, 1.0, atol=1e-5)
        assert (weights >= 0).all()


@ATTENTIONS
@given(sizes=SIZES, seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_permuted_instances_have_permuted_weights(attention, sizes, seed):
    rng = np.random.default_rng(seed)
    scores = draw(sizes, seed)
    starts = np.cumsum([0, *sizes[:-1]])
    order = np.concatenate([start + rng.permutation(size) for start, size in zip(starts, sizes, strict=True)])
    expected = weigh(attention, scores, sizes).numpy()[order]
    np.testing.assert_allclose(weigh(attention, scores[order], sizes).numpy(), expected, rtol=0, atol=1e-10)


def test_dam_of_very_negative_scores_is_not_0_over_0():
    scores = torch.tensor([-200.0, -201.0, -203.0, -1e4, -1e4])
    sizes = [3, 2]
    assert torch.sigmoid(scores).sum() == 0.0  # so Eq. 8 as it is written would divide by zero
    scores.requires_grad_()
    weights = weigh(DAM(), scores, sizes)
    # far down, sigmoid(ξ) is exp(ξ)
    expected = [*numpy_softmax(np.array([0.0, -1.0, -3.0])), 0.5, 0.5]
    np.testing.assert_allclose(weights.detach().numpy(), expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(weights[0], scores)
    assert torch.isfinite(gradient).all()
    assert gradient[0] > 0.1


def nearly_equal_gradient(attention, spread):
    """The largest gradient of a weighted sum of 40 attention weights, for scores about ``spread`` apart."""
    generator = torch.Generator().manual_seed(0)
    scores = (spread * torch.randn(40, generator=generator)).requires_grad_()
    incoming = torch.randn(40, generator=generator)
    (gradient,) = torch.autograd.grad(weigh(attention, scores, [40]), scores, incoming)
    return float(gradient.abs().max())


@pytest.mark.parametrize("order", ["scores", "weights"])
@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-8, 1e-6, 1e-4])
def test_nearly_equal_scores_give_moderate_gradients(order, spread):
    # at τ = 1 the slope is at most that of the softmax, 1/n, over the guard 1e-3 (and √L), times |incoming|
    assert 0 < nearly_equal_gradient(MAM(WIDTH, start=1.0, order=order), spread) < 3 / 40 / 1e-3


@pytest.mark.parametrize("order", ["scores", "weights"])
def test_without_the_guard_the_gradients_explode(order, monkeypatch):
    monkeypatch.setattr(MAM, "EPS", 1e-8)
    assert nearly_equal_gradient(MAM(WIDTH, start=1.0, order=order), 1e-8) > 1e4


# --- Eq. 11 ---


@pytest.mark.parametrize(("start", "decay", "floor"), [(5.0, 0.95, 0.1), (2.0, 0.5, 0.3), (1.0, 1.0, 0.1)])
def test_temperature_follows_the_recursion_to_its_floor(start, decay, floor):
    attention = MAM(WIDTH, start=start, decay=decay, floor=floor)
    tau = start
    for epoch in range(1, 121):
        attention.set_epoch(epoch)
        assert float(attention.tau) == pytest.approx(tau, rel=1e-6)
        tau = max(floor, tau * decay)


def test_temperature_is_5_then_475_and_never_under_a_tenth():
    attention, seen = MAM(WIDTH), {}
    assert float(attention.tau) == 5.0
    for epoch in (1, 2, 3, 77, 78, 500):
        attention.set_epoch(epoch)
        seen[epoch] = round(float(attention.tau), 4)
    assert seen == {1: 5.0, 2: 4.75, 3: 4.5125, 77: 0.1014, 78: 0.1, 500: 0.1}


def test_temperature_is_part_of_the_model():
    trained = MAM(WIDTH)
    trained.set_epoch(40)
    state = trained.state_dict()
    assert list(state) == ["tau"]
    loaded = MAM(WIDTH)
    scores = draw([6, 3], 0)
    assert not torch.equal(weigh(loaded, scores, [6, 3]), weigh(trained, scores, [6, 3]))
    loaded.load_state_dict(state)
    assert torch.equal(weigh(loaded, scores, [6, 3]), weigh(trained, scores, [6, 3]))
    assert list(trained.parameters()) == []  # followed by the schedule, not learned


def test_lower_temperature_sharpens():
    attention, scores, tops = MAM(WIDTH), draw([30], 3), []
    for epoch in (1, 20, 40, 80):
        attention.set_epoch(epoch)
        tops.append(float(weigh(attention, scores, [30]).max()))
    assert tops == sorted(tops)
    assert tops[-1] > 5 * tops[0]


@pytest.mark.parametrize("attention", [DAM(), SAM(WIDTH)], ids=["dam", "sam"])
def test_the_others_do_not_follow_the_epoch(attention):
    scores = draw([6, 3], 0)
    before = weigh(attention, scores, [6, 3])
    attention.set_epoch(60)
    assert torch.equal(weigh(attention, scores, [6, 3]), before)
    assert attention.state_dict() == {}


# --- making one ---


def test_make_attention_makes_what_is_named():
    assert type(make_attention("dam", WIDTH)) is DAM
    sam = make_attention("sam", 64)
    assert type(sam) is SAM
    assert sam.scale == 0.125
    mam = make_attention("mam", 64, start=2.0, decay=0.5, floor=0.2, order="weights")
    assert type(mam) is MAM
    assert (mam.start, mam.decay, mam.floor, mam.order, mam.scale) == (2.0, 0.5, 0.2, "weights", 0.125)
    assert float(mam.tau) == 2.0


def test_mam_zscores_the_scores_unless_told():
    assert MAM(WIDTH).order == "scores"


def test_unknown_names_are_refused():
    with pytest.raises(SettingError, match=r"There is no attention 'smam'\. Did you mean '[sm]am'\?"):
        make_attention("smam", WIDTH)
    with pytest.raises(SettingError, match=r"'median'\. Known: dam, sam, mam, abmil, abmil-gated\."):
        make_attention("median", WIDTH)
    with pytest.raises(SettingError, match="order = 'score' must be 'scores' or 'weights'"):
        MAM(WIDTH, order="score")


def test_the_base_class_weighs_nothing():
    with pytest.raises(NotImplementedError):
        weigh(Attention(), torch.zeros(2), [2])


# --- Eq. 13 ---


@given(sizes=SIZES, seed=SEEDS)
@properties
def test_aggregation_equals_equation_13(sizes, seed):
    rng = np.random.default_rng(seed)
    a, h = rng.standard_normal(sum(sizes)), rng.standard_normal((sum(sizes), 3))
    expected, row = np.zeros((len(sizes), 3)), 0
    for i, size in enumerate(sizes):
        for _ in range(size):
            expected[i] += a[row] * h[row]
            row += 1
    result = aggregate(torch.tensor(a), torch.tensor(h), segments_of(sizes), len(sizes))
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [DAM, lambda: SAM(WIDTH)], ids=["dam", "sam"])
def test_gradients_of_attention_and_aggregation(make):
    torch.manual_seed(0)
    attention, sizes = make(), [1, 4, 3]
    scores = torch.randn(8, dtype=torch.float64, requires_grad=True)
    h = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    segments = segments_of(sizes)
    assert torch.autograd.gradcheck(
        lambda s, x: aggregate(attention(s, segments, torch.tensor(sizes)), x, segments, 3), (scores, h)
    )
