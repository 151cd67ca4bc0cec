"""Prediction sets against a plain loop, and the guarantee of each way to score candidates."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom

from mipl.calibration.conformal import GUARANTEES, Conformal, fit_conformal
from mipl.data.candidates import add_false_positives
from mipl.errors import DataError, SettingError

K = 4


def drawn(m, seed, believed=1.0):
    """Probabilities, labels that follow them up to a power, and candidate sets with one false positive."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(K, 0.3), size=m)
    true = p**believed / (p**believed).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(K, p=row) for row in true])
    return p, labels, add_false_positives(labels, K, 1, "conformal", seed)


def one_hot(labels):
    return labels[:, None] == np.arange(K)


def slow_sets(scores_of, p, alpha):
    """A label is in where (1 + calibration scores not below its own) / (1 + their number) is above alpha."""
    return [
        [
            (1 + sum(s >= 1 - row[c] for s in scores_of(c))) / (1 + len(scores_of(c))) > alpha + 1e-12
            for c in range(K)
        ]
        for row in p
    ]


@given(seed=st.integers(0, 999), n=st.integers(1, 40), percent=st.sampled_from([50, 75, 80, 90, 95]))
@settings(deadline=None, max_examples=40)
def test_equals_the_slow_loop(seed, n, percent):
    p, labels, candidates = drawn(n + 10, seed)
    p = np.round(p, 1 + seed % 3)  # ties
    alpha = 1 - percent / 100
    for way in ("labels", "worst", "best"):
        sets = one_hot(labels) if way == "labels" else candidates
        made = fit_conformal(p[:n], sets[:n], way)
        choose = max if way == "worst" else min
        score = [choose(1 - p[i, c] for c in range(K) if sets[i, c]) for i in range(n)]
        assert made.sets(p[n:], percent / 100).tolist() == slow_sets(lambda _, s=score: s, p[n:], alpha)
        if way == "best":
            continue
        of_class = {c: [1 - p[i, c] for i in range(n) if sets[i, c]] for c in range(K)}
        found = made.sets(p[n:], percent / 100, class_conditional=True)
        assert found.tolist() == slow_sets(of_class.get, p[n:], alpha)


@given(seed=st.integers(0, 999), n=st.integers(1, 60), per_class=st.booleans())
@settings(deadline=None, max_examples=40)
def test_worst_contains_the_sets_of_labels_and_best_is_contained(seed, n, per_class):
    """Bag by bag, not only on average (within classes 'worst' has other bags, and no such order)."""
    p, labels, candidates = drawn(n + 20, seed)
    by_labels, worst, best = (
        fit_conformal(p[:n], known[:n], way).sets(p[n:], 0.8)
        for way, known in (("labels", one_hot(labels)), ("worst", candidates), ("best", candidates))
    )
    assert (worst >= by_labels).all()
    assert (best <= by_labels).all()
    larger = fit_conformal(p[:n], one_hot(labels)[:n]).sets(p[n:], 0.95, class_conditional=per_class)
    smaller = fit_conformal(p[:n], one_hot(labels)[:n]).sets(p[n:], 0.8, class_conditional=per_class)
    assert (larger >= smaller).all()


@pytest.mark.parametrize("way", list(GUARANTEES))
def test_sets_of_one_candidate_are_labels(way):
    p, labels, _ = drawn(50, 1)
    made = fit_conformal(p, one_hot(labels), way, np.random.default_rng(0))
    assert dataclasses.replace(made, way="labels") == fit_conformal(p, one_hot(labels))


def coverage(way, believed=1.0, per_class=False, n=40, test=60, draws=100, target=0.9):
    """Return the coverage of the true label, of any candidate, and of the true label in the worst class."""
    truth, some, classes = [], [], np.zeros((2, K))
    for draw in range(draws):
        p, labels, candidates = drawn(n + test, 1000 + draw, believed)
        known = one_hot(labels) if way == "labels" else candidates
        made = fit_conformal(p[:n], known[:n], way, np.random.default_rng(draw))
        sets = made.sets(p[n:], target, class_conditional=per_class)
        inside = sets[np.arange(test), labels[n:]]
        truth.append(inside.mean())
        some.append((sets & candidates[n:]).any(axis=1).mean())
        classes += [np.bincount(labels[n:], inside, K), np.bincount(labels[n:], minlength=K)]
    return np.mean(truth), np.mean(some), (classes[0] / classes[1]).min()


def band(n=40, test=60, draws=100):
    """The mean coverage at 0.9 over draws, ± 4 standard deviations: covered bags are Beta-binomial."""
    out = int(0.1 * (n + 1))
    law = betabinom(test, n + 1 - out, out)
    return law.mean() / test, 4 * law.std() / test / np.sqrt(draws)


@pytest.mark.parametrize("believed", [1.0, 0.2, 5.0])
def test_labels_cover_in_their_band_however_wrong_the_model_is(believed):
    truth, _, _ = coverage("labels", believed)
    mean, margin = band()
    assert mean - margin <= truth <= mean + margin


def test_class_conditional_sets_cover_every_class():
    _, _, marginal = coverage("labels", 0.4)
    _, _, worst_class = coverage("labels", 0.4, per_class=True)
    assert worst_class >= 0.9 - 2 * band()[1]
    assert worst_class > marginal


