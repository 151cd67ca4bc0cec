"""A trained network as an ONNX graph for one bag of any size, verified against torch before it is written.

The networks process many bags at once, with sums over segments, which a graph for one bag does not need. Each
kind of network is therefore implemented here for a single bag, from its own layers, and the outputs of
onnxruntime are compared with those of the classifier.
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
from mipl.methods.uamipl import EvidentialEffects
from mipl.nn.attention import ABMIL, DAM, MAM, SAM, Attention
from mipl.nn.network import BagNetwork, members_of
from mipl.nn.pooled import PooledNetwork
from mipl.seeding import rng_for

SIZES = (1, 2, 37, 500)  # of the random bags on which a graph is verified
TOLERANCE = 1e-4
INPUT = "instances of one bag, float32; uint8 images divided by 255; raw features, scaled by the graph"
Floats = npt.NDArray[np.float32]


class OneBag(nn.Module):
    """Instances (n, …) of one bag -> probabilities (k,) and, if the network has it, attention (n,)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, network: nn.Module, k: int, scaling: Scaling | None) -> None:
        super().__init__()
        self.network = network
        self.scaled = scaling is not None
        self.uniform = 0.0 if scaling is None else scaling.uniform
        ones, zeros = (1.0,) * k, (0.0,) * k
        self.register_buffer("weight", torch.tensor(ones if scaling is None else scaling.weight))
        self.register_buffer("bias", torch.tensor(zeros if scaling is None else scaling.bias))

    def forward(self, instances: Tensor) -> tuple[Tensor, ...]:
        """Return the classifier's prediction for the bag, calibrated if the classifier is."""
        members = [outputs(net, instances) for net in members_of(self.network)]
        p = torch.stack([logits.softmax(dim=0) for logits, *_ in members]).mean(dim=0)
        if self.scaled:
            logs = torch.stack([logits.log_softmax(dim=0) for logits, *_ in members]).logsumexp(dim=0)
            p = ((logs - math.log(len(members))).clamp(min=FLOOR) * self.weight + self.bias).softmax(dim=0)
            p = (1 - self.uniform) * p + self.uniform / len(p)
        if len(members[0]) == 1:
            return (p,)
        return p, torch.stack([attention for _, attention in members]).mean(dim=0)


def outputs(net: nn.Module, instances: Tensor) -> tuple[Tensor, ...]:
    """Return logits (k,) of one bag and, if the network has it, attention (n,)."""
    if isinstance(net, BagNetwork):
        return attended(net, instances)
    if isinstance(net, PooledNetwork):
        return (pooled(net, instances),)
    assert isinstance(net, MixedEffects)  # export_onnx accepts no other
    return (mixed(net, instances),)


