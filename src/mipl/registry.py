"""Names for things, with entries beside the code they name, and settings that explain themselves."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from mipl.errors import SettingError, suggest

T = TypeVar("T")


def setting(default: Any, doc: str, *, idle: Any = dataclasses.MISSING, group: str = "") -> Any:
    """Return a dataclass field with one line of doc, shown by ``mipl methods`` and read by ``--set``.

    Args:
        default: the value where none is given.
        doc: one line that explains the setting.
        idle: the value at which it does nothing. At that value a run does not name it, so that runs recorded
            before the setting existed stay what they are.
        group: the heading that it is listed under.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, "idle": idle, "group": group})


def in_force(settings: Any) -> dict[str, Any]:
    """Return the settings of a dataclass's instance, without those that do nothing."""
    return {
        name: getattr(settings, name)
        for name, field in settings_of(type(settings)).items()
        if getattr(settings, name) != field.metadata.get("idle", dataclasses.MISSING)
    }


def restored(cls: type[T], stored: Mapping[str, Any]) -> T:
    """Return the instance whose settings were stored; those that did not exist then do nothing."""
    return cls(
        **{
            name: stored.get(name, field.metadata.get("idle", dataclasses.MISSING))
            for name, field in settings_of(cls).items()
            if name in stored or field.metadata.get("idle", dataclasses.MISSING) is not dataclasses.MISSING
        }
    )


def settings_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of a dataclass by name."""
    return {field.name: field for field in dataclasses.fields(cls)}


def parse_setting(cls: type[Any], name: str, text: str) -> Any:
    """Return the value that ``name=text`` on the command line stands for, by the field's type."""
    kind = typing.get_type_hints(cls)[name]
    either = typing.get_origin(kind) in (types.UnionType, typing.Union)
    options = typing.get_args(kind) if either else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if option is str or (typing.get_origin(option) is typing.Literal and not either):
            return text
        if text in typing.get_args(option):
            return text
        if option is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if option in (int, float):
            try:
                return option(text)
            except ValueError:
                continue
    kinds = [option for option in options if option is not type(None)]
    names = " or ".join(
        "".join(map(str, typing.get_args(option))) or str(option.__name__) for option in kinds
    )
    raise SettingError(f"{name}={text} cannot be read as {names}.")


@dataclasses.dataclass(frozen=True)
class Entry(Generic[T]):
    """A name, the class behind it and the settings that the name stands for."""

    name: str
    cls: type[T]
    preset: Mapping[str, Any]

    def make(self, **settings: Any) -> T:
        """Return the class made with the preset and ``settings``; an unknown setting names the nearest."""
        known = settings_of(self.cls)
        for setting_name in settings:
            if setting_name not in known:
                raise SettingError(
                    f"{self.name} has no setting '{setting_name}'.{suggest(setting_name, known)}"
                )
        return self.cls(**{**self.preset, **settings})


class Registry(Generic[T]):
    """Entries by name, in the order they were registered."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, cls: type[T], **preset: Any) -> None:
        """Add an entry; a name can be taken once."""
        if name in self._entries:
            raise SettingError(f"There is already a {self.what} '{name}'.")
        self._entries[name] = Entry(name, cls, preset)

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            raise SettingError(f"There is no {self.what} '{name}'.{suggest(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
