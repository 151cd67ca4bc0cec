"""The scikit-learn face, as a user meets it."""

import copy
import hashlib
import json

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score

import mipl
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import DataError, MiplNotice, SettingError, StorageError
from mipl.estimators import BagClassifier, CDLClassifier, NotFittedError
from mipl.files import write_json
from mipl.training.recipe import RECIPE_VERSION, Recipe

FAST = {"epochs": 3, "ensemble": 1}
# settings of a model that was saved before ensembles, as its model.json has them
EARLIER_RECIPE = {
    "name": "stable", "epochs": 3, "batch_size": 8, "optimizer": "adamw", "lr": 6e-3, "weight_decay": 1e-2,
    "pretrain": 60, "starts": 10, "image_lr": 1e-3, "image_average": 0.6, "image_tau": 1.0,
    "instance_dropout": 0.1, "fan_in": 40, "background": 0.3, "rate": "cosine", "clip_norm": 1.0,
    "held_out": 0.1, "balance": 1.0, "warmup": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(gaussian):
    return CDLClassifier(epochs=12, ensemble=3).fit(gaussian)


def test_candidates_as_matrix_as_indices_and_as_names_train_the_same_model(gaussian):
    arrays = [bag.instances for bag in gaussian]
    names = ["ash", "birch", "cedar", "elm"]
    sets = [np.flatnonzero(row).tolist() for row in gaussian.candidates]
    by_matrix = CDLClassifier(**FAST).fit(arrays, gaussian.candidates.astype(int))
    by_index = CDLClassifier(**FAST).fit(arrays, sets)
    by_name = CDLClassifier(**FAST).fit(arrays, [{names[c] for c in entry} for entry in sets])
    p = by_matrix.predict_proba(arrays)
    assert (by_index.predict_proba(arrays) == p).all()
    assert (by_name.predict_proba(arrays) == p).all()
    assert set(by_name.predict(arrays)) <= set(names)
    assert by_name.classes_.tolist() == names
    assert by_index.classes_.tolist() == [0, 1, 2, 3]


def test_torch_tensors_and_lists_of_lists_are_bags_too(model, gaussian):
    p = model.predict_proba(gaussian[:4])
    assert (model.predict_proba([torch.tensor(bag.instances) for bag in gaussian[:4]]) == p).all()
    assert (model.predict_proba([bag.instances.tolist() for bag in gaussian[:4]]) == p).all()
    assert (model.predict_proba(list(gaussian[:4])) == p).all()


def test_one_instance_and_ten_thousand_are_predicted(model):
    rng = np.random.default_rng(0)
    p = model.predict_proba([rng.normal(size=(1, 5)), rng.normal(size=(10_000, 5))])
    assert p.shape == (2, 4)
    assert np.isfinite(p).all()
    assert [len(a) for a in model.attention_weights([np.ones((1, 5)), np.ones((10_000, 5))])] == [1, 10_000]


def test_images_with_and_without_a_channel_are_the_same(digits):
    model = CDLClassifier(epochs=1, ensemble=1).fit(digits)
    with_channel = [bag.instances[:, None] for bag in digits[:5]]
    np.testing.assert_allclose(model.predict_proba(with_channel), model.predict_proba(digits[:5]), atol=1e-6)
    other = CDLClassifier(epochs=1, ensemble=1).fit(
        [bag.instances[:, None] for bag in digits], digits.candidates
    )
    np.testing.assert_allclose(other.predict_proba(digits[:5]), model.predict_proba(digits[:5]), atol=1e-5)


def test_a_vector_of_64_values_is_not_guessed_to_be_an_image(digits):
    flat = [bag.instances.reshape(-1, 64) for bag in digits[:20]]
    model = CDLClassifier(epochs=1, ensemble=1).fit(flat, digits.candidates[:20])
    assert model.feature_shape_ == (64,)
    assert model.network_.encoder[0].in_features == 64


def test_scaling_is_of_the_training_bags_and_only_of_vectors(gaussian, digits):
    model = CDLClassifier(epochs=1, ensemble=1).fit(gaussian)
    np.testing.assert_allclose(model.network_.scaling.mean, gaussian.instances.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(model.network_.scaling.std, gaussian.instances.std(axis=0), rtol=1e-5)
    raw = CDLClassifier(epochs=1, ensemble=1, scale="none").fit(gaussian)
    assert (raw.network_.scaling.std == 1).all()
    assert not list(CDLClassifier(epochs=1, ensemble=1).fit(digits[:10]).network_.scaling.buffers())


def test_scaling_survives_large_offsets_and_constant_features(gaussian):
    shifted = [
        np.hstack([bag.instances.astype(np.float64) + 1e6, np.full((len(bag), 1), 7.0)]) for bag in gaussian
    ]
    scaling = CDLClassifier(epochs=1, ensemble=1).fit(shifted, gaussian.candidates).network_.scaling
    flat = np.concatenate(shifted).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(scaling.std[:5], flat[:, :5].std(axis=0), rtol=1e-3)
    assert scaling.std[5] == 1


def test_a_user_encoder_is_used_copied_and_asked_for_again(gaussian, tmp_path):
    encoder = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh())
    before = encoder[0].weight.clone()
    model = CDLClassifier(encoder=encoder, **FAST).fit(gaussian)
    assert model.embed(gaussian).shape == (80, 9)
    assert (encoder[0].weight == before).all()
    assert (model.network_.encoder[0].weight != before).any()
    model.save(tmp_path / "m")
    with pytest.raises(SettingError, match="encoder of its own"):
        mipl.load(tmp_path / "m")
    loaded = mipl.load(tmp_path / "m", encoder=encoder)
    assert (loaded.predict_proba(gaussian) == model.predict_proba(gaussian)).all()


def test_attention_sums_to_one_and_finds_the_positives(model, gaussian):
    weights = model.attention_weights(gaussian)
    np.testing.assert_allclose([w.sum() for w in weights], 1.0, atol=1e-5)
    positive = np.concatenate([bag.instance_labels == bag.label for bag in gaussian])
    flat = np.concatenate(weights)
    assert flat[positive].mean() > flat[~positive].mean()


def test_embeddings_times_heads_are_the_prediction(model, gaussian):
    """Of an ensemble: the embeddings of the members side by side; the mean of their softmax, tempered."""
    z = torch.tensor(model.embed(gaussian), dtype=torch.float32)
    assert z.shape == (80, 3 * 128)
    parts = zip(model.network_.members, z.split(128, dim=1), strict=True)
    with torch.no_grad():
        p = torch.stack([net.head(own).softmax(dim=1) for net, own in parts]).mean(dim=0).double()
    powered = p ** (1.0 / model.calibration_.scaling.temperature)
    wanted = powered / powered.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(wanted, model.predict_proba(gaussian), atol=1e-5)
    single = CDLClassifier(**FAST).fit(gaussian)
    z = torch.tensor(single.embed(gaussian), dtype=torch.float32)
    with torch.no_grad():
        p = single.network_.head(z).softmax(dim=1).numpy()
    np.testing.assert_allclose(p, single.predict_proba(gaussian), atol=1e-5)
    assert single.disagreement(gaussian).max() == pytest.approx(0.0, abs=1e-12)


def test_scikit_learn_can_clone_search_and_cross_validate(gaussian):
    model = CDLClassifier(attention="mam", gamma=2.0, epochs=2, width=16, ensemble=1)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert twin.get_params()["width"] == 16
    assert is_classifier(model)
    assert "width=16" in repr(model)
    search = GridSearchCV(model, {"lr": [0.01, 0.02], "width": [8, 16], "competitor": ["cc", "cn"]}, cv=2)
    search.fit(gaussian)
    assert set(search.best_params_) == {"lr", "width", "competitor"}
    assert search.best_estimator_.network_.head.in_features == search.best_params_["width"]
    assert cross_val_score(
        BagClassifier("dam-mdl", epochs=2, ensemble=3), gaussian, gaussian.labels, cv=3
    ).shape == (3,)


def test_labels_given_for_cross_validation_do_not_leak_into_training(gaussian):
    with_labels = CDLClassifier(**FAST).fit(gaussian, gaussian.labels)
    without = CDLClassifier(**FAST).fit(gaussian)
    assert (with_labels.predict_proba(gaussian) == without.predict_proba(gaussian)).all()


def test_training_does_not_read_the_true_labels(gaussian):
    unlabelled = Bags.from_list([bag.instances for bag in gaussian], gaussian.candidates)
    p = CDLClassifier(**FAST).fit(unlabelled).predict_proba(gaussian)
    assert (p == CDLClassifier(**FAST).fit(gaussian).predict_proba(gaussian)).all()


def test_set_params_reaches_settings_and_refuses_unknown_ones():
    model = CDLClassifier().set_params(width=32, epochs=5, gamma=2.0)
    method, recipe = model.parts()
    assert (method.width, method.gamma, recipe.epochs) == (32, 2.0, 5)
    with pytest.raises(SettingError, match=r"no setting 'widht'. Did you mean 'width'"):
        model.set_params(widht=1)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"attention": "dim"}, "no method 'dim-cn'. Did you mean 'dam-cn'"),
        ({"gamma": -1.0}, "gamma = -1.0"),
        ({"recipe": "stabel"}, "no recipe 'stabel'. Did you mean 'stable'"),
        ({"epochs": 0}, "epochs = 0 must be an integer of at least 1"),
        ({"lr": -0.1}, "lr = -0.1"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"scale": "zscore"}, "scale = 'zscore'"),
        ({"device": "abacus"}, "no device 'abacus'"),
        ({"training": "paper"}, "training = 'paper' must be a Recipe"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(params, sentence, gaussian):
    with pytest.raises(SettingError, match=sentence):
        CDLClassifier(**params).fit(gaussian)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"head": "conical"}, "head = 'conical' must be 'linear' or 'sigmoid'"),
        ({"optimizer": "sdg"}, "optimizer = 'sdg' must be 'sgd' or 'adamw'"),
        ({"warmup": 1.0}, "warmup = 1.0"),
    ],
)
def test_bad_settings_of_any_method_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        mipl.make_classifier("sam-cn", **settings).parts()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"background": 0.0}, r"no setting 'background'. Give training=Recipe\(background=…\)"),
        ({"tau_min": 1.0}, r"no setting 'tau_min'. Use make_classifier\('mam-cn', tau_min=…\)"),
    ],
)
def test_settings_that_are_no_parameter_are_named_with_their_place(setting, sentence):
    with pytest.raises(SettingError, match=sentence):
        CDLClassifier("mam").set_params(**setting)


