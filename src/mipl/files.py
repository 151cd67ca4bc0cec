"""Files and folders that appear whole or not at all, and checksums that tell whether they still are."""

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

CHECKSUMS = "checksums.json"  # of the other files of a folder, written last
CHECKSUMS_FORMAT = "mipl-checksums-1"
ASIDE = ".replaced"  # ends the name of a folder that was moved aside for a new one
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: renameat2(2)
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ENOENT)


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
def atomic_folder(path: Path, marker: str | None) -> Iterator[Path]:
    """Yield a new folder beside ``path``; put it at ``path`` in one step when the block succeeds.

    A folder already there is replaced only if it holds the file ``marker``, that is, if it is of the same
    kind; anything else is left alone with an error. Without a marker any folder is replaced. Whenever the
    process is killed, :func:`read_folder` finds the old folder or the new one.
    """
    check_folder(path, marker)
    temporary = _beside(path)
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
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange the folder that stood at path


def check_folder(path: Path, marker: str | None) -> None:
    """Raise an error if :func:`atomic_folder` could not write ``path``, leaving nothing behind."""
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
        return parse_json(path.read_bytes(), path, kind)
    except StorageError:
        raise
    except OSError as error:
        raise _cannot_read(path, error) from error


def parse_json(text: bytes, path: Path, kind: str | None = None) -> dict[str, Any]:
    """Return the JSON object that was read from ``path``, or raise the errors of :func:`read_json`."""
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
    """Write the SHA-256 checksum of every file of a folder to a file of its own."""
    sums = {file.name: _sha256(file.read_bytes()) for file in sorted(folder.iterdir()) if file.is_file()}
    write_json(folder / CHECKSUMS, {"format": CHECKSUMS_FORMAT, "sha256": sums})


def read_folder(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of those files of a folder that exist, verified by their checksums.

    All are of one state of the folder: if another process replaces it meanwhile, it is read again. A folder
    that was written without checksums is not verified.

    Raises:
        StorageError: if a file cannot be read or is not what was written.
    """
    wanted = (*names, CHECKSUMS)
    while True:
        folder = _standing(path)
        state, contents = _state(folder), {}
        for name in wanted:
            try:
                contents[name] = (folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _cannot_read(folder / name, error) from error
        if _state(folder) == state and (state is not None or _standing(path) == folder):
            _verify(folder, contents)
            return contents


def _verify(folder: Path, contents: dict[str, bytes]) -> None:
    """Take the checksums out of the contents of a folder, and raise an error if one does not fit."""
    stored = contents.pop(CHECKSUMS, None)
    if stored is None:
        return
    sums = parse_json(stored, folder / CHECKSUMS, CHECKSUMS_FORMAT).get("sha256")
    if not isinstance(sums, dict):
        raise StorageError(f"{folder / CHECKSUMS} is damaged: it holds no checksums.{_MEND}")
    for name in sorted({*sums, *contents}):
        if name not in contents:
            raise StorageError(f"{folder} is damaged: it holds no {name}, which {CHECKSUMS} names.{_MEND}")
        if name not in sums:
            raise StorageError(f"{folder} is damaged: {CHECKSUMS} does not name {name}.{_MEND}")
        if _sha256(contents[name]) != sums[name]:
            raise StorageError(f"{folder / name} is damaged: it differs from its checksum.{_MEND}")


_MEND = " Restore the folder from a copy, or write it again."


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _state(folder: Path) -> tuple[int, int] | None:
    """Return what another folder at this place would not have; None where there is no folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns  # a number may be given again, but not at the same time


def _standing(path: Path) -> Path:
    """Return ``path``, or while there is none the folder that was moved aside for a new one."""
    while not path.exists():
        pattern = f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}{ASIDE}"
        aside = {place: _state(place) for place in path.parent.glob(pattern)}
        times = {place: state[1] for place, state in aside.items() if state is not None}
        if times:
            return max(times, key=lambda place: times[place])
        if not path.exists():  # nor has it appeared since the first look
            return path
    return path


def _put_in_place(new: Path, path: Path) -> None:
    """Rename the folder ``new`` to ``path``; a folder that stands there is exchanged with it.

    Where the system cannot exchange folders, the old one is moved aside first, under a name by which
    :func:`_standing` finds it until the new one is there. Other processes may do the same meanwhile.
    """
    aside: list[Path] = []
    try:
        while not _renamed(new, path) and not _exchange(new, path):
            aside.append(_beside(path, ASIDE))
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                path.rename(aside[-1])
    except OSError:
        for place in reversed(aside):
            with contextlib.suppress(OSError):
                place.rename(path)
        raise
    for place in aside:
        unfindable = _beside(path)  # before files are missing from it
        with contextlib.suppress(OSError):
            place.rename(unfindable)
        shutil.rmtree(unfindable, ignore_errors=True)


def _renamed(new: Path, path: Path) -> bool:
    """Rename a folder, unless there is another with content."""
    try:
        new.rename(path)
    except OSError as error:
        if error.errno not in OCCUPIED:
            raise
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
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


def _beside(path: Path, suffix: str = "") -> Path:
    # not tempfile: what it makes only its owner can read
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{suffix}")


def _cannot_read(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read: {error.strerror or error}.")


def _cannot_write(path: Path, error: OSError) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}. "
        "What stood there before is kept; free space or give another place."
    )
