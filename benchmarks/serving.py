"""The server tried out: hostile requests, many clients at once, and SIGTERM while they write reviews.

python benchmarks/serving.py [--clients 50] [--seconds 60]

Starts ``mipl serve`` with a small model of digits-mipl; writes results/serve/serving.json and the tables of
docs/serve.md, in about three minutes. It fails if a request is answered wrongly or a review is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mipl
from attacks import BODIES, WHOLE, h5, npy, raw
from machine import described
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "serve" / "serving.json", REPO / "docs" / "serve.md"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
UNTIL_TERM = 3.0  # seconds of reviews before SIGTERM
Json = dict[str, Any]
Answer = tuple[int, Any]


class Connection:
    """One kept-alive connection, with as little work as possible: client and server share the cores."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Connection:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def post(self, path: str, kind: str, body: bytes) -> Answer:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        return await self.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def send(self, request: bytes) -> Answer:
        """Send bytes, whole or not, and return the status and content of what is answered."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        content = await (self.reader.read() if size is None else self.reader.readexactly(int(size[1])))
        text = content.decode()
        return int(head.split()[1]), json.loads(text) if b"application/json" in head else text


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield the process of a server with its review page, and its port."""
    data = ["--data", folder / "bags.npz", "--reviews", folder / "r.sqlite"]
    words = [sys.executable, "-m", "mipl.cli", "serve", folder / "model", *data, "--port", 0]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()
            process.wait()


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


# ---- hostile requests ----------------------------------------------------------------------------------


async def attack(port: int, name: str, request: bytes) -> Json:
    try:
        async with Connection(port) as connection:
            status, said = await connection.send(request)
    except (OSError, asyncio.IncompleteReadError) as error:  # an answer that does not arrive is none
        return {"request": name, "status": 0, "sentence": repr(error)}
    sentence = said["detail"] if isinstance(said, dict) else said
    return {"request": name, "status": status, "sentence": sentence}


async def attacks(port: int, shape: tuple[int, ...]) -> list[Json]:
    """Return how each hostile request is answered; all are sent at once, for the slow ones take a while."""
    requests = [(name, raw(path, kind, body(shape))) for name, path, kind, body in BODIES] + WHOLE
    return list(await asyncio.gather(*(attack(port, *request) for request in requests)))


def schemathesis(port: int, folder: Path) -> Json:
    """Send what Schemathesis makes of the OpenAPI document; an undocumented answer is a failure."""
    command = shutil.which("schemathesis") or str(Path(sys.executable).with_name("schemathesis"))
    words = [command, "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", CHECKS]
    words += ["--max-examples", "50", "--no-color"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)  # it leaves files there
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    counted = re.search(r"(\d[\d,]*) generated", done.stdout)
    return {"exit": done.returncode, "cases": int(counted[1].replace(",", "")) if counted else None}


# ---- load ----------------------------------------------------------------------------------------------


async def client(port: int, number: int, until: float, bags: Bags, labels: list[str], seen: Json) -> None:
    """Ask for one bag after the other, in each format in turn, and give every fourth one a label."""
    async with Connection(port) as connection:
        place = number
        while time.perf_counter() < until:
            bag = bags[place % len(bags)]
            for kind, path, body in (
                ("json", "/predict", json.dumps({"bags": [bag.instances.tolist()]}).encode()),
                ("x-npy", "/predict", npy(bag.instances)),
                ("x-hdf5", "/predict", h5(features=bag.instances)),
                ("json", "/reviews", json.dumps({"bag_id": bag.id, "label": labels[0]}).encode()),
            ):
                begun = time.perf_counter()
                status, said = await connection.post(path, f"application/{kind}", body)
                seen["times"][f"{path} {kind}"].append(time.perf_counter() - begun)
                right = path == "/reviews" or (
                    status == 200 and said["predictions"][0]["label"] == labels[place % len(bags)]
                )
                seen["answers"][str(status) if right else f"{status}, wrong"] += 1
            place += 1


async def load(port: int, clients: int, seconds: float, bags: Bags, labels: list[str]) -> Json:
    names = ("/predict json", "/predict x-npy", "/predict x-hdf5", "/reviews json")
    seen: Json = {"times": {name: [] for name in names}, "answers": Counter()}
    begun = time.perf_counter()
    tasks = (client(port, i, begun + seconds, bags, labels, seen) for i in range(clients))
    await asyncio.gather(*tasks)
    took = time.perf_counter() - begun
    every = [value for values in seen["times"].values() for value in values]
    return {
        "clients": clients,
        "seconds": round(took, 1),
        "requests": len(every),
        "per_second": round(len(every) / took, 1),
        "answers": dict(seen["answers"]),
        "milliseconds": {
            name: cuts(values) for name, values in {"all": every, **seen["times"]}.items() if values
        },
    }


def cuts(times: list[float]) -> Json:
    found = statistics.quantiles(times, n=100, method="inclusive")
    marks = {"p50": found[49], "p99": found[98], "most": max(times)}
    return {name: round(1000 * value, 1) for name, value in marks.items()}


