"""`mipl doctor`: the report is complete, and a problem is shown and changes the exit code."""

import json

import pytest

from cli.command import run
from mipl import doctor


def test_the_self_test_passes_and_the_report_names_every_part(capsys):
    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ok"]
    assert [step["name"] for step in found["self_test"]][-1] == "train again with the same seed"
    assert {"mipl", "torch", "python"} <= set(found["versions"])
    assert found["devices"][0] == "cpu"
    assert "gpytorch" in {name for part in found["optional"] for name in part["packages"]}


@pytest.fixture
def broken(monkeypatch):
    """A library that cannot train, and a part that is missing."""

    def fail(*_, **__):
        raise RuntimeError("no training today")

    monkeypatch.setattr(doctor, "make_classifier", fail)
    monkeypatch.setattr(doctor, "optional_parts", lambda: [doctor.Part("gp", {"gpytorch": None})])


def test_a_problem_is_shown_with_what_to_install(broken, capsys):
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "self-test, train: RuntimeError: no training today" in out
    assert "self-test, predict" not in out
    assert "pip install 'mipl[gp]'" in out
    assert "Something is wrong" in out
