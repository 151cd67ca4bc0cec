"""The examples, as a stranger runs them, at toy size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mipl
from mipl.data.benchmarks import gaussian_bags
from mipl.data.formats.tidy import write_tidy
from mipl.records.store import Store

REPO = Path(__file__).resolve().parents[1]
EXAMPLE = REPO / "examples" / "new_method"


def test_a_new_method_takes_less_than_eighty_lines():
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLE.iterdir() if path.is_file()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) < 80


@pytest.mark.slow
def test_a_new_method_is_installed_and_compared_without_editing_mipl(tmp_path):
    write_tidy(gaussian_bags(bags=40, k=3), tmp_path / "own.csv")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    source = str(Path(mipl.__file__).parents[1])
    small = ["--methods", "robust-set,rc,cc", "--splits", "1-2", "--set", "epochs=2"]
    done = subprocess.run(
        [EXAMPLE / "compare.sh", tmp_path / "own.csv", tmp_path / "out", *small],
        env={**os.environ, "PATH": path, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = list(Store(tmp_path / "out" / "runs"))
    assert len(records) == 6
    assert {r.info.get("plugin") for r in records if r.spec["method"] == "robust-set"} == {"robust-set 1.0"}
    page = (tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")
    assert "robust-set" in page
    assert "Friedman" in page
    assert sorted(p.name for p in EXAMPLE.iterdir()) == ["compare.sh", "pyproject.toml", "robust_set.py"]
