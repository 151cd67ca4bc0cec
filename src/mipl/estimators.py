"""The scikit-learn face: fit, predict, predict_proba, score, save, load."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import sklearn.exceptions
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

import mipl
from mipl.calibration.model import Calibration, softened
from mipl.data.bags import Bags, as_bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.data.candidates import label_array
from mipl.errors import DataError, MiplError, SettingError, StorageError, suggest
from mipl.files import atomic_folder, read_json, write_json
from mipl.methods import METHODS, Method
from mipl.methods.cdl import CDL
from mipl.nn.encoders import Standardize
from mipl.nn.network import BagNetwork, Output
from mipl.registry import restored, settings_of
from mipl.seeding import seed_for
from mipl.training.attempts import train_until_learned
from mipl.training.checks import check_training
from mipl.training.judging import failed, held_out_bags
from mipl.training.parallel import Alone, Group, device_named
from mipl.training.progress import Report, progress_bar
from mipl.training.recipes import Recipe, make_recipe
from mipl.training.scaling import fit_scaling
from mipl.training.together import can_train_together, train_together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MODEL_FORMAT = "mipl-model-1"
FloatArray = NDArray[np.float64]
Self = TypeVar("Self", bound="BagClassifier")


class NotFittedError(MiplError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """A classifier that has not been trained yet."""


class BagClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of bags by any registered method.

    Every further keyword is a setting of the method (``mipl methods NAME``) or of the recipe (``epochs``,
    ``batch_size``, ``lr``, …); what is not given is as the method and the recipe have it.
    """

    calibration_: Calibration | None = None  # fitted by `mipl.calibration.calibrate`, after training

    def __init__(
        self,
        method: str = "sam-cn",
        recipe: str = "stable",
        *,
        random_state: int | None = 0,
        scale: str = "auto",
        encoder: nn.Module | None = None,
        device: str = "auto",
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        self.method = method
        self.recipe = recipe
        self.random_state = random_state
        self.scale = scale
        self.encoder = encoder
        self.device = device
        self.verbose = verbose
        self.settings = self._known(settings)

    # ---- scikit-learn's parameters, with the settings among them -----------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, settings that were given included."""
        return {**super().get_params(deep), **self.settings}

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters and settings by name."""
        own = super().get_params(deep=False)
        super().set_params(**{name: value for name, value in params.items() if name in own})
        extra = {name: value for name, value in params.items() if name not in own}
        self.settings = {**self.settings, **self._known(extra)}
        return self

    def _known(self, settings: dict[str, Any]) -> dict[str, Any]:
        known = [*settings_of(METHODS[self._method_name()].cls), *settings_of(Recipe)]
        for name in settings:
            if name not in known:
                raise SettingError(f"{self._method_name()} has no setting '{name}'.{suggest(name, known)}")
        return settings

    def _method_name(self) -> str:
        return self.method

    def _settings(self) -> dict[str, Any]:
        return self.settings

    def parts(self, provenance: Mapping[str, Any] | None = None) -> tuple[Method, Recipe]:
        """Return the method and the recipe that the parameters describe, for bags of some provenance.

        What is not given is as the method recommends it for the recipe and the data set.
        """
        known = settings_of(Recipe)
        entry, origin = METHODS[self._method_name()], provenance or {}
        wanted = entry.cls.recommended(self.recipe, str(origin.get("dataset", "")), origin.get("r"))
        given = {**wanted, **self._settings()}
        method = entry.make(**{n: v for n, v in given.items() if n not in known})
        return method, make_recipe(self.recipe, **{n: v for n, v in given.items() if n in known}).in_effect()

    # ---- training ----------------------------------------------------------------------------------

    def fit(
        self: Self,
        bags: Any,
        y: Any = None,
        *,
        checkpoint: str | Path | None = None,
        report: Report | None = None,
        fabric: Fabric | None = None,
    ) -> Self:
        """Train on bags with candidate sets and return the classifier.

        ``bags``: `Bags`, or a list of arrays (n, …) with ``y`` their candidates: a 0/1 array (m, k), or per
        bag an iterable of class indices or names. Where `Bags` carry candidate sets these are used and ``y``
        is not, so that labels given for cross-validation cannot leak into training. ``checkpoint``: a folder
        that the state is written to after each epoch, and that training goes on from. ``fabric``: a launched
        Lightning Fabric, whose processes train the model together (docs/speed.md).
        """
        bags, method, recipe, seed, build = self._begin(bags, y)
        shown = self.verbose and report is None and (fabric is None or fabric.is_global_zero)
        with progress_bar("training", recipe.epochs, shown) as bar:
            network, recipe, history = train_until_learned(
                method,
                build,
                bags,
                recipe,
                seed,
                group=Alone(device_named(self.device)) if fabric is None else Group(fabric),
                checkpoint=None if checkpoint is None else Path(checkpoint),
                report=report or bar,
            )
        return self._end(bags, method, recipe, seed, network, history)

    def _begin(self, bags: Any, y: Any) -> tuple[Bags, Method, Recipe, int, Callable[[int], nn.Module]]:
        """Return the bags, what they are trained with, and what makes a network, untrained, of a seed."""
        carried = isinstance(bags, Bags) and bags.candidates is not None
        bags = as_bags(bags, None if carried else y)
        method, recipe = self.parts(bags.provenance)
        check_training(bags)
        assert bags.candidates is not None
        if self.scale not in ("auto", "none"):
            raise SettingError(f"scale = {self.scale!r} must be 'auto' or 'none'.")
        seed = int.from_bytes(os.urandom(4), "big") if self.random_state is None else int(self.random_state)

        def build(seed: int) -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_for("init", seed))
                network = method.build(bags.feature_shape, bags.k, copy.deepcopy(self.encoder))
            if self.scale == "auto" and isinstance(getattr(network, "scaling", None), Standardize):
                fit_scaling(network.scaling, bags)  # type: ignore[arg-type]
            return network

        return bags, method, recipe, seed, build

    def _end(
        self: Self,
        bags: Bags,
        method: Method,
        recipe: Recipe,
        seed: int,
        network: nn.Module,
        history: dict[str, list[float]],
    ) -> Self:
        assert bags.candidates is not None
        self.classes_, self.feature_shape_ = np.array(bags.classes), bags.feature_shape
        self.method_, self.recipe_, self.seed_ = method, recipe, seed
        self.network_, self.history_, self.calibration_ = network, history, None
        self.trained_on_: dict[str, Any] = {
            "bags": len(bags),
            "instances": int(bags.sizes.sum()),
            "candidates_per_bag": round(float(np.mean(bags.candidates.sum(axis=1))), 4),
            "provenance": dict(bags.provenance),
            "digest": bags.content_digest(),
        }
        if failed(history):  # its probabilities are kept to what the bags held out bear, which is little
            self.calibration_ = softened(self, bags[held_out_bags(bags.candidates, recipe.held_out)])
        return self

    # ---- prediction --------------------------------------------------------------------------------

    def predict_log_proba(self, bags: Any) -> FloatArray:
        """Return log-probabilities (m, k), columns in the order of ``classes_``; calibrated, if it was."""
        self._check_fitted()
        parts = [self.method_.log_proba(self.network_, batch).double().cpu() for batch in self._batches(bags)]
        log_p = torch.cat(parts)
        plain = np.asarray((log_p - log_p.logsumexp(dim=1, keepdim=True)).numpy())
        return plain if self.calibration_ is None else self.calibration_.apply(plain)

    def predict_proba(self, bags: Any) -> FloatArray:
        """Return probabilities (m, k), columns in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(bags))

    def predict(self, bags: Any) -> NDArray[Any]:
        """Return the most probable class of each bag (m,), an entry of ``classes_``."""
        top = self.predict_log_proba(bags).argmax(axis=1)
        return np.asarray(self.classes_[top])

    def score(self, bags: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy against the true labels: ``y`` (m,), or the labels that the bags carry."""
        bags = as_bags(bags)
        self._check_fitted()
        classes = tuple(self.classes_.tolist())
        if y is not None and np.ndim(y) == 1:
            truth = label_array(y, classes, bags.ids.tolist())
        elif y is None and bags.labels is not None:
            truth = label_array([bags.classes[label] for label in bags.labels], classes, bags.ids.tolist())
        else:
            raise DataError("The score needs one true label per bag: pass y, or bags that carry labels.")
        correct = self.predict_log_proba(bags).argmax(axis=1) == truth
        return float(np.average(correct, weights=sample_weight))

    def attention_weights(self, bags: Any) -> list[FloatArray]:
        """Return for each bag the weight of each of its instances (n,), summing to 1."""
        weights: list[FloatArray] = []
        for batch, output in self._outputs(bags):
            split = torch.split(output.attention, batch.sizes.tolist())
            weights += [part.double().cpu().numpy() for part in split]
        return weights

    def embed(self, bags: Any) -> FloatArray:
        """Return the bags' features z (m, L) of Eq. 13."""
        return np.concatenate([output.embedding.double().cpu().numpy() for _, output in self._outputs(bags)])

    def _outputs(self, bags: Any) -> Iterator[tuple[BagBatch, Output]]:
        self._check_fitted()
        if not isinstance(self.network_, BagNetwork):
            raise SettingError(f"{self._method_name()} has no attention over instances.")
        for batch in self._batches(bags):
            yield batch, self.network_(batch.instances, batch.sizes)

    def _batches(self, bags: Any) -> Iterator[BagBatch]:
        bags = as_bags(bags)
        image = (
            {(1, *self.feature_shape_), self.feature_shape_[1:]} if len(self.feature_shape_) > 1 else set()
        )
        same_image = bags.feature_shape in image and 1 in (bags.feature_shape[0], self.feature_shape_[0])
        if bags.feature_shape != self.feature_shape_ and not same_image:
            raise DataError(
                f"The bags have instances of shape {bags.feature_shape}, but the model was trained on "
                f"{self.feature_shape_}: use the features that it was trained on."
            )
        if bags.feature_shape != self.feature_shape_:  # (28, 28) and (1, 28, 28) are the same image
            bags = dataclasses.replace(bags, source=bags.source.reshape(-1, *self.feature_shape_))
        self.network_.eval()
        loader = BagLoader(bags, next(self.network_.parameters()).device)
        by_parts = BagNetwork.STORED if isinstance(self.network_, BagNetwork) else None
        for batch in loader.in_order(stored=by_parts):
            with torch.inference_mode():
                yield batch

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise NotFittedError(f"This {type(self).__name__} is not trained yet: call fit first.")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    # ---- files -------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder of weights and ``model.json``; an older model is replaced whole."""
        self._check_fitted()
        params = {name: value for name, value in self.get_params(deep=False).items() if name != "encoder"}
        info = {
            "format": MODEL_FORMAT,
            "class": type(self).__name__,
            "params": params,
            "custom_encoder": self.encoder is not None,
            "method": {"name": self._method_name(), **dataclasses.asdict(self.method_)},
            "recipe": {"name": self.recipe, **dataclasses.asdict(self.recipe_)},
            "classes": self.classes_.tolist(),
            "feature_shape": list(self.feature_shape_),
            "seed": self.seed_,
            "trained_on": self.trained_on_,
            "history": self.history_,
            "versions": mipl.versions(),
        }
        with atomic_folder(Path(folder), "model.json") as temporary:
            state = {name: value.cpu().contiguous() for name, value in self.network_.state_dict().items()}
            (temporary / "model.safetensors").write_bytes(save(state))
            write_json(temporary / "model.json", info)
            if self.calibration_ is not None:
                self.calibration_.save(temporary)

    @classmethod
    def load(cls: type[Self], folder: str | Path, *, encoder: nn.Module | None = None) -> Self:
        """Read a model written by :meth:`save`; a model with its own encoder needs that module again."""
        folder = Path(folder)
        if not (folder / "model.json").is_file():
            raise StorageError(f"{folder} is not a model folder: it holds no model.json.")
        info = read_json(folder / "model.json", MODEL_FORMAT)
        if info.get("custom_encoder") and encoder is None:
            raise SettingError(
                f"{folder} was trained with an encoder of its own: pass it again, load(…, encoder=module)."
            )
        try:
            maker = {known.__name__: known for known in (BagClassifier, CDLClassifier)}[info["class"]]
            model = maker(**info["params"], encoder=encoder)
            if not isinstance(model, cls):
                raise SettingError(f"{folder} holds a {info['class']}, not a {cls.__name__}: use mipl.load.")
            model.classes_ = np.array(info["classes"])
            model.feature_shape_ = tuple(int(side) for side in info["feature_shape"])
            model.history_, model.seed_, model.trained_on_ = info["history"], info["seed"], info["trained_on"]
            model.method_ = restored(METHODS[info["method"]["name"]].cls, info["method"])
            model.recipe_ = restored(Recipe, info["recipe"])
            model.network_ = model.method_.build(
                model.feature_shape_, len(model.classes_), copy.deepcopy(encoder)
            )
            model.network_.load_state_dict(load_file(folder / "model.safetensors"))
            model.calibration_ = Calibration.load(folder, len(model.classes_))
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            if isinstance(error, MiplError):
                raise
            raise StorageError(
                f"{folder} is damaged or incomplete ({type(error).__name__}: {error})."
            ) from error
        model.network_.eval().to(device_named(model.device))
        return model


class CDLClassifier(BagClassifier):
    """The paper's six methods: attention ``dam``, ``sam`` or ``mam``, competitor ``cc`` or ``cn``.

    None leaves ``epochs``, ``batch_size`` and ``lr`` as the recipe has them.
    """

    def __init__(
        self,
        attention: str = "sam",
        competitor: str = "cn",
        gamma: float = 1.0,
        recipe: str = "stable",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        *,
        random_state: int | None = 0,
        scale: str = "auto",
        encoder: nn.Module | None = None,
        device: str = "auto",
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        self.attention = attention
        self.competitor = competitor
        self.gamma = gamma
        self.recipe = recipe
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.random_state = random_state
        self.scale = scale
        self.encoder = encoder
        self.device = device
        self.verbose = verbose
        self.settings = self._known(settings)

    def _method_name(self) -> str:
        return f"{self.attention}-{self.competitor}"

    def _settings(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("epochs", "batch_size", "lr")}
        given = {name: value for name, value in named.items() if value is not None}
        return {"gamma": self.gamma, **given, **self.settings}


def make_classifier(name: str, **params: Any) -> BagClassifier:
    """Return the untrained classifier of a method by name, for example ``make_classifier("mam-cn")``."""
    entry = METHODS[name]
    if entry.cls is CDL:
        return CDLClassifier(**{**entry.preset, **params})
    return BagClassifier(name, **params)


def fit_together(
    classifiers: Sequence[BagClassifier], bags: Sequence[Bags], report: Report | None = None
) -> None:
    """Train classifiers of the same parameters at once, each on its own bags, where their kind allows it.

    With feature vectors this is several times faster than one after the other, which others are trained.
    """
    begun = [each._begin(own, None) for each, own in zip(classifiers, bags, strict=True)]
    method, recipe, seed = begun[0][1:4]
    nets = [build(seed) for *_, build in begun]
    same = all(parts[1:4] == (method, recipe, seed) for parts in begun)
    if not same or not can_train_together(method, nets, bags, recipe):
        for each, own in zip(classifiers, bags, strict=True):
            each.fit(own, report=report)
        return
    histories = train_together(method, nets, bags, recipe, seed, report)  # type: ignore[arg-type]
    for each, own, net, history in zip(classifiers, bags, nets, histories, strict=True):
        if failed(history):
            each.fit(own, report=report)
        else:
            each._end(own, method, recipe, seed, net, history)


def list_methods() -> list[str]:
    """Return the names that :func:`make_classifier` knows."""
    return list(METHODS)


def load(folder: str | Path, *, encoder: nn.Module | None = None) -> BagClassifier:
    """Return the trained classifier that was saved in ``folder``."""
    return BagClassifier.load(folder, encoder=encoder)
