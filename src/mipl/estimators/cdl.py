"""The classifier of the paper's six methods, every parameter documented."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from torch import nn

from mipl.errors import SettingError, suggest
from mipl.estimators.bag import BagClassifier
from mipl.methods.cdl import CDL
from mipl.nn.aggregators import AggregatorName, MakeModule
from mipl.nn.attention import AttentionName
from mipl.registry import restored, settings_of
from mipl.training.checks import RandomState
from mipl.training.recipe import Recipe


class CDLClassifier(BagClassifier):
    """A calibrated classifier of bags with candidate labels: the paper's six methods.

    Trained with the calibratable disambiguation loss (Eq. 14). By default four networks are trained,
    whose mean predicts; weight decay and temperature are chosen by cross-fitting, from the candidate sets
    alone (docs/training.md). None stands for the value that the recipe has.

    Args:
        attention: how instances are weighted: ``"dam"`` (Eq. 8) for simple features such as colour
            statistics, ``"sam"`` (Eq. 9) or ``"mam"`` (Eqs. 10–12) for deep ones; ``"abmil"`` and
            ``"abmil-gated"`` as in ABMIL.
        competitor: what the margin compares the top candidate with: ``"cc"``, the second candidate, or
            ``"cn"``, the strongest non-candidate.
        gamma: γ, the exponent of the margin factor, at least 0.
        aggregator: ``"attention"``, or instead of it ``"transmil"``, ``"dsmil"`` or a class or function that
            makes, from L, a module from the features of a bag (n, L) to a vector.
        width: L, the width of the instance features; 128 by default.
        dropout: dropout rate in the encoder, in [0, 1).
        trust: probability that the true label is a candidate, in (0, 1], or ``"estimate"``.
        recipe: ``"stable"``, or ``"paper"`` as the authors trained: one network, one bag per step.
        training: all further settings of training; replaces those of ``recipe``.
        epochs: passes over the training bags.
        batch_size: bags per step.
        lr: initial learning rate.
        weight_decay: weight decay; by default chosen by out-of-fold likelihood.
        ensemble: number of networks whose mean predicts; 1 trains a single network, not calibrated.
        random_state: seed of training; None: another one each time; of a NumPy generator one is drawn.
        scale: ``"auto"`` standardises features that come as vectors, ``"none"`` does not.
        encoder: a module from instances (N, …) to vectors (N, L) in place of the built-in encoder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        verbose: show the progress of training.

    Attributes:
        classes_: the k classes, in the order of the columns of ``predict_proba``.
        out_of_fold_: what cross-fitting found; None for a single network.
        calibration_: the temperature that predictions are scaled by.
        recipe_, method_: the settings that were used, all of them.
        history_: one value per epoch for each of loss, learning rate and so on.

    Every other setting of the method (``mipl methods sam-cn`` lists them) is a keyword of
    :func:`make_classifier`.
    """

    def __init__(
        self,
        attention: AttentionName = "sam",
        competitor: Literal["cc", "cn"] = "cn",
        gamma: float = 1.0,
        *,
        aggregator: AggregatorName | MakeModule = "attention",
        width: int | None = None,
        dropout: float | None = None,
        trust: float | Literal["estimate"] = 1.0,
        recipe: Literal["stable", "paper"] = "stable",
        training: Recipe | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        ensemble: int | None = None,
        random_state: RandomState = 0,
        scale: Literal["auto", "none"] = "auto",
        encoder: nn.Module | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.attention = attention
        self.competitor = competitor
        self.gamma = gamma
        self.aggregator = aggregator
        self.width = width
        self.dropout = dropout
        self.trust = trust
        self.recipe = recipe
        self.training = training
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.ensemble = ensemble
        self.random_state = random_state
        self.scale = scale
        self.encoder = encoder
        self.device = device
        self.verbose = verbose
        self.settings: dict[str, Any] = {}

    def _known(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Refuse settings that are no parameter, and say where they can be given."""
        for name in settings:
            hint = suggest(name, self.get_params(deep=False))
            if name in settings_of(Recipe):
                hint = f" Give training=Recipe({name}=…)."
            elif name in settings_of(CDL):
                hint = f" Use make_classifier('{self._method_name()}', {name}=…)."
            raise SettingError(f"CDLClassifier has no setting '{name}'.{hint}")
        return settings

    def _method_name(self) -> str:
        return f"{self.attention}-{self.competitor}"

    def _settings(self) -> dict[str, Any]:
        names = ("width", "dropout", "epochs", "batch_size", "lr", "weight_decay", "ensemble")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.training is not None and not isinstance(self.training, Recipe):
            raise SettingError(f"training = {self.training!r} must be a Recipe or None.")
        recipe = {} if self.training is None else dataclasses.asdict(self.training)
        own = {"gamma": self.gamma, "trust": self.trust, "aggregator": self.aggregator}
        return {**own, **recipe, **given}


def stored_classifier(kind: str, params: dict[str, Any]) -> BagClassifier:
    """Return the classifier whose class and parameters a model folder stores."""
    if kind == BagClassifier.__name__:
        return BagClassifier(**params)
    if kind != CDLClassifier.__name__:
        raise KeyError(kind)
    if params.get("training") is not None:
        params = {**params, "training": restored(Recipe, params["training"])}
    if params.keys() <= set(CDLClassifier._get_param_names()):
        return CDLClassifier(**params)
    # earlier models name settings that are no parameters of the class today
    absent = {name for name in ("epochs", "batch_size", "lr") if params.get(name) is None}
    given = {name: value for name, value in params.items() if name not in absent}
    return BagClassifier(f"{given.pop('attention')}-{given.pop('competitor')}", **given)
