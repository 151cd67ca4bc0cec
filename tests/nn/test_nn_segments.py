"""Every operation within bags against a loop over the bags."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mipl.nn.segments import segment_ids, segment_softmax, segment_sum, segment_weighted_sum, segment_zscore

EPS = 1e-3
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([1e-6, 1.0, 30.0])

properties = settings(max_examples=50, deadline=None)


def draw(sizes, seed, scale=1.0, ties=False):
    """Scores (N,) for bags of these sizes; with ties, many of them are equal."""
    scores = np.random.default_rng(seed).standard_normal(sum(sizes))
    return (scores.round() if ties else scores) * scale


def per_bag(sizes, values):
    return np.split(values, np.cumsum(sizes)[:-1])


def segments_of(sizes):
    """Written out, not by segment_ids, so that a fault there is seen in its own test alone."""
    return torch.tensor([bag for bag, size in enumerate(sizes) for _ in range(size)])


def softmax(scores, sizes):
    return segment_softmax(scores, segments_of(sizes), len(sizes))


def zscore(scores, sizes, eps=EPS):
    return segment_zscore(scores, segments_of(sizes), torch.tensor(sizes), eps)


# --- against the loop ---


@given(sizes=SIZES)
@properties
def test_ids_name_the_bag_of_each_instance(sizes):
    assert segment_ids(torch.tensor(sizes)).tolist() == segments_of(sizes).tolist()


@given(sizes=SIZES, seed=SEEDS, trailing=st.sampled_from([(), (3,), (2, 4)]))
@properties
def test_sum_equals_the_loop(sizes, seed, trailing):
    values = np.random.default_rng(seed).standard_normal((sum(sizes), *trailing))
    expected = []
    for bag in per_bag(sizes, values):
        total = np.zeros(trailing)
        for row in bag:
            total = total + row
        expected.append(total)
    result = segment_sum(torch.tensor(values), segments_of(sizes), len(sizes))
    assert result.shape == (len(sizes), *trailing)
    np.testing.assert_allclose(result.numpy(), np.array(expected), rtol=0, atol=1e-12)


def test_sum_of_a_bag_that_no_instance_belongs_to_is_zero():
    result = segment_sum(torch.ones(3), torch.tensor([0, 2, 2]), 4)
    assert result.tolist() == [1.0, 0.0, 2.0, 0.0]


@given(sizes=SIZES, seed=SEEDS, scale=SCALES, ties=st.booleans())
@properties
def test_softmax_equals_the_loop(sizes, seed, scale, ties):
    scores = draw(sizes, seed, scale, ties)
    expected = []
    for bag in per_bag(sizes, scores):
        exponentials = [np.exp(score) for score in bag]
        expected += [e / sum(exponentials) for e in exponentials]
    np.testing.assert_allclose(softmax(torch.tensor(scores), sizes).numpy(), expected, rtol=1e-11)


@given(sizes=SIZES, seed=SEEDS, scale=SCALES, ties=st.booleans(), eps=st.sampled_from([1e-3, 0.5]))
@example(sizes=[1], seed=0, scale=1.0, ties=False, eps=1e-3)
@properties
def test_zscore_equals_the_loop(sizes, seed, scale, ties, eps):
    scores = draw(sizes, seed, scale, ties)
    expected = []
    for bag in per_bag(sizes, scores):
        deviation = np.std(bag, ddof=1) if len(bag) > 1 else 0.0
        expected += [(score - np.mean(bag)) / (deviation + eps) for score in bag]
    result = zscore(torch.tensor(scores), sizes, eps)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_keep_the_dtype(dtype):
    scores = torch.randn(5, dtype=dtype)
    assert segment_sum(scores, segments_of([2, 3]), 2).dtype is dtype
    assert softmax(scores, [2, 3]).dtype is dtype
    assert zscore(scores, [2, 3]).dtype is dtype


# --- extremes ---


@given(sizes=SIZES, seed=SEEDS, spread=st.sampled_from([0.0, 1.0, 1e4]))
@properties
def test_softmax_of_extreme_scores_is_a_distribution(sizes, seed, spread):
    rng = np.random.default_rng(seed)
    raw = rng.choice([-1e4, 1e4], size=sum(sizes)) + spread * rng.standard_normal(sum(sizes))
    scores = torch.tensor(raw, dtype=torch.float32, requires_grad=True)
    weights = softmax(scores, sizes)
    (gradient,) = torch.autograd.grad(weights, scores, torch.randn(len(raw)))
    assert torch.isfinite(weights).all()
    assert torch.isfinite(gradient).all()
    for bag, given_scores in zip(
        per_bag(sizes, weights.detach().numpy()), per_bag(sizes, scores.detach().numpy()), strict=True
    ):
        assert bag.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-5)
        assert (bag >= 0).all()
        assert bag[given_scores.argmax()] == bag.max() > 0


@pytest.mark.parametrize("level", [-1e4, 1e4])
def test_softmax_in_a_bag_far_from_the_others_is_not_lost(level):
    scores = torch.tensor([level, level + 1.0, 0.0, 0.0])
    e = np.e
    expected = [1 / (1 + e), e / (1 + e), 0.5, 0.5]
    np.testing.assert_allclose(softmax(scores, [2, 2]).numpy(), expected, rtol=1e-6)


@given(sizes=SIZES, seed=SEEDS)
@properties
def test_zscore_of_extreme_scores_is_finite_and_bounded(sizes, seed):
    raw = np.random.default_rng(seed).choice([-1e4, 1e4], size=sum(sizes))
    scores = torch.tensor(raw, dtype=torch.float32, requires_grad=True)
    z = zscore(scores, sizes)
    (gradient,) = torch.autograd.grad(z, scores, torch.randn(len(raw)))
    assert torch.isfinite(gradient).all()
    for bag in per_bag(sizes, z.detach().numpy()):
        # no z-score with n − 1 in its deviation can pass (n − 1)/√n
        assert np.abs(bag).max() <= (len(bag) - 1) / np.sqrt(len(bag)) * (1 + 1e-5)


@pytest.mark.parametrize("score", [0.0, -3.5, 1e4, -1e4])
def test_a_bag_of_one_instance(score):
    scores = torch.tensor([score, 1.0, 2.0], requires_grad=True)
    weights, z = softmax(scores, [1, 2]), zscore(scores, [1, 2])
    assert weights[0] == 1.0
    assert z[0] == 0.0
    for value in (weights[0], z[0]):
        (gradient,) = torch.autograd.grad(value, scores, retain_graph=True)
        assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_equal_scores_give_equal_weights_and_no_zscore():
    scores = torch.full((7,), 2.5)
    np.testing.assert_allclose(softmax(scores, [3, 4]).numpy(), [1 / 3] * 3 + [1 / 4] * 4, rtol=1e-6)
    assert zscore(scores, [3, 4]).tolist() == [0.0] * 7


# --- gradients ---


@pytest.mark.parametrize("sizes", [[1], [4], [1, 3, 2], [5, 1, 1, 4]])
def test_gradients_of_sum_and_softmax(sizes):
    torch.manual_seed(0)
    n = sum(sizes)
    values = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(n, dtype=torch.float64, requires_grad=True)
    segments = segments_of(sizes)
    assert torch.autograd.gradcheck(lambda x: segment_sum(x, segments, len(sizes)), (values,))
    assert torch.autograd.gradcheck(lambda x: segment_softmax(x, segments, len(sizes)), (scores,))
    assert torch.autograd.gradcheck(
        lambda a, h: segment_weighted_sum(a, h, segments, len(sizes)), (scores, values)
    )


@given(sizes=SIZES, seed=SEEDS, scale=SCALES)
@properties
def test_gradient_of_zscore_holds_the_deviation_constant(sizes, seed, scale):
    raw = draw(sizes, seed, scale)
    incoming = draw(sizes, seed + 1)
    scores = torch.tensor(raw, requires_grad=True)
    (gradient,) = torch.autograd.grad(zscore(scores, sizes), scores, torch.tensor(incoming))
    expected = []
    for bag, g in zip(per_bag(sizes, raw), per_bag(sizes, incoming), strict=True):
        deviation = np.std(bag, ddof=1) if len(bag) > 1 else 0.0
        expected += list((g - g.mean()) / (deviation + EPS))
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [[1, 3, 2], [5, 4]])
def test_gradient_of_zscore_against_differences_with_the_deviation_kept(sizes):
    torch.manual_seed(0)
    scores = torch.randn(sum(sizes), dtype=torch.float64, requires_grad=True)
    segments = segments_of(sizes)
    bags = torch.split(scores.detach(), sizes)
    deviation = torch.stack([bag.std() if len(bag) > 1 else bag.new_zeros(()) for bag in bags])

    def held(x):
        means = torch.stack([bag.mean() for bag in torch.split(x, sizes)])
        return (x - means[segments]) / (deviation + EPS)[segments]

    assert torch.autograd.gradcheck(held, (scores,))
    incoming = torch.randn_like(scores)
    (expected,) = torch.autograd.grad(held(scores), scores, incoming)
    (gradient,) = torch.autograd.grad(zscore(scores, sizes), scores, incoming)
    torch.testing.assert_close(gradient, expected)


# --- symmetry ---


@given(sizes=SIZES, seed=SEEDS, scale=SCALES)
@properties
def test_any_order_of_the_instances_gives_the_same(sizes, seed, scale):
    """Also where the instances of different bags are mixed: only the ids say what belongs together."""
    scores, segments = torch.tensor(draw(sizes, seed, scale)), segments_of(sizes)
    order = torch.tensor(np.random.default_rng(seed).permutation(len(scores)))
    bags, counts = len(sizes), torch.tensor(sizes)
    shuffled = scores[order], segments[order]
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(segment_sum(*shuffled, bags), segment_sum(scores, segments, bags), **close)
    torch.testing.assert_close(
        segment_softmax(*shuffled, bags), segment_softmax(scores, segments, bags)[order], **close
    )
    torch.testing.assert_close(
        segment_zscore(*shuffled, counts, EPS), segment_zscore(scores, segments, counts, EPS)[order], **close
    )


@given(sizes=SIZES, seed=SEEDS, shift=st.floats(-50, 50))
@properties
def test_a_shift_of_each_bag_changes_nothing(sizes, seed, shift):
    scores = torch.tensor(draw(sizes, seed))
    shifted = scores + shift * (1 + segments_of(sizes))
    torch.testing.assert_close(softmax(shifted, sizes), softmax(scores, sizes), rtol=0, atol=1e-10)
    torch.testing.assert_close(zscore(shifted, sizes), zscore(scores, sizes), rtol=0, atol=1e-8)
