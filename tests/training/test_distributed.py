"""Several processes train one model: the same as one process would, and one can go on from them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from mipl import load, make_classifier
from mipl.cli import main
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError
from mipl.training.distributed import FabricGroup, ProcessGroup


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_model(a, b, tolerance=2e-3):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with bags, and the model that one process makes of them."""
    folder = tmp_path_factory.mktemp("parallel")
    gaussian_bags(bags=61).save(folder / "bags.npz")  # odd: the shares differ in size
    assert main(command(folder, "one")) == 0
    return folder


def command(folder, out, *words):
    # no dropout: each process draws its own; the estimated trust is a sum over all bags
    chosen = ("epochs=40", "dropout=0", "batch_size=5", "trust=estimate", "ensemble=1")
    settings_ = [word for value in chosen for word in ("--set", value)]
    return ["fit", str(folder / "bags.npz"), "--out", str(folder / out), *settings_, *words]


def start(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "mipl.cli", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_two_processes_are_killed_and_one_goes_on(trained):
    together = ("--devices", "2", "--accelerator", "cpu", "--checkpoint", str(trained / "state"))
    process = start(*command(trained, "resumed", *together))
    stored = trained / "state" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not stored.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    with safe_open(stored, framework="pt") as state:
        assert 1 <= int(state.metadata()["epoch"]) < 40
        assert state.get_tensor("weights").shape == (61, 3)  # of both processes
        np.testing.assert_allclose(state.get_tensor("weights").sum(dim=1), 1, atol=1e-5)
    assert main(command(trained, "resumed", "--checkpoint", str(trained / "state"))) == 0
    assert_same_model(trained / "one", trained / "resumed")


@pytest.mark.slow
def test_two_processes_make_the_model_of_one(trained):
    process = start(*command(trained, "two", "--devices", "2", "--accelerator", "cpu", "--json"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count('"model"') == 1  # only the first process speaks
    assert_same_model(trained / "one", trained / "two")


@pytest.mark.slow
def test_two_processes_train_an_ensemble(trained):
    words = ("--set", "ensemble=3", "--set", "epochs=4", "--devices", "2", "--accelerator", "cpu", "--json")
    process = start(*command(trained, "ensemble", *words))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    model = load(trained / "ensemble")
    assert len(model.network_.members) == 3
    assert len(model.history_["loss"]) == 4
    assert model.score(gaussian_bags(bags=61)) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("ensemble", [1, 3])
def test_half_precision_learns_and_keeps_whole_weights(ensemble):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", precision="bf16-mixed")
    bags = gaussian_bags(bags=80)
    model = make_classifier("sam-cn", ensemble=ensemble, epochs=40).fit(bags, fabric=fabric)
    assert model.score(bags) > 0.8
    assert {p.dtype for p in model.network_.parameters()} == {torch.float32}


def test_one_process_has_nothing_to_say():
    alone, rows = ProcessGroup(), torch.ones(3, 2)
    alone.add([rows])
    assert torch.equal(alone.join(rows, 3), torch.ones(3, 2))


def test_what_cannot_be_shared_is_said(trained, capsys):
    fabric = pytest.importorskip("lightning_fabric")
    with pytest.raises(SettingError, match=r"fabric\.launch"):
        FabricGroup(fabric.Fabric(accelerator="cpu", devices=2, strategy="ddp"))
    with pytest.raises(SettingError, match="32-true or bf16-mixed"):
        FabricGroup(fabric.Fabric(accelerator="cpu", precision="64-true"))
    for words, wanted in (
        (("--precision", "16-mixed"), "32-true or bf16-mixed"),
        (("--accelerator", "abacus"), "devices cannot be used"),
    ):
        assert main(command(trained, "none", *words)) == 2
        assert wanted in capsys.readouterr().err
    assert not (trained / "none").exists()
