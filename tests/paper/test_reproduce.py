"""mipl reproduce: which runs it makes, that it never makes one twice, and that it can be killed."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time

import pytest

from mipl.cli import main
from mipl.data.sources import Source
from mipl.experiments.engines import without_record
from mipl.experiments.runner import run
from mipl.paper import reproduce as reproduction
from mipl.paper.items import ITEMS
from mipl.paper.reproduce import Options, names, reproduce
from mipl.records.spec import RunSpec
from mipl.records.store import Store

WORDS = ["reproduce", "fig3", "--quick", "--epochs", "1"]


@pytest.fixture
def made(monkeypatch):
    """Make runs in this process, one after the other, and list them."""
    jobs = []

    def run_here(planned, engine, workers, address, show):
        for job in without_record(planned):
            run(job)
            jobs.append((job.source.name, job.method, job.split))
        return []

    monkeypatch.setattr(reproduction, "run_jobs", run_here)
    return jobs


@pytest.fixture
def plan(monkeypatch):
    """Return the runs that would be made, and go no further."""

    class PlannedError(Exception):
        pass

    def stop(jobs, *_):
        raise PlannedError(jobs)

    def planned(wanted, options):
        with pytest.raises(PlannedError) as stopped:
            reproduce(wanted, options, "it")
        return stopped.value.args[0]

    monkeypatch.setattr(reproduction, "run_jobs", stop)
    return planned


def test_quick_is_on_the_embedded_data_and_is_not_done_twice(made, tmp_path, capsys):
    words = [*WORDS, "--out", str(tmp_path)]
    assert main(words) == 0
    assert made == [("digits-mipl-vectors", "sam-fl", 1), ("digits-mipl-vectors", "sam-ifl", 1)]
    page = (tmp_path / "index.html").read_text()
    table = (tmp_path / "fig3" / "table.csv").read_bytes()
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "page": str(tmp_path / "index.html"),
        "failed": [],
        "lacking": {},
    }
    assert len(made) == 2
    assert (tmp_path / "fig3" / "table.csv").read_bytes() == table
    assert (tmp_path / "index.html").read_text() == page
    assert "digits-mipl-vectors‡" in page
    assert "trained for 1 epochs only" in page
    (damaged, _) = sorted((tmp_path / "records").iterdir())
    (damaged / "record.json").write_text("{")
    assert main(words) == 0
    assert len(made) == 3
    assert (tmp_path / "fig3" / "table.csv").read_bytes() == table


def test_runs_of_an_earlier_recipe_are_no_part_of_a_mean(made, tmp_path):
    words = [*WORDS, "--out", str(tmp_path)]
    assert main(words) == 0
    table = (tmp_path / "fig3" / "table.csv").read_bytes()
    for record in list(Store(tmp_path / "records")):  # another split, when a default was another
        settings = {**record.spec["recipe_settings"], "lr": 0.5}
        earlier = {**record.spec, "split": 2, "recipe_settings": settings}
        info = {name: record.info[name] for name in ("given", "data", "seconds")}
        metrics = dict.fromkeys(record.metrics, 0.0)
        Store(tmp_path / "records").put(RunSpec(**earlier), {**info, "metrics": metrics}, record.arrays)
    assert len(list(Store(tmp_path / "records"))) == 4
    assert main([*words, "--draw-only"]) == 0
    assert (tmp_path / "fig3" / "table.csv").read_bytes() == table
    assert len(made) == 2


def test_what_is_planned_is_what_is_drawn(tmp_path, plan):
    """Every name plans the runs of its own table, split by split, each once."""
    planned = plan(["table2", "table4"], Options(tmp_path, quick=True, splits=(1, 2)))
    runs = [(job.split, job.method, job.params["epochs"]) for job in planned]
    assert runs == [(split, m, 30) for split in (1, 2) for m, _ in ITEMS["table2"].variants]
    assert len({job.spec.hash for job in planned}) == 24


def test_data_sets_that_cannot_be_had_are_left_empty_with_the_reason(made, tmp_path, capsys):
    (tmp_path / "raw").mkdir()
    words = ["reproduce", "table1,fig3", "--raw", str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "FMNIST-MIPL, r = 1 is left empty" in said
    assert "C-KMeans is left empty" in said
    assert made == []
    assert "paper 20810" in (tmp_path / "out" / "table1" / "table.md").read_text()


def test_table_1_has_the_bags_that_runs_would_use(made, tmp_path):
    assert main(["reproduce", "table1", "--quick", "--out", str(tmp_path)]) == 0
    line = (tmp_path / "table1" / "table.csv").read_text().splitlines()[-1].split(",")
    bags = Source("digits-mipl-vectors", 1).open()
    assert line[0] == "digits-mipl-vectors"
    assert line[1] == str(len(bags))
    assert line[3] == str(bags.sizes.sum())
    assert made == []


def test_what_a_figure_needs_besides_is_kept_by_the_runs_of_the_first_split(tmp_path, plan):
    planned = plan(["fig2", "figA1", "figA2", "figA7"], Options(tmp_path, quick=True, splits=(2, 1)))
    held = {(job.split, job.share, job.params["epochs"], job.extras) for job in planned}
    shares = {(1, share, 5, ("cost",)) for share in ITEMS["figA7"].shares}
    assert held == {(1, 1.0, 30, ("features", "training")), (2, 1.0, 30, ()), *shares}
    assert len({job.spec.hash for job in planned}) == len(planned) == 9 * (1 + 1 + 10)


def test_draw_only_runs_nothing_and_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "run_jobs", lambda jobs, *_: [] if not jobs else pytest.fail("a run"))
    assert main(["reproduce", "tableA3,table3", "--draw-only", "--out", str(tmp_path)]) == 0
    assert {path.parent.name for path in tmp_path.glob("*/about.json")} == {"table3", "tableA3"}
    words = ["reproduce", "table1,table3", "--draw-only", "--quick", "--out", str(tmp_path)]
    assert main(words) == 0  # Table 1 counts bags: it is drawn where data are named
    assert "150" in (tmp_path / "table1" / "table.csv").read_text(encoding="utf-8")


def test_all_is_every_name(tmp_path, monkeypatch):
    written = []
    undrawn = {name: dataclasses.replace(item, draw=lambda *_: None) for name, item in ITEMS.items()}
    monkeypatch.setattr(reproduction, "ITEMS", undrawn)
    monkeypatch.setattr(reproduction, "write_output", lambda name, *_: written.append(name))
    monkeypatch.setattr(reproduction, "write_page", lambda folder, order: folder)
    reproduce(["all"], Options(tmp_path, quick=True, draw_only=True), "it")
    assert written == names()
    written.clear()
    reproduce(["all"], Options(tmp_path, draw_only=True), "it")
    assert written == [name for name in names() if name != "table1"]  # without raw files it stays as it is


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tabel2", "--quick"], "Did you mean 'table2'?"),
        (["table2"], "--raw DIR"),
        (["table2", "--raw", "nowhere"], "not a folder"),
        (["table2", "--draw-only", "--records", "nowhere"], "not a folder of records"),
        (["table1", "--draw-only"], "Table 1 is computed from the raw files"),
        (["fig3", "--quick", "--engine", "slurm"], "no engine 'slurm'"),
        (["fig3", "--quick", "--recipe", "pasta"], "no recipe 'pasta'"),
    ],
)
def test_bad_words_are_one_sentence_and_nothing_is_written(words, sentence, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bags_that_were_built_are_opened_as_they_were(tmp_path, gaussian):
    gaussian.save(tmp_path / "built.npz")
    source = Source("crc5-row", raw="nowhere", built=str(tmp_path / "built.npz"))
    assert source.name == "crc5-row"
    assert source.open().digest() == gaussian.digest()
    missing = dataclasses.replace(source, built=str(tmp_path / "none.npz"))
    with pytest.raises(OSError, match="nowhere"):
        missing.open()


def test_noise_is_part_of_the_data_and_of_their_name(tmp_path, gaussian, made):
    gaussian.save(tmp_path / "bags.npz")
    clean = Source(str(tmp_path / "bags.npz"))
    label = dataclasses.replace(clean, class_noise=0.5)
    lost = label.open()
    assert label.name == "bags.npz class noise 0.5"
    assert (~lost.candidates[range(len(lost)), lost.labels]).sum() == len(lost) / 2
    fewer = dataclasses.replace(clean, attribute_noise=0.2)
    assert fewer.name == "bags.npz attribute noise 0.2"
    assert fewer.open().sizes.sum() < gaussian.sizes.sum()
    out = str(tmp_path / "out")
    words = ["run", clean.data, "--splits", "1", "--set", "epochs=1", "--out", out]
    assert main([*words, "--class-noise", "1.5"]) == 2


def test_the_levels_of_noise_are_planned(tmp_path, plan):
    planned = plan(["figA6"], Options(tmp_path, quick=True))
    assert len(planned) == 33
    assert {job.spec.dataset for job in planned} == {dataset for dataset, _ in ITEMS["figA6"].quick_sets}
    assert len({job.data_digest for job in planned}) == 11


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_same_table(made, tmp_path):
    """Kill the command before its first run is done, between two runs, and after the last one."""
    command = [sys.executable, "-m", "mipl.cli", *WORDS, "--jobs", "1", "--out", str(tmp_path / "killed")]
    records = tmp_path / "killed" / "records"
    chance = random.Random()
    for finished, longest in ((0, 2.0), (1, 1.0), (2, 0.1)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(list(records.glob("[0-9a-f]*/record.json"))) < finished:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "killed" / "index.html").exists()  # there was more to be made
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert main([*WORDS, "--out", str(tmp_path / "whole")]) == 0
    for file in ("fig3/table.csv", "fig3/table.md", "fig3/figure.svg"):
        killed, whole = ((tmp_path / folder / file).read_bytes() for folder in ("killed", "whole"))
        assert killed == whole
