"""The ONNX graph of one bag agrees with the classifier, for every method that is a network."""

import copy
import functools
import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import mipl
from mipl import list_methods, make_classifier
from mipl.calibration.model import Calibration
from mipl.calibration.scaling import Scaling
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError, StorageError
from mipl.export import onnx as export
from mipl.export.onnx import SIZES, TOLERANCE, OneBag, export_onnx, random_bags
from mipl.methods import METHODS
from mipl.nn.gp import InstanceGP
from mipl.nn.network import BagNetwork

NETWORKS = {name: METHODS[name].make().build((5,), 3) for name in list_methods()}
NEURAL = [name for name, network in NETWORKS.items() if not isinstance(network, InstanceGP)]
# an export takes seconds: methods with the same layers share a graph, each with weights of its own
LAYERS = {}
for known in NEURAL:
    parts = [repr(getattr(NETWORKS[known], part, None)) for part in ("score", "attention", "head")]
    LAYERS.setdefault(str(parts), []).append(known)


@functools.cache
def fitted(name, ensemble=1, **settings):
    model = make_classifier(name, epochs=1, ensemble=ensemble, **settings)
    return model.fit(gaussian_bags(bags=30, k=3))


def with_scaling(model, kind, weight, bias):
    made = copy.copy(model)
    made.calibration_ = Calibration("labels", "none", 9, Scaling(kind, weight, bias), None)
    return made


def run(content, bag):
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"instances": bag}), strict=True))


def check_in_torch(model, atol=1e-5):
    """Compare the single bag with the classifier, which has segments of many bags."""
    calibration = model.calibration_
    one = OneBag(model.network_, 3, None if calibration is None else calibration.scaling).eval()
    bags = random_bags(model)
    assert tuple(len(bag) for bag in bags) == SIZES
    for bag, p in zip(bags, model.predict_proba(bags), strict=True):
        with torch.inference_mode():
            found, *attention = one(torch.from_numpy(bag))
        np.testing.assert_allclose(found.numpy(), p, atol=atol)
        assert bool(attention) == model.has_attention
        if attention:
            np.testing.assert_allclose(attention[0], model.attention_weights([bag])[0], atol=atol)


@pytest.mark.parametrize("name", NEURAL)
def test_one_bag_agrees_with_the_classifier(name):
    check_in_torch(fitted(name))


@pytest.mark.filterwarnings("ignore:The model has learned nothing")
@pytest.mark.parametrize("name", [names[0] for names in LAYERS.values()])
def test_an_ensemble_agrees_with_the_classifier(name):
    model = fitted(name, ensemble=3)
    assert len(model.network_.members) == 3
    check_in_torch(model)
    vector = with_scaling(model, "vector", (0.4, 1.0, 3.0), (0.5, 0.0, -1.0))
    check_in_torch(vector)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mam-cn", {"mam_order": "weights"}),
        ("sam-cn", {"head": "sigmoid"}),
        ("pop", {"pooling": "maxmin"}),
        ("fastmipl", {"layers": "16-8"}),
    ],
)
def test_other_settings_too(name, settings):
    # weights divided by their own small standard deviation are less exact
    check_in_torch(fitted(name, **settings), atol=1e-4 if "mam_order" in settings else 1e-5)


@pytest.mark.parametrize(
    "scaling",
    [("temperature", (2.5,) * 3, (0.0,) * 3), ("vector", (0.4, 1.0, 3.0), (0.5, 0.0, -1.0))],
    ids=["temperature", "vector"],
)
@pytest.mark.parametrize("name", ["dam-cc", "proden", "fastmipl"])
def test_scaling_after_training_is_in_the_graph(name, scaling):
    plain, made = fitted(name), with_scaling(fitted(name), *scaling)
    check_in_torch(made)
    bags = random_bags(plain)
    assert np.abs(made.predict_proba(bags) - plain.predict_proba(bags)).max() > 0.01


def with_weights(content, model):
    """Return a graph of the same layers with the weights of ``model``."""
    graph, state = onnx.load_from_string(content), OneBag(model.network_, 3, None).state_dict()
    found = {value.name: value for value in graph.graph.initializer}
    for part in ("scaling", "encoder", "score", "attention", "head"):  # none is folded away
        assert {name for name in state if name.startswith(f"network.{part}.")} <= set(found)
    for name in set(state) & set(found):
        found[name].CopyFrom(onnx.numpy_helper.from_array(state[name].numpy(), name))
    return graph.SerializeToString()


