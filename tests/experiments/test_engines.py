"""Runs in parallel processes, with real processes killed."""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mipl.cli import main
from mipl.data.benchmarks import gaussian_bags
from mipl.data.sources import Source
from mipl.data.splits import split_digest, stratified_split, training_fraction
from mipl.errors import SettingError
from mipl.estimators import make_classifier
from mipl.experiments.engines import run_local, without_record
from mipl.experiments.runner import Job, is_present, run, split_of
from mipl.records.store import Store


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "bags.npz"
    gaussian_bags().save(path)
    return Source(str(path))


def job(source, store, split=1, method="sam-cn", share=1.0, **params):
    bags = source.open()
    return Job(
        source=source,
        method=method,
        params={"epochs": 2, "ensemble": 1, **params},
        split=split,
        splits="stratified",
        seed=0,
        data_digest=bags.digest(),
        split_digest=split_digest(bags, split_of(bags, "stratified", split, share=share)),
        store=str(store),
        share=share,
    )


def run_here(jobs):
    """Make the runs that an engine would, without the seconds that a new process takes to import torch."""
    for each in without_record(jobs):
        run(each)


def test_a_run_names_only_settings_that_do_something(source, tmp_path):
    """So that a setting added later leaves the runs of before what they were."""
    assert job(source, tmp_path).spec.recipe_settings["background"] == 0.3
    plain = job(source, tmp_path, background=0.0)
    assert "background" not in plain.spec.recipe_settings
    assert "background" not in job(source, tmp_path, recipe="paper").spec.recipe_settings
    assert plain.spec.hash != job(source, tmp_path).spec.hash


def test_a_run_on_vectors_does_not_name_what_is_for_images(source, tmp_path):
    images = job(source, tmp_path)
    vectors = dataclasses.replace(images, vectors=True)
    named, rest = images.spec.recipe_settings, vectors.spec.recipe_settings
    assert named.keys() - rest.keys() == {"pretrain"}
    other = job(source, tmp_path, pretrain=20)
    assert dataclasses.replace(other, vectors=True).spec.hash == vectors.spec.hash
    assert other.spec.hash != images.spec.hash
    run(vectors)
    assert is_present(Store(tmp_path).get(vectors.spec))


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"pretrain": 0}, {"pretrain"}),
        ({"ensemble": 1}, {"ensemble"}),
        ({"components": 0}, {"components"}),
        ({"warmup": 0.0}, set()),
    ],
)
def test_a_run_does_not_name_settings_without_effect(source, tmp_path, given, idle):
    all_named, named = (
        job(source, tmp_path, **{"ensemble": 3, **some}).spec.recipe_settings for some in ({}, given)
    )
    assert all_named.keys() - named.keys() == idle


def test_the_number_of_members_makes_another_run(source, tmp_path):
    hashes = {job(source, tmp_path, ensemble=members).spec.hash for members in (1, 3, 8)}
    assert len(hashes) == 3
    assert job(source, tmp_path, method="demipl", ensemble=1).spec.recipe_settings.get("ensemble") is None


def test_the_record_of_an_ensemble_has_its_signal_and_temperature(source, tmp_path):
    ensemble = dataclasses.replace(job(source, tmp_path, ensemble=3, epochs=6), extras=("attention",))
    run(ensemble)
    record = Store(tmp_path).get(ensemble.spec)
    bags = source.open()
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", ensemble=3, epochs=6).fit(bags[train])
    np.testing.assert_array_equal(
        record.arrays["probabilities"], model.predict_proba(bags[test]).astype(np.float32)
    )
    assert record.info["signal"] == model.out_of_fold_["signal"]
    assert record.info["temperature"] == model.calibration_.scaling.temperature
    assert record.info["weight_decay"] == model.recipe_.weight_decay
    assert len(record.arrays["attention"]) == bags[test].sizes.sum()


