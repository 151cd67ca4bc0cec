"""Fetch the authors' files: resumed where a download stopped, checked, and never half there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from mipl.data.datasets import DATASETS
from mipl.errors import SettingError, StorageError, suggest
from mipl.files import atomic_file

PAGE = "http://palm.seu.edu.cn/zhangml/Resources.htm#MIPL_data"
REPOSITORY = "https://raw.githubusercontent.com/tangw-seu/MIPLMA/main/data/MNIST_MIPL"
GIT_BLOBS = {  # of the files in that repository; of the authors' other files no checksum is known
    "MNIST_MIPL_r1.mat": "97dad3c7b1d6ca992fc1162d88742b1a95d7eed9",
    "MNIST_MIPL_r2.mat": "999c450d7ea4edd2b368d226111be15da287c0e5",
    "MNIST_MIPL_r3.mat": "c1b25b440f23bd7c27c52ba3455cc96de5098f73",
}
CHECKSUMS = "checksums.json"
Report = Callable[[int, int | None], None]  # (bytes so far, bytes in all if known)


@dataclasses.dataclass(frozen=True)
class Fetched:
    """A file that is whole, its SHA-256, and whether there was something to check it against."""

    path: Path
    sha256: str
    checked: bool


def fetch(
    name: str, r: int, folder: Path, *, url: str | None = None, report: Report | None = None
) -> Fetched:
    """Put the authors' file of a data set into ``folder``; a file already there is only checked.

    It is checked against the known checksum, or else against the one recorded in ``checksums.json`` when the
    file was first fetched into this folder.
    """
    known = {each.name for each in DATASETS.values() if each.authors_name is not None}
    file = DATASETS[name].authors_file(r) if name in DATASETS else None
    if file is None:
        raise SettingError(f"The authors have no data set '{name}'.{suggest(name, known)}")
    if url is None:
        if file not in GIT_BLOBS:
            raise SettingError(
                f"No direct address of {file} is known: look it up on {PAGE} and give it with --url."
            )
        url = f"{REPOSITORY}/{file}"
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"{url} is not an http or https address.")
    path, part = folder / file, folder / f"{file}.part"
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _download(url, part, report)
        except urllib.error.HTTPError as error:
            raise StorageError(f"{url} answers {error.code} {error.reason}: is the address right?") from error
        except OSError as error:  # a lost connection, a full disk
            raise StorageError(
                f"{url} could not be fetched: {getattr(error, 'reason', None) or error}; "
                f"what has come is kept in {part}, and the same command goes on from there."
            ) from error
    return _check(path, part if not path.is_file() else path, file)


def _check(path: Path, arrived: Path, file: str) -> Fetched:
    sha256, blob = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    blob.update(b"blob %d\0" % arrived.stat().st_size)
    with arrived.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            blob.update(block)
    record = path.parent / CHECKSUMS
    known = _read(record)
    expected, got = (
        (GIT_BLOBS[file], blob.hexdigest()) if file in GIT_BLOBS else (known.get(file), sha256.hexdigest())
    )
    if expected is not None and expected != got:
        if arrived != path:
            _forget(arrived)
        raise StorageError(
            f"{path} has the checksum {got}, not {expected}: "
            + (
                "what came is deleted, fetch it again."
                if arrived != path
                else "delete it and fetch it again."
            )
        )
    if arrived != path:
        arrived.replace(path)
        _forget(arrived)
    if file not in GIT_BLOBS and file not in known:
        with atomic_file(record) as temporary:
            temporary.write_text(json.dumps({**known, file: got}, indent=2) + "\n", encoding="utf-8")
    return Fetched(path, sha256.hexdigest(), expected is not None)


def _download(url: str, part: Path, report: Report | None) -> None:
    """Bring ``part`` to the whole length, going on where it stands if the server's file is still the same."""
    stamp = part.with_name(f"{part.name}.json")
    have = part.stat().st_size if part.is_file() else 0
    version = _read(stamp).get("version", "")
    headers = {"Range": f"bytes={have}-", "If-Range": version} if have and version else {}
    request = urllib.request.Request(url, headers={"User-Agent": "mipl", **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # asked for bytes after the end: the file is whole already
            raise
        return
    with answer:
        more = answer.status == 206
        have = have if more else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        stamp.write_text(json.dumps({"version": version}), encoding="utf-8")
        with part.open("ab" if more else "wb") as file:
            while block := answer.read(1 << 16):
                file.write(block)
                have += len(block)
                if report:
                    report(have, total)
    if total is not None and have != total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        content = {}
    return content if isinstance(content, dict) else {}
