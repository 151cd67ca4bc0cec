"""The fuzz tests run a fixed tenth of their cases, or all, and say how many."""

import os
import subprocess
import sys

import pytest

from conftest import REPO

# as in tests/conftest.py, without the seconds that torch takes to import
CONFTEST = """
from fuzz.cases import fuzz, summarise_cases
pytest_terminal_summary = lambda terminalreporter: summarise_cases(terminalreporter)
"""
TEST = """
import pytest

@pytest.mark.parametrize("half", [0, 1])
def test_one(fuzz, half):
    assert all(isinstance(case, int) for case in fuzz("numbers", range(25)))
"""


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("", "fuzz cases: 6 of 50 (numbers 6 of 50); make fuzz runs all"),
        ("full", "fuzz cases: 50 of 50 (numbers 50 of 50)"),
    ],
)
def test_the_report_counts_the_cases_of_every_process(setting, line, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    path = os.pathsep.join([str(REPO / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "MIPL_FUZZ": setting, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert line in done.stdout.splitlines()