@pytest.mark.parametrize("names", LAYERS.values(), ids="+".join)
def test_onnxruntime_agrees_for_bags_of_any_size(names, tmp_path):
    model, path = fitted(names[0]), tmp_path / "model.onnx"
    checked = export_onnx(model, str(path))
    assert checked["sizes"] == list(SIZES)
    assert max(checked["differences"].values()) <= TOLERANCE
    assert ("attention" in checked["differences"]) == isinstance(NETWORKS[names[0]], BagNetwork)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]  # weights are inside
    content, rng = path.read_bytes(), np.random.default_rng(3)
    for name in names:
        other = fitted(name)
        if other is not model:
            content = with_weights(content, other)
        for size in (1, 3, 64):  # sizes that the export did not verify
            bag = rng.normal(size=(size, 5)).astype(np.float32)
            found = run(content, bag)
            assert found["probabilities"].shape == (3,)
            np.testing.assert_allclose(found["probabilities"], other.predict_proba([bag])[0], atol=1e-5)
            if "attention" in found:
                np.testing.assert_allclose(found["attention"], other.attention_weights([bag])[0], atol=1e-5)


def test_calibrated_images_and_metadata(digits, tmp_path):
    path = tmp_path / "model.onnx"
    arrays = [(255 * bag.instances).astype(np.uint8) for bag in digits[:30]]
    images = Bags.from_list(arrays, digits.candidates[:30], classes=digits.classes)
    plain = make_classifier("sam-cn", ensemble=1, epochs=1).fit(images)
    k = len(plain.classes_)
    model = with_scaling(plain, "vector", tuple(np.linspace(0.5, 2, k)), tuple(np.linspace(-1, 1, k)))
    export_onnx(model, path)
    found = run(path.read_bytes(), (arrays[3] / 255).astype(np.float32))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(images[3:4])[0], atol=1e-5)
    np.testing.assert_allclose(found["attention"], model.attention_weights(images[3:4])[0], atol=1e-5)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(digits.classes)
    assert tuple(json.loads(about["feature_shape"])) == digits.feature_shape
    assert json.loads(about["calibrated"]) is True
    assert (about["mipl_version"], about["method"]) == (mipl.__version__, "sam-cn")
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("instances", "tensor(float)", [8, 8])
    assert isinstance(given.shape[0], str)  # a name: any number


def test_a_gaussian_process_is_refused(tmp_path):
    with pytest.raises(SettingError, match="miplgp is not a neural network"):
        export_onnx(fitted("miplgp"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    """Also if the difference is NaN."""
    model = fitted("proden")
    graph = export._graph(OneBag(model.network_, 3, None).eval(), (5,), False)
    (bias,) = (known for known in graph.graph.initializer if known.name == "network.head.bias")
    monkeypatch.setattr(export, "_graph", lambda *_: graph)
    for value, difference in ((9.0, r"0\.\d+"), (np.nan, "nan")):
        del graph.metadata_props[:]
        bias.CopyFrom(onnx.numpy_helper.from_array(np.float32([value, 0, 0]), bias.name))
        with pytest.raises(StorageError, match=rf"from torch by {difference}, more than 0.0001: it is"):
            export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # an import of it then fails
    with pytest.raises(SettingError, match=r"pip install 'mipl\[onnx\]'"):
        export_onnx(fitted("proden"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_reliability_of_uamipl_is_in_the_graph():
    model = make_classifier("uamipl", epochs=4, mix_after=1, threshold=0.0, reliability=0.5)
    model.fit(gaussian_bags(bags=30, k=3))
    assert float(model.network_.share) > 0
    check_in_torch(model)


def test_smoothing_is_in_the_graph():
    model = copy.copy(fitted("sam-cn"))
    scaling = Scaling("smoothed", (2.0,) * 3, (0.0,) * 3, 0.25)
    model.calibration_ = Calibration("labels", "none", 9, scaling, None)
    check_in_torch(model)
