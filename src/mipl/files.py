"""Atomic writing of files and folders, and checksums that detect damage."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mipl.errors import StorageError

CHECKSUMS = "checksums.json"  # of the other files in a folder; it is written last
CHECKSUMS_FORMAT = "mipl-checksums-1"
REPLACED = ".replaced"  # suffix of a folder that was moved to make way for a new one
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # constants of renameat2(2) on Linux
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ENOENT)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces ``path`` when the block succeeds.

    On failure the temporary file is removed and ``path`` is unchanged.
    """
    temporary = _temporary(path, path.suffix)
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
def atomic_folder(path: Path, marker: str | None) -> Iterator[Path]:
    """Yield a temporary folder to write to, which replaces ``path`` when the block succeeds.

    Whenever the process is killed, :func:`read_folder` finds the old folder or the new one.

    Args:
        path: the folder.
        marker: a file that identifies a folder of the same kind. An existing folder without it is not
            replaced, which is an error. None: replace any folder.
    """
    check_folder(path, marker)
    temporary = _temporary(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        _put_in_place(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange this is the old folder


def check_folder(path: Path, marker: str | None) -> None:
    """Raise an error if :func:`atomic_folder` could not write ``path``; nothing is written."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        names = []
    except OSError:  # a file, or a folder that cannot be read, or one in a file
        names = [""] if path.exists() else []
    if names and marker not in (None, *names):
        raise StorageError(
            f"{path} exists and holds no {marker}, so it is not replaced: give another folder."
        )
    check_place(path)


def check_place(path: Path) -> None:
    """Raise an error if ``path`` could not be written; nothing is written."""
    parent = next(folder for folder in (path.parent, *path.parent.parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON; NaN and infinity, which JSON does not have, are errors."""
    path.write_text(
        json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_json(path: Path, kind: str | None = None) -> dict[str, Any]:
    """Read a JSON object; ``kind`` is the expected value of its key "format"."""
    try:
        return parse_json(path.read_bytes(), path, kind)
    except StorageError:
        raise
    except OSError as error:
        raise _cannot_read(path, error) from error


def parse_json(text: bytes, path: Path, kind: str | None = None) -> dict[str, Any]:
    """Parse a JSON object that was read from ``path``, as :func:`read_json`."""
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # bad JSON and bad UTF-8
        raise StorageError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise StorageError(f"{path} is not a JSON object.")
    if kind is not None and content.get("format") != kind:
        raise StorageError(f"{path} has the format {content.get('format')!r}; this version reads {kind!r}.")
    return content


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 checksums of all files in a folder to ``checksums.json``."""
    sums = {file.name: _sha256(file.read_bytes()) for file in sorted(folder.iterdir()) if file.is_file()}
    write_json(folder / CHECKSUMS, {"format": CHECKSUMS_FORMAT, "sha256": sums})


def read_folder(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Read files of a folder and verify their checksums.

    All files are from one state of the folder: if another process replaces it meanwhile, it is read again. A
    folder that was written without checksums is not verified.

    Args:
        path: the folder.
        names: the files; those that do not exist are left out.

    Returns:
        The contents by name.

    Raises:
        StorageError: a file cannot be read or is damaged.
    """
    wanted = (*names, CHECKSUMS)
    while True:
        folder = _existing(path)
        state, contents = _state(folder), {}
        for name in wanted:
            try:
                contents[name] = (folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _cannot_read(folder / name, error) from error
        if _state(folder) == state and (state is not None or _existing(path) == folder):
            _verify(folder, contents)
            return contents


def _verify(folder: Path, contents: dict[str, bytes]) -> None:
    """Remove the checksums from the contents of a folder, and raise an error if one is wrong."""
    stored = contents.pop(CHECKSUMS, None)
    if stored is None:
        return
    sums = parse_json(stored, folder / CHECKSUMS, CHECKSUMS_FORMAT).get("sha256")
    if not isinstance(sums, dict):
        raise StorageError(f"{folder / CHECKSUMS} is damaged: it has no checksums.{_RESTORE}")
    for name in sorted({*sums, *contents}):
        if name not in contents:
            raise StorageError(f"{folder} is damaged: it holds no {name}, which {CHECKSUMS} names.{_RESTORE}")
        if name not in sums:
            raise StorageError(f"{folder} is damaged: {CHECKSUMS} does not name {name}.{_RESTORE}")
        if _sha256(contents[name]) != sums[name]:
            raise StorageError(f"{folder / name} is damaged: it differs from its checksum.{_RESTORE}")


_RESTORE = " Restore the folder from a copy, or write it again."


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _state(folder: Path) -> tuple[int, int] | None:
    """Return values that identify a folder, or None if it does not exist."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns  # an inode number may be reused, but not with the same time


def _existing(path: Path) -> Path:
    """Return ``path`` or, while it does not exist, the folder that was moved to make way for a new one."""
    while not path.exists():
        pattern = f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}{REPLACED}"
        states = {folder: _state(folder) for folder in path.parent.glob(pattern)}
        times = {folder: state[1] for folder, state in states.items() if state is not None}
        if times:
            return max(times, key=lambda folder: times[folder])
        if not path.exists():  # nor has it appeared in the meantime
            return path
    return path


def _put_in_place(new: Path, path: Path) -> None:
    """Rename the folder ``new`` to ``path``, exchanging it with an existing folder.

    If the system cannot exchange folders, the old one is first renamed such that :func:`_existing` finds it
    until the new one is in place. Other processes may do the same at the same time.
    """
    replaced: list[Path] = []
    try:
        while not _rename(new, path) and not _exchange(new, path):
            replaced.append(_temporary(path, REPLACED))
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                path.rename(replaced[-1])
    except OSError:
        for old in reversed(replaced):
            with contextlib.suppress(OSError):
                old.rename(path)
        raise
    for old in replaced:
        hidden = _temporary(path)  # a name that _existing does not find, before files are deleted
        with contextlib.suppress(OSError):
            old.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _rename(new: Path, path: Path) -> bool:
    """Rename a folder; return False if the target is a folder with content."""
    try:
        new.rename(path)
    except OSError as error:
        if error.errno not in OCCUPIED:
            raise
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False if the system or the file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code))


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _temporary(path: Path, suffix: str = "") -> Path:
    # not tempfile, whose files only their owner can read
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{suffix}")


def _cannot_read(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read: {error.strerror or error}.")


def _cannot_write(path: Path, error: OSError) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}. "
        "The previous content is unchanged; free space or give another path."
    )
