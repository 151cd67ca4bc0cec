"""The classifier of bags by any method: fit, predict, predict_proba, score, save, load."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import sklearn.exceptions
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

from mipl.annotators import Estimate
from mipl.calibration.model import Calibration
from mipl.calibration.scaling import log_sum
from mipl.calibration.typicality import TrainingFeatures
from mipl.data.bags import Bags, as_bags
from mipl.data.batch import BagBatch, BagLoader
from mipl.data.candidates import label_array
from mipl.errors import DataError, MiplError, SettingError, suggest
from mipl.estimators.storage import load_model, save_model
from mipl.methods import METHODS, Method
from mipl.nn.aggregators import MakeModule
from mipl.nn.encoders import Standardize
from mipl.nn.network import BagNetwork, InstanceNetwork, Output, members_of
from mipl.registry import settings_of
from mipl.seeding import seed_for
from mipl.training.checks import (
    Parameters,
    RandomState,
    check_features,
    check_training,
    drawn_seed,
    training_summary,
    with_sample_weight,
    with_targets,
)
from mipl.training.crossfit import mean_log_proba, predictor
from mipl.training.distributed import FabricGroup, ProcessGroup, device_named
from mipl.training.fit import Build, Fitted, fit_network, regularisations
from mipl.training.progress import Report, progress_bar
from mipl.training.recipe import RECIPE_VERSION, Recipe, make_recipe
from mipl.training.scaling import fit_scaling

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FloatArray = NDArray[np.float64]
Self = TypeVar("Self", bound="BagClassifier")


class NotFittedError(MiplError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """A classifier that has not been trained yet."""


class BagClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of bags by any registered method.

    Every further keyword is a setting of the method (``mipl methods NAME``) or of the recipe (``epochs``,
    ``batch_size``, ``lr``, …); others have the defaults of the method and the recipe.
    """

    calibration_: Calibration | None = None  # an ensemble's own, or by `mipl.calibration.calibrate`
    recipe_version_: int = RECIPE_VERSION  # of the recipe that it was trained with
    out_of_fold_: dict[str, float] | None = None  # what left-out candidate sets say of an ensemble
    posterior_: FloatArray | None = None  # (m, k) of the training bags, out of fold; not saved
    annotators_: Estimate | None = None  # confusion matrices, if trained on votes; not saved
    out_of_fold_log_proba_: NDArray[np.float32] | None = None  # (m, k), before calibration; of an ensemble
    training_features_: TrainingFeatures | None = None  # to tell bags unlike the training bags

    def __init__(
        self,
        method: str = "sam-cn",
        recipe: str = "stable",
        *,
        random_state: RandomState = 0,
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

        Settings that are not given have the values that the method recommends for the recipe and data set.
        """
        known = settings_of(Recipe)
        entry, origin = METHODS[self._method_name()], provenance or {}
        wanted = entry.cls.recommended(self.recipe, str(origin.get("dataset", "")), origin.get("r"))
        given = {**wanted, **self._settings()}
        method = entry.make(**{n: v for n, v in given.items() if n not in known})
        if not method.ensembled:  # ensembles only on request
            given = {"ensemble": 1, **given}
        return method, make_recipe(self.recipe, **{n: v for n, v in given.items() if n in known}).in_effect()

    # ---- training ----------------------------------------------------------------------------------

    def fit(
        self: Self,
        bags: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: str | Path | None = None,
        report: Report | None = None,
        fabric: Fabric | None = None,
    ) -> Self:
        """Train on bags with candidate sets and return the classifier.

        ``bags``: `Bags`, or a list of arrays (n, …) with ``y`` their candidates: a 0/1 array (m, k), or per
        bag an iterable of names or integers, of which those that occur are the classes. Where `Bags` carry
        candidate sets these are used and ``y`` is not, so that labels given for cross-validation cannot leak
        into training. ``sample_weight``: weights (m,) of the bags in the loss, of any scale; they affect
        neither class balancing nor the temperature. ``checkpoint``: a folder that the state is written to
        after each epoch, and that training resumes from. ``fabric``: a launched Lightning Fabric, whose
        processes train the model together (docs/speed.md).
        """
        bags, method, recipe, seed, build = self._begin(bags, y, sample_weight)
        shown = self.verbose and report is None and (fabric is None or fabric.is_global_zero)
        epochs = recipe.epochs * (len(regularisations(recipe, bags)) + 1)
        with progress_bar("training", epochs, shown) as bar:
            fitted = fit_network(
                method,
                build,
                bags,
                recipe,
                seed,
                group=ProcessGroup(device_named(self.device)) if fabric is None else FabricGroup(fabric),
                checkpoint=None if checkpoint is None else Path(checkpoint),
                report=report or bar,
            )
        return self._end(bags, method, seed, fitted)

    def _begin(self, bags: Any, y: Any, sample_weight: Any) -> tuple[Bags, Method, Recipe, int, Build]:
        """Return the bags, method, recipe, seed, and a function that builds a network from a seed."""
        bags = with_sample_weight(with_targets(bags, y), sample_weight)
        method, recipe = self.parts(bags.provenance)
        bags = method.training_bags(bags)
        check_training(bags)
        params = {name: getattr(self, name) for name in settings_of(Parameters)}
        given = Parameters(**{**params, "random_state": drawn_seed(self.random_state)})
        seed = int.from_bytes(os.urandom(4), "big") if given.random_state is None else given.random_state

        def build(seed: int, like: nn.Module | None) -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_for("init", seed))
                network = method.build(bags.feature_shape, bags.k, copy.deepcopy(self.encoder))
            scaling = getattr(network, "scaling", None)
            if self.scale == "auto" and isinstance(scaling, Standardize):
                if like is None:
                    fit_scaling(scaling, bags)
                else:
                    scaling.mean.copy_(like.scaling.mean)  # type: ignore[arg-type]
                    scaling.std.copy_(like.scaling.std)  # type: ignore[arg-type]
            return network

        return bags, method, recipe, seed, build

    def _end(self: Self, bags: Bags, method: Method, seed: int, fitted: Fitted) -> Self:
        self.recipe_version_ = RECIPE_VERSION
        self.classes_, self.feature_shape_ = np.array(bags.classes), bags.feature_shape
        self.method_, self.recipe_, self.seed_ = method, fitted.recipe, seed
        self.network_, self.history_, self.calibration_ = fitted.network, fitted.history, None
        self.trained_on_ = training_summary(bags)
        self.out_of_fold_ = self.out_of_fold_log_proba_ = self.posterior_ = self.annotators_ = None
        self.training_features_ = TrainingFeatures.of(bags)
        if fitted.out_of_fold is not None:
            scaling, self.out_of_fold_ = fitted.out_of_fold.scaling, fitted.out_of_fold.quality
            self.posterior_ = fitted.out_of_fold.posterior
            self.annotators_ = fitted.out_of_fold.annotators
            self.calibration_ = Calibration("candidates", bags.content_digest(), len(bags), scaling, None)
            # As confident as the ensemble before its temperature, so that any calibration applies to both
            plain = fitted.out_of_fold.log_p * (scaling.temperature or 1.0)
            self.out_of_fold_log_proba_ = (plain - log_sum(plain)[:, None]).astype(np.float32)
        return self

    @property
    def n_features_in_(self) -> int:
        """The number of values of an instance."""
        self._check_fitted()
        return math.prod(self.feature_shape_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The names of the features, where the training bags had them."""
        self._check_fitted()
        if "feature_names" not in self.trained_on_:
            raise AttributeError("The bags that this classifier was trained on have no names of features.")
        return np.array(self.trained_on_["feature_names"], dtype=object)

    # ---- prediction --------------------------------------------------------------------------------

    def predict_log_proba(self, bags: Any) -> FloatArray:
        """Return log-probabilities (m, k), in the order of ``classes_``; calibrated where possible."""
        self._check_fitted()
        log_p = mean_log_proba(self._member_log_proba(bags))
        plain = np.asarray((log_p - log_p.logsumexp(dim=1, keepdim=True)).numpy())
        return plain if self.calibration_ is None else self.calibration_.apply(plain)

    def out_of_fold_proba(self) -> FloatArray | None:
        """Return probabilities (m, k) of the training bags by the members that left them out.

        They are calibrated like :meth:`predict_proba`, and used to fix thresholds and the class mix without
        any other bags. None for a single network, or a model of an earlier version.
        """
        self._check_fitted()
        if self.out_of_fold_log_proba_ is None:
            return None
        plain = self.out_of_fold_log_proba_.astype(np.float64)
        plain -= log_sum(plain)[:, None]  # stored in single precision
        return np.exp(plain if self.calibration_ is None else self.calibration_.apply(plain))

    def feature_distances(self, bags: Any) -> FloatArray | None:
        """Return how unlike the training bags the features of each bag are (m,), about 2 for similar ones.

        None if the model has no statistics of its training bags.
        """
        self._check_fitted()
        if self.training_features_ is None:
            return None
        known = check_features(as_bags(bags), self.feature_shape_, self.trained_on_)
        return self.training_features_.distances(known)

    def disagreement(self, bags: Any) -> FloatArray:
        """Return how far the members of an ensemble disagree on each bag (m,): 0 for a single network.

        It is the mutual information of class and member, the entropy of the mean prediction minus the mean
        entropy of the members' predictions, in nats.
        """
        self._check_fitted()
        log_p = self._member_log_proba(bags)
        mean = mean_log_proba(log_p)
        own = torch.special.entr(log_p.exp()).sum(dim=2).mean(dim=0)  # (m,)
        spread = torch.special.entr(mean.exp()).sum(dim=1) - own
        return np.asarray(spread.clamp(min=0.0).numpy())

    def _member_log_proba(self, bags: Any) -> torch.Tensor:
        """Return log-probabilities (members, m, k) before calibration, in double precision."""
        members = members_of(self.network_)
        parts = [torch.empty(len(members), 0, len(self.classes_), dtype=torch.float64)]  # for no bags
        predict = predictor(self.method_, members)
        parts += [predict(batch).double().cpu() for batch in self._batches(bags)]
        log_p = torch.cat(parts, dim=1)
        return log_p - log_p.logsumexp(dim=2, keepdim=True)

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
        if not len(bags):
            raise DataError("There is no bag to score.")
        if y is not None and np.ndim(y) == 1:
            truth = label_array(y, classes, bags.ids.tolist())
        elif y is None and bags.labels is not None:
            truth = label_array([bags.classes[label] for label in bags.labels], classes, bags.ids.tolist())
        else:
            raise DataError("The score needs one true label per bag: pass y, or bags that carry labels.")
        correct = self.predict_log_proba(bags).argmax(axis=1) == truth
        return float(np.average(correct, weights=sample_weight))

    def attention_weights(self, bags: Any) -> list[FloatArray]:
        """Return for each bag the weight of each of its instances (n,), summing to 1: the members' mean."""
        self._check_fitted()
        if not self.has_attention:
            raise SettingError(f"{self._method_name()} has no attention over instances.")
        weights: list[FloatArray] = []
        for batch, outputs in self._outputs(bags):
            mean = torch.stack([output.attention.double() for output in outputs]).mean(dim=0)
            weights += [part.cpu().numpy() for part in torch.split(mean, batch.sizes.tolist())]
        return weights

    def evidence(self, bags: Any) -> list[FloatArray]:
        """Return for each bag the evidence of its instances for each class (n, k): the members' mean.

        Positive values speak for a class, negative ones against it. The sum over the instances is the bag's
        score of each class, relative to the mean over the classes, before calibration.
        """
        found: list[FloatArray] = []
        for batch, members in self._attending(bags):
            parts = [net.evidence(batch.instances, batch.sizes).double() for net in members]
            mean = torch.stack(parts).mean(dim=0)
            found += [part.cpu().numpy() for part in torch.split(mean, batch.sizes.tolist())]
        return found

    def embed(self, bags: Any) -> FloatArray:
        """Return the bags' features z of Eq. 13, (m, L), or (m, members · L) of an ensemble."""
        self._check_fitted()
        widths = [net.width for net in members_of(self.network_) if isinstance(net, InstanceNetwork)]
        if not widths:
            raise SettingError(f"{self._method_name()} has no attention network, whose features these are.")
        every = [torch.cat([each.embedding for each in outputs], dim=1) for _, outputs in self._outputs(bags)]
        return np.concatenate([np.empty((0, sum(widths))), *(rows.double().cpu().numpy() for rows in every)])

    def _outputs(self, bags: Any) -> Iterator[tuple[BagBatch, list[Output]]]:
        for batch in self._batches(bags):
            yield batch, [net(batch.instances, batch.sizes) for net in members_of(self.network_)]

    def _attending(self, bags: Any) -> Iterator[tuple[BagBatch, list[BagNetwork]]]:
        """Yield batches with the members, which have attention."""
        self._check_fitted()
        if not self.has_attention:
            raise SettingError(f"{self._method_name()} has no attention over instances.")
        for batch in self._batches(bags):
            yield batch, cast("list[BagNetwork]", members_of(self.network_))

    @property
    def has_attention(self) -> bool:
        """Whether the trained networks weigh instances by attention."""
        return all(isinstance(net, BagNetwork) for net in members_of(self.network_))

    def _batches(self, bags: Any) -> Iterator[BagBatch]:
        bags = check_features(as_bags(bags), self.feature_shape_, self.trained_on_)
        self.network_.eval()
        loader = BagLoader(bags, next(self.network_.parameters()).device)
        by_parts = BagNetwork.STORED if self.has_attention else None
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
        """Write the model as a folder of weights, ``model.json`` and checksums.

        An older model is replaced in one step. The device is not saved: :meth:`load` chooses one.
        """
        self._check_fitted()
        save_model(self, Path(folder))

    @classmethod
    def load(
        cls: type[Self],
        folder: str | Path,
        *,
        encoder: nn.Module | None = None,
        aggregator: MakeModule | None = None,
        device: str = "auto",
    ) -> Self:
        """Read a model written by :meth:`save`; one with its own encoder or aggregator needs that again.

        ``device``: where to predict: auto, cpu or cuda, wherever the model was trained.
        """
        model = load_model(Path(folder), encoder, aggregator, device)
        if not isinstance(model, cls):
            raise SettingError(
                f"{folder} holds a {type(model).__name__}, not a {cls.__name__}: use mipl.load."
            )
        return model
