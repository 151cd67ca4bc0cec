"""Image encoders that learn from images first: what they learn, and that the network stays what it was."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from mipl import load, make_classifier
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import digits_mipl
from mipl.methods import METHODS
from mipl.nn.encoders import FeatureEncoder, ImageEncoder
from mipl.training.images import (
    COMPONENTS,
    _draws,
    _principal,
    contrast,
    has_images,
    on_features,
    random_views,
)
from mipl.training.parallel import Alone
from mipl.training.recipes import make_recipe
from mipl.training.trainer import train


@pytest.fixture(scope="module")
def bags():
    return digits_mipl()[:60]


def network(bags, method="mam-cn", seed=0):
    torch.manual_seed(seed)
    return METHODS[method].make().build(bags.feature_shape, bags.k)


def found_again(encoder, images):
    """Return the share of images whose other view is the nearest of all."""
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
    contrast(encoder, bags, 300, np.random.default_rng(0), Alone())
    assert found_again(encoder, images) > before + 0.08


@pytest.mark.parametrize("method", ["mam-cn", "dam-cc", "miplma", "fastmipl"])
def test_inside_the_network_takes_features_and_afterwards_images_as_well(bags, method):
    net = network(bags, method)
    (encoder,) = [part for part in net.modules() if isinstance(part, ImageEncoder)]
    recipe = make_recipe("stable", pretrain=3)
    names = list(net.state_dict())
    with on_features(net, bags, recipe, 0, Alone()) as features:
        assert features.feature_shape == (min(COMPONENTS, encoder.linear.in_features),)
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


def test_a_selection_of_bags_has_the_features_of_its_own_images(bags):
    chosen = np.array([40, 3, 17])
    net = network(bags)
    with on_features(net, bags[chosen], make_recipe("stable", pretrain=1), 0, Alone()) as some:
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


@pytest.mark.parametrize(
    ("method", "image_tau", "wanted"), [("mam-cn", 1.0, 1.0), ("mam-cn", 0.0, 0.1), ("promipl", 1.0, 0.1)]
)
def test_mam_stays_soft_on_images_but_where_it_has_one_temperature(bags, method, image_tau, wanted):
    given = {"epochs": 8, "pretrain": 1, "starts": 1, "image_tau": image_tau}
    model = make_classifier(method, **given, **({"tau_decay": 0.5} if method == "mam-cn" else {})).fit(bags)
    assert float(model.network_.attention.tau) == pytest.approx(wanted)


@pytest.mark.parametrize("image_lr", [0.0, 2e-3])
def test_the_convolutions_go_on_with_images_after_the_warm_up_or_stay(bags, image_lr):
    recipe = make_recipe("stable", epochs=4, pretrain=2, starts=2, image_lr=image_lr)
    seen = {}

    def look(done, note=""):
        if done in (2, 3, 4):
            seen[done] = next(
                (m.conv1.weight.clone() for m in net.modules() if isinstance(m, ImageEncoder)), None
            )

    net = network(bags, "sam-cn")
    history = train(METHODS["sam-cn"].make(), net, bags, recipe, 0, report=look)
    assert len(history["loss"]) == 4
    assert seen[2] is None  # features
    if image_lr:
        assert not torch.equal(seen[3], seen[4])
    else:
        assert seen[3] is seen[4] is None


@pytest.mark.parametrize(("share", "counted"), [(0.0, [6]), (0.5, [5, 6]), (1.0, [3, 4, 5, 6])])
def test_the_network_is_the_mean_of_its_last_epochs_on_images(bags, share, counted):
    recipe = make_recipe("stable", epochs=6, warmup=0.34, pretrain=2, image_average=share)
    net, seen = network(bags, "mam-cn"), {}

    def look(done, note=""):
        seen[done] = {name: value.double().clone() for name, value in net.state_dict().items()}

    train(METHODS["mam-cn"].make(), net, bags, recipe, 0, report=look)
    for name, value in net.state_dict().items():
        each = torch.stack([seen[epoch][name] for epoch in counted])
        wanted = each.mean(dim=0) if name in dict(net.named_parameters()) else each[-1]  # a temperature
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("last", [1, 2, 3, 4])  # within the warm-up, at its end, on images, in the mean
def test_training_on_images_goes_on_where_it_stopped(bags, tmp_path, last):
    class StopError(Exception):
        pass

    def stop(done, note=""):
        if done == last:
            raise StopError

    def made():
        return make_classifier("sam-cn", epochs=5, pretrain=4, starts=2, random_state=0)

    whole = made().fit(bags)
    with pytest.raises(StopError):
        made().fit(bags, checkpoint=tmp_path / "c", report=stop)
    resumed = made().fit(bags, checkpoint=tmp_path / "c")
    assert np.array_equal(whole.predict_proba(bags), resumed.predict_proba(bags))
    assert whole.history_["loss"] == resumed.history_["loss"]
    whole.save(tmp_path / "m")
    assert np.array_equal(load(tmp_path / "m").predict_proba(bags), whole.predict_proba(bags))