def test_each_guarantee_holds():
    _, margin = band()
    worst, _, _ = coverage("worst", 0.2)
    assert worst >= 0.9 - margin
    assert coverage("worst", 0.2, per_class=True)[2] >= 0.9 - 2 * margin
    drawn_right, _, _ = coverage("drawn", 1.0)  # the model's probabilities are the true ones
    assert drawn_right == pytest.approx(band()[0], abs=margin)
    best, some, _ = coverage("best", 0.2)
    assert some >= 0.9 - margin
    assert best < 0.9 - margin  # and indeed not more


def test_drawn_has_low_coverage_if_the_model_is_over_confident():
    assert coverage("drawn", 0.2)[0] < coverage("drawn", 1.0)[0] - 0.02


def test_a_class_without_scores_cannot_be_ruled_out():
    p, labels, _ = drawn(100, 2)
    made = fit_conformal(p[labels != 3], one_hot(labels)[labels != 3])
    assert made.class_scores[3] == ()
    assert made.sets(p, 0.9, class_conditional=True)[:, 3].all()
    alone = fit_conformal(p[:1], one_hot(labels)[:1])
    assert alone.sets(p, 0.9).all()  # one score rules out nothing at 90%


@given(seed=st.integers(0, 999), n=st.integers(1, 60), threshold=st.sampled_from([0.0, 0.4, 0.6, 0.9, 1.1]))
@settings(deadline=None, max_examples=40)
def test_by_decision_each_side_has_the_sets_of_its_own_bags(seed, n, threshold):
    p, labels, _ = drawn(n + 10, seed)
    made = fit_conformal(p[:n], one_hot(labels)[:n])
    sets = made.sets(p[n:], 0.8, threshold=threshold)
    for row, found in zip(p[n:], sets, strict=True):
        side = row.max() >= threshold
        own = [1 - p[i, labels[i]] for i in range(n) if (p[i].max() >= threshold) == side]
        assert found.tolist() == slow_sets(lambda _, s=own: s, [row], 0.2)[0]
        if len(own) < 4:  # ⌈1/α⌉ − 1
            assert found.all()


def test_by_decision_both_groups_are_covered_and_the_marginal_sets_fail_the_reviewed():
    """The model is over-confident where it is doubtful: marginal sets cover too little there."""
    held = {kind: {True: [], False: []} for kind in ("marginal", "decision")}
    for draw in range(100):
        p, labels, _ = drawn(200, 5000 + draw, believed=0.3)
        made = fit_conformal(p[:100], one_hot(labels)[:100])
        reported = p[100:].max(axis=1) >= 0.8
        for kind, threshold in (("marginal", None), ("decision", 0.8)):
            inside = made.sets(p[100:], 0.8, threshold=threshold)[np.arange(100), labels[100:]]
            for side in (True, False):
                held[kind][side] += inside[reported == side].tolist()
    covered = {
        kind: {side: np.mean(values) for side, values in sides.items()} for kind, sides in held.items()
    }
    assert min(covered["decision"].values()) >= 0.8 - 0.015
    assert max(covered["decision"].values()) <= 0.8 + 0.035
    assert min(covered["marginal"].values()) < 0.8 - 0.03


def test_sets_by_decision_need_confidences_and_one_condition():
    p, labels, _ = drawn(30, 6)
    made = fit_conformal(p, one_hot(labels))
    with pytest.raises(SettingError, match="not both"):
        made.sets(p, 0.9, class_conditional=True, threshold=0.5)
    with pytest.raises(SettingError, match="calibrate the model again"):
        dataclasses.replace(made, confidences=None).sets(p, 0.9, threshold=0.5)
    with pytest.raises(ValueError, match="as many confidences"):
        Conformal.from_dict(dataclasses.asdict(made) | {"confidences": [0.5]}, K)


def test_it_is_the_same_after_json():
    p, _, candidates = drawn(30, 3)
    made = fit_conformal(p, candidates, "worst")
    again = Conformal.from_dict(json.loads(json.dumps(dataclasses.asdict(made))), K)
    assert again == made
    assert (again.sets(p) == made.sets(p)).all()
    with pytest.raises(ValueError, match="do not fit"):
        Conformal.from_dict(dataclasses.asdict(made), K + 1)


def test_bad_input_is_named(monkeypatch):
    p, labels, candidates = drawn(5, 4)
    with pytest.raises(SettingError, match="no way 'wurst'"):
        fit_conformal(p, candidates, "wurst")
    with pytest.raises(SettingError, match="a generator"):
        fit_conformal(p, candidates, "drawn")
    with pytest.raises(DataError, match="one true label"):
        fit_conformal(p, candidates)
    with pytest.raises(DataError, match="at least one calibration bag"):
        fit_conformal(p[:0], candidates[:0], "worst")
    made = fit_conformal(p, one_hot(labels))
    for share in (0, 1, float("nan")):
        with pytest.raises(SettingError, match="between 0 and 1"):
            made.sets(p, share)
    monkeypatch.setitem(sys.modules, "crepes", None)
    with pytest.raises(SettingError, match=r"pip install 'mipl\[trust\]'"):
        made.sets(p)
