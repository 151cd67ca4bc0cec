"""Download the authors' files, with resumption and checksums.

Not by pooch: it cannot resume a download, and knows no checksums of git.
"""

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
GIT_BLOBS = {  # git's checksums of the files in that repository; for the other files none is known
    "MNIST_MIPL_r1.mat": "97dad3c7b1d6ca992fc1162d88742b1a95d7eed9",
    "MNIST_MIPL_r2.mat": "999c450d7ea4edd2b368d226111be15da287c0e5",
    "MNIST_MIPL_r3.mat": "c1b25b440f23bd7c27c52ba3455cc96de5098f73",
}
CHECKSUMS = "checksums.json"
Report = Callable[[int, int | None], None]  # called with the bytes so far, and the total if it is known


@dataclasses.dataclass(frozen=True)
class Fetched:
    """A complete file, its SHA-256, and whether it was verified by a known checksum."""

    path: Path
    sha256: str
    checked: bool


def fetch(
    name: str, r: int, folder: Path, *, url: str | None = None, report: Report | None = None
) -> Fetched:
    """Download the authors' file of a data set; a file that exists is only verified.

    It is verified by the known checksum, or else by the one that was recorded in ``checksums.json`` at the
    first download into this folder.

    Args:
        name: the data set.
        r: false positives, for data sets with one file per r.
        folder: where to put the file.
        url: the address; it is required for files whose address is not known.
        report: called with the progress.

    Raises:
        SettingError: the authors have no such file, or its address is not known.
        StorageError: the download fails, or the checksum is wrong.
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
                f"{url} could not be downloaded: {getattr(error, 'reason', None) or error}; "
                f"the part so far is saved in {part}, and the same command resumes it."
            ) from error
    return _verify(path, path if path.is_file() else part)


def _verify(path: Path, downloaded: Path) -> Fetched:
    """Verify the checksum of a download, and rename it to ``path``."""
    file = path.name
    sha256, blob = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    blob.update(b"blob %d\0" % downloaded.stat().st_size)
    with downloaded.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            blob.update(block)
    record = path.parent / CHECKSUMS
    known = _read_json(record)
    expected, got = (
        (GIT_BLOBS[file], blob.hexdigest()) if file in GIT_BLOBS else (known.get(file), sha256.hexdigest())
    )
    if expected is not None and expected != got:
        if downloaded != path:
            _delete(downloaded)
        raise StorageError(
            f"{path} has the checksum {got}, not {expected}: "
            + (
                "the download is deleted, start it again."
                if downloaded != path
                else "delete it and download it again."
            )
        )
    if downloaded != path:
        downloaded.replace(path)
        _delete(downloaded)
    if file not in GIT_BLOBS and file not in known:
        with atomic_file(record) as temporary:
            temporary.write_text(json.dumps({**known, file: got}, indent=2) + "\n", encoding="utf-8")
    return Fetched(path, sha256.hexdigest(), expected is not None)


def _download(url: str, part: Path, report: Report | None) -> None:
    """Complete ``part``, resuming it if the file on the server has not changed."""
    stamp = part.with_name(f"{part.name}.json")
    have = part.stat().st_size if part.is_file() else 0
    version = _read_json(stamp).get("version", "")
    headers = {"Range": f"bytes={have}-", "If-Range": version} if have and version else {}
    request = urllib.request.Request(url, headers={"User-Agent": "mipl", **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # no bytes after the end: the part is complete
            raise
        return
    with answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        stamp.write_text(json.dumps({"version": version}), encoding="utf-8")
        with part.open("ab" if resumed else "wb") as file:
            while block := answer.read(1 << 16):
                file.write(block)
                have += len(block)
                if report:
                    report(have, total)
    if total is not None and have != total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def _delete(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        content = {}
    return content if isinstance(content, dict) else {}
