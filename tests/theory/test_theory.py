"""The paper's statements on random bags, each against an independent route.

The independent routes are plain Python loops over one bag, SciPy's entropies, brute force over events and
autograd in float64. The bags hold ties, single candidates, full candidate sets, near one-hot predictions
and zero weights on candidates; the arrays are read-only, so a function that writes to its input fails.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from mipl import theory
from mipl.errors import DataError, SettingError

SHAPES = st.tuples(st.integers(1, 5), st.integers(2, 6))
GAMMAS = st.one_of(st.just(1.0), st.floats(1.0, 5.0))
COMPETITORS = st.sampled_from(["cc", "cn"])

properties = settings(max_examples=60, deadline=None)


class Bags(NamedTuple):
    logits: np.ndarray
    p: np.ndarray
    S: np.ndarray
    w: np.ndarray


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def frozen(array):
    array.flags.writeable = False
    return array


@st.composite
def candidate_sets(draw, m, k):
    S = np.zeros((m, k), dtype=bool)
    for i in range(m):
        size = draw(st.one_of(st.just(1), st.just(k), st.integers(1, k)))
        S[i, draw(st.permutations(range(k)))[:size]] = True
    return frozen(S)


@st.composite
def distributions(draw, S):
    """Rows supported on S, from small whole numbers: zeros on candidates and ties are common."""
    rows = np.zeros(S.shape)
    for i, allowed in enumerate(S):
        labels = np.flatnonzero(allowed)
        parts = draw(st.lists(st.integers(0, 4), min_size=len(labels), max_size=len(labels)))
        parts[draw(st.integers(0, len(labels) - 1))] += 1
        rows[i, labels] = np.array(parts) / sum(parts)
    return frozen(rows)


@st.composite
def bags(draw, gap=None):
    """Random bags; with a gap, all logits of a bag are at least that far apart, so nothing ties."""
    m, k = draw(SHAPES)
    if gap is not None:
        steps = draw(st.lists(st.floats(gap, 2.0), min_size=m * k, max_size=m * k))
        ladder = np.cumsum(np.reshape(steps, (m, k)), axis=1)
        logits = np.stack([row[draw(st.permutations(range(k)))] for row in ladder])
    else:
        entry = draw(
            st.sampled_from([st.integers(-2, 2), st.floats(-4, 4), st.integers(-2, 2).map(lambda x: 20 * x)])
        )
        logits = np.reshape(draw(st.lists(entry, min_size=m * k, max_size=m * k)), (m, k)).astype(float)
    S = draw(candidate_sets(m, k))
    return Bags(frozen(logits), frozen(softmax(logits)), S, draw(distributions(S)))


@st.composite
def populations(draw):
    """Bags with latent posteriors and masses; some rows repeat a prediction, so confidences coincide."""
    bag = draw(bags())
    p = np.array(bag.p)
    for i in range(1, len(p)):
        if draw(st.booleans()):
            p[i] = draw(st.sampled_from([p[i - 1], p[i - 1][::-1]]))
    eta = draw(distributions(bag.S))
    parts = draw(st.lists(st.integers(0, 3), min_size=len(p), max_size=len(p)))
    parts[draw(st.integers(0, len(p) - 1))] += 1
    masses = frozen(np.array(parts) / sum(parts))
    return Bags(bag.logits, frozen(p), bag.S, bag.w), eta, masses


# --- Independent routes: one bag at a time, plain Python ---------------------------------------------------


def slow_margin(p, S, competitor):
    labels = range(len(p))
    inside = sorted((c for c in labels if S[c]), key=lambda c: (-p[c], c))
    outside = sorted((c for c in labels if not S[c]), key=lambda c: (-p[c], c))
    rivals = inside[1:] if competitor == "cc" else outside
    v = rivals[0] if rivals else -1
    return inside[0], v, float(p[inside[0]] - (p[v] if rivals else 0.0))


def slow_mdl(p, S, w):
    return -sum(w[c] * math.log(p[c]) for c in range(len(p)) if S[c] and w[c] > 0)


def slow_cdl(p, S, w, competitor, gamma):
    """Eqs. 16 and 17 as written: the factor inside the sum."""
    base = max(1.0 - slow_margin(p, S, competitor)[2], 0.0)
    return -sum(w[c] * base**gamma * math.log(p[c]) for c in range(len(p)) if S[c] and w[c] > 0)


def torch_margin(s, S, competitor):
    """β of one bag by torch's own sorting, differentiable in the logits s."""
    p = torch.softmax(s, dim=0)
    inside, outside = p[S].sort(descending=True).values, p[~S]
    zero = torch.zeros((), dtype=s.dtype)
    if competitor == "cc":
        phi = inside[1] if len(inside) > 1 else zero
    else:
        phi = outside.max() if len(outside) else zero
    return inside[0] - phi