def attended(net: BagNetwork, instances: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (k,) and attention (n,) of one bag."""
    h = net.encoder(net.scaling(instances))  # (n, L)
    weights = weigh(net.attention, net.score(h))  # (n,)
    # (1, L), Eq. 13; a batch of one, because torch would otherwise fold the head's weights
    z = (weights @ h)[None]
    logits: Tensor = net.head(z)[0]
    return logits, weights


def weigh(attention: Attention, scores: Tensor) -> Tensor:
    """Return the attention weights (n,) of one bag's scores (n,): Eqs. 8–12."""
    if isinstance(attention, DAM):
        return nn.functional.logsigmoid(scores).softmax(dim=0)
    if isinstance(attention, SAM):
        return (scores * attention.scale).softmax(dim=0)
    if isinstance(attention, ABMIL):
        return scores.softmax(dim=0)
    assert isinstance(attention, MAM)
    if attention.order == "scores":
        return (zscore(scores, attention.EPS) * attention.scale / attention.tau).softmax(dim=0)
    weights = (scores / attention.tau).softmax(dim=0)
    return torch.where(count(scores) == 1, weights, zscore(weights, attention.EPS))


def zscore(values: Tensor, eps: float) -> Tensor:
    """Standardise values (n,) with eps added to the standard deviation; a single value becomes 0."""
    centred = values - values.mean()
    variance = centred.square().sum() / (count(values) - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


def count(values: Tensor) -> Tensor:
    """Return n of (n,) as a value of the graph, because a traced shape is assumed to be at least 2."""
    return torch.ones_like(values).sum()


def pooled(net: PooledNetwork, instances: Tensor) -> Tensor:
    """Return logits (k,) of one bag that is pooled to one vector."""
    flat = net.scaling(instances).flatten(1)  # (n, d)
    mean = net.pooling == "mean"
    vector = flat.mean(dim=0) if mean else torch.cat([flat.amax(dim=0), flat.amin(dim=0)])
    logits: Tensor = net.head(net.encoder(net.pooled_scaling(vector[None])))[0]
    return logits


def mixed(net: MixedEffects, instances: Tensor) -> Tensor:
    """Return logits (k,) of one bag at the posterior mean; each class has its own attention."""
    h = net.encoder(net.scaling(instances))  # (n, L)
    beta_u, beta_z = net.mean[:, : net.width], net.mean[:, net.width :]  # (k, L) each
    rms = beta_z.square().mean(dim=1).add(EPS).sqrt()  # (k,)
    scores, values = h @ beta_u.T, h @ beta_z.T / rms  # (n, k)
    effects = (scores.softmax(dim=0) * values).sum(dim=0)
    if isinstance(net, EvidentialEffects):
        reliability = 1 - net.within_bounds(net.uncertainty(scores, len(net.mean)))
        effects = (1 - net.share) * effects + net.share * (reliability * values).sum(dim=0)
    logits: Tensor = rms * (effects - net.shift) / net.scale + net.fixed
    return logits


def export_onnx(classifier: BagClassifier, path: str | Path, seed: int = 0) -> dict[str, Any]:
    """Write a trained classifier as an ONNX graph.

    The input is ``instances`` (n, *feature_shape), float32; the outputs are ``probabilities`` (k,),
    calibrated if the classifier is, and ``attention`` (n,) for methods that have it.

    Args:
        classifier: A trained classifier.
        path: The file to write.
        seed: Seed of the random bags on which the graph is verified.

    Returns:
        The sizes of the random bags, the largest difference from torch per output, and the size in bytes.

    Raises:
        StorageError: If onnxruntime differs from torch by more than ``TOLERANCE``; nothing is then written.
    """
    network, name = classifier.network_, classifier._method_name()
    members = members_of(network)
    if not all(isinstance(net, BagNetwork | PooledNetwork | MixedEffects) for net in members):
        raise SettingError(
            f"{name} is not a neural network that can be exported as ONNX: one with attention, on pooled "
            "bags, or of fastmipl or uamipl."
        )
    onnx, runtime = _libraries()
    calibration = classifier.calibration_
    scaling = None if calibration is None else calibration.scaling
    device = next(network.parameters()).device
    bag = OneBag(network, len(classifier.classes_), scaling).eval().to("cpu")
    try:
        with_attention = classifier.has_attention
        graph = _graph(bag, classifier.feature_shape_, with_attention)
        for key, value in _metadata(classifier, name).items():
            graph.metadata_props.add(key=key, value=value)
        onnx.checker.check_model(graph)
        content = graph.SerializeToString()
        differences = _differences(runtime, content, classifier, with_attention, seed)
    finally:
        network.to(device)
    worst = float(np.max(list(differences.values())))
    if not worst <= TOLERANCE:  # also if it is NaN
        raise StorageError(
            f"The ONNX graph differs from torch by {worst:.2g}, more than {TOLERANCE:g}: it is not written."
        )
    with atomic_file(Path(path)) as temporary:
        temporary.write_bytes(content)
    return {"sizes": list(SIZES), "differences": differences, "bytes": len(content)}


def _graph(bag: OneBag, feature_shape: tuple[int, ...], with_attention: bool) -> Any:
    """Return the ONNX model of one bag, with a dynamic number of instances."""
    example = torch.zeros(7, *feature_shape)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # internal warnings of the exporter
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
        except torch.onnx.errors.OnnxExporterError as error:  # from a user's own encoder
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise SettingError(f"torch cannot write this network as ONNX: {reason}") from error
        finally:
            logger.setLevel(level)
    assert program is not None
    return program.model_proto


def _metadata(classifier: BagClassifier, name: str) -> dict[str, str]:
    """Return the metadata, with values in JSON or plain text."""
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
        name: float(  # np.max propagates NaN, unlike max
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
    """Return random bags of ``SIZES``: vectors distributed as in training, or images from 0 to 1."""
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
        raise SettingError("ONNX export needs further packages: pip install 'mipl[onnx]'.") from error
    return onnx, onnxruntime
