"""Registries of classes by name, and dataclasses of documented and validated settings."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import reprlib
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from mipl.errors import SettingError, suggest

T = TypeVar("T")


def setting(
    default: Any, doc: str, *, within: str = "(-inf, inf)", idle: Any = dataclasses.MISSING, group: str = ""
) -> Any:
    """Return a documented dataclass field, which ``mipl methods`` lists and ``--set`` changes.

    Args:
        default: the default value.
        doc: one line of documentation.
        within: interval of valid numbers, such as ``[0, 1)``; NaN and infinity are never valid.
        idle: the value at which the setting has no effect. At this value the identity of a run does not
            include it, so that runs recorded before the setting existed keep their identity.
        group: heading under which it is listed.
    """
    return dataclasses.field(
        default=default, metadata={"doc": doc, "within": within, "idle": idle, "group": group}
    )


class Settings:
    """Base of dataclasses of settings: values are validated and converted on construction."""

    # Settings of earlier versions, with the value that corresponds to the present behaviour. They remain part
    # of the identity of a run, so that finished runs are found.
    removed: typing.ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for name in settings_of(type(self)):
            object.__setattr__(self, name, checked(type(self), name, getattr(self, name)))


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python scalar, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def checked(cls: Any, name: str, value: Any) -> Any:
    """Validate the value of a setting and convert it to the type of the field.

    Raises:
        SettingError: the value has another type or is outside the interval. The message has the setting, the
            value and the valid values.
    """
    value, within = plain(value), settings_of(cls)[name].metadata.get("within", "(-inf, inf)")
    number = isinstance(value, int | float) and not isinstance(value, bool) and _inside(value, within)
    for kind in _kinds(cls, name):
        if typing.get_origin(kind) is typing.Literal:
            if isinstance(value, str) and value in typing.get_args(kind):
                return value
        elif kind is float:
            if number and abs(value) <= sys.float_info.max:  # an integer can be larger
                return float(value)
        elif kind is int:
            if number and isinstance(value, int):
                return value
        elif typing.get_origin(kind) is collections.abc.Callable:
            if callable(value):
                return value
        elif isinstance(value, kind):
            return value
    *most, last = [text for kind in _kinds(cls, name) for text in _allowed(kind, within)]
    allowed = f"{', '.join(most)} or {last}" if most else last
    raise SettingError(f"{name} = {reprlib.repr(value)} must be {allowed}.")


@functools.cache  # resolving type hints is slow
def _kinds(cls: Any, name: str) -> tuple[Any, ...]:
    """Return the valid types of a setting."""
    kind = typing.get_type_hints(cls)[name]
    either = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if either else (kind,)


def _inside(value: float, within: str) -> bool:
    """Whether a number is in an interval such as ``[0, 1)``."""
    low, high = (float(end) for end in within[1:-1].split(","))
    above = low <= value if within.startswith("[") else low < value
    return above and (value <= high if within.endswith("]") else value < high)


def _allowed(kind: Any, within: str) -> list[str]:
    """Describe the valid values of a type and an interval."""
    if typing.get_origin(kind) is typing.Literal:
        return [repr(word) for word in typing.get_args(kind)]
    if typing.get_origin(kind) is collections.abc.Callable:
        return ["a class or function"]
    if kind not in (int, float):
        return {types.NoneType: ["None"], bool: ["True", "False"], str: ["a string"]}.get(
            kind, [f"a {kind.__module__.split('.')[0]} {kind.__name__}"]
        )
    low, high = within[1:-1].split(", ")
    words = "an integer" if kind is int else "a finite number" if high == "inf" else "a number"
    if high != "inf":
        return [f"{words} in {within}"]
    return [words if low == "-inf" else f"{words} {'of at least' if within[0] == '[' else 'above'} {low}"]


def active_settings(settings: Any) -> dict[str, Any]:
    """Return the settings that identify a run: all but those that have no effect."""
    return dict(settings.removed) | {
        name: portable(getattr(settings, name))
        for name, field in settings_of(type(settings)).items()
        if getattr(settings, name) != field.metadata.get("idle", dataclasses.MISSING)
    }


def portable(value: Any) -> Any:
    """Return the value of a setting as JSON can store it: of a class or function, its module and name."""
    if not callable(value):
        return value
    kind = value if hasattr(value, "__qualname__") else type(value)  # functools.partial has no name
    return f"{kind.__module__}:{kind.__qualname__}"


def portable_settings(settings: Any) -> dict[str, Any]:
    """Return all settings of a dataclass by name, as JSON can store them."""
    return {name: portable(value) for name, value in dataclasses.asdict(settings).items()}


def restored(cls: type[T], stored: Mapping[str, Any]) -> T:
    """Create an instance from stored settings; settings that did not exist then have no effect.

    Raises:
        SettingError: if a removed setting has a value that is no longer implemented.
    """
    stored = without_removed(cls, stored)
    return cls(
        **{
            name: stored.get(name, field.metadata.get("idle", dataclasses.MISSING))
            for name, field in settings_of(cls).items()
            if name in stored or field.metadata.get("idle", dataclasses.MISSING) is not dataclasses.MISSING
        }
    )


def without_removed(cls: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings without those that no longer exist; see :func:`restored`."""
    settings = dict(stored)
    for name, value in cls.removed.items():
        if (found := settings.pop(name, value)) != value:
            raise SettingError(
                f"{name} = {found!r} is no longer supported: train again without it, or use an older version."
            )
    return settings


def settings_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass by name."""
    return {field.name: field for field in dataclasses.fields(cls)}


def parse_setting(cls: Any, name: str, text: str) -> Any:
    """Parse ``name=text`` of the command line by the type of the field."""
    kinds = _kinds(cls, name)
    if types.NoneType in kinds and text.lower() == "none":
        return None
    value: Any = text
    if bool in kinds and text.lower() in ("true", "false"):
        value = text.lower() == "true"
    elif float in kinds or int in kinds:
        with contextlib.suppress(ValueError):
            value = (int if int in kinds else float)(text)
    return checked(cls, name, value)


@dataclasses.dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered name with its class and preset settings."""

    name: str
    cls: type[T]
    preset: Mapping[str, Any]

    def make(self, **settings: Any) -> T:
        """Create an instance with the preset and ``settings``; unknown settings are errors."""
        known = settings_of(self.cls)
        for setting_name in settings:
            if setting_name not in known:
                raise SettingError(
                    f"{self.name} has no setting '{setting_name}'.{suggest(setting_name, known)}"
                )
        return self.cls(**{**self.preset, **settings})


class Registry(Generic[T]):
    """Entries by name, in the order of registration."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, cls: type[T], **preset: Any) -> None:
        """Add an entry under a new name."""
        if name in self._entries:
            raise SettingError(f"There is already a {self.what} '{name}'.")
        self._entries[name] = Entry(name, cls, preset)

    def __getitem__(self, name: str) -> Entry[T]:
        if not isinstance(name, str) or name not in self._entries:
            raise SettingError(f"There is no {self.what} '{name}'.{suggest(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
