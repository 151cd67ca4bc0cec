"""Progress: a bar in a terminal, and a line every 30 seconds in a log."""

import re

from mipl.training import progress
from mipl.training.progress import progress_bar


def test_without_a_terminal_a_line_every_30_seconds(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar("training", 200, show=True) as report:
        for epoch in range(1, 101):
            clock[0] += 1.0
            report(epoch, f"loss {epoch}")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"mipl: training: {done} of 200, loss {done}, about {left} left"
        for done, left in ((30, "3 min"), (60, "2 min"), (90, "2 min"))
    ]


def test_resumed_work_is_not_counted_as_done_now(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar("images", 100, show=True) as report:
        for done in range(51, 61):  # 50 were finished before
            clock[0] += 4.0
            report(done)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"58 of 100, about 168 s left|58 of 100, about 3 min left", line)


def test_an_unknown_total_and_nothing_on_request(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for show in (True, False):
        with progress_bar("download", None, show=show) as report:
            clock[0] += 31.0
            report(7, "MB")
    assert capsys.readouterr().err.splitlines() == ["mipl: download: 7, MB"]
