"""A trained classifier as a folder: what is written beside the weights, and how it is read again."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import mipl
from mipl.calibration.typicality import TrainingFeatures
from mipl.errors import MiplError, SettingError, StorageError
from mipl.methods import METHODS
from mipl.nn.aggregators import MakeModule
from mipl.nn.network import Ensemble
from mipl.registry import plain, portable, portable_settings, restored, without_removed
from mipl.training.checks import drawn_seed
from mipl.training.distributed import device_named
from mipl.training.model_folder import ModelFolder, write_model
from mipl.training.recipe import Recipe

if TYPE_CHECKING:
    from mipl.estimators.bag import BagClassifier


def save_model(model: BagClassifier, folder: Path) -> None:
    """Write a trained classifier; see :meth:`BagClassifier.save`."""
    own = model.get_params(deep=False)
    own["random_state"] = drawn_seed(model.random_state, model.seed_)
    params = {
        name: portable(plain(value)) for name, value in own.items() if name not in ("encoder", "device")
    }
    if params.get("training") is not None:
        params["training"] = dataclasses.asdict(params["training"])
    info = {
        "class": type(model).__name__,
        "params": params,
        "custom_encoder": model.encoder is not None,
        "custom_aggregator": callable(getattr(model.method_, "aggregator", None)),
        "method": {"name": model._method_name(), **portable_settings(model.method_)},
        "recipe": {"name": model.recipe, **dataclasses.asdict(model.recipe_)},
        "recipe_version": model.recipe_version_,
        "classes": model.classes_.tolist(),
        "feature_shape": list(model.feature_shape_),
        "seed": model.seed_,
        "trained_on": model.trained_on_,
        "history": model.history_,
        "out_of_fold": model.out_of_fold_,
        "versions": mipl.versions(),
    }
    statistics: dict[str, NDArray[np.float32]] = {}
    if model.out_of_fold_log_proba_ is not None:
        statistics["out_of_fold_log_proba"] = model.out_of_fold_log_proba_
    if model.training_features_ is not None:
        statistics |= model.training_features_.to_arrays()
    write_model(folder, info, model.network_, model.calibration_, statistics)


def load_model(
    folder: Path, encoder: nn.Module | None, aggregator: MakeModule | None, device: str
) -> BagClassifier:
    """Read a classifier of the class that was saved; see :meth:`BagClassifier.load`."""
    stored = ModelFolder.read(folder)
    info = stored.info
    if info.get("custom_encoder") and encoder is None:
        raise SettingError(
            f"{folder} was trained with an encoder of its own: pass it again, load(…, encoder=module)."
        )
    own: dict[str, Any] = {}
    if info.get("custom_aggregator"):
        if aggregator is None:
            raise SettingError(
                f"{folder} was trained with an aggregator of its own, {info['method']['aggregator']}: "
                "pass it again, load(…, aggregator=…)."
            )
        own = {"aggregator": aggregator}
    try:
        from mipl.estimators.cdl import stored_classifier  # a subclass of this one

        params = without_removed(METHODS[info["method"]["name"]].cls, info["params"])
        model: BagClassifier = stored_classifier(
            info["class"], {**params, **own, "encoder": encoder, "device": device}
        )
        model.classes_ = np.array(info["classes"])
        model.feature_shape_ = tuple(int(side) for side in info["feature_shape"])
        model.history_, model.seed_, model.trained_on_ = info["history"], info["seed"], info["trained_on"]
        model.out_of_fold_, model.recipe_version_ = info.get("out_of_fold"), info.get("recipe_version", 1)
        model.method_ = restored(METHODS[info["method"]["name"]].cls, {**info["method"], **own})
        model.recipe_ = restored(Recipe, info["recipe"])
        networks = [
            model.method_.build(model.feature_shape_, len(model.classes_), copy.deepcopy(encoder))
            for _ in range(model.recipe_.ensemble)
        ]
        model.network_ = Ensemble(networks) if len(networks) > 1 else networks[0]
        stored.restore(model.network_)
        model.calibration_ = stored.calibration(len(model.classes_))
        statistics = stored.statistics()
        model.out_of_fold_log_proba_ = statistics.get("out_of_fold_log_proba")
        if "mean" in statistics:
            d = math.prod(model.feature_shape_)
            model.training_features_ = TrainingFeatures.from_arrays(statistics, d)
    except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        if isinstance(error, MiplError):
            raise
        raise StorageError(f"{folder} is damaged or incomplete ({type(error).__name__}: {error}).") from error
    model.network_.eval().to(device_named(device))
    return model