def test_every_parameter_is_explained_and_there_are_at_most_twenty():
    names = CDLClassifier().get_params()
    assert len(names) <= 20
    assert all(f"        {name}: " in CDLClassifier.__doc__ for name in names)


def test_rare_settings_are_given_as_a_recipe(gaussian, tmp_path):
    model = CDLClassifier(training=Recipe(background=0.0, epochs=3, ensemble=1), epochs=2)
    assert clone(model).get_params() == model.get_params()
    same = mipl.make_classifier("sam-cn", background=0.0, epochs=2, ensemble=1)
    assert model.parts() == same.parts()
    model.fit(gaussian).save(tmp_path / "m")
    loaded = CDLClassifier.load(tmp_path / "m")
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict_proba(gaussian), same.fit(gaussian).predict_proba(gaussian))


def test_a_model_saved_with_settings_that_are_no_parameters_now_loads(gaussian, tmp_path):
    """As `CDLClassifier` took any setting, models were saved with them."""
    CDLClassifier(epochs=1, ensemble=1).fit(gaussian).save(tmp_path / "m")
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    common = ("attention", "competitor", "gamma", "recipe", "random_state", "scale", "verbose")
    earlier = {name: info["params"][name] for name in common} | {"epochs": 1, "lr": None, "batch_size": None}
    info["params"] = earlier | {"ensemble": 1, "background": 0.3}
    write_json(tmp_path / "m" / "model.json", info)
    (tmp_path / "m" / "checksums.json").unlink()
    model = mipl.load(tmp_path / "m")
    assert (model.method, model.settings["background"], model.parts()[1].epochs) == ("sam-cn", 0.3, 1)