def test_a_record_is_what_the_estimator_gives(source, tmp_path):
    run(job(source, tmp_path))
    record = Store(tmp_path).get(job(source, tmp_path).spec)
    bags = source.open()
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", ensemble=1, epochs=2).fit(bags[train])
    np.testing.assert_array_equal(
        record.arrays["probabilities"], model.predict_proba(bags[test]).astype(np.float32)
    )
    assert record.arrays["ids"].tolist() == bags.ids[test].tolist()
    assert record.metrics["accuracy"] == model.score(bags[test])
    assert record.info["data"]["train_bags"] == len(train)
    assert not {"features", "attention", "training_probabilities"} & set(record.arrays)
    # the arithmetic of a bag of mean size n: encoder d → L, two gates L → k and their score, attention, head
    n = bags[test].sizes[np.abs(bags[test].sizes - bags[test].sizes.mean()).argmin()]
    width, k, d = model.method_.width, bags.k, 5
    assert record.info["flops"] >= 2 * n * (d * width + 2 * width * k) + 2 * width * k


def test_extras_are_kept_where_they_are_asked_for_and_change_no_result(source, tmp_path):
    plain = job(source, tmp_path)
    run(plain)
    before = Store(tmp_path).get(plain.spec)
    asked = dataclasses.replace(plain, extras=("features", "training", "cost"))
    assert asked.spec == plain.spec
    assert without_record([plain]) == []
    assert without_record([asked]) == [asked]
    run(asked)
    assert without_record([plain, asked]) == []
    after = Store(tmp_path).get(plain.spec)
    for name, values in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], values)
    bags = source.open()
    train, test = stratified_split(bags, 1)
    model = make_classifier("sam-cn", ensemble=1, epochs=2).fit(bags[train])
    np.testing.assert_array_equal(after.arrays["features"], model.embed(bags[test]).astype(np.float32))
    np.testing.assert_array_equal(
        after.arrays["training_probabilities"], model.predict_proba(bags[train]).astype(np.float32)
    )
    np.testing.assert_array_equal(after.arrays["training_candidates"], bags.candidates[train])
    with pytest.raises(SettingError, match=r"leave '(features|cost)' out"):
        _ = dataclasses.replace(asked, method="proden").spec


def test_a_share_of_the_training_bags_is_another_run(source, tmp_path):
    half = job(source, tmp_path, share=0.5)
    run(half)
    record = Store(tmp_path).get(half.spec)
    assert record.share == 0.5
    assert (record.info["data"]["train_bags"], record.info["data"]["test_bags"]) == (21, 18)
    assert without_record([job(source, tmp_path)]) != []
    bags = source.open()
    train, _ = stratified_split(bags, 1)
    parts = [set(training_fraction(bags, train, share, 1).tolist()) for share in (0.1, 0.5, 1.0)]
    assert parts[0] < parts[1] < parts[2] == set(train.tolist())
    assert {int(bags.labels[i]) for i in parts[0]} == {0, 1, 2}
    with pytest.raises(SettingError, match="above 0"):
        training_fraction(bags, train, 0.0, 1)


@pytest.mark.slow
def test_parallel_runs_leave_the_records_of_single_ones_with_one_thread_each(source, tmp_path):
    jobs = [job(source, tmp_path / "many", split) for split in (1, 2, 3)]
    assert run_local(jobs, workers=2, show=False) == []
    for each in jobs:
        record = Store(tmp_path / "many").get(each.spec)
        assert record.info["threads"] == 1
        run(job(source, tmp_path / "one", each.split))
        alone = Store(tmp_path / "one").get(each.spec)
        np.testing.assert_array_equal(record.arrays["probabilities"], alone.arrays["probabilities"])
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] == "1"


def test_finished_runs_are_not_run_again_and_damaged_ones_are(source, tmp_path):
    jobs = [job(source, tmp_path, split) for split in (1, 2)]
    run_here(jobs)
    first, second = (tmp_path / each.spec.hash / "record.json" for each in jobs)
    before = first.stat().st_mtime_ns
    second.write_text("{")
    run_here(jobs)
    assert first.stat().st_mtime_ns == before
    assert Store(tmp_path).get(jobs[1].spec) is not None