def torch_mdl(s, S, w):
    return -(w[S] * torch.log_softmax(s, dim=0)[S]).sum()


def autograd(function, logits, S, *more):
    """The gradients of function(s, S, …) bag by bag."""
    rows = []
    for i in range(len(logits)):
        s = torch.tensor(logits[i], requires_grad=True)
        extra = [torch.tensor(x[i]) for x in more]
        (gradient,) = torch.autograd.grad(function(s, torch.tensor(S[i]), *extra), s)
        rows.append(gradient.numpy())
    return np.stack(rows)


# --- Notation ----------------------------------------------------------------------------------------------


@properties
@given(bags(), COMPETITORS, GAMMAS)
def test_margin_and_modulation_are_those_of_a_sorted_list(bag, competitor, gamma):
    got = theory.margin(bag.p, bag.S, competitor)
    lam = theory.modulation(bag.p, bag.S, competitor, gamma)
    for i in range(len(bag.p)):
        u, v, beta = slow_margin(bag.p[i], bag.S[i], competitor)
        assert (got.u[i], got.v[i]) == (u, v)
        assert got.q[i] == bag.p[i, u]
        assert got.phi[i] == (bag.p[i, v] if v >= 0 else 0.0)
        assert got.beta[i] == beta
        assert got.complement[i] == pytest.approx(1.0 - beta, abs=1e-12)
        assert lam[i] == pytest.approx(max(1.0 - beta, 0.0) ** gamma, abs=1e-11)


def test_margin_is_signed_as_the_paper_says():
    p = np.array([[0.2, 0.3, 0.5]])
    S = np.array([[True, True, False]])
    assert theory.margin(p, S, "cc").beta == pytest.approx(0.1)
    assert theory.margin(p, S, "cn").beta == pytest.approx(-0.2)
    assert theory.modulation(p, S, "cn", 2.0) == pytest.approx(
        1.44
    )  # CN amplifies where a non-candidate wins


def test_margin_without_a_competitor_is_the_top_probability():
    p = np.array([[0.2, 0.8]])
    for S, competitor in ((np.array([[False, True]]), "cc"), (np.array([[True, True]]), "cn")):
        got = theory.margin(p, S, competitor)
        assert (got.v[0], got.phi[0], got.beta[0]) == (-1, 0.0, 0.8)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-12, 1e-17, 1e-40])
@pytest.mark.parametrize("gamma", [1.0, 2.5])
def test_modulation_keeps_its_digits_near_one_hot(epsilon, gamma):
    p = np.array([[1.0 - 2.0 * epsilon, epsilon, epsilon]])  # 1 − β = 3ε, which 1 − (q − φ) loses
    S = np.array([[True, True, False]])
    for competitor in ("cc", "cn"):
        got = theory.modulation(p, S, competitor, gamma)
        np.testing.assert_allclose(got, [(3.0 * epsilon) ** gamma], rtol=1e-12)


@properties
@given(bags(), COMPETITORS, st.floats(0.0, 5.0))
def test_losses_are_the_sums_of_the_definition(bag, competitor, gamma):
    mdl = theory.mdl_loss(bag.p, bag.S, bag.w)
    cdl = theory.cdl_loss(bag.p, bag.S, bag.w, competitor, gamma)
    for i in range(len(bag.p)):
        assert mdl[i] == pytest.approx(slow_mdl(bag.p[i], bag.S[i], bag.w[i]), rel=1e-12, abs=1e-14)
        if gamma >= 0.5:  # below, the cancellation in the loop's 1 − β is blown up by the root
            want = slow_cdl(bag.p[i], bag.S[i], bag.w[i], competitor, gamma)
            assert cdl[i] == pytest.approx(want, rel=1e-9, abs=1e-5 if gamma < 1 else 1e-11)
    np.testing.assert_array_equal(theory.cdl_loss(bag.p, bag.S, bag.w, competitor, 0.0), mdl)


