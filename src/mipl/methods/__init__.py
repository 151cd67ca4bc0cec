"""The registry of methods; every module of this package registers its own."""

import importlib
import pkgutil

from mipl.methods.base import METHODS, Method, StepContext

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "StepContext"]
