"""Methods of other installed packages, which name them in their ``pyproject.toml``::

    [project.entry-points."mipl.methods"]
    my-method = "my_package:MyMethod"

``MyMethod`` is a subclass of :class:`mipl.methods.Method`. As every process that imports :mod:`mipl.methods`
loads the plugins, worker processes know them too.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from mipl.errors import MiplNotice, SettingError
from mipl.methods.base import METHODS, Method

GROUP = "mipl.methods"
TEXTS = ("summary", "citation")  # without which `mipl methods` has nothing to show


@dataclasses.dataclass(frozen=True)
class Plugin:
    """An entry point of another package, and why it could not be loaded, if it could not."""

    name: str
    package: str  # name and version
    problem: str = ""


PLUGINS: dict[str, Plugin] = {}


def load_plugins(found: Iterable[EntryPoint] | None = None) -> None:
    """Register the methods of other packages; a broken one is named in a notice and left out.

    Args:
        found: the entry points; by default those of the installed packages.
    """
    for entry in entry_points(group=GROUP) if found is None else found:
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
        try:
            _register(entry)
            problem = ""
        except (Exception, SystemExit) as error:  # whatever somebody else's module raises
            problem = (
                f"{type(error).__name__}: {error}" if not isinstance(error, SettingError) else str(error)
            )
            if multiprocessing.parent_process() is None:  # which has said it already
                warnings.warn(
                    f"The method '{entry.name}' of {package} is left out, because {entry.value} cannot be "
                    f"used: {problem.rstrip('.')}. Repair or uninstall that package.",
                    MiplNotice,
                    stacklevel=2,
                )
        PLUGINS[entry.name] = Plugin(entry.name, package, problem)


def _register(entry: EntryPoint) -> None:
    cls = entry.load()
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise SettingError("it is not a subclass of mipl.methods.Method.")
    if not dataclasses.is_dataclass(cls) or "__dataclass_fields__" not in vars(cls):
        raise SettingError(
            "it is not a dataclass: write @dataclasses.dataclass(frozen=True) above the class."
        )
    if cls.__abstractmethods__:
        raise SettingError(f"it does not define {', '.join(sorted(cls.__abstractmethods__))}.")
    if absent := [name for name in TEXTS if not isinstance(getattr(cls, name, None), str)]:
        raise SettingError(f"it has no {' and no '.join(absent)}.")
    METHODS.register(entry.name, cls)
