"""Where the system cannot say something of the machine, as Windows, everything else works."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import mipl
from mipl import machine
from mipl.data.benchmarks import gaussian_bags

# read by every process at its start, also by those that a process starts
WITHOUT = "import os, sys\nsys.modules['resource'] = None\ndel os.sysconf\n"


def test_memory_is_that_of_the_system():
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert machine.memory() == 1024 * int(known["MemTotal"].split()[0])
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    assert math.isclose(machine.peak_memory_mb(), int(peak.split()[1]) / 1024, rel_tol=0.01)


def test_without_resource_and_sysconf_the_commands_work(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    gaussian_bags(bags=40).save(tmp_path / "bags.npz")
    path = os.pathsep.join([str(tmp_path), str(Path(mipl.__file__).parents[1])])

    def run(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True,
        )  # fmt: skip

    unknown = run("-c", "from mipl.machine import *; print(memory(), peak_memory_mb())")
    assert unknown.stdout.split() == ["inf", "None"], unknown.stderr
    settings = ["--set", "epochs=1", "--set", "ensemble=1"]
    for command in (
        [
            "run",
            "bags.npz",
            "--methods",
            "sam-cn",
            "--splits",
            "1",
            "--out",
            "records",
            "--jobs",
            "1",
            *settings,
        ],
        ["fit", "bags.npz", "--method", "miplgp", "--out", "model", "--set", "epochs=1"],
        ["predict", "model", "bags.npz", "--out", "p.csv"],
    ):
        done = run("-m", "mipl.cli", *command)
        assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "records").glob("*/record.json")
    assert json.loads(record.read_text())["peak_memory_mb"] is None
