"""The registry of methods: every module of this package registers its own, then the installed plugins."""

import importlib
import pkgutil

from mipl.methods.base import METHODS, Method, StepContext
from mipl.methods.plugins import PLUGINS, load_plugins

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
load_plugins()

__all__ = ["METHODS", "PLUGINS", "Method", "StepContext"]