@pytest.mark.slow
def test_a_failing_and_a_killed_run_cost_only_themselves(source, tmp_path):
    good = job(source, tmp_path, 1)
    diverging = job(source, tmp_path, 2, recipe="paper", lr=1e30)
    endless = job(source, tmp_path, 3, epochs=100_000)

    over = threading.Event()

    def kill_the_endless():
        while not over.wait(0.2):
            # the endless run is the one still there, a second later too, when the good one has its record
            alone = set(workers()) if Store(tmp_path).get(good.spec) is not None else set()
            if len(alone) == 1 and not over.wait(1.0) and set(workers()) == alone:
                os.kill(alone.pop(), signal.SIGKILL)

    thread = threading.Thread(target=kill_the_endless)
    thread.start()
    failures = run_local([good, diverging, endless], workers=2, show=False)
    over.set()
    thread.join()
    reasons = {failed.split: reason for failed, reason in failures}
    assert set(reasons) == {2, 3}
    assert "became NaN" in reasons[2]
    assert reasons[3] == "its process ended 3 times with code -9"
    assert Store(tmp_path).get(good.spec) is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [good.spec.hash]


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_done_again(source, tmp_path):
    wanted = job(source, tmp_path)
    killed = []

    def kill_the_first():
        while not killed:
            if found := workers():
                killed.extend(found)
                os.kill(found[0], signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    assert run_local([wanted], workers=1, show=False) == []
    thread.join()
    assert len(killed) == 1
    assert Store(tmp_path).get(wanted.spec) is not None


@pytest.mark.slow
def test_a_cluster_that_loses_a_machine_leaves_the_same_records(source, tmp_path):
    pytest.importorskip("ray")
    jobs = [job(source, tmp_path / "ray", split) for split in (1, 2, 3)]
    jobs.append(job(source, tmp_path / "ray", 4, recipe="paper", lr=1e30))
    # Ray writes to its temporary folder and to the home, and knows clusters by a token: it gets its own. The
    # folder's path must be short, for it holds sockets.
    with tempfile.TemporaryDirectory(prefix="ray") as home:
        own = {
            "HOME": home,
            "RAY_TMPDIR": home,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(),
        }
        script = Path(__file__).with_name("two_machines.py")
        done = subprocess.run(
            [sys.executable, str(script), json.dumps([dataclasses.asdict(each) for each in jobs])],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["lost"]  # the machine went while it was at work
    assert [split for split, _ in outcome["failures"]] == [4]
    assert "became NaN" in outcome["failures"][0][1]
    local = [job(source, tmp_path / "local", each.split) for each in jobs[:3]]
    assert run_local(local, workers=1, show=False) == []
    for there, here in zip(jobs, local, strict=False):
        theirs, ours = (Store(Path(each.store)).get(each.spec) for each in (there, here))
        assert theirs.spec == ours.spec
        for name in ours.arrays:
            np.testing.assert_array_equal(theirs.arrays[name], ours.arrays[name])
        timed = {"seconds", "peak_memory_mb"}
        assert {k: v for k, v in theirs.info.items() if k not in timed} == {
            k: v for k, v in ours.info.items() if k not in timed
        }


def test_an_engine_that_is_not_there_is_refused(source, tmp_path, capsys):
    words = ["run", source.data, "--out", str(tmp_path / "x"), "--splits", "1", "--set", "epochs=1"]
    assert main([*words, "--engine", "rai"]) == 2
    assert "no engine 'rai'. Did you mean 'ray'?" in capsys.readouterr().err
    assert main([*words, "--address", "somewhere:1"]) == 2
    assert "--engine ray" in capsys.readouterr().err
    with socket.socket() as taken:  # a port that nobody listens at
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        pytest.importorskip("ray")
        assert main([*words, "--engine", "ray", "--address", nobody]) == 2
    assert f"No Ray cluster answers at {nobody}" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def workers():
    """Return the ids of the processes that make runs for this one."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(int(pid))
    return found
