"""mipl: calibrated classifiers from bags of instances with candidate labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Bags", "CDLClassifier", "list_methods", "load", "make_classifier", "versions"]

if TYPE_CHECKING:
    from mipl.data.bags import Bags
    from mipl.estimators import CDLClassifier, list_methods, load, make_classifier

# Loaded when first used: `import mipl` need not wait for torch and scikit-learn.
_HOMES = {
    "Bags": "mipl.data.bags",
    "CDLClassifier": "mipl.estimators",
    "list_methods": "mipl.estimators",
    "load": "mipl.estimators",
    "make_classifier": "mipl.estimators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mipl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def versions() -> dict[str, str]:
    """Return the versions of mipl, Python and the libraries that results depend on."""
    import platform
    from importlib.metadata import version

    return {
        "mipl": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scikit-learn")},
    }
