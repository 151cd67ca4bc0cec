"""Training on images: pretraining, initial weights, features and images in turn, weight averaging."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from folds import cross_fitted
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from mipl import load, make_classifier
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import digits_mipl
from mipl.errors import MiplNotice
from mipl.methods import METHODS
from mipl.nn.encoders import FeatureEncoder, ImageEncoder
from mipl.seeding import rng_for
from mipl.training.crossfit import learns_from
from mipl.training.distributed import ProcessGroup
from mipl.training.pretraining import (
    SHARING,
    _draws,
    _principal,
    contrast,
    has_images,
    on_features,
    random_views,
    train_on_images,
)
from mipl.training.recipe import make_recipe
from mipl.training.trainer import Training, train

pytestmark = pytest.mark.filterwarnings("ignore:The model has learned nothing")  # a few epochs


@pytest.fixture(scope="module")
def bags():
    return digits_mipl()[:60]


def network(bags, method="mam-cn", seed=0, **settings):
    torch.manual_seed(seed)
    return METHODS[method].make(**settings).build(bags.feature_shape, bags.k)


def training_of(method="mam-cn", report=None, method_settings=None, **settings):
    recipe = make_recipe("stable", **settings)
    return Training(METHODS[method].make(**(method_settings or {})), recipe, 0, ProcessGroup(), report=report)


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def other_sets(bags, rows):
    """Return the bags with other candidate sets in ``rows``."""
    sets = bags.candidates.copy()
    sets[rows] = np.roll(sets[rows], 1, axis=1)
    return dataclasses.replace(bags, candidates=sets, labels=None)


def found_again(encoder, images):
    """Return the proportion of images whose other view is the nearest of all."""
    torch.manual_seed(3)
    encoder.eval()
    with torch.no_grad():
        one, other = (encoder(random_views(images)) for _ in range(2))
    near = torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T
    return float((near.argmax(dim=1) == torch.arange(len(images))).float().mean())


def test_the_encoder_learns_to_find_an_image_again(bags):
    encoder = network(bags).encoder
    images = torch.tensor(bags.instances[:300]).float()
    before = found_again(encoder, images)
    contrast(encoder, bags, 300, np.random.default_rng(0), ProcessGroup())
    assert found_again(encoder, images) > before + 0.08


@pytest.mark.parametrize("method", ["mam-cn", "dam-cc", "miplma", "fastmipl"])
def test_the_network_takes_features_inside_and_images_afterwards(bags, method):
    net = network(bags, method)
    (encoder,) = [part for part in net.modules() if isinstance(part, ImageEncoder)]
    training = training_of(method, pretrain=3)
    names = list(net.state_dict())
    with on_features(training, [net], bags) as features:
        assert features.feature_shape == (min(training.recipe.components, encoder.linear.in_features),)
        assert (features.sizes == bags.sizes).all()
        assert (features.candidates == bags.candidates).all()
        assert not any(part is encoder for part in net.modules())
        (simple,) = [part for part in net.modules() if isinstance(part, FeatureEncoder)][:1]
        with torch.no_grad():
            simple[0].weight.normal_()  # a training
            simple[0].bias.normal_()
        net.eval()
        with torch.no_grad():
            wanted = simple(BagLoader(features).batch(np.arange(len(bags))).instances)
    assert list(net.state_dict()) == names
    encoder.eval()
    with torch.no_grad():
        found = encoder(BagLoader(bags).batch(np.arange(len(bags))).instances)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_members_share_pretrained_convolutions_and_keep_first_layers_of_their_own(bags):
    nets = [network(bags, "sam-cn", seed=seed) for seed in range(3)]
    with on_features(training_of("sam-cn", pretrain=2), nets, bags):
        assert len({id(net.encoder) for net in nets}) == 3
    first, *others = nets
    for net in others:
        assert torch.equal(net.encoder.conv1.weight, first.encoder.conv1.weight)
        assert torch.equal(net.encoder.conv2.weight, first.encoder.conv2.weight)
        assert net.encoder.conv1.weight.data_ptr() != first.encoder.conv1.weight.data_ptr()
        assert not torch.equal(net.encoder.linear.weight, first.encoder.linear.weight)


def test_every_two_members_begin_with_an_encoder_of_their_own(bags):
    """Under a sigmoid head convolutions stay as they were pretrained, so that they can be compared."""
    model = make_classifier("sam-mdl", head="sigmoid", ensemble=3, epochs=2, pretrain=2).fit(bags)
    weights = [net.encoder.conv1.weight for net in model.network_.members]
    same = [[torch.equal(one, other) for other in weights] for one in weights]
    assert same == [[i // SHARING == j // SHARING for j in range(3)] for i in range(3)]


def test_pretraining_does_not_read_candidate_sets(bags):
    features = []
    for each in (bags, other_sets(bags, np.arange(len(bags)))):
        with on_features(training_of(pretrain=3), [network(each)], each) as found:
            features.append(found.source)
    np.testing.assert_array_equal(*features)


def test_a_selection_of_bags_has_the_features_of_its_own_images(bags):
    chosen = np.array([40, 3, 17])
    net = network(bags)
    with on_features(training_of(pretrain=1), [net], bags[chosen]) as some:
        assert len(some.source) == bags.sizes[chosen].sum()
        encoder = net.encoder
        with torch.no_grad():
            encoder[0].weight.normal_()
        net.eval()
        wanted = encoder(BagLoader(some).batch(np.array([1])).instances)
    found = net.encoder(BagLoader(bags).batch(np.array([3])).instances)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_components_are_those_of_scikit_learn(bags):
    encoder = network(bags).encoder.eval()
    with torch.no_grad():
        maps = encoder.maps(BagLoader(bags).batch(np.arange(len(bags))).instances)
    components = _principal(encoder, bags, 5, np.random.default_rng(0), torch.device("cpu"))
    wanted = PCA(5, svd_solver="full").fit_transform(maps.double().numpy())
    found = components.of(maps).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(wanted) / np.sqrt((wanted**2).mean()), atol=2e-3)
    assert np.sqrt((found**2).mean()) == pytest.approx(1.0, abs=1e-3)


@given(st.integers(1, 5), st.sampled_from([(8, 8), (28, 28), (3, 8, 8)]), st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_views_are_made_of_the_image(n, shape, seed):
    torch.manual_seed(seed)
    images = torch.rand(n, *shape)
    views = random_views(images)
    assert views.shape == images.shape
    rest = tuple(range(1, images.ndim))
    assert (views.amax(rest) <= images.amax(rest) + 1e-5).all()
    assert (views.amin(rest) >= images.amin(rest) - 1e-5).all()
    even = torch.full_like(images, 0.7)
    torch.testing.assert_close(random_views(even), even)


@given(st.integers(1, 700), st.integers(1, 8))
def test_every_image_is_drawn_before_any_is_drawn_again(images, steps):
    drawn = [int(i) for part in _draws(images, steps, np.random.default_rng(0)) for i in part]
    counts = np.bincount(drawn, minlength=images)
    assert counts.max() - counts.min() <= 1 + (images < 256)


def test_no_view_is_the_image_itself(bags):
    images = torch.tensor(bags.instances[:5]).float()
    moved = (random_views(images) - images).abs().flatten(1).mean(dim=1)  # (5,)
    assert (moved > 0.01).all()


def test_what_has_no_image_encoder_of_ours_is_left_alone(bags, gaussian):
    assert has_images(network(bags))
    assert not has_images(network(gaussian))
    net = network(bags)
    before = net.encoder
    train(METHODS["mam-cn"].make(), net, bags, make_recipe("paper", epochs=1), 0)
    assert net.encoder is before


# --- features first, then images ---


@pytest.mark.parametrize(("method", "wanted"), [("mam-cn", 1.0), ("promipl", 0.1)])
def test_the_temperature_of_mam_stays_at_1_on_images_unless_it_is_fixed(bags, method, wanted):
    model = make_classifier(method, ensemble=1, epochs=8, pretrain=1).fit(bags)
    assert float(model.network_.attention.tau) == pytest.approx(wanted)


@pytest.mark.parametrize("head", ["linear", "sigmoid"])
def test_convolutions_are_trained_after_the_warm_up_unless_the_head_is_a_sigmoid(bags, head):
    seen = {}

    def look(done, note=""):
        seen[done] = next(
            (m.conv1.weight.clone() for m in net.modules() if isinstance(m, ImageEncoder)), None
        )

    training = training_of("sam-cn", look, {"head": head}, epochs=6, pretrain=2)
    assert training.method.trains_convolutions == (head == "linear")
    net, pretrained = network(bags, "sam-cn", head=head), network(bags, "sam-cn", head=head)
    (history,) = train_on_images(training, [net], bags, torch.ones(1, len(bags)))
    with on_features(dataclasses.replace(training, report=None), [pretrained], bags):
        pass
    unchanged = torch.equal(net.encoder.conv1.weight, pretrained.encoder.conv1.weight)
    assert unchanged == (head == "sigmoid")
    assert seen[3] is None  # features
    if head == "linear":
        assert len(history["loss"]) == 5  # of the three epochs after the warm-up 48%, rounded up
        assert not torch.equal(seen[4], seen[5])
    else:
        assert len(history["loss"]) == 6
        assert seen[4] is seen[6] is None


@pytest.mark.parametrize(("epochs", "averaged"), [(8, [5, 6]), (14, [9, 10, 11])])
def test_the_network_is_the_mean_of_its_last_epochs_on_images(bags, epochs, averaged):
    net, seen = network(bags, "mam-cn"), {}

    def look(done, note=""):
        seen[done] = {name: value.double().clone() for name, value in net.state_dict().items()}

    training = training_of("mam-cn", look, epochs=epochs, pretrain=2)
    train_on_images(training, [net], bags, torch.ones(1, len(bags)))
    assert max(seen) == averaged[-1]
    for name, value in net.state_dict().items():
        each = torch.stack([seen[epoch][name] for epoch in averaged])
        wanted = each.mean(dim=0) if name in dict(net.named_parameters()) else each[-1]  # a temperature
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)


def test_a_member_on_images_does_not_depend_on_the_sets_it_leaves_out(bags):
    left_out = learns_from(bags, 4, 0).numpy()[0] == 0
    model = make_classifier("sam-cn", ensemble=2, epochs=6, pretrain=2)
    first, second = (cross_fitted(model, each)[0] for each in (bags, other_sets(bags, left_out)))
    assert torch.equal(flat(first[0]), flat(second[0]))
    assert not torch.equal(flat(first[1]), flat(second[1]))


@pytest.mark.parametrize(
    ("ensemble", "last"),
    [
        (1, 1),  # within the warm-up
        (1, 4),  # at its end
        (1, 5),  # on images
        (2, 2),  # within the warm-up of two members
        (2, 4),  # at its end
        (2, 9),  # in the first member on images
        (2, 24),  # in a network that predicts
    ],
)
def test_training_on_images_resumes_to_the_same_model(bags, tmp_path, ensemble, last):
    class StopError(Exception):
        pass

    reported = []

    def stop(done, note=""):
        reported.extend([done] if done else [])  # 0: pretraining and initial weights
        if len(reported) == last:
            raise StopError

    def made():
        return make_classifier("sam-cn", ensemble=ensemble, epochs=8, pretrain=4, random_state=0)

    whole = made().fit(bags)
    with pytest.raises(StopError):
        made().fit(bags, checkpoint=tmp_path / "c", report=stop)
    resumed = made().fit(bags, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(whole.predict_proba(bags), resumed.predict_proba(bags))
    assert whole.history_["loss"] == resumed.history_["loss"]
    whole.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict_proba(bags), whole.predict_proba(bags))


@pytest.mark.slow
def test_images_with_the_sets_of_other_bags_are_warned_about():
    bags = digits_mipl()
    sets = rng_for("noise", 0).permutation(bags.candidates)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make_classifier("mam-cn", ensemble=2, epochs=10, random_state=0).fit(
            dataclasses.replace(bags, candidates=sets, labels=None)
        )
    assert any("has learned nothing" in str(w.message) for w in caught if issubclass(w.category, MiplNotice))
    assert model.predict_proba(bags).max(axis=1).mean() < 1 / bags.k + 0.1