@properties
@given(bags())
def test_mdl_is_kl_plus_entropy(bag):
    kl, h = theory.kl_divergence(bag.w, bag.p), theory.entropy(bag.w)
    np.testing.assert_allclose(kl + h, theory.mdl_loss(bag.p, bag.S, bag.w), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kl, scipy_entropy(bag.w, bag.p, axis=1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(h, scipy_entropy(bag.w, axis=1), rtol=1e-12, atol=1e-14)
    assert (kl >= -1e-12).all()


# --- Theorem 1 ---------------------------------------------------------------------------------------------


@properties
@given(bags(), COMPETITORS, GAMMAS)
def test_theorem_1_per_bag(bag, competitor, gamma):
    bound = theory.lower_bound(bag.p, bag.S, bag.w, competitor, gamma)
    cdl = theory.cdl_loss(bag.p, bag.S, bag.w, competitor, gamma)
    for i in range(len(bag.p)):
        beta = slow_margin(bag.p[i], bag.S[i], competitor)[2]
        mdl = slow_mdl(bag.p[i], bag.S[i], bag.w[i])
        assert bound[i] == pytest.approx((1.0 - gamma * beta) * mdl, rel=1e-12, abs=1e-12)
        assert cdl[i] >= bound[i] - 1e-12 * (1.0 + mdl)
        if gamma == 1.0 or beta == 0.0:
            assert cdl[i] == pytest.approx(bound[i], rel=1e-12, abs=1e-12)
        elif gamma > 1.1 and abs(beta) > 0.1 and mdl > 0.01:
            assert cdl[i] > bound[i] + 1e-6  # strict: t^γ touches its tangent at t = 1 alone


@properties
@given(bags(), COMPETITORS, GAMMAS)
def test_theorem_1_over_a_data_set(bag, competitor, gamma):
    got = theory.data_set_bound(bag.p, bag.S, bag.w, competitor, gamma)
    m = len(bag.p)
    betas = [slow_margin(bag.p[i], bag.S[i], competitor)[2] for i in range(m)]
    mdls = [slow_mdl(bag.p[i], bag.S[i], bag.w[i]) for i in range(m)]
    cdls = [slow_cdl(bag.p[i], bag.S[i], bag.w[i], competitor, gamma) for i in range(m)]
    slack = 1e-12 * (1.0 + sum(mdls))
    assert got.cdl == pytest.approx(sum(cdls) / m, rel=1e-9, abs=1e-11)
    assert got.weighted == pytest.approx(
        sum((1.0 - gamma * b) * x for b, x in zip(betas, mdls, strict=True)) / m, rel=1e-10, abs=1e-11
    )
    assert got.uniform == pytest.approx((1.0 - gamma * max(betas)) * sum(mdls) / m, rel=1e-10, abs=1e-11)
    assert got.cdl >= got.weighted - slack
    assert got.weighted >= got.uniform - slack * gamma
    if len(set(betas)) == 1:
        assert got.weighted == pytest.approx(got.uniform, rel=1e-10, abs=1e-11)


@pytest.mark.parametrize("gamma", [0.5, 0.999, 0.0, -1.0, math.nan, math.inf])
def test_theorem_1_refuses_an_exponent_below_one(gamma):
    p, S, w = np.array([[0.8, 0.2]]), np.array([[True, True]]), np.array([[0.5, 0.5]])
    for function in (theory.lower_bound, theory.data_set_bound):
        with pytest.raises(SettingError, match=r"gamma is .* at least"):
            function(p, S, w, "cc", gamma)


def test_theorem_1_is_false_below_one():
    p, S, w = np.array([[0.8, 0.2]]), np.array([[True, True]]), np.array([[0.5, 0.5]])
    cdl, mdl = theory.cdl_loss(p, S, w, "cc", 0.5), theory.mdl_loss(p, S, w)
    assert cdl < (1.0 - 0.5 * 0.6) * mdl


# --- Proposition 1 -----------------------------------------------------------------------------------------


def enumerated_calibration_error(p, eta, masses):
    """Eq. 31 over all outcomes (i, y) with probability μ_i·η_{i,y}: no tower property."""
    groups = {}
    for i, row in enumerate(p):
        predicted = int(np.argmax(row))
        for y in range(len(row)):
            weight = masses[i] * eta[i, y]
            mass, correct = groups.get(row[predicted], (0.0, 0.0))
            groups[row[predicted]] = (mass + weight, correct + weight * (y == predicted))
    return sum(mass * abs(correct / mass - c) for c, (mass, correct) in groups.items() if mass > 0)


@properties
@given(populations())
def test_calibration_error_is_that_of_all_outcomes(population):
    bag, eta, masses = population
    got = theory.calibration_error(bag.p, eta, masses)
    assert got == pytest.approx(enumerated_calibration_error(bag.p, eta, masses), abs=1e-13)
    uniform = np.full(len(masses), 1.0 / len(masses))
    assert theory.calibration_error(bag.p, eta) == pytest.approx(
        enumerated_calibration_error(bag.p, eta, uniform), abs=1e-13
    )


@properties
@given(populations())
def test_proposition_1(population):
    bag, eta, masses = population
    chain = theory.calibration_chain(bag.p, eta, bag.w, masses)
    assert chain.cal <= chain.conf + 1e-13
    assert chain.conf <= chain.pconf + chain.tv + 1e-13
    conf = pconf = 0.0
    for i, row in enumerate(bag.p):
        top = max(range(len(row)), key=lambda c, row=row: row[c])  # the first of the largest
        conf += masses[i] * abs(eta[i, top] - row[top])
        pconf += masses[i] * abs(bag.w[i, top] - row[top])
    assert (chain.conf, chain.pconf) == pytest.approx((conf, pconf), abs=1e-13)
    assert chain.cal == theory.calibration_error(bag.p, eta, masses)
    assert chain.tv == theory.posterior_error(eta, bag.w, masses)


@properties
@given(populations())
def test_total_variation_is_the_largest_gap_over_all_events(population):
    bag, eta, masses = population
    k = eta.shape[1]
    largest = [
        max(
            abs(sum(e[c] - w[c] for c in event))
            for r in range(k + 1)
            for event in itertools.combinations(range(k), r)
        )
        for e, w in zip(eta, bag.w, strict=True)
    ]
    np.testing.assert_allclose(theory.total_variation(eta, bag.w), largest, atol=1e-13)
    want = sum(mass * gap for mass, gap in zip(masses, largest, strict=True))
    assert theory.posterior_error(eta, bag.w, masses) == pytest.approx(want, abs=1e-13)


@properties
@given(populations(), st.lists(st.integers(1, 3), min_size=5, max_size=5))
def test_a_mass_counts_like_copies_of_an_example(population, copies):
    bag, eta, _ = population
    copies = np.array(copies[: len(eta)])
    weighted = theory.calibration_chain(bag.p, eta, bag.w, copies / copies.sum())
    repeated = theory.calibration_chain(*(np.repeat(x, copies, axis=0) for x in (bag.p, eta, bag.w)))
    assert weighted == pytest.approx(repeated, abs=1e-13)


@properties
@given(bags())
def test_the_true_posterior_is_calibrated(bag):
    chain = theory.calibration_chain(bag.p, bag.p, bag.p)
    assert chain == (0.0, 0.0, 0.0, 0.0)


def test_only_equal_confidences_are_grouped():
    p = np.array([[0.7, 0.3], [0.3, 0.7]])
    eta = np.array([[0.8, 0.2], [0.4, 0.6]])  # the first is under-, the second over-confident by 0.1
    assert theory.calibration_error(p, eta) == pytest.approx(0.0, abs=1e-15)
    assert theory.confidence_error(p, eta) == pytest.approx(0.1)
    apart = np.array([[0.7, 0.3], [0.299, 0.701]])  # one bin would merge them
    assert theory.calibration_error(apart, eta) == pytest.approx((0.1 + 0.101) / 2)


def test_a_tied_prediction_is_the_first_label():
    label, confidence = theory.top_label(np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]]))
    assert label.tolist() == [0, 1]
    assert confidence.tolist() == [0.4, 0.4]


