"""The server under load: hostile requests from its own OpenAPI document, then many clients at once.

python benchmarks/serving.py [--clients 50] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx2 as httpx
import numpy as np

import mipl
from mipl.data.benchmarks import digits_mipl


@contextlib.contextmanager
def served(folder: Path):
    """Yield the address of a server with a small model of digits and its review page."""
    bags = digits_mipl()
    half = len(bags) // 2
    mipl.CDLClassifier(epochs=5).fit(bags[:half]).save(folder / "model")
    bags[half:].save(folder / "bags.npz")
    data = ["--data", folder / "bags.npz", "--reviews", folder / "r.sqlite"]
    words = [sys.executable, "-m", "mipl.cli", "serve", folder / "model", *data, "--port", 0]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


async def client(address: str, body: bytes, until: float, times: list[float], seen: Counter) -> None:
    async with httpx.AsyncClient(timeout=60) as session:
        while time.perf_counter() < until:
            begun = time.perf_counter()
            try:
                headers = {"content-type": "application/json"}
                answer = await session.post(f"{address}/predict", content=body, headers=headers)
                seen[answer.status_code] += 1
            except httpx.HTTPError as error:
                seen[type(error).__name__] += 1
            times.append(time.perf_counter() - begun)


async def load(address: str, clients: int, seconds: float) -> dict:
    bag = np.zeros((38, 8, 8)).tolist()
    body = json.dumps({"bags": [bag]}).encode()
    times: list[float] = []
    seen: Counter = Counter()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(address, body, until, times, seen) for _ in range(clients)))
    cuts = statistics.quantiles(times, n=100)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(times),
        "answers": {str(status): count for status, count in seen.items()},
        "milliseconds": {"p50": round(1000 * cuts[49], 1), "p99": round(1000 * cuts[98], 1)},
    }


def hostile(address: str) -> int:
    """Run Schemathesis on the OpenAPI document and return its exit code; undocumented answers fail."""
    command = shutil.which("schemathesis") or str(Path(sys.executable).with_name("schemathesis"))
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    words = [command, "run", f"{address}/openapi.json", "--checks", checks, "--max-examples", "50"]
    return subprocess.run(words).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address:
        failed = hostile(address)
        result = asyncio.run(load(address, given.clients, given.seconds))
    print(json.dumps({"schemathesis": failed, **result}, indent=2))
    return int(failed != 0 or set(result["answers"]) != {"200"})


if __name__ == "__main__":
    sys.exit(main())
