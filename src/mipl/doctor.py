"""What a bug report should contain: versions, threads, devices, optional parts, plugins and a self-test."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mipl
from mipl.data.benchmarks import gaussian_bags
from mipl.estimators import load, make_classifier
from mipl.machine import memory
from mipl.methods import PLUGINS

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
HIDDEN = ("dev",)  # extras for the development of mipl itself


@dataclasses.dataclass(frozen=True)
class Part:
    """An optional part of the library."""

    name: str
    packages: dict[str, str | None]  # version that is installed, or None

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name, version in self.packages.items() if version is None]

    @property
    def install(self) -> str:
        """The command that installs the part."""
        return f"pip install 'mipl[{self.name}]'"


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the self-test, and what went wrong, if anything."""

    name: str
    seconds: float
    problem: str = ""


def report() -> dict[str, Any]:
    """Return versions, machine, devices, optional parts, plugins and the self-test, JSON-ready."""
    steps = self_test()
    return {
        "versions": {**mipl.versions(), **_core_versions()},
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "memory_gb": round(memory() / 2**30, 1),
        },
        "threads": {
            "torch": torch.get_num_threads(),
            **{name: os.environ[name] for name in VARIABLES if name in os.environ},
        },
        "devices": devices(),
        "optional": [
            {"name": part.name, "packages": part.packages, "install": part.install if part.missing else None}
            for part in optional_parts()
        ],
        "plugins": [dataclasses.asdict(plugin) for plugin in PLUGINS.values()],
        "self_test": [dataclasses.asdict(step) for step in steps],
        "ok": not any(step.problem for step in steps),
    }


def devices() -> list[str]:
    """Return the devices that torch can use."""
    found = ["cpu"]
    found += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


def optional_parts() -> list[Part]:
    """Return the optional parts that the installed package declares, with the versions of their packages."""
    parts: dict[str, dict[str, str | None]] = {}
    for requirement in _requirements():
        if (extra := re.search(r"""extra\s*==\s*["']([^"']+)["']""", requirement)) is not None:
            name = _name(requirement)
            if extra[1] not in HIDDEN and name != "mipl":
                parts.setdefault(extra[1], {})[name] = _version(name)
    return [Part(name, packages) for name, packages in sorted(parts.items())]


def self_test() -> list[Step]:
    """Train a tiny ensemble, predict, save, load and compare the predictions; stop at the first problem."""
    bags = gaussian_bags(bags=60, k=3)
    state: dict[str, Any] = {}

    def train() -> None:
        state["model"] = make_classifier("sam-cn", epochs=10, ensemble=3).fit(bags)

    def predict() -> None:
        state["p"] = state["model"].predict_proba(bags)
        if (accuracy := state["model"].score(bags)) < 2 / 3:
            raise RuntimeError(f"the accuracy on the training bags is {accuracy:.2f}, expected above 0.67")

    def save_and_load() -> None:
        with tempfile.TemporaryDirectory() as folder:
            state["model"].save(Path(folder) / "model")
            loaded = load(Path(folder) / "model", device=state["model"].device)
        if not (loaded.predict_proba(bags) == state["p"]).all():
            raise RuntimeError("the loaded model predicts something else")

    def repeat() -> None:
        again = make_classifier("sam-cn", epochs=10, ensemble=3).fit(bags)
        if not (again.predict_proba(bags) == state["p"]).all():
            raise RuntimeError("the same seed gives other predictions")

    steps: list[Step] = []
    planned: tuple[tuple[str, Callable[[], None]], ...] = (
        ("train", train),
        ("predict", predict),
        ("save and load", save_and_load),
        ("train again with the same seed", repeat),
    )
    for name, run in planned:
        started, problem = time.perf_counter(), ""
        try:
            run()
        except Exception as error:  # any problem is what the report is for
            problem = f"{type(error).__name__}: {error}"
        steps.append(Step(name, round(time.perf_counter() - started, 2), problem))
        if problem:
            break
    return steps


def _core_versions() -> dict[str, str | None]:
    """Return the versions of the required packages, None where one is missing."""
    return {_name(text): _version(_name(text)) for text in _requirements() if "extra" not in text}


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("mipl") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found[0]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
