"""The identity of a run contains everything that can change its result."""

import dataclasses
import json

import numpy as np
import pytest

from mipl.cli import main
from mipl.data.benchmarks import gaussian_bags
from mipl.data.sources import Source
from mipl.data.splits import split_digest
from mipl.errors import DataError
from mipl.experiments import engines
from mipl.experiments.runner import Job, is_present, run, split_of
from mipl.records.spec import RunSpec
from mipl.records.store import Store
from mipl.training.recipe import RECIPE_VERSION

BAGS = 24


def write_csv(path, patients=None):
    """Write separable bags of two instances; ``patients``: one name per bag, as a column of its own."""
    rng = np.random.default_rng(0)
    lines = ["bag_id,label,candidates,f1,f2" + ("" if patients is None else ",patient")]
    for bag in range(BAGS):
        label = bag % 2
        for _ in range(2):
            f1, f2 = rng.normal(size=2) + 4 * label
            known = f"b{bag},{'xy'[label]},x|y,{f1:.4f},{f2:.4f}"
            lines.append(known + ("" if patients is None else f",{patients[bag]}"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_split(folder, test):
    """Write a split file in CLAM's format with these test bags, all others for training."""
    train = [bag for bag in range(BAGS) if bag not in test]
    rows = [f"b{bag},{f'b{test[i]}' if i < len(test) else ''}" for i, bag in enumerate(train)]
    folder.mkdir(exist_ok=True)
    (folder / "splits_1.csv").write_text("\n".join(["train,test", *rows]) + "\n", encoding="utf-8")


def summary_of(capsys, data, out, *words):
    """Run one split through the command line and return the rows of its summary."""
    settings = ("--set", "epochs=1", "--set", "ensemble=1")
    assert main(["run", str(data), "--splits", "1", *settings, *words, "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["summary"]


@pytest.fixture
def here(monkeypatch):
    """Make runs in this process: a new one takes seconds to import torch."""

    def run_here(jobs, workers, show):
        for job in engines.without_record(jobs):
            run(job)
        return []

    monkeypatch.setattr(engines, "run_local", run_here)


def planned(path, store, **changes):
    """Return the job of split 1 of a file of bags."""
    source = Source(str(path))
    bags = source.open()
    folder = changes.get("split_folder", "")
    kind = "official" if folder else "stratified"
    digest = split_digest(bags, split_of(bags, kind, 1, folder=folder))
    return Job(
        source,
        "sam-cn",
        {"epochs": 1, "ensemble": 1},
        1,
        kind,
        0,
        bags.digest(),
        digest,
        str(store),
        **changes,
    )


def test_a_patient_column_makes_another_run(tmp_path, capsys):
    """With real processes: the second result must not be that of the split that ignored the patients."""
    data, out = tmp_path / "bags.csv", tmp_path / "runs"
    write_csv(data)
    (first,) = summary_of(capsys, data, out)
    (before,) = Store(out)
    patients = [f"p{bag // 4}" for bag in range(BAGS)]
    shared = {patients[int(name[1:])] for name in before.arrays["ids"]}
    assert 0 < len(before.arrays["ids"]) < 4 * len(shared)  # patients are on both sides of the split

    write_csv(data, patients)
    (second,) = summary_of(capsys, data, out)
    (after,) = [record for record in Store(out) if record.info["hash"] != before.info["hash"]]
    assert (first["data_digest"], second["data_digest"]) == tuple(
        record.spec["data_digest"] for record in (before, after)
    )
    assert second["accuracy"] == 100 * after.metrics["accuracy"]
    assert before.spec["split_digest"] != after.spec["split_digest"]
    tested = [patients[int(name[1:])] for name in after.arrays["ids"]]
    assert all(tested.count(patient) == 4 for patient in tested)

    written = {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")}
    assert summary_of(capsys, data, out) == [second]  # nothing has changed: nothing is trained
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")} == written


def test_two_data_sets_of_one_file_name_are_two_rows(tmp_path, capsys, here):
    out = tmp_path / "runs"
    for name, patients in (("one", None), ("two", [f"p{bag // 4}" for bag in range(BAGS)])):
        (tmp_path / name).mkdir()
        write_csv(tmp_path / name / "bags.csv", patients)
        summary_of(capsys, tmp_path / name / "bags.csv", out)
    assert main(["results", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["dataset"], row["runs"]) for row in rows] == [("bags.csv", 1)] * 2
    assert [row["accuracy_std"] for row in rows] == [None, None]
    assert {row["data_digest"] for row in rows} == {record.spec["data_digest"] for record in Store(out)}
    assert main(["results", str(out), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| bags.csv [{row['data_digest'][:8]}] |" in printed for row in rows)
    assert "±" not in printed


def test_other_split_files_at_the_same_path_make_another_run(tmp_path, capsys, here):
    data, out, folder = tmp_path / "bags.csv", tmp_path / "runs", tmp_path / "splits"
    write_csv(data)
    write_split(folder, [0, 1, 2, 3])
    summary_of(capsys, data, out, "--official", str(folder))
    (before,) = Store(out)
    write_split(folder, [4, 5, 6, 7])
    summary_of(capsys, data, out, "--official", str(folder))
    (after,) = [record for record in Store(out) if record.info["hash"] != before.info["hash"]]
    assert before.arrays["ids"].tolist() == ["b0", "b1", "b2", "b3"]
    assert after.arrays["ids"].tolist() == ["b4", "b5", "b6", "b7"]
    differing = [name for name in before.spec if before.spec[name] != after.spec[name]]
    assert differing == ["split_digest"]


def test_what_changes_between_planning_and_training_is_found(tmp_path):
    data, folder = tmp_path / "bags.csv", tmp_path / "splits"
    write_csv(data)
    write_split(folder, [0, 1, 2, 3])
    job = planned(data, tmp_path / "runs", split_folder=str(folder))
    write_split(folder, [4, 5, 6, 7])
    with pytest.raises(DataError, match=r"Split 1 of bags\.csv has changed since the runs were planned"):
        run(job)
    write_split(folder, [0, 1, 2, 3])
    write_csv(data, patients=["p"] * BAGS)
    with pytest.raises(DataError, match=r"^bags\.csv has changed since the runs were planned"):
        run(job)
    assert not (tmp_path / "runs").exists()
    write_csv(data)
    run(job)
    assert Store(tmp_path / "runs").get(job.spec) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": np.arange(60).astype(str)},  # one bag per group: the split itself may stay the same
        {"ids": np.array([f"slide {i}" for i in range(60)])},
        {"missing_truth": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_names_and_groups_the_bags_is_part_of_the_hash(tmp_path, changes):
    bags = gaussian_bags()
    bags.save(tmp_path / "bags.npz")
    plain = planned(tmp_path / "bags.npz", tmp_path).spec
    dataclasses.replace(bags, **changes).save(tmp_path / "bags.npz")
    changed = planned(tmp_path / "bags.npz", tmp_path).spec
    assert changed.data_digest != plain.data_digest
    assert changed.hash != plain.hash


def test_a_record_of_version_1_loads_and_is_not_present(tmp_path, capsys):
    write_csv(tmp_path / "bags.csv")
    store = Store(tmp_path / "runs")
    job = planned(tmp_path / "bags.csv", store.root)
    run(job)
    now = store.get(job.spec)
    assert is_present(now)
    assert (now.recipe_version, now.spec["recipe_version"]) == (RECIPE_VERSION, RECIPE_VERSION)
    old_spec = {name: now.spec[name] for name in now.spec if name not in ("split_digest", "recipe_version")}
    old = RunSpec(**old_spec)
    assert old.to_dict() == old_spec
    kept = {name: value for name, value in now.info.items() if name not in ("format", "hash", "spec")}
    store.put(old, kept, now.arrays)
    record = store.get(old)
    assert record.recipe_version == 1
    assert not is_present(record)
    assert len(list(store)) == 2
    assert main(["results", str(store.root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = [(row["recipe"], row["recipe_version"]) for row in rows]
    assert found == [("stable", RECIPE_VERSION), ("stable, earlier", 1)]
    assert {row["title"] for row in rows} == {"bags.csv"}
