"""The cross-fitted ensemble: folds, masks, out-of-fold predictions, temperature."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from folds import cross_fitted
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

import mipl
from mipl import make_classifier
from mipl.calibration.scaling import ENSEMBLE_RANGE, ensemble_scaling
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_vectors, gaussian_bags
from mipl.data.splits import stratified_split
from mipl.errors import MiplNotice
from mipl.methods import METHODS
from mipl.nn.encoders import FeatureEncoder, Projection, Standardize
from mipl.nn.members import can_be_member
from mipl.training.crossfit import (
    LEFT_OUT,
    folds_of,
    initial_weights,
    learns_from,
    mean_log_proba,
    member_log_proba,
    train_members,
    train_stacked,
)
from mipl.training.distributed import ProcessGroup
from mipl.training.recipe import REGULARISATIONS, make_recipe
from mipl.training.signal import ENOUGH, signal_score
from mipl.training.trainer import Training

STACKED = [  # trained as one: a loss of logits alone, and known layers
    name
    for name in METHODS
    if METHODS[name].cls.logits_alone and can_be_member(METHODS[name].make().build((5,), 3))
]
FAST = {"ensemble": 2, "epochs": 6}  # two networks predict, four are cross-fitted
pytestmark = pytest.mark.filterwarnings("ignore:The model has learned nothing")  # a few epochs


def training_of(name="sam-cn", epochs=4, seed=0, checkpoint=None, dropout=0.0, **settings):
    recipe = make_recipe("stable", epochs=epochs, **settings)
    return Training(METHODS[name].make(dropout=dropout), recipe, seed, ProcessGroup(), checkpoint)


def networks(training, bags, count):
    torch.manual_seed(0)
    return [training.method.build(bags.feature_shape, bags.k) for _ in range(count)]


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@given(m=st.integers(3, 60), ensemble=st.integers(2, 5), groups=st.integers(0, 20), seed=st.integers(0, 99))
@settings(deadline=None)
def test_every_bag_is_left_out_by_two_members_and_groups_stay_together(m, ensemble, groups, seed):
    rng = np.random.default_rng(seed)
    names = None if not groups else rng.integers(groups, size=m).astype(str)
    bags = Bags.from_list(rng.normal(size=(m, 2, 3)), [{0, 1}] * m, classes=[0, 1], groups=names)
    members = folds_of(bags, ensemble)
    if members == 1:
        assert len(np.unique(names)) <= LEFT_OUT
        return
    seen = learns_from(bags, members, seed).numpy()
    assert seen.shape == (members, m)
    np.testing.assert_array_equal((seen == 0).sum(axis=0), LEFT_OUT)
    assert (seen.sum(axis=1) > 0).all()
    if names is not None:
        for name in np.unique(names):
            assert (seen[:, names == name] == seen[:, names == name][:, :1]).all()


@pytest.mark.parametrize("m", [1, 2])
def test_too_few_bags_train_a_single_network(m):
    bags = gaussian_bags(m)
    assert folds_of(bags, 4) == 1
    assert learns_from(bags, 1, 0).tolist() == [[1.0] * m]
    assert [folds_of(gaussian_bags(5), ensemble) for ensemble in (1, 2, 4)] == [1, 4, 5]


@pytest.mark.parametrize("name", ["sam-cn", "mam-cc", "demipl"])  # members stacked, and trained in turn
def test_a_member_does_not_learn_from_what_it_leaves_out(name):
    """Other candidate sets of the bags that a member leaves out do not change it."""
    bags = gaussian_bags(24)
    seen = learns_from(bags, 4, 0).numpy()
    members = []
    for flipped in (False, True):
        sets = bags.candidates.copy()
        if flipped:
            sets[seen[0] == 0] = np.roll(sets[seen[0] == 0], 1, axis=1)
        flipped_bags = dataclasses.replace(bags, candidates=sets, labels=None)
        members.append(cross_fitted(make_classifier(name, **FAST), flipped_bags)[0])
    first, second = members
    assert torch.equal(flat(first[0]), flat(second[0]))
    assert not torch.equal(flat(first[1]), flat(second[1]))


@pytest.mark.parametrize("name", STACKED)
def test_a_stacked_member_is_the_network_trained_alone(name):
    """With all bags and without dropout, against the loop of a single network: parameters and history."""
    bags = gaussian_bags(40, k=4)
    training = training_of(name)
    stacked, alone = networks(training, bags, 2), networks(training, bags, 2)
    histories, table = train_stacked(training, stacked, bags, torch.ones(2, len(bags)), 4)
    for e, net in enumerate(alone):
        own = training.table(bags)
        (history,) = training.run([net], bags, own, 1, 4)
        torch.testing.assert_close(flat(stacked[e]), flat(net), atol=2e-4, rtol=1e-3)
        rows = slice(e * len(bags), (e + 1) * len(bags))
        torch.testing.assert_close(table.weights[rows], own.weights, atol=2e-3, rtol=1e-2)
        for each in ("loss", "weight_on_top", "class_entropy", "lr"):
            np.testing.assert_allclose(histories[e][each], history[each], rtol=2e-3, err_msg=each)


def test_members_do_not_affect_each_other():
    """A member of four is, up to rounding, the same network as the only member with its bags and draws."""
    bags = gaussian_bags(30, k=4)
    seen = learns_from(bags, 4, 0)
    training = training_of("mam-cn", dropout=0.5)
    together, alone = networks(training, bags, 4), networks(training, bags, 4)
    train_stacked(training, together, bags, seen, 4)
    for e, net in enumerate(alone):
        train_stacked(training, [net], bags, seen[e : e + 1], 4)
        torch.testing.assert_close(flat(together[e]), flat(net), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["sam-cn", "demipl"])
def test_the_tables_of_members_hold_the_bags_that_each_learns_from(name):
    bags = gaussian_bags(20, k=4)
    seen = learns_from(bags, 4, 0)
    training = training_of(name)
    nets = networks(training, bags, 4)
    assert training.can_stack(nets) == (name == "sam-cn")
    histories, tables = train_members(training, nets, bags, seen, 4)
    assert len(histories) == 4
    for own, table in zip(seen.bool().numpy(), tables, strict=True):
        np.testing.assert_array_equal(table.candidates.numpy(), bags.candidates[own])
        np.testing.assert_allclose(table.weights.sum(dim=1), 1.0, atol=1e-5)


# --- initial weights, from a first stage ---


def other_sets(bags, rows):
    """Return the bags with other candidate sets in ``rows``."""
    sets = bags.candidates.copy()
    sets[rows] = np.roll(sets[rows], 1, axis=1)
    return dataclasses.replace(bags, candidates=sets, labels=None)


def first_stage(training, bags, seen):
    (like,) = networks(training, bags, 1)
    return initial_weights(training, bags, seen, like)


@pytest.mark.parametrize("members", [1, 4])
def test_initial_weights_are_distributions_on_the_sets_and_better_than_chance(members):
    bags = gaussian_bags(120, k=5, r=2, seed=3)
    seen = learns_from(bags, members, 0)
    training = training_of(epochs=20)
    weights = first_stage(training, bags, seen)
    assert weights.shape == (members, len(bags), 5)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(members, len(bags)))
    assert (weights[:, ~torch.tensor(bags.candidates)] == 0).all()
    top = weights.argmax(dim=2).numpy()
    assert (top == bags.labels).mean(axis=1).min() > 0.6  # by chance a third
    assert torch.equal(weights, first_stage(training, bags, seen))
    other = dataclasses.replace(training, seed=1)
    assert not torch.equal(weights, first_stage(other, bags, seen))


def test_initial_weights_take_the_weights_of_the_bags_into_account():
    bags = gaussian_bags(40, k=3, r=1, seed=0)
    confident = np.where(np.eye(3, dtype=bool)[bags.labels], 0.999, 0.001) * bags.candidates
    told = dataclasses.replace(bags, weights=confident / confident.sum(axis=1, keepdims=True))
    weights = first_stage(training_of(epochs=2), told, torch.ones(1, 40))
    assert (weights[0].argmax(dim=1).numpy() == bags.labels).mean() > 0.9


def test_initial_weights_of_a_member_do_not_depend_on_the_sets_it_leaves_out():
    bags = gaussian_bags(40, k=4)
    seen = learns_from(bags, 4, 0)
    own = seen[0].bool()
    first, second = (
        first_stage(training_of(epochs=8), each, seen) for each in (bags, other_sets(bags, ~own.numpy()))
    )
    assert torch.equal(first[0, own], second[0, own])
    rest = seen[1].bool() & own
    assert not torch.equal(first[1, rest], second[1, rest])  # it learns from some of the changed sets


def test_the_first_stage_scales_vectors_as_the_network_does():
    bags = gaussian_bags(60, k=5, r=3, seed=3)
    large = dataclasses.replace(bags, source=bags.source * np.float32(64.0))  # exact in float32
    p, q = (
        make_classifier("sam-cn", ensemble=3, epochs=8).fit(each).predict_proba(each)
        for each in (bags, large)
    )
    np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("components", [0, 3])
def test_a_member_with_large_sets_does_not_depend_on_the_sets_it_leaves_out(components):
    bags = gaussian_bags(30, k=5, r=3)  # with a first stage
    left_out = learns_from(bags, 4, 0).numpy()[0] == 0
    model = make_classifier("sam-cn", components=components, **FAST)
    first, second = (cross_fitted(model, each)[0] for each in (bags, other_sets(bags, left_out)))
    assert torch.equal(flat(first[0]), flat(second[0]))
    assert not torch.equal(flat(first[1]), flat(second[1]))


@pytest.mark.parametrize(("name", "ensemble"), [("sam-cn", 3), ("sam-cn", 1), ("demipl", 1), ("demipl", 3)])
def test_training_from_initial_weights_resumes_to_the_same_model(name, ensemble, tmp_path):
    bags = gaussian_bags(24, k=5, r=3)
    settings_ = {"ensemble": ensemble, "epochs": 6, "weight_decay": 0.01}
    whole = make_classifier(name, **settings_).fit(bags)

    def stop(done, note=""):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_classifier(name, **settings_).fit(bags, checkpoint=tmp_path, report=stop)
    resumed = make_classifier(name, **settings_).fit(bags, checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.predict_proba(bags), resumed.predict_proba(bags))


@pytest.mark.slow
def test_large_sets_of_few_bags_are_disambiguated():
    """175 bags with four of five classes in each set."""
    bags = digits_vectors(r=3)
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", epochs=60, weight_decay=0.001).fit(bags[train])
    assert model.score(bags[test]) > 0.9


# --- predictions ---


def test_the_mean_over_members_counts_their_weights():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=(4, 5))  # (members, m, k)
    weights = (rng.random((4, 5)) < 0.5).astype(float)
    weights[0] = 1.0
    wanted = (p * weights[..., None]).sum(axis=0) / weights.sum(axis=0)[:, None]
    found = mean_log_proba(torch.tensor(p).log(), torch.tensor(weights)).exp().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_allclose(mean_log_proba(torch.tensor(p).log()).exp(), p.mean(axis=0), atol=1e-12)


def test_true_labels_are_not_read():
    bags = gaussian_bags(24)
    wrong = Bags.from_list([bag.instances for bag in bags], bags.candidates, classes=bags.classes)
    p, q = (make_classifier("sam-cn", **FAST).fit(each).predict_proba(bags) for each in (bags, wrong))
    np.testing.assert_array_equal(p, q)


def test_the_prediction_is_the_tempered_mean_of_the_members():
    bags = gaussian_bags(30)
    model = make_classifier("mam-cn", **FAST).fit(bags)
    p = np.mean(
        [
            torch.cat([model.method_.log_proba(net, batch) for batch in model._batches(bags)]).exp().numpy()
            for net in model.network_.members
        ],
        axis=0,
    )
    powered = p ** (1.0 / model.calibration_.scaling.temperature)
    wanted = powered / powered.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(bags), wanted, atol=1e-5)
    assert (model.disagreement(bags) >= 0).all()
    assert model.disagreement(bags).max() > 0
    for weights, size in zip(model.attention_weights(bags), bags.sizes, strict=True):
        assert weights.shape == (size,)
        assert weights.sum() == pytest.approx(1.0, abs=1e-6)


def test_out_of_fold_quality_is_of_the_members_that_left_a_bag_out(tmp_path):
    bags = gaussian_bags(30, k=4)
    model = make_classifier("sam-cn", weight_decay=0.01, **FAST).fit(bags)
    members, seen = cross_fitted(make_classifier("sam-cn", weight_decay=0.01, **FAST), bags)
    left_out = 1.0 - seen.numpy()
    log_p = member_log_proba(model.method_, members, bags, torch.device("cpu"))
    p = (log_p.exp().numpy() * left_out[..., None]).sum(axis=0) / 2  # (m, k)
    found = model.out_of_fold_
    assert found["covering_rate"] == pytest.approx(bags.candidates[np.arange(30), p.argmax(axis=1)].mean())
    assert found["signal"] == pytest.approx(signal_score(torch.tensor(p), torch.tensor(bags.candidates)))
    assert found["temperature"] == pytest.approx(model.calibration_.scaling.temperature)
    assert 1 / 4 <= found["mean_confidence"] <= 1
    model.save(tmp_path / "model")
    assert mipl.load(tmp_path / "model").out_of_fold_ == found
    assert make_classifier("sam-cn", ensemble=1, epochs=2).fit(bags).out_of_fold_ is None


def test_the_networks_that_predict_learn_from_all_bags():
    """They do not depend on the folds, nor on the members that are cross-fitted."""
    bags = gaussian_bags(30, k=4)
    model = make_classifier("sam-cn", weight_decay=0.01, **FAST).fit(bags)
    members, _ = cross_fitted(make_classifier("sam-cn", weight_decay=0.01, **FAST), bags)
    assert len(model.network_.members) == 2
    for net in model.network_.members:
        assert not any(torch.equal(flat(net), flat(member)) for member in members)
    # a bag whose set is another one changes every network
    sets = bags.candidates.copy()
    sets[0] = np.roll(sets[0], 1)
    other = dataclasses.replace(bags, candidates=sets, labels=None)
    changed = make_classifier("sam-cn", weight_decay=0.01, **FAST).fit(other)
    for own, new in zip(model.network_.members, changed.network_.members, strict=True):
        assert not torch.equal(flat(own), flat(new))


def test_an_ensemble_is_saved_loaded_and_exported_as_it_predicts(tmp_path):
    bags = gaussian_bags(30)
    model = make_classifier("sam-cn", **FAST).fit(bags)
    model.save(tmp_path / "model")
    again = mipl.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(bags), model.predict_proba(bags))
    pytest.importorskip("onnxruntime")
    from mipl.export.onnx import export_onnx

    assert max(export_onnx(model, tmp_path / "model.onnx")["differences"].values()) < 1e-4


def test_methods_that_cannot_be_stacked_are_trained_in_turn():
    bags = gaussian_bags(30)
    model = make_classifier("demipl", ensemble=3, epochs=3).fit(bags)
    assert len(model.network_.members) == 3
    assert make_classifier("demipl").parts()[1].ensemble == 1
    assert make_classifier("sam-cn").parts()[1].ensemble == 4


@pytest.mark.parametrize("name", ["fastmipl", "proden", "miplma", "promipl"])
def test_an_ensemble_of_other_networks_predicts_and_is_saved(name, tmp_path):
    bags = gaussian_bags(30)
    model = make_classifier(name, ensemble=3, epochs=2).fit(bags)
    model.save(tmp_path / "model")
    p = mipl.load(tmp_path / "model").predict_proba(bags)
    np.testing.assert_array_equal(p, model.predict_proba(bags))
    np.testing.assert_allclose(p.sum(axis=1), 1.0)


@pytest.mark.parametrize(
    ("name", "last"), [("sam-cn", 2), ("sam-cn", 5), ("sam-cn", 9), ("sam-cn", 15), ("demipl", 7)]
)
def test_training_resumes_to_the_same_ensemble(name, last, tmp_path):
    """Stopped in the warm-up, after it, with the second weight decay, on all bags, and in a second member."""
    bags = gaussian_bags(24)
    whole = make_classifier(name, **FAST).fit(bags)
    reported = []

    def stop(done, note=""):
        reported.append(done)
        if len(reported) == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_classifier(name, **FAST).fit(bags, checkpoint=tmp_path, report=stop)
    resumed = make_classifier(name, **FAST).fit(bags, checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.predict_proba(bags), resumed.predict_proba(bags))
    assert resumed.out_of_fold_ == whole.out_of_fold_
    assert resumed.history_["loss"] == whole.history_["loss"]


def test_the_weight_decay_of_the_higher_out_of_fold_likelihood_is_chosen():
    bags = gaussian_bags(30, k=4)
    chosen = make_classifier("sam-cn", **FAST).fit(bags)
    assert chosen.recipe_.weight_decay in [decay for decay, _ in REGULARISATIONS]
    fixed = make_classifier("sam-cn", weight_decay=chosen.recipe_.weight_decay, **FAST).fit(bags)
    np.testing.assert_array_equal(chosen.predict_proba(bags), fixed.predict_proba(bags))
    assert make_classifier("sam-cn", ensemble=1, epochs=2).fit(bags).recipe_.weight_decay == 0.01


@pytest.mark.parametrize(("chosen", "lowest"), [(0, 0.1), (1, 1.0)])
def test_the_strong_weight_decay_keeps_the_temperature_of_attention_above_one(chosen, lowest, monkeypatch):
    """Features that need a strong weight decay carry the class in most instances: attention stays soft."""
    monkeypatch.setattr("mipl.training.fit.REGULARISATIONS", REGULARISATIONS[chosen : chosen + 1])
    model = make_classifier("mam-cn", tau_decay=0.1, **FAST).fit(gaussian_bags(30, k=4))
    assert model.recipe_.weight_decay == REGULARISATIONS[chosen][0]
    assert [float(net.attention.tau) for net in model.network_.members] == pytest.approx([lowest] * 2)


@pytest.mark.parametrize("kind", ["every class", "sets of other bags", "constant features"])
def test_uninformative_data_are_warned_about_and_predictions_stay_near_chance(kind):
    bags = digits_vectors(1)[np.arange(0, 250, 3)]  # 84 bags
    if kind == "every class":
        bags = bags.with_candidates(np.ones_like(bags.candidates))
    elif kind == "sets of other bags":
        sets = np.random.default_rng(0).permutation(bags.candidates)
        bags = dataclasses.replace(bags, candidates=sets, labels=None)
    else:
        bags = dataclasses.replace(bags, source=np.ones_like(bags.source))
    with pytest.warns(MiplNotice, match="learned nothing"):
        model = make_classifier("sam-cn", ensemble=3, epochs=20).fit(bags)
    assert model.out_of_fold_["signal"] < ENOUGH
    assert model.predict_proba(bags).max(axis=1).mean() < 1 / bags.k + 0.1


def test_few_informative_bags_are_not_warned_about():
    bags = digits_vectors(1)[np.arange(0, 250, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", MiplNotice)
        model = make_classifier("sam-cn", ensemble=3, epochs=40).fit(bags)
    assert model.out_of_fold_["signal"] > ENOUGH


@given(seed=st.integers(0, 999), true=st.floats(0.5, 4.0))
@settings(deadline=None, max_examples=10)
def test_members_that_agree_get_the_temperature_of_the_sets(seed, true):
    """Labels drawn from softmax(z), predictions softmax(z · T): the temperature found is T."""
    rng = np.random.default_rng(seed)
    z = 2.0 * rng.normal(size=(4000, 4))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((4000, 1))).argmax(axis=1)
    sets = np.eye(4, dtype=bool)[y]
    sets[np.arange(4000), (y + rng.integers(1, 4, size=4000)) % 4] = True
    sharp = z * true
    log_p = np.repeat((sharp - np.log(np.exp(sharp).sum(axis=1, keepdims=True)))[None], 6, axis=0)
    left_out = np.zeros((6, 4000), dtype=bool)
    for e in range(6):
        left_out[e, np.isin(np.arange(4000) % 6, [e, (e + 1) % 6])] = True
    assert ensemble_scaling(log_p, left_out, sets, 3).temperature == pytest.approx(true, rel=0.2)
    perfect = np.log(np.where(np.eye(4, dtype=bool)[y], 0.97, 0.01))
    bounded = ensemble_scaling(np.repeat(perfect[None], 6, axis=0), left_out, sets, 3).temperature
    assert ENSEMBLE_RANGE[0] <= bounded <= ENSEMBLE_RANGE[1]


def log_temperature(log_p, sets):
    """Return log T of the greatest posterior under log T ~ N(0, log 2), by a fine grid.

    ``log_p`` (m, n, k): n predictions for each bag, which count 1/n each; ``sets`` (m, k).
    """
    grid = np.linspace(-1.3, 2.7, 1001)
    outside = np.where(sets, 0.0, -np.inf)[:, None]
    losses = [
        0.5 * (log_t / np.log(2)) ** 2
        - logsumexp(log_softmax(log_p / np.exp(log_t), axis=2) + outside, axis=2).mean(axis=1).sum()
        for log_t in grid
    ]
    return grid[int(np.argmin(losses))]


@pytest.mark.parametrize(("e", "networks"), [(3, 2), (8, 4), (8, 1)])
def test_the_temperature_is_extrapolated_linearly_in_the_root_of_the_number_of_networks(e, networks):
    """log T = a + b/√n through n = 1 (single members) and n = 2 (the two that left a bag out)."""
    rng = np.random.default_rng(e)
    m, k = 60, 4
    z = 2.0 * rng.normal(size=(m, k))
    sets = rng.random((m, k)) < 0.3
    sets[np.arange(m), z.argmax(axis=1)] = True
    log_p = log_softmax(z + 2.0 * rng.normal(size=(e, m, k)), axis=2)
    left_out = ((np.arange(m) - np.arange(e)[:, None]) % e) < 2
    unseen = np.stack([log_p[left_out[:, i], i] for i in range(m)])  # (m, 2, k)
    alone = log_temperature(unseen, sets)
    both = log_temperature(logsumexp(unseen, axis=1, keepdims=True) - np.log(2), sets)
    slope = (alone - both) / (1 - 1 / np.sqrt(2))
    wanted = both + slope * (1 / np.sqrt(networks) - 1 / np.sqrt(2))
    found = ensemble_scaling(log_p, left_out, sets, networks)
    assert np.log(found.temperature) == pytest.approx(wanted, abs=0.02)


@given(seed=st.integers(0, 99), d=st.integers(3, 9), c=st.integers(1, 3))
@settings(deadline=None, max_examples=20)
def test_a_folded_projection_is_the_same_function(seed, d, c):
    torch.manual_seed(seed)
    scaling = Standardize((d,))
    scaling.mean.normal_()
    scaling.std.uniform_(0.5, 2.0)
    projection, encoder = Projection(scaling, torch.randn(d, c)), FeatureEncoder(c, 7, 0.0)
    x = torch.randn(11, d)
    wanted = encoder(projection(x))
    whole, layer = projection.fold(encoder[0])
    torch.testing.assert_close(torch.relu(layer(whole(x))), wanted, atol=1e-4, rtol=1e-4)


def test_wide_vectors_are_trained_on_their_principal_components_and_saved_whole(tmp_path):
    bags = gaussian_bags(40, d=30)
    model = make_classifier("sam-cn", components=8, ensemble=3, epochs=20).fit(bags)
    for net in model.network_.members:
        assert net.encoder[0].weight.shape == (128, 30)
        assert int(torch.linalg.matrix_rank(net.encoder[0].weight)) <= 8
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        mipl.load(tmp_path / "model").predict_proba(bags), model.predict_proba(bags)
    )
    assert model.score(bags) > 0.6
