"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mipl.errors import StorageError


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a new path beside ``path`` to write to; rename it over ``path`` when the block succeeds.

    On any failure what was written is removed and what stood at ``path`` before is kept.
    """
    temporary = _beside(path, path.suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, marker: str) -> Iterator[Path]:
    """Yield a new folder beside ``path``; rename it to ``path`` when the block succeeds.

    A folder already there is replaced only if it holds the file ``marker``, that is, if it is of the same
    kind; anything else is left alone with an error.
    """
    check_folder(path, marker)
    temporary, old = _beside(path), _beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        if path.exists():
            path.replace(old)
        try:
            temporary.replace(path)
        except OSError:
            if old.exists():
                old.replace(path)
            raise
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_folder(path: Path, marker: str) -> None:
    """Raise an error if :func:`atomic_folder` could not write ``path``, leaving nothing behind."""
    if path.exists() and not (path / marker).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise StorageError(
            f"{path} exists and holds no {marker}, so it is not replaced: give another folder."
        )
    check_place(path)


def check_place(path: Path) -> None:
    """Raise an error if nothing could be written at ``path``, leaving nothing behind."""
    parent = next(folder for folder in (path.parent, *path.parent.parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON; NaN and infinity are refused, they are not JSON."""
    path.write_text(
        json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_json(path: Path, kind: str | None = None) -> dict[str, Any]:
    """Read a JSON object, or say which file is not one, or not of the format that it should name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # bad JSON and bad UTF-8
        raise StorageError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise StorageError(f"{path} is not a JSON object.")
    if kind is not None and content.get("format") != kind:
        raise StorageError(f"{path} has the format {content.get('format')!r}; this version reads {kind!r}.")
    return content


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _beside(path: Path, suffix: str = "") -> Path:
    # not tempfile: what it makes only its owner can read
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{suffix}")


def _cannot_write(path: Path, error: OSError) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}. "
        "What stood there before is kept; free space or give another place."
    )
