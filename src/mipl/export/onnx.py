"""A trained network as an ONNX graph of one bag of any size, checked against torch before it is written.

The networks work on many bags at once, by sums over segments; a graph for one bag needs none of these. So
each kind of network is written here once more for a single bag, from its own layers, and onnxruntime has to
find what the classifier finds.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import mipl
from mipl.calibration.scaling import FLOOR, Scaling
from mipl.errors import SettingError, StorageError
from mipl.estimators import BagClassifier
from mipl.files import atomic_file
from mipl.methods.fastmipl import EPS, MixedEffects
from mipl.nn.attention import DAM, MAM, SAM, Attention
from mipl.nn.network import BagNetwork, members_of
from mipl.nn.pooled import PooledNetwork
from mipl.seeding import rng_for

SIZES = (1, 2, 37, 500)  # of the bags that a graph is checked on
TOLERANCE = 1e-4
INPUT = "instances of one bag, float32; of uint8 images value/255; raw features, the graph scales them"
Floats = npt.NDArray[np.float32]


class OneBag(nn.Module):
    """Instances (n, …) of one bag -> probabilities (k,) and, where the network has one, attention (n,)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, network: nn.Module, k: int, scaling: Scaling | None) -> None:
        super().__init__()
        self.network = network
        self.scaled = scaling is not None
        ones, zeros = (1.0,) * k, (0.0,) * k
        self.register_buffer("weight", torch.tensor(ones if scaling is None else scaling.weight))
        self.register_buffer("bias", torch.tensor(zeros if scaling is None else scaling.bias))

    def forward(self, instances: Tensor) -> tuple[Tensor, ...]:
        """Return what the classifier predicts for the bag, calibrated if it is."""
        members = [outputs(net, instances) for net in members_of(self.network)]
        p = torch.stack([logits.softmax(dim=0) for logits, *_ in members]).mean(dim=0)
        if self.scaled:
            logs = torch.stack([logits.log_softmax(dim=0) for logits, *_ in members]).logsumexp(dim=0)
            p = ((logs - math.log(len(members))).clamp(min=FLOOR) * self.weight + self.bias).softmax(dim=0)
        if len(members[0]) == 1:
            return (p,)
        return p, torch.stack([attention for _, attention in members]).mean(dim=0)


def outputs(net: nn.Module, instances: Tensor) -> tuple[Tensor, ...]:
    """Return logits (k,) of one bag and, where the network has one, attention (n,)."""
    if isinstance(net, BagNetwork):
        return attended(net, instances)
    if isinstance(net, PooledNetwork):
        return (pooled(net, instances),)
    assert isinstance(net, MixedEffects)  # export_onnx takes no other
    return (mixed(net, instances),)


