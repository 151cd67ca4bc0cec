"""The scikit-learn interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from mipl.estimators.bag import BagClassifier, NotFittedError
from mipl.estimators.cdl import CDLClassifier
from mipl.methods import METHODS
from mipl.nn.aggregators import MakeModule

__all__ = ["BagClassifier", "CDLClassifier", "NotFittedError", "list_methods", "load", "make_classifier"]


def make_classifier(name: str, **params: Any) -> BagClassifier:
    """Return the untrained classifier of a method by name, for example ``make_classifier("mam-cn")``.

    Args:
        name: a name of :func:`list_methods`.
        **params: parameters of `BagClassifier`, settings of the method and of the recipe.
    """
    return BagClassifier(name, **params)


def list_methods() -> list[str]:
    """Return the names that :func:`make_classifier` knows."""
    return list(METHODS)


def load(
    folder: str | Path,
    *,
    encoder: nn.Module | None = None,
    aggregator: MakeModule | None = None,
    device: str = "auto",
) -> BagClassifier:
    """Return the trained classifier that was saved in ``folder``; see :meth:`BagClassifier.load`."""
    return BagClassifier.load(folder, encoder=encoder, aggregator=aggregator, device=device)