# --- Theorem 2 ---------------------------------------------------------------------------------------------


@properties
@given(populations(), COMPETITORS, GAMMAS, st.floats(0.05, 1.0))
def test_theorem_2(population, competitor, gamma, share):
    bag, eta, masses = population
    present = masses > 0
    least = theory.modulation(bag.p, bag.S, competitor, gamma)[present].min()
    arguments = (bag.p, bag.S, bag.w, competitor, gamma)
    for lambda_0 in (None, share * least):
        bound = theory.confidence_bound(*arguments, lambda_0, masses)
        chain = theory.calibration_chain(bag.p, eta, bag.w, masses)
        # Squares, because the root makes 1e-8 out of a rounding of 1e-16 where w = p.
        assert chain.pconf**2 <= bound**2 * (1.0 + 1e-12) + 1e-12
        whole = theory.calibration_bound(bag.p, eta, *arguments[1:], lambda_0, masses)
        assert whole == pytest.approx(bound + chain.tv, rel=1e-12)
        assert chain.cal <= whole + 1e-6
        assert chain.conf <= whole + 1e-6
    assert theory.confidence_bound(*arguments, masses=masses) <= bound + 1e-12  # a smaller λ_0 is looser


@properties
@given(populations(), COMPETITORS, st.floats(1.0, 3.0), st.floats(0.05, 1.0))
def test_the_bound_of_theorem_2_is_what_eq_37_says(population, competitor, gamma, share):
    bag, _, masses = population
    assume(max(slow_margin(p, S, competitor)[2] for p, S in zip(bag.p, bag.S, strict=True)) < 0.99)
    rows = [i for i in range(len(masses)) if masses[i] > 0]
    lams = {i: (1.0 - slow_margin(bag.p[i], bag.S[i], competitor)[2]) ** gamma for i in rows}
    lambda_0 = share * 0.999 * min(lams.values())
    risk = sum(masses[i] * slow_cdl(bag.p[i], bag.S[i], bag.w[i], competitor, gamma) for i in rows)
    spread = sum(masses[i] * scipy_entropy(bag.w[i]) for i in rows)
    got = theory.confidence_bound(bag.p, bag.S, bag.w, competitor, gamma, lambda_0, masses)
    assert got**2 == pytest.approx(max(2.0 * (risk / lambda_0 - spread), 0.0), rel=1e-9, abs=1e-11)


