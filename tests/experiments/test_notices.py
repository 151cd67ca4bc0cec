"""Warnings of worker processes are shown once, by the process that started them."""

import dataclasses
import warnings

import numpy as np
import pytest

from mipl.cli import main
from mipl.errors import MiplNotice
from mipl.experiments.notices import Notices, forwarded_warnings


def test_a_text_is_shown_once_with_its_runs():
    notices = Notices()
    for text, title in (("Look out.", "a"), ("Look out.", "b"), ("Mind the gap.", "b"), ("Look out.", "a")):
        notices.add(text, title)
    with pytest.warns(MiplNotice) as shown:
        notices.show()
    assert [str(each.message) for each in shown] == [
        "Look out. (2 runs, the first is a)",
        "Mind the gap. (b)",
    ]


def test_warnings_are_forwarded_and_not_printed(capsys):
    texts = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with forwarded_warnings(texts.append):
            warnings.warn("one", MiplNotice, stacklevel=1)
            warnings.warn("two", UserWarning, stacklevel=1)
    assert texts == ["one", "two"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_run_prints_the_notices_of_its_processes_as_notes(gaussian, tmp_path, capfd):
    labels = np.eye(gaussian.k, dtype=bool)[gaussian.labels]
    dataclasses.replace(gaussian, candidates=labels).save(tmp_path / "bags.npz")
    words = ["run", str(tmp_path / "bags.npz"), "--splits", "1-2", "--out", str(tmp_path / "runs")]
    assert main([*words, "--set", "epochs=1", "--set", "ensemble=1", "--jobs", "2"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    text = "Every bag has one candidate: this is ordinary supervision."
    assert line.startswith(f"mipl: note: {text} (2 runs, the first is bags.npz sam-cn split ")