# ---- the end -------------------------------------------------------------------------------------------


async def stop(
    process: subprocess.Popen[str], port: int, clients: int, bags: Bags, classes: list[str]
) -> Json:
    """Send SIGTERM while every client labels a bag of its own, again and again."""
    accepted: list[list[str]] = [[] for _ in range(clients)]

    async def review(number: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with Connection(port) as connection:
                for label in (classes[i % len(classes)] for i in range(10**6)):
                    body = json.dumps({"bag_id": bags[number].id, "label": label}).encode()
                    status, _ = await connection.post("/reviews", "application/json", body)
                    if status == 200:
                        accepted[number].append(label)

    tasks = asyncio.gather(*(review(i) for i in range(clients)))
    await asyncio.sleep(UNTIL_TERM)
    process.send_signal(signal.SIGTERM)
    await tasks
    return {"exit": process.wait(60), "accepted": accepted}


def lost(path: Path, accepted: list[list[str]], bags: Bags, before: int) -> int:
    """Return how many accepted reviews are not in the file, in the order in which they were accepted."""
    missing = 0
    with contextlib.closing(sqlite3.connect(path)) as file:
        for number, labels in enumerate(accepted):
            query = "SELECT label FROM reviews WHERE bag_id = ? AND number > ? ORDER BY number"
            kept = [label for (label,) in file.execute(query, (bags[number].id, before))]
            missing += sum(a != b for a, b in zip(labels, kept, strict=False)) + max(
                len(labels) - len(kept), 0
            )
    return missing


def measure(clients: int, seconds: float, folder: Path) -> Json:
    every = digits_mipl()
    order = np.random.default_rng(0).permutation(len(every))
    bags = every[order[100:]]
    model = mipl.CDLClassifier(epochs=5).fit(every[order[:100]])
    model.save(folder / "model")
    bags.save(folder / "bags.npz")
    labels, classes = model.predict(bags).tolist(), [str(name) for name in model.classes_]
    with served(folder) as (process, port):
        memory = [peak_mb(process.pid)]
        refused = asyncio.run(attacks(port, every.feature_shape))
        memory.append(peak_mb(process.pid))
        generated = schemathesis(port, folder)
        under_load = asyncio.run(load(port, clients, seconds, bags, labels))
        with contextlib.closing(sqlite3.connect(folder / "r.sqlite")) as file:
            (before,) = file.execute("SELECT coalesce(max(number), 0) FROM reviews").fetchone()
        end = asyncio.run(stop(process, port, clients, bags, classes))
    accepted = end.pop("accepted")
    end |= {"accepted": sum(map(len, accepted)), "lost": lost(folder / "r.sqlite", accepted, bags, before)}
    return {
        "format": "mipl-serving-1",
        "command": f"python benchmarks/serving.py --clients {clients} --seconds {seconds:g}",
        "machine": described(),
        "hostile": {"requests": refused, "memory_mb": [round(value) for value in memory]},
        "schemathesis": generated,
        "load": under_load,
        "sigterm": end,
    }


def holds(found: Json) -> bool:
    """Return whether everything was answered as it should be and no review was lost."""
    refusals = found["hostile"]["requests"]
    return (
        all(400 <= row["status"] < 500 and row["sentence"].endswith(".") for row in refusals)
        and found["schemathesis"]["exit"] == 0
        and set(found["load"]["answers"]) == {"200"}
        and found["sigterm"]["exit"] == 0
        and found["sigterm"]["lost"] == 0
    )


def tables(found: Json) -> dict[str, str]:
    """Return the tables of docs/serve.md by their names."""
    lines = ["| request | answer | sentence |", "|---|---|---|"]
    lines += [
        f"| {row['request']} | {row['status']} | {row['sentence']} |" for row in found["hostile"]["requests"]
    ]
    times = ["| requests | median | 99th percentile | maximum |", "|---|---|---|---|"]
    for name, row in found["load"]["milliseconds"].items():
        times.append(f"| {name} | {row['p50']:g} ms | {row['p99']:g} ms | {row['most']:g} ms |")
    whole, tried, end = found["load"], found["schemathesis"], found["sigterm"]
    about = (
        f"{whole['clients']} clients for {whole['seconds']:g} s: {whole['requests']:,} requests "
        f"({whole['per_second']:g} per second), answers {json.dumps(whole['answers'])}. "
        f"Schemathesis: {tried['cases']:,} requests, exit code {tried['exit']}. "
        f"SIGTERM under load: {end['accepted']:,} reviews accepted, {end['lost']} lost."
    )
    note = [found["note"]] if found.get("note") else []
    return {"hostile": "\n".join(lines), "load": "\n".join([about, *note, "", *times])}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", help="a remark on the measurement, such as a shared machine")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.clients, given.seconds, Path(folder))
    if given.note:
        found["note"] = given.note
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if given.out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    print("\n\n".join(tables(found).values()))
    return int(not holds(found))


if __name__ == "__main__":
    sys.exit(main())