@properties
@given(bags(), COMPETITORS, GAMMAS)
def test_theorem_2_is_tight_where_the_weights_are_the_prediction(bag, competitor, gamma):
    p, S = bag.p[:1], np.ones_like(bag.S[:1])  # one bag, so that λ_0 = λ
    assert theory.confidence_bound(p, S, p, competitor, gamma) == pytest.approx(0.0, abs=1e-6)


def test_theorem_2_refuses_a_modulation_that_vanishes():
    p, S = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[True, True], [True, False]])
    w = np.array([[0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(DataError, match="Row 1 of p has λ = 0"):
        theory.confidence_bound(p, S, w, "cn", 2.0)
    only_first = theory.confidence_bound(p, S, w, "cn", 2.0, masses=np.array([1.0, 0.0]))
    assert only_first == theory.confidence_bound(p[:1], S[:1], w[:1], "cn", 2.0)


@pytest.mark.parametrize("lambda_0", [0.0, -0.1, 0.37, math.nan])
def test_theorem_2_refuses_a_floor_that_is_none(lambda_0):
    p, S, w = np.array([[0.7, 0.3]]), np.array([[True, True]]), np.array([[0.5, 0.5]])  # λ = 0.6² = 0.36
    with pytest.raises(SettingError, match="lambda_0 is"):
        theory.confidence_bound(p, S, w, "cc", 2.0, lambda_0)


# --- Proposition 2, the margin increase and Corollary 1 ----------------------------------------------------


@properties
@given(bags(gap=0.01), COMPETITORS, st.floats(0.0, 5.0))
def test_proposition_2_is_autograd(bag, competitor, gamma):
    def cdl(s, S, w):
        return (1.0 - torch_margin(s, S, competitor)) ** gamma * torch_mdl(s, S, w)

    def fitting(s, S, w):
        return ((1.0 - torch_margin(s, S, competitor)) ** gamma).detach() * torch_mdl(s, S, w)

    def shaping(s, S, w):
        return (1.0 - torch_margin(s, S, competitor)) ** gamma * torch_mdl(s, S, w).detach()

    got = theory.gradient_decomposition(bag.p, bag.S, bag.w, competitor, gamma)
    for mine, function in ((got.total, cdl), (got.fitting, fitting), (got.shaping, shaping)):
        np.testing.assert_allclose(mine, autograd(function, bag.logits, bag.S, bag.w), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(mine.sum(axis=1), 0.0, atol=1e-11)  # softmax ignores a common shift


@properties
@given(bags(), COMPETITORS, GAMMAS)
def test_at_a_tie_the_gradient_is_that_of_the_region_where_the_first_label_leads(bag, competitor, gamma):
    def cdl(s, S, w):
        return (1.0 - torch_margin(s, S, competitor)) ** gamma * torch_mdl(s, S, w)

    apart = np.diff(np.sort(bag.logits, axis=1), axis=1)
    assume(((apart == 0) | (apart > 1e-5)).all())  # exact ties, and none that the nudge would turn round
    nudged = bag.logits - 1e-8 * np.arange(bag.logits.shape[1])
    got = theory.gradient_decomposition(bag.p, bag.S, bag.w, competitor, gamma).total
    np.testing.assert_allclose(got, autograd(cdl, nudged, bag.S, bag.w), rtol=1e-5, atol=1e-5)


@properties
@given(bags(gap=0.01), COMPETITORS)
def test_corollary_1(bag, competitor):
    got = theory.margin_gradient(bag.p, bag.S, competitor)
    want = autograd(lambda s, S: torch_margin(s, S, competitor), bag.logits, bag.S)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-12)
    for i, p in enumerate(bag.p):
        u, v, _ = slow_margin(p, bag.S[i], competitor)
        assert got[i, u] > 0
        if v >= 0:
            assert got[i, u] == pytest.approx(p[u] * (1 - p[u] + p[v]), rel=1e-9)  # Eq. 46
            assert got[i, v] == pytest.approx(-p[v] * (1 + p[u] - p[v]), rel=1e-9)  # Eq. 47
            assert got[i, v] < 0
            others = [c for c in range(len(p)) if c not in (u, v)]
            assert got[i, others] == pytest.approx(p[others] * (p[v] - p[u]), rel=1e-9)  # Eq. 48


@pytest.mark.parametrize("competitor", ["cc", "cn"])
def test_corollary_1_keeps_its_signs_near_one_hot(competitor):
    p = softmax(np.array([[60.0, 0.0, 0.0]]))  # 1 − p_u is below float64's rounding of 1
    gradient = theory.margin_gradient(p, np.array([[True, True, False]]), competitor)[0]
    assert p[0, 0] == 1.0
    assert gradient[0] > 0 > gradient[1 if competitor == "cc" else 2]


@properties
@given(bags(gap=0.05), COMPETITORS, GAMMAS)
def test_the_margin_grows_as_predicted_to_first_order(bag, competitor, gamma):
    shaping = theory.gradient_decomposition(bag.p, bag.S, bag.w, competitor, gamma).shaping
    scale = 1e-3 / (1.0 + np.abs(shaping).max())  # too short a step to reach a tie

    def miss(step):
        predicted = theory.margin_increase(bag.p, bag.S, bag.w, competitor, gamma, step)
        moved = softmax(bag.logits - step * shaping)
        pairs = zip(moved, bag.p, bag.S, strict=True)
        actual = [slow_margin(q, S, competitor)[2] - slow_margin(p, S, competitor)[2] for q, p, S in pairs]
        assert (predicted >= 0).all()
        return predicted, np.abs(np.array(actual) - predicted)

    (whole, coarse), (half, fine) = miss(scale), miss(scale / 2)
    np.testing.assert_allclose(whole, 2.0 * half, rtol=1e-12)
    # A second-order miss falls to a quarter; what a first-order error leaves would fall to a half only.
    assert (fine <= 0.3 * coarse + 1e-11).all()
    assert (coarse <= 5e-3 * whole + 1e-9).all()


def test_a_whole_step_can_lower_the_margin():
    p, S = np.array([[0.45, 0.4, 0.15]]), np.array([[True, True, False]])
    w = np.array([[0.0, 1.0, 0.0]])  # the weight is on the competitor, and the fitting term follows it
    total = theory.gradient_decomposition(p, S, w, "cc", 1.0).total
    assert theory.margin_increase(p, S, w, "cc", 1.0, step=0.1) > 0
    assert -(total * theory.margin_gradient(p, S, "cc")).sum() < 0


# --- Lemma 1 -----------------------------------------------------------------------------------------------


@st.composite
def trainings(draw):
    """One bag through t epochs: its predictions, candidate set, first weights and momenta."""
    t, k = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    logits = np.reshape(draw(st.lists(st.floats(-10, 10), min_size=t * k, max_size=t * k)), (t, k))
    S = draw(candidate_sets(1, k))
    alpha = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))
    if draw(st.booleans()):
        T = t + draw(st.integers(0, 5))
        alphas = np.array([(T - epoch) / T for epoch in range(2, t + 1)])
    else:
        alphas = np.array(draw(st.lists(alpha, min_size=t - 1, max_size=t - 1)), dtype=float)
    return frozen(softmax(logits)[1:]), S, draw(distributions(S))[0], frozen(alphas)


@properties
@given(trainings(), st.data())
def test_lemma_1_is_the_momentum_update_iterated(training, data):
    p, S, first, alphas = training
    candidates = [int(c) for c in np.flatnonzero(S[0])]
    u, v = data.draw(st.sampled_from(candidates)), data.draw(st.sampled_from(candidates))
    w, margins, deltas = {c: first[c] for c in candidates}, [first[u] - first[v]], []
    for alpha, row in zip(alphas, p, strict=True):  # Eq. 15, every candidate's weight
        mass = sum(row[c] for c in candidates)
        w = {c: alpha * w[c] + (1.0 - alpha) * row[c] / mass for c in candidates}
        margins.append(w[u] - w[v])
        deltas.append(row[u] / mass - row[v] / mass)
    if len(p):
        got = theory.prediction_margin(p, np.repeat(S, len(p), axis=0), u, v)
        np.testing.assert_allclose(got, deltas, atol=1e-13)
    for t in range(len(alphas) + 1):
        closed = theory.pseudo_label_margin(margins[0], np.array(deltas[:t]), alphas[:t])
        assert closed == pytest.approx(margins[t], abs=1e-13)
        if t:  # Eq. 51: one step from the margin before
            one = theory.pseudo_label_margin(margins[t - 1], np.array(deltas[t - 1 : t]), alphas[t - 1 : t])
            assert one == pytest.approx(margins[t], abs=1e-13)


@properties
@given(trainings())
def test_the_momentum_coefficients_are_convex(training):
    alphas = training[3]
    got = theory.momentum_coefficients(alphas)
    assert got.shape == (len(alphas) + 1,)
    assert (got >= 0).all()
    assert got.sum() == pytest.approx(1.0, abs=1e-13)
    want = [math.prod(alphas)]
    want += [(1.0 - alphas[s]) * math.prod(alphas[s + 1 :]) for s in range(len(alphas))]
    np.testing.assert_allclose(got, want, atol=1e-14)


def test_the_last_epoch_of_the_papers_schedule_forgets_the_past():
    T = 10
    alphas = np.array([(T - t) / T for t in range(2, T + 1)])
    np.testing.assert_array_equal(theory.momentum_coefficients(alphas), np.eye(T)[-1])
    assert (theory.momentum_coefficients(alphas[:-1]) > 0).all()


# --- What is refused ---------------------------------------------------------------------------------------

P = np.array([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]])
CANDIDATES = np.array([[True, True, False], [False, True, True]])
WEIGHTS = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((P[0], CANDIDATES, WEIGHTS), r"p has shape \(3,\); give one row per bag"),
        ((P[:0], CANDIDATES[:0], WEIGHTS[:0]), r"p has shape \(0, 3\)"),
        ((P * [[1.0], [1.1]], CANDIDATES, WEIGHTS), "Row 1 of p does not sum to 1; divide it by its sum"),
        ((P - [[0.0] * 3, [0.3, 0.0, -0.3]], CANDIDATES, WEIGHTS), "Row 1 of p has a NaN or a negative"),
        ((P * [[1.0], [math.nan]], CANDIDATES, WEIGHTS), "Row 1 of p has a NaN or a negative"),
        (
            (P, CANDIDATES[:, :2], WEIGHTS),
            r"candidates is bool of shape \(2, 2\); give booleans of p's shape",
        ),
        ((P, CANDIDATES.astype(int), WEIGHTS), "candidates is int"),
        ((P, CANDIDATES & [[True], [False]], WEIGHTS), "Row 1 of candidates is empty"),
        ((P, CANDIDATES, WEIGHTS[:1]), r"weights has shape \(1, 3\), but \(2, 3\) is required"),
        ((P, CANDIDATES, WEIGHTS[:, ::-1]), "Row 0 of weights is positive outside its candidates"),
        ((P, CANDIDATES, WEIGHTS * 0.5), "Row 0 of weights does not sum to 1"),
        ((P[:, [0, 2, 1]], CANDIDATES, WEIGHTS), "Row 0 of p is 0 where it must be positive"),
    ],
)
def test_bags_that_are_none_are_refused(arguments, sentence):
    with pytest.raises(DataError, match=sentence):
        theory.cdl_loss(*arguments, "cc", 2.0)


