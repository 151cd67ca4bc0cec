"""Fetching from a real server on this machine: resumed, checked, never half there."""

import hashlib
import http.server
import threading

import pytest

from mipl.cli import main
from mipl.data import fetch as module
from mipl.data.fetch import fetch
from mipl.errors import SettingError, StorageError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server(http.server.ThreadingHTTPServer):
    """Serves one file with ranges and an ETag; can break off after some bytes."""

    content = CONTENT
    etag = '"one"'
    break_after: int | None = None
    status = 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/some.mat"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = 0
        if wanted and self.headers.get("If-Range") == self.server.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(self.server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", self.server.etag)
        self.send_header("Content-Length", str(len(self.server.content) - start))
        self.end_headers()
        body = self.server.content[start:]
        self.wfile.write(body if self.server.break_after is None else body[: self.server.break_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_and_recorded(server, tmp_path):
    seen = []
    got = fetch("c-row", 1, tmp_path / "new", url=server.url, report=lambda *a: seen.append(a))
    assert got.path == tmp_path / "new" / "CRC-MIPL-Row.mat"
    assert got.path.read_bytes() == CONTENT
    assert got.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert not got.checked
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in got.path.parent.iterdir()) == ["CRC-MIPL-Row.mat", "checksums.json"]
    again = fetch("c-row", 1, tmp_path / "new", url=server.url)
    assert again.checked
    assert len(server.asked) == 1  # it was there


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.break_after = 300_000
    with pytest.raises(StorageError, match=r"the same command resumes it"):
        fetch("c-row", 1, tmp_path, url=server.url)
    assert not (tmp_path / "CRC-MIPL-Row.mat").exists()
    server.break_after = None
    assert fetch("c-row", 1, tmp_path, url=server.url).path.read_bytes() == CONTENT
    have = int(server.asked[1].removeprefix("bytes=").rstrip("-"))
    assert 0 < have <= 300_000


def test_a_file_that_changed_meanwhile_is_fetched_whole(server, tmp_path):
    server.break_after = 300_000
    with pytest.raises(StorageError):
        fetch("c-row", 1, tmp_path, url=server.url)
    server.break_after, server.etag, server.content = None, '"two"', CONTENT[::-1]
    assert fetch("c-row", 1, tmp_path, url=server.url).path.read_bytes() == CONTENT[::-1]


def test_a_whole_part_is_taken_as_it_is(server, tmp_path):
    server.break_after = 300_000
    with pytest.raises(StorageError):
        fetch("c-row", 1, tmp_path, url=server.url)
    (tmp_path / "CRC-MIPL-Row.mat.part").write_bytes(CONTENT)  # killed between the last byte and the rename
    assert fetch("c-row", 1, tmp_path, url=server.url).path.read_bytes() == CONTENT


def test_a_known_checksum_is_held(server, tmp_path, monkeypatch):
    with pytest.raises(StorageError, match=r"has the checksum .* not 97dad3c7.*start it again"):
        fetch("mnist-mipl", 1, tmp_path, url=server.url)
    assert not list(tmp_path.iterdir())
    # git's blob id by git's own rule
    blob = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    monkeypatch.setitem(module.GIT_BLOBS, "MNIST_MIPL_r1.mat", blob)
    assert fetch("mnist-mipl", 1, tmp_path, url=server.url).checked
    (tmp_path / "MNIST_MIPL_r1.mat").write_bytes(b"other")
    with pytest.raises(StorageError, match="delete it and download it again"):
        fetch("mnist-mipl", 1, tmp_path, url=server.url)


def test_errors_are_sentences(server, tmp_path, capsys):
    server.status = 404
    command = ["data", "fetch", "c-row", "--out", str(tmp_path), "--url"]
    assert main([*command, server.url]) == 2
    assert "answers 404" in capsys.readouterr().err
    assert main([*command, "http://127.0.0.1:9/none.mat"]) == 2
    assert "could not be downloaded" in capsys.readouterr().err
    assert main([*command, "file:///etc/passwd"]) == 2
    assert "not an http" in capsys.readouterr().err
    with pytest.raises(SettingError, match=r"No direct address of SIVAL_MIPL_r2\.mat is known"):
        fetch("sival-mipl", 2, tmp_path)
    with pytest.raises(SettingError, match="Did you mean 'mnist-mipl'"):
        fetch("mnist-mip", 1, tmp_path)
