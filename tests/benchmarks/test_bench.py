"""The benchmarks compute what they say; how long it takes is not tested here."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import REPO
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.data.formats.mat import read_mat
from mipl.data.splits import stratified_split
from mipl.losses import cdl_loss
from mipl.methods import METHODS

sys.path.insert(0, str(REPO / "benchmarks"))

import bench
import cases
import cohort
import ensemble
import growth
import lean
import loading
import loop
import machine
import mapped
import measuring
import prediction
import report
import rival
import training


@pytest.fixture
def inline(monkeypatch):
    """Measured functions run here, not in processes of their own: the same results, in less time."""

    def call(module, function, *, threads=None, **arguments):
        done = getattr(importlib.import_module(module), function)(**json.loads(json.dumps(arguments)))
        return {**json.loads(json.dumps(done)), "peak_anon_mb": measuring.anonymous_mb(), "wall_seconds": 1.0}

    for module in (cohort, ensemble, growth, lean, loading, machine, mapped, prediction, training):
        monkeypatch.setattr(module, "call", call)


@pytest.fixture
def no_processes(inline, monkeypatch):
    run = {"wall": 3.0, "fit": 4.0, "threads": [1], "accuracy": 0.9}
    for module in (training, growth):
        monkeypatch.setattr(module, "mipl_run", lambda *_: dict(run))


@pytest.mark.parametrize("attention", ["dam", "sam", "mam"])
@pytest.mark.parametrize("bags", [gaussian_bags(bags=6, k=4), digits_mipl()[:6]], ids=["vectors", "images"])
def test_the_loop_has_the_same_network(attention, bags):
    torch.manual_seed(0)
    plain = loop.Network(bags.feature_shape, bags.k, attention).eval()
    ours = METHODS[f"{attention}-cn"].make().build(bags.feature_shape, bags.k).eval()
    gates = [torch.cat([plain.tanh_gate[0].weight, plain.sigmoid_gate[0].weight])]
    gates.append(torch.cat([plain.tanh_gate[0].bias, plain.sigmoid_gate[0].bias]))
    layers = [each for each in plain.encoder if hasattr(each, "weight")]
    encoder = [each for each in ours.encoder.modules() if hasattr(each, "weight")]
    pairs = [*zip(layers, encoder, strict=True), (plain.score[0], ours.score.score[0])]
    with torch.no_grad():
        for theirs, own in [*pairs, (plain.score[2], ours.score.score[2]), (plain.head, ours.head)]:
            own.weight.copy_(theirs.weight)
            own.bias.copy_(theirs.bias)
        ours.score.gates.weight.copy_(gates[0])
        ours.score.gates.bias.copy_(gates[1])
        batch = BagLoader(bags).batch(np.arange(6))
        together = ours(batch.instances, batch.sizes).logits
        one_by_one = torch.cat([plain(bag) for bag in loop.BagDataset(bags).bags])
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())
    torch.testing.assert_close(one_by_one, together, rtol=1e-4, atol=1e-5)


def test_the_loop_has_the_same_loss():
    torch.manual_seed(0)
    logits, candidates = torch.randn(1, 5), torch.tensor([[True, False, True, False, False]])
    weights = torch.tensor([[0.3, 0.0, 0.7, 0.0, 0.0]])
    expected = cdl_loss(logits, candidates, weights, "cn")
    torch.testing.assert_close(loop.cdl_cn(logits, candidates, weights), expected[0])


def test_the_loop_learns_and_ends_where_it_is_told_to(tmp_path):
    path = tmp_path / "bags.npz"
    gaussian_bags(bags=60, k=4).save(path)
    done = loop.run(str(path), 1, "sam-cn", 12)
    assert done["accuracies"][-1] > 0.6
    assert done["bags"] == 12 * 40
    assert loop.run(str(path), 1, "sam-cn", 12, warm=3, measure=50)["bags"] == 50
    early = loop.run(str(path), 1, "sam-cn", 12, stop_at=0.01)
    assert early["reached"]
    assert early["epochs"] == 1


def test_both_ways_of_loading_give_the_same_bags(tmp_path):
    bags = digits_mipl()[::25]
    for compressed in (False, True):
        loading.write_cells(bags, tmp_path / "bags.mat", compressed)
        instances, sizes, candidates, labels = loading.stacked(tmp_path / "bags.mat")
        read = read_mat(tmp_path / "bags.mat")
        np.testing.assert_array_equal(instances, read.instances)
        np.testing.assert_array_equal(sizes, read.sizes)
        np.testing.assert_array_equal(labels, read.labels)
        assert [np.flatnonzero(row).tolist() for row in read.candidates] == [c.tolist() for c in candidates]


def test_every_row_read_of_a_mapped_set_is_counted(tmp_path):
    mapped.write_set(tmp_path / "set.npz", 12, 100, 8)
    bags = Bags.load(tmp_path / "set.npz", mapped=True)
    assert bags.digest() == Bags.load(tmp_path / "set.npz").digest()
    assert (bags.candidates.sum(axis=1) == 2).all()
    with mapped.counted_reads() as rows:
        for _ in BagLoader(bags).in_order(64):
            pass
    assert sum(rows) == 12 * 100
    found = mapped.train(str(tmp_path / "set.npz"), epochs=3)
    stages = found["passes_by_stage"]
    assert stages["opening"] == 0
    assert stages["after"] == 1  # the statistics of typicality, of up to 500 bags
    assert found["passes"] == pytest.approx(sum(stages.values()))
    assert 1.8 < stages["further epochs"] <= 2.0  # instance dropout leaves some of a bag's ends out
    assert 1.9 < stages["scaling and first epoch"] < 2.1


def test_a_set_is_as_large_as_the_disk_allows():
    one = 4 * 5000 * 512
    assert mapped.fitting_bags(10**15, 1000, 5000, 512) == 1000
    assert mapped.fitting_bags(120 * one, 1000, 5000, 512) == 100


def test_the_arithmetic_of_a_step_is_counted():
    bags = gaussian_bags(bags=8, d=50, sizes=(20, 20))
    k, width = bags.k, loop.WIDTH
    # forward; backward: twice that, but for the gradient of the data
    products = 20 * (50 * width + 2 * width * k + 128 * k + 128) + 20 * width + width * k
    expected = 2 * (3 * products - 20 * 50 * width)
    assert machine.step_gflop(bags, "sam") == pytest.approx(1e-9 * expected, rel=0.01)


def test_bags_of_a_mapped_set_may_differ_in_size(tmp_path):
    sizes = np.array([3, 30, 7, 12])
    mapped.write_set(tmp_path / "set.npz", 4, sizes, 5)
    bags = Bags.load(tmp_path / "set.npz")
    np.testing.assert_array_equal(bags.sizes, sizes)
    assert bags.feature_shape == (5,)


def test_torchmil_is_left_out_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.delenv(rival.PYTHON, raising=False)
    found = rival.section(None, tmp_path, 1, True, None)
    assert found["rows"] == []
    assert rival.PYTHON in found["said"][0]


def test_both_sides_see_the_same_split(tmp_path):
    bags = gaussian_bags(bags=20, k=4)
    rival.write_folders(bags, tmp_path)
    train, test = stratified_split(bags, 1)
    for part, index in (("train", train), ("test", test)):
        names = sorted(path.name for path in (tmp_path / part / "features").iterdir())
        assert len(names) == len(index)
        for name, i in zip(names, index, strict=True):
            assert np.load(tmp_path / part / "features" / name).shape == bags[int(i)].instances.shape
            np.testing.assert_array_equal(np.load(tmp_path / part / "sets" / name), bags.candidates[i])
            assert np.load(tmp_path / part / "labels" / name) == [bags.labels[i]]


def test_exponents_and_ratios():
    assert measuring.exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    row = measuring.ratio_row("x", [10, 20, 30], [1, 1, 1], 15)
    assert (row.value, row.low, row.high) == (20, 10, 30)


def test_splits_and_epochs_are_extrapolated(monkeypatch):
    monkeypatch.setattr(training, "cores", lambda: 2)
    # 20 s of training on two cores and 3 s around them, for 4 splits × 5 epochs
    assert training.whole_run({"wall": 13.0, "fit": 20.0}, 4, 5) == pytest.approx((3 + 10 * 20) * 2.5)
    assert training.whole_run({"wall": 13.0, "fit": 20.0}, 10, 100) == pytest.approx(13)


def test_accuracy_is_reached_by_the_shortest_training(no_processes, monkeypatch, tmp_path):
    case = cases.make_cases(tmp_path, tmp_path, quick=True)[0]
    monkeypatch.setattr(
        training,
        "mipl_run",
        lambda data, methods, splits, epochs, scratch, settings: {
            "wall": splits + epochs, "fit": 1.0, "threads": [1], "accuracy": epochs / 10,
        },
    )  # fmt: skip
    found = training._mipl_to(case, 0.7, tmp_path, 1000.0)
    assert (found["epochs"], found["seconds"]) == (8, 18)
    assert training._mipl_to(case, 2.0, tmp_path, -1.0)["seconds"] is None


def test_everything_runs_small_and_is_written(no_processes, tmp_path, monkeypatch):
    monkeypatch.setenv(measuring.SPARING, "1")
    words = ["--quick", "--out", str(tmp_path / "out"), "--scratch", str(tmp_path)]
    bench.main(words)
    bench.main([*words, "--only", "loading"])
    results = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert tuple(results["sections"]) == bench.SECTIONS
    for name, section in results["sections"].items():
        for row in section["rows"]:
            assert np.isfinite(row["value"])
            assert (row["before"] is not None) == (name == "loading")
    assert (tmp_path / "out" / "bench.png").stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- bench -->\nold\n<!-- /bench -->\nbelow\n")
    report.put_in(page, results)
    assert page.read_text() == f"above\n<!-- bench -->\n{report.markdown(results)}\n<!-- /bench -->\nbelow\n"


def test_the_page_shows_what_the_results_say():
    page = (REPO / "docs" / "speed.md").read_text(encoding="utf-8")
    path = REPO / "results" / "bench" / "bench.json"
    results = json.loads(path.read_text()) if path.is_file() else None
    (shown,) = re.findall(r"<!-- bench -->\n(.*?)\n<!-- /bench -->", page, flags=re.S)
    assert shown == report.markdown(results)
    assert results is None or not results["quick"]


def test_threads_are_set_in_a_process_of_its_own():
    assert measuring.call("machine", "gemm", threads=1, size=8, repeats=1)["threads"] == 1


def test_temporary_data_are_deleted_when_a_benchmark_is_stopped(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import measuring, pathlib\n"
        "with measuring.scratch(pathlib.Path(sys.argv[2])) as folder:\n"
        "    measuring.commands([[sys.executable, '-c', 'import time; time.sleep(60)']])\n"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        words = [sys.executable, "-c", code, str(REPO / "benchmarks"), str(tmp_path)]
        process = subprocess.Popen(  # SIGINT may be ignored here, for example in a shell's background
            words,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 30
        while not (list(tmp_path.iterdir()) and children.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        (child,) = children.read_text().split()
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)


@pytest.mark.slow
def test_the_command_that_is_measured_runs(tmp_path):
    path = tmp_path / "bags.npz"
    gaussian_bags(bags=30, k=4).save(path)
    found = training.mipl_run(str(path), ["sam-cn"], 1, 1, tmp_path, ("ensemble=1",))
    assert found["threads"] == [1]
    assert 0 < found["fit"] < found["wall"]