def test_a_prediction_may_vanish_where_no_weight_is_but_has_no_gradient():
    assert theory.cdl_loss(P, CANDIDATES, WEIGHTS, "cc", 2.0).shape == (2,)
    with pytest.raises(DataError, match="Row 0 of p is 0"):
        theory.margin_gradient(P, CANDIDATES, "cc")


@pytest.mark.parametrize("masses", [[0.5, 0.6], [1.5, -0.5], [1.0], [[0.5, 0.5]], 1.0])
def test_masses_that_are_none_are_refused(masses):
    with pytest.raises(DataError, match="masses"):
        theory.calibration_chain(P, WEIGHTS, WEIGHTS, np.array(masses))


def test_settings_that_do_not_exist_are_refused():
    with pytest.raises(SettingError, match="There is no competitor 'nn'"):
        theory.margin(P, CANDIDATES, "nn")
    with pytest.raises(SettingError, match=r"gamma is -0\.1"):
        theory.modulation(P, CANDIDATES, "cc", -0.1)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match="step is"):
            theory.margin_increase(P, CANDIDATES, WEIGHTS, "cc", 2.0, step)
    for alphas in ([0.5, 1.1], [-0.1], [math.nan], [[0.5]]):
        with pytest.raises(SettingError, match="alphas must be"):
            theory.momentum_coefficients(np.array(alphas))


def test_posteriors_and_margins_off_the_candidates_are_refused():
    with pytest.raises(DataError, match="Row 0 of eta is positive outside its candidates"):
        theory.calibration_bound(P, P[:, ::-1], CANDIDATES, WEIGHTS, "cc", 2.0)
    with pytest.raises(DataError, match="eta has shape"):
        theory.calibration_error(P, WEIGHTS[:1])
    with pytest.raises(DataError, match="Row 1 of candidates lacks 0 or 1"):
        theory.prediction_margin(P, CANDIDATES, 0, 1)
    with pytest.raises(DataError, match="give labels from 0 to 2"):
        theory.prediction_margin(P, CANDIDATES, 1, -1)
    with pytest.raises(DataError, match="Row 0 of p is 0 on all candidates"):
        theory.prediction_margin(np.array([[1.0, 0.0, 0.0]]), np.array([[False, True, True]]), 1, 2)
    with pytest.raises(DataError, match="deltas has shape"):
        theory.pseudo_label_margin(0.0, np.array([0.1]), np.array([0.5, 0.5]))