def attended(net: BagNetwork, instances: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (k,) and attention (n,) of one bag."""
    h = net.encoder(net.scaling(instances))  # (n, L)
    weights = weigh(net.attention, net.score(h))  # (n,)
    z = (weights @ h)[
        None
    ]  # (1, L), Eq. 13; as a batch of one: torch would fold the head's weights otherwise
    logits: Tensor = net.head(z)[0]
    return logits, weights


def weigh(attention: Attention, scores: Tensor) -> Tensor:
    """Return the weights (n,) of one bag's scores (n,): Eqs. 8–12."""
    if isinstance(attention, DAM):
        return nn.functional.logsigmoid(scores).softmax(dim=0)
    if isinstance(attention, SAM):
        return (scores * attention.scale).softmax(dim=0)
    assert isinstance(attention, MAM)  # there is no other
    if attention.order == "scores":
        return (zscore(scores, attention.EPS) * attention.scale / attention.tau).softmax(dim=0)
    weights = (scores / attention.tau).softmax(dim=0)
    return torch.where(count(scores) == 1, weights, zscore(weights, attention.EPS))


def zscore(values: Tensor, eps: float) -> Tensor:
    """Centre values (n,) and divide by their deviation + eps; one value alone becomes 0."""
    centred = values - values.mean()
    variance = centred.square().sum() / (count(values) - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


def count(values: Tensor) -> Tensor:
    """Return n of (n,) as a value of the graph: a traced shape is taken to be at least 2."""
    return torch.ones_like(values).sum()


def pooled(net: PooledNetwork, instances: Tensor) -> Tensor:
    """Return logits (k,) of one bag, pooled to one vector."""
    flat = net.scaling(instances).flatten(1)  # (n, d)
    mean = net.pooling == "mean"
    vector = flat.mean(dim=0) if mean else torch.cat([flat.amax(dim=0), flat.amin(dim=0)])
    logits: Tensor = net.head(net.encoder(net.pooled_scaling(vector[None])))[0]
    return logits


def mixed(net: MixedEffects, instances: Tensor) -> Tensor:
    """Return logits (k,) of one bag at the posterior's mean; every class has attention of its own."""
    h = net.encoder(net.scaling(instances))  # (n, L)
    beta_u, beta_z = net.mean[:, : net.width], net.mean[:, net.width :]  # (k, L) each
    rms = beta_z.square().mean(dim=1).add(EPS).sqrt()  # (k,)
    weights, values = (h @ beta_u.T).softmax(dim=0), h @ beta_z.T / rms  # (n, k)
    logits: Tensor = rms * ((weights * values).sum(dim=0) - net.shift) / net.scale + net.fixed
    return logits


def export_onnx(classifier: BagClassifier, path: str | Path, seed: int = 0) -> dict[str, Any]:
    """Write a trained classifier as ONNX and return what was checked: bag sizes and largest differences.

    Input ``instances`` (n, *feature_shape), float32; outputs ``probabilities`` (k,), calibrated if the
    classifier is, and ``attention`` (n,) of methods that have it. Nothing is written if onnxruntime differs
    from the classifier by more than ``TOLERANCE`` on random bags.
    """
    network, name = classifier.network_, classifier._method_name()
    members = members_of(network)
    if not all(isinstance(net, BagNetwork | PooledNetwork | MixedEffects) for net in members):
        raise SettingError(f"{name} is not a neural network of bags, so there is no ONNX graph of it.")
    onnx, runtime = _libraries()
    calibration = classifier.calibration_
    scaling = None if calibration is None else calibration.scaling
    device = next(network.parameters()).device
    bag = OneBag(network, len(classifier.classes_), scaling).eval().to("cpu")
    try:
        with_attention = classifier.has_attention
        graph = _graph(bag, classifier.feature_shape_, with_attention)
        for key, value in _about(classifier, name).items():
            graph.metadata_props.add(key=key, value=value)
        onnx.checker.check_model(graph)
        content = graph.SerializeToString()
        differences = _differences(runtime, content, classifier, with_attention, seed)
    finally:
        network.to(device)
    worst = float(np.max(list(differences.values())))
    if not worst <= TOLERANCE:  # a NaN is no agreement
        raise StorageError(
            f"The ONNX graph differs from torch by {worst:.2g}, above {TOLERANCE:g}: it is not written."
        )
    with atomic_file(Path(path)) as temporary:
        temporary.write_bytes(content)
    return {"sizes": list(SIZES), "differences": differences, "bytes": len(content)}


def _graph(bag: OneBag, feature_shape: tuple[int, ...], with_attention: bool) -> Any:
    """Return the ONNX model of one bag, the number of instances left open."""
    example = torch.zeros(7, *feature_shape)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        logger.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                bag,
                (example,),
                input_names=["instances"],
                output_names=["probabilities", *(["attention"] if with_attention else [])],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:  # of an encoder of the user's own
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise SettingError(f"torch cannot write this network as ONNX: {reason}") from error
        finally:
            logger.setLevel(level)
    assert program is not None
    return program.model_proto


def _about(classifier: BagClassifier, name: str) -> dict[str, str]:
    """Return the metadata: each value is JSON or plain text."""
    calibration = classifier.calibration_
    scaled = calibration is not None and calibration.scaling is not None
    return {
        "mipl_version": mipl.__version__,
        "method": name,
        "classes": json.dumps(classifier.classes_.tolist(), ensure_ascii=False),
        "feature_shape": json.dumps(list(classifier.feature_shape_)),
        "calibrated": json.dumps(scaled),
        "input": INPUT,
    }


def _differences(
    runtime: Any, content: bytes, classifier: BagClassifier, with_attention: bool, seed: int
) -> dict[str, float]:
    """Return the largest absolute difference of each output on random bags of ``SIZES``."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    bags = random_bags(classifier, seed)
    wanted = {"probabilities": list(classifier.predict_proba(bags))}
    if with_attention:
        wanted["attention"] = classifier.attention_weights(bags)
    found = [session.run(list(wanted), {"instances": bag}) for bag in bags]
    return {
        name: float(  # np.max, for Python's may pass over a NaN
            np.max(
                [
                    np.abs(part[place] - own).max() if part[place].shape == own.shape else np.inf
                    for part, own in zip(found, expected, strict=True)
                ]
            )
        )
        for place, (name, expected) in enumerate(wanted.items())
    }


def random_bags(classifier: BagClassifier, seed: int = 0) -> list[Floats]:
    """Return bags of ``SIZES``, of vectors as spread as the training ones, of images from 0 to 1."""
    rng, shape = rng_for("onnx", seed), classifier.feature_shape_
    if len(shape) > 1:
        return [rng.random((size, *shape), dtype=np.float32) for size in SIZES]
    scaling = members_of(classifier.network_)[0].scaling
    mean, std = (scaling.get_buffer(name).cpu().numpy() for name in ("mean", "std"))  # type: ignore[union-attr]
    return [(mean + std * rng.standard_normal((size, *shape))).astype(np.float32) for size in SIZES]


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError as error:
        raise SettingError("ONNX needs further packages: pip install 'mipl[onnx]'.") from error
    return onnx, onnxruntime