def test_the_six_names_are_the_six_methods():
    method, _ = mipl.make_classifier("mam-cc", gamma=3.0).parts()
    assert (method.attention, method.competitor, method.gamma) == ("mam", "cc", 3.0)
    with pytest.raises(SettingError, match=r"no method 'mam-nc'. Did you mean"):
        mipl.make_classifier("mam-nc")


@pytest.mark.parametrize("settings", [{"ensemble": 3}, {"ensemble": 1}])
def test_no_bags_give_empty_results_of_the_right_shape(settings, gaussian):
    model = CDLClassifier(epochs=1, width=8, **settings).fit(gaussian)
    none = gaussian[:0]
    for found, like in (
        (model.predict_proba(none), (0, 4)),
        (model.predict_log_proba(none), (0, 4)),
        (model.predict(none), (0,)),
        (model.disagreement(none), (0,)),
        (model.embed(none), (0, 8 * settings["ensemble"])),
    ):
        assert found.shape == like
    assert model.predict(none).dtype == model.predict(gaussian).dtype
    assert model.attention_weights(none) == []
    with pytest.raises(DataError, match="There is no bag to score"):
        model.score(none)
    for call in (model.predict_proba, model.predict, model.embed, model.score, model.disagreement):
        with pytest.raises(DataError, match="There is no bag"):
            call([])


