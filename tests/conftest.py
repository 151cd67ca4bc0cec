"""What every test shares: one thread, small data, and the way to the real data where it is."""

import os
from pathlib import Path

import pytest
import torch

from fuzz.cases import fuzz, summarise_cases  # noqa: F401 (a fixture)
from mipl.data.benchmarks import digits_mipl, gaussian_bags

torch.set_num_threads(1)
REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def gaussian():
    """Two of four labels are candidates: with two of three, a constant answer fits CC too well to be left."""
    return gaussian_bags(bags=80, k=4)


@pytest.fixture(scope="session")
def digits():
    return digits_mipl()


@pytest.fixture(scope="session")
def shared():
    """The folder of real data, or a skip with the reason."""
    folder = Path(os.environ.get("MIPL_SHARED_DATA", REPO.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real data are not here; set MIPL_SHARED_DATA to their folder")
    return folder


def pytest_terminal_summary(terminalreporter):
    summarise_cases(terminalreporter)
