"""``mipl serve`` as a process: start, limits on slow and oversized requests, graceful shutdown."""

import concurrent.futures
import contextlib
import http.client
import json
import signal
import socket
import sqlite3
import threading

import pytest
from served import NAMES, app_of, in_a_thread, log_of, noisy_bags, save_files, serving, small_model

import mipl
from mipl.cli import main
from mipl.serve.requests import Limits
from mipl.serve.reviews import Reviews
from mipl.serve.server import MAX_HEADER_BYTES, check_token, is_local, listen

BAGS = noisy_bags(120, 160)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return save_files(tmp_path_factory.mktemp("served"), BAGS)


def test_sigterm_under_load_loses_no_accepted_review(files, tmp_path):
    accepted = [[] for _ in range(8)]

    def send(client, address, enough):
        """Send labels of the client's own bag until the server is stopped."""
        connection = http.client.HTTPConnection(address, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            for number in range(100_000):
                label = NAMES[number % 4]
                body = json.dumps({"bag_id": f"bag{120 + client}", "label": label})
                connection.request("POST", "/reviews", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                if answer.read() and answer.status == 200:
                    accepted[client].append(label)
                if number == 5:
                    enough.release()

    with serving(files, tmp_path / "r.sqlite") as (process, address):
        enough = threading.Semaphore(0)
        clients = [threading.Thread(target=send, args=(i, address, enough)) for i in range(8)]
        for client in clients:
            client.start()
        for _ in clients:  # every client is sending
            assert enough.acquire(timeout=120)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        for client in clients:
            client.join(60)
        assert process.returncode == 0
    lines = [json.loads(line) for line in log_of(tmp_path / "r.sqlite").splitlines()]
    assert {line["status"] for line in lines if line["event"] == "request"} == {200}
    with sqlite3.connect(tmp_path / "r.sqlite") as file:
        for i, labels in enumerate(accepted):
            query = "SELECT label FROM reviews WHERE bag_id = ? ORDER BY number"
            stored = [label for (label,) in file.execute(query, (f"bag{120 + i}",))]
            assert len(labels) >= 6
            assert stored[: len(labels)] == labels  # and at most one that was in progress
            assert len(stored) <= len(labels) + 1
    file.close()


def test_two_servers_on_one_file_see_each_other_s_reviews(files, tmp_path):
    def ask(address, method, path, body=None):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()

    def shown(address):
        bags = json.loads(ask(address, "GET", "/bags"))["bags"]
        return {bag["bag_id"]: NAMES[bag["reviews"][0]["label"]] for bag in bags if bag["reviews"]}

    reviews = tmp_path / "r.sqlite"
    with serving(files, reviews) as (_, first), serving(files, reviews) as (_, second):
        wanted = {}
        steps = (
            (first, "bag125", "ash"),
            (second, "bag125", "cedar"),
            (first, "bag126", "elm"),
            (second, "bag126", None),
            (second, "bag127", "birch"),
        )
        for server, bag, label in steps:
            wanted = {**wanted, bag: label}
            answer = json.loads(ask(server, "POST", "/reviews", {"bag_id": bag, "label": label}))
            now = {bag: label for bag, label in wanted.items() if label is not None}
            assert answer["reviewed"] == len(now)
            assert shown(first) == shown(second) == now
        table = ask(first, "GET", "/reviews.csv")
        assert table == ask(second, "GET", "/reviews.csv")
        assert {"bag125,cedar", "bag127,birch"} == {",".join(row.split(",")[:2]) for row in table.split()[1:]}


def test_servers_that_start_at_once_on_a_new_file_share_it(tmp_path):
    def start(number):
        kept = Reviews(tmp_path / "r.sqlite", [f"bag{i}" for i in range(8)], NAMES)
        kept.add(f"bag{number}", "ash")
        return kept

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(start, range(8)))
    for kept in opened:
        assert {review.bag for review in kept.latest()} == {f"bag{i}" for i in range(8)}
        kept.close()


def answer_to(address, sent):
    with socket.create_connection(address.split(":"), timeout=60) as connection:
        connection.sendall(sent.encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_slow_bodies_and_invalid_headers_are_refused_and_closed():
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with in_a_thread(app_of(small_model(), limits=Limits(seconds=0.2))) as address:
        slow = answer_to(address, f"{head}Content-Length: 100\r\n\r\n{{")
        assert slow.startswith(b"HTTP/1.1 408")
        assert slow.endswith(b'"The body did not arrive within 0.2 s."}')
        for sent in ("no HTTP\r\n\r\n", f"{head}X: {'x' * MAX_HEADER_BYTES}"):
            assert answer_to(address, sent).startswith(b"HTTP/1.1 400")


def test_idle_connections_are_closed(monkeypatch):
    monkeypatch.setattr("mipl.serve.server.KEEP_ALIVE_SECONDS", 0.2)
    with in_a_thread(app_of(small_model())) as address:
        answer = answer_to(address, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")  # and then the end of the stream


def test_more_connections_than_the_limit_are_answered_with_503(monkeypatch):
    monkeypatch.setattr("mipl.serve.server.MAX_CONNECTIONS", 2)
    with in_a_thread(app_of(small_model())) as address, socket.create_connection(address.split(":")):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 503
        connection.close()


def test_other_hosts_need_a_token(files, capsys, monkeypatch):
    monkeypatch.delenv("MIPL_TOKEN", raising=False)
    for words in (["--host", "0.0.0.0"], ["--host", "::"], ["--host", "example.org"]):
        assert main(["serve", str(files / "model"), "--port", "0", *words]) == 2
        assert "a token is needed: set MIPL_TOKEN" in capsys.readouterr().err
    assert main(["serve", str(files / "model"), "--token", "short"]) == 2
    assert "16 or more" in capsys.readouterr().err
    for host, local in (("127.0.0.1", True), ("127.8.8.8", True), ("0.0.0.0", False), ("example.org", False)):
        assert is_local(host) == local
    check_token("0.0.0.0", "a-long-enough-token")


def test_a_start_that_fails_is_one_sentence(files, tmp_path, capsys):
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(files / "model"), "--port", port]) == 2
        assert f"Cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert "is not a model folder" in capsys.readouterr().err
    assert main(["serve", str(files / "model"), "--port", "0", "--max-bags", "0"]) == 2
    assert "The limit of bags is 0" in capsys.readouterr().err
    with pytest.raises(mipl.errors.StorageError, match="Cannot listen"):
        listen("192.0.2.1", 0)