@pytest.mark.parametrize("name", ["proden", "fastmipl", "miplgp"])
def test_no_bags_are_predicted_by_methods_without_attention(name, gaussian):
    model = mipl.make_classifier(name, epochs=1).fit(gaussian)
    assert model.predict_proba(gaussian[:0]).shape == (0, 4)
    with pytest.raises(SettingError, match="has no attention"):
        model.embed(gaussian[:0])


def test_untrained_says_so(gaussian):
    for call in (CDLClassifier().predict, CDLClassifier().score, CDLClassifier().attention_weights):
        with pytest.raises(NotFittedError, match="call fit first"):
            call(gaussian)


def test_ordinary_supervision_and_unseen_classes_are_noticed():
    bags = gaussian_bags(r=0)
    with pytest.warns(MiplNotice, match="Every bag has one candidate"):
        CDLClassifier(**FAST).fit(bags)
    arrays = [bag.instances for bag in bags]
    unseen = Bags.from_list(arrays, [[0, 1]] * len(arrays), classes=["a", "b", "c"])
    with pytest.warns(MiplNotice, match="No bag has the candidate c"):
        CDLClassifier(**FAST).fit(unseen)


def test_one_class_only_is_refused():
    with pytest.raises(DataError, match="one class only"):
        CDLClassifier().fit([np.ones((2, 3))] * 2, [[0], [0]])


def test_score_needs_labels_and_takes_names(gaussian, model):
    unlabelled = Bags.from_list([bag.instances for bag in gaussian])
    with pytest.raises(DataError, match="one true label per bag"):
        model.score(unlabelled)
    with pytest.raises(DataError, match="one true label per bag"):
        model.score(unlabelled, gaussian.candidates)
    assert model.score(unlabelled, gaussian.labels) == model.score(gaussian)


def test_labels_are_matched_by_name_where_the_order_of_classes_differs(gaussian):
    arrays = [bag.instances for bag in gaussian]
    names = np.array(["a", "b", "c", "d"])
    model = CDLClassifier(epochs=12, ensemble=1).fit(
        Bags.from_list(arrays, gaussian.candidates, classes=names)
    )
    turned = Bags.from_list(arrays, labels=names[gaussian.labels], classes=["c", "a", "d", "b"])
    assert model.score(turned) == np.mean(model.predict(arrays) == names[gaussian.labels])


def test_a_model_folder_is_readable_and_holds_no_pickle(model, tmp_path):
    model.save(tmp_path / "m")
    files = [
        "calibration.json",
        "checksums.json",
        "model.json",
        "model.safetensors",
        "statistics.safetensors",
    ]
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == files
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    assert info["method"]["name"] == "sam-cn"
    assert (info["recipe"]["epochs"], info["recipe"]["ensemble"]) == (12, 3)
    assert info["trained_on"]["bags"] == 80
    assert info["versions"]["torch"] == torch.__version__


