"""Where the system cannot say something of the machine, as on Windows, everything else works."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mipl
from mipl import machine
from mipl.data.benchmarks import gaussian_bags

# read by every Python process at its start, also by those that a process starts
WITHOUT = "import os, sys\nsys.modules['resource'] = None\ndel os.sysconf\n"


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the numbers are compared with Linux's own")
def test_memory_is_that_of_the_system():
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert machine.memory() == 1024 * int(known["MemTotal"].split()[0])
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    assert math.isclose(machine.peak_memory_mb(), int(peak.split()[1]) / 1024, rel_tol=0.01)


def test_without_resource_and_sysconf_bags_are_read_and_runs_made(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    gaussian_bags(bags=40).save(tmp_path / "bags.npz")
    path = os.pathsep.join([str(tmp_path), str(Path(mipl.__file__).parents[1])])
    code = (
        "from mipl.cli import main; from mipl.machine import memory, peak_memory_mb\n"
        "assert (memory(), peak_memory_mb()) == (float('inf'), None)\n"
        "words = 'run bags.npz --methods sam-cn --splits 1 --out records --set epochs=1 --set ensemble=1'\n"
        "if __name__ == '__main__': raise SystemExit(main(words.split()))"
    )
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "records").glob("*/record.json")
    assert json.loads(record.read_text())["peak_memory_mb"] is None
