"""The documents say what is true: versions agree, and the README's commands run as they stand."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import mipl
from conftest import REPO

README = (REPO / "README.md").read_text(encoding="utf-8")


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def test_one_version():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert project["version"] == mipl.__version__ == citation["version"]
    assert f"## [{mipl.__version__}]" in (REPO / "CHANGELOG.md").read_text()


def test_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["references"][0]["authors"][0]["family-names"] == "Tang"


def test_the_readme_names_every_method():
    words = README.replace("`", " ")
    for name in mipl.list_methods():
        attention, _, loss = name.partition("-")
        assert f" {name} " in words or (loss and attention in words and f"-{loss} " in words), name


def test_the_readme_python_runs(tmp_path):
    (code,) = blocks("python")
    assert len(code.strip().splitlines()) <= 12
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-model" / "model.json").is_file()


def test_the_cross_validation_by_patient_runs(tmp_path):
    (code,) = blocks("python", (REPO / "docs" / "training.md").read_text(encoding="utf-8"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) <= 1


@pytest.mark.slow
def test_the_readme_commands_run(tmp_path):
    commands = [line[2:] for line in blocks("console")[1].splitlines() if line.startswith("$ ")]
    assert len(commands) == 4
    for command in commands:
        assert command.startswith("mipl ")
        words = [sys.executable, "-m", "mipl.cli", *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_every_picture_is_there():
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (REPO / target).is_file(), target