def test_a_model_saved_before_ensembles_loads_as_one_network(gaussian, tmp_path):
    model = CDLClassifier(**FAST).fit(gaussian)
    model.save(tmp_path / "m")
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    del info["params"]["ensemble"]
    info["recipe"] = EARLIER_RECIPE
    (tmp_path / "m" / "model.json").write_text(json.dumps(info))
    (tmp_path / "m" / "checksums.json").unlink()
    loaded = mipl.load(tmp_path / "m")
    assert (loaded.recipe_.ensemble, loaded.recipe_.components) == (1, 0)
    assert (loaded.recipe_.weight_decay, loaded.calibration_) == (1e-2, None)
    np.testing.assert_array_equal(loaded.predict_proba(gaussian), model.predict_proba(gaussian))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "model.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "model.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "model.json").unlink(), "holds no model.json"),
        (lambda f: (f / "model.safetensors").unlink(), "damaged or incomplete"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04."), "damaged or incomplete"),
        (
            lambda f: (f / "model.json").write_text('{"format": "mipl-model-9"}'),
            "has the format 'mipl-model-9'",
        ),
        (lambda f: (f / "model.json").write_text('{"format": "mipl-model-1"}'), "damaged or incomplete"),
    ],
)
def test_a_damaged_model_is_refused_with_a_sentence(damage, sentence, model, tmp_path):
    model.save(tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(StorageError, match=r"is damaged: it|is not a model folder"):
        mipl.load(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()  # as a model that was saved before there were checksums
    with pytest.raises(StorageError, match=sentence):
        mipl.load(tmp_path / "m")


def test_a_model_folder_has_the_checksums_of_its_files(model, gaussian, tmp_path):
    model.save(tmp_path / "m")
    stored = json.loads((tmp_path / "m" / "checksums.json").read_text())["sha256"]
    files = [file for file in (tmp_path / "m").iterdir() if file.name != "checksums.json"]
    assert stored == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (tmp_path / "m" / "README.md").write_text("a card beside the model is no part of it")
    np.testing.assert_array_equal(mipl.load(tmp_path / "m").predict(gaussian), model.predict(gaussian))
    (tmp_path / "m" / "calibration.json").unlink()
    with pytest.raises(StorageError, match=r"holds no calibration.json, which checksums.json names"):
        mipl.load(tmp_path / "m")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value, model, tmp_path):
    broken = copy.deepcopy(model)
    next(broken.network_.parameters()).data.view(-1)[0] = value
    broken.save(tmp_path / "m")
    with pytest.raises(StorageError, match=r"is not finite. Restore the folder"):
        mipl.load(tmp_path / "m")


def test_the_device_is_chosen_when_a_model_is_loaded(gaussian, model, tmp_path):
    model.save(tmp_path / "m")
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    assert "device" not in info["params"]
    info["params"]["device"] = "cuda"  # as it was saved before
    (tmp_path / "m" / "model.json").write_text(json.dumps(info))
    (tmp_path / "m" / "checksums.json").unlink()
    for loaded in (mipl.load(tmp_path / "m"), CDLClassifier.load(tmp_path / "m", device="cpu")):
        np.testing.assert_array_equal(loaded.predict_proba(gaussian), model.predict_proba(gaussian))
    assert mipl.load(tmp_path / "m").device == "auto"
    assert mipl.load(tmp_path / "m", device="cpu").device == "cpu"
    for name in ("abacus", "cuda:99"):
        with pytest.raises(SettingError, match=f"This machine has no device '{name}'"):
            mipl.load(tmp_path / "m", device=name)


def test_weights_of_another_width_are_refused(gaussian, tmp_path):
    CDLClassifier(epochs=1, ensemble=1, width=16).fit(gaussian).save(tmp_path / "m")
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    info["method"]["width"] = 8
    (tmp_path / "m" / "model.json").write_text(json.dumps(info))
    (tmp_path / "m" / "checksums.json").unlink()
    with pytest.raises(StorageError, match="size mismatch"):
        mipl.load(tmp_path / "m")


def test_saving_replaces_a_model_and_nothing_else(model, tmp_path):
    model.save(tmp_path / "m")
    model.save(tmp_path / "m")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    with pytest.raises(StorageError, match=r"holds no model.json, so it is not replaced"):
        model.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "thesis"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        model.save(tmp_path / "file" / "m")


def test_importing_mipl_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, mipl; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_keeps_the_recipe_version_that_it_was_trained_with(gaussian, tmp_path):
    CDLClassifier(epochs=1, ensemble=1).fit(gaussian).save(tmp_path / "new")
    info = json.loads((tmp_path / "new" / "model.json").read_text())
    assert info["recipe_version"] == RECIPE_VERSION
    info["recipe_version"] = 2
    (tmp_path / "new" / "model.json").write_text(json.dumps(info))
    (tmp_path / "new" / "checksums.json").unlink()  # a model of an earlier version has none
    mipl.load(tmp_path / "new").save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "model.json").read_text())["recipe_version"] == 2
    model = mipl.load(tmp_path / "again").fit(gaussian)
    assert model.recipe_version_ == RECIPE_VERSION
