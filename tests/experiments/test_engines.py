"""Runs in parallel processes, with real processes killed."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mipl.data.benchmarks import gaussian_bags
from mipl.data.sources import Source
from mipl.data.splits import stratified_split
from mipl.estimators import make_classifier
from mipl.experiments.engines import run_local
from mipl.experiments.runner import Job, run
from mipl.records.store import Store


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "bags.npz"
    gaussian_bags().save(path)
    return Source(str(path))


def job(source, store, split=1, method="sam-cn", **params):
    digest = source.open().digest()
    return Job(source, method, {"epochs": 2, **params}, split, "stratified", 0, digest, str(store))


def test_a_record_is_what_the_estimator_gives(source, tmp_path):
    run([job(source, tmp_path)])
    record = Store(tmp_path).get(job(source, tmp_path).spec)
    bags = source.open()
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", epochs=2).fit(bags[train])
    np.testing.assert_array_equal(
        record.arrays["probabilities"], model.predict_proba(bags[test]).astype(np.float32)
    )
    assert record.arrays["ids"].tolist() == bags.ids[test].tolist()
    assert record.metrics["accuracy"] == model.score(bags[test])
    assert len(record.arrays["attention"]) == bags[test].sizes.sum()
    assert record.info["data"]["train_bags"] == len(train)


@pytest.mark.slow
def test_parallel_runs_leave_the_records_of_single_ones_with_one_thread_each(source, tmp_path):
    jobs = [job(source, tmp_path / "many", split) for split in (1, 2, 3)]
    assert run_local(jobs, workers=2, show=False) == []
    for each in jobs:
        record = Store(tmp_path / "many").get(each.spec)
        assert record.info["threads"] == 1
        run([job(source, tmp_path / "one", each.split)])
        alone = Store(tmp_path / "one").get(each.spec)
        np.testing.assert_array_equal(record.arrays["probabilities"], alone.arrays["probabilities"])
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_splits_trained_together_have_records_of_their_own(source, tmp_path):
    block = (1, 2, 3)
    jobs = [dataclasses.replace(job(source, tmp_path, split, dropout=0.0), together=block) for split in block]
    alone = job(source, tmp_path, 2, dropout=0.0)
    assert len({each.spec.hash for each in (*jobs, alone)}) == 4
    assert run_local([*jobs, alone], workers=2, show=False) == []
    store = Store(tmp_path)
    for each in jobs:
        assert store.get(each.spec).spec["together"] == [1, 2, 3]
    assert "together" not in store.get(alone.spec).spec
    np.testing.assert_allclose(  # without dropout the same but for rounding
        store.get(jobs[1].spec).arrays["probabilities"],
        store.get(alone.spec).arrays["probabilities"],
        atol=1e-4,
    )
    before = [(tmp_path / each.spec.hash / "record.json").stat().st_mtime_ns for each in jobs]
    (tmp_path / jobs[0].spec.hash / "record.json").write_text("{")
    wanted = store.get(jobs[1].spec).arrays["probabilities"]
    run_local(jobs, workers=1, show=False)  # all three again, so that the first is what it was
    after = [(tmp_path / each.spec.hash / "record.json").stat().st_mtime_ns for each in jobs]
    assert all(a > b for a, b in zip(after, before, strict=True))
    np.testing.assert_array_equal(store.get(jobs[1].spec).arrays["probabilities"], wanted)


@pytest.mark.slow
def test_finished_runs_are_not_run_again_and_damaged_ones_are(source, tmp_path):
    jobs = [job(source, tmp_path, split) for split in (1, 2)]
    run_local(jobs, workers=2, show=False)
    first, second = (tmp_path / each.spec.hash / "record.json" for each in jobs)
    before = first.stat().st_mtime_ns
    second.write_text("{")
    run_local(jobs, workers=2, show=False)
    assert first.stat().st_mtime_ns == before
    assert Store(tmp_path).get(jobs[1].spec) is not None


@pytest.mark.slow
def test_a_failing_and_a_killed_run_cost_only_themselves(source, tmp_path):
    good = job(source, tmp_path, 1)
    diverging = job(source, tmp_path, 2, recipe="paper", lr=1e30)
    endless = job(source, tmp_path, 3, epochs=100_000)

    def kill_the_endless():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            # the endless run is the one still there when the good one has its record
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            workers = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
            if Store(tmp_path).get(good.spec) is not None and len(workers) == 1 and killed_alone():
                os.kill(int(workers[0]), signal.SIGKILL)
                return
            time.sleep(0.2)

    finished = {"diverging": False}

    def killed_alone():
        # the diverging run ends within seconds; give it time, so that the one left is the endless one
        if not finished["diverging"]:
            finished["diverging"] = True
            time.sleep(1.0)
            return False
        return True

    thread = threading.Thread(target=kill_the_endless)
    thread.start()
    failures = run_local([good, diverging, endless], workers=2, show=False)
    thread.join()
    reasons = {failed.split: reason for failed, reason in failures}
    assert set(reasons) == {2, 3}
    assert "became NaN" in reasons[2]
    assert reasons[3] == "its process ended with code -9"
    assert Store(tmp_path).get(good.spec) is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [good.spec.hash]
