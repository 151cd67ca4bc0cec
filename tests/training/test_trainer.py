"""The training loop: Algorithm 1's order, resuming, and being stopped for real."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import SettingError, StorageError, TrainingError
from mipl.estimators import CDLClassifier, load, make_classifier
from mipl.methods import METHODS
from mipl.seeding import rng_for, seed_for
from mipl.training.recipe import RECIPES, Recipe, make_recipe
from mipl.training.trainer import train

EPOCHS = 60  # of a training that is stopped by a signal


def single(**settings):
    """Return the classifier of a single network."""
    return CDLClassifier(ensemble=1, **settings)


def build(method, bags, seed=0):
    torch.manual_seed(seed_for("init", seed))
    return method.build(bags.feature_shape, bags.k)


def test_equals_algorithm_1_written_out_by_hand(gaussian):
    """No dropout, plain formulas, autograd: the weights and the table go exactly the paper's way."""
    method = METHODS["sam-cn"].make(dropout=0.0)
    recipe = make_recipe("paper", epochs=3)
    net = build(method, gaussian)
    train(method, net, gaussian, recipe, seed=7)

    twin = build(method, gaussian)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    w = torch.tensor(
        gaussian.candidates / gaussian.candidates.sum(axis=1, keepdims=True), dtype=torch.float32
    )
    loader, T = BagLoader(gaussian), 3
    for t in range(1, T + 1):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.5 * (1 + np.cos(np.pi * (t - 1) / T))
        for i in rng_for("shuffle", 7, t).permutation(len(gaussian)):
            batch = loader.batch(np.array([i]))
            p = twin(batch.instances, batch.sizes).logits.softmax(dim=1)[0]
            S = torch.tensor(gaussian.candidates[i])
            if t >= 2:
                alpha = (T - t) / T
                w[i] = alpha * w[i] + (1 - alpha) * (p * S / (p * S).sum()).detach()
            q, phi = p[S].max(), p[~S].max()
            loss = (1 - q + phi) * -(w[i][S] * p[S].log()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


def test_paper_recipe_is_what_the_authors_ran():
    recipe = RECIPES["paper"]
    assert (recipe.batch_size, recipe.lr, recipe.clip_norm, recipe.epochs) == (1, 0.01, None, 100)
    assert (recipe.pretrain, recipe.ensemble, recipe.components) == (0, 1, 0)
    assert (recipe.background, recipe.instance_dropout, recipe.gamma_at(1)) == (0.0, 0.0, 1.0)
    assert (recipe.optimizer, recipe.weight_decay, recipe.warmup) == ("sgd", 1e-4, 0)
    optimizer = recipe.make_optimizer(torch.nn.Linear(999, 1))
    assert [layers.share for layers in optimizer.layers] == [1.0]


def test_wide_encoder_layers_take_smaller_steps():
    net = METHODS["sam-cn"].make().build((28, 28), 5)
    shares = Recipe(lr=1.0).shares(net)
    share = {id(p): value for value, parameters in shares for p in parameters}
    assert len(share) == len(list(net.parameters()))
    expected = {"encoder.conv1": 1.0, "encoder.conv2": 40 / 500, "encoder.linear": 40 / 800, "head": 1.0}
    for name, value in expected.items():
        module = net.get_submodule(name)
        assert share[id(module.weight)] == share[id(module.bias)] == value


def test_layers_on_vectors_take_whole_steps_however_wide():
    net = METHODS["sam-cn"].make().build((1280,), 5)
    assert [share for share, _ in Recipe().shares(net)] == [1.0]


def test_schedules():
    recipe = Recipe(epochs=10, lr=1.0, warmup=0.0)
    assert recipe.alpha_at(1) == 1.0
    assert [recipe.alpha_at(t) for t in (2, 5, 10)] == [0.8, 0.5, 0.0]
    assert [recipe.alpha_at(t, after=True) for t in (1, 2, 10)] == [1.0, 0.9, 0.1]
    assert recipe.lr_at(1) == 1.0
    assert recipe.lr_at(6) == pytest.approx(0.5)
    assert [recipe.gamma_at(t) for t in (1, 10)] == [1.0, 1.0]
    warm = Recipe(epochs=10, warmup=0.4)
    assert [warm.alpha_at(t) for t in (1, 4, 5, 6, 10)] == [0.0, 0.0, 1.0, pytest.approx(4 / 6), 0.0]
    assert [warm.gamma_at(t) for t in (1, 4, 5, 10)] == [0.0, 0.0, 1.0, 1.0]


def test_a_method_can_have_a_constant_learning_rate(gaussian):
    rates = {
        schedule: make_classifier("promipl", schedule=schedule, epochs=3).fit(gaussian).history_["lr"]
        for schedule in ("cosine", "constant")
    }
    assert len(set(rates["constant"])) == 1
    assert rates["cosine"][0] == rates["constant"][0]
    assert rates["cosine"] == sorted(rates["cosine"], reverse=True)
    with pytest.raises(SettingError, match="schedule = 'linear' must be 'cosine' or 'constant'"):
        make_classifier("promipl", schedule="linear").parts()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ensemble": 0}, "ensemble = 0 must be an integer of at least 1."),
        ({"components": -1}, "components = -1 must be an integer of at least 0."),
        ({"pretrain": -1}, "pretrain = -1 must be an integer of at least 0."),
        ({"weight_decay": -0.1}, "weight_decay = -0.1 must be a finite number of at least 0 or None."),
        ({"background": float("inf")}, "background = inf must be a finite number of at least 0."),
        ({"warmup": 1.0}, "warmup = 1.0 must be a number in [0, 1)."),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with pytest.raises(SettingError) as error:
        Recipe(**settings)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", ["held_out", "starts", "image_lr", "image_tau", "fan_in", "balance", "rate"])
def test_settings_that_no_longer_exist_are_refused(name):
    with pytest.raises(SettingError, match=f"has no setting '{name}'"):
        make_classifier("sam-cn", **{name: 0})


def test_clipping_bounds_a_step(gaussian):
    method = METHODS["sam-cn"].make(dropout=0.0)
    net = build(method, gaussian)
    before = torch.nn.utils.parameters_to_vector(net.parameters()).clone()
    recipe = Recipe(
        epochs=1, batch_size=len(gaussian), lr=0.5, clip_norm=1e-3, weight_decay=0.0, optimizer="sgd"
    )
    train(method, net, gaussian, recipe, seed=0)
    step = (torch.nn.utils.parameters_to_vector(net.parameters()) - before).norm()
    assert step <= 0.5 * 1.9 * 1e-3 * 1.001  # Nesterov: gradient + 0.9 × gradient


def test_history_has_one_value_per_epoch(gaussian):
    history = single(epochs=4).fit(gaussian).history_
    assert {name: len(values) for name, values in history.items()} == dict.fromkeys(history, 4)
    assert {"loss", "lr", "seconds"} <= set(history)
    ensemble = CDLClassifier(epochs=4, ensemble=3).fit(gaussian).history_
    assert {name: len(values) for name, values in ensemble.items()} == dict.fromkeys(history, 4)


def test_initial_weights_replace_the_uniform_start(gaussian):
    weights = np.eye(4)[gaussian.labels].astype(np.float32)
    informed = dataclasses.replace(gaussian, weights=weights)
    model = single(epochs=2, random_state=0)
    assert (
        model.fit(informed).predict_proba(gaussian) != single(epochs=2).fit(gaussian).predict_proba(gaussian)
    ).any()


def test_divergence_is_an_error(gaussian):
    with pytest.raises(TrainingError, match=r"became NaN or infinite in epoch 1 at .*: lower lr"):
        CDLClassifier(recipe="paper", lr=1e30, epochs=2).fit(gaussian)


def test_the_global_random_state_is_left_alone(gaussian):
    torch.manual_seed(123)
    expected = torch.rand(1)
    torch.manual_seed(123)
    single(epochs=1).fit(gaussian)
    assert torch.rand(1) == expected


def test_a_finished_checkpoint_is_not_trained_again(gaussian, tmp_path):
    first = single(epochs=3).fit(gaussian, checkpoint=tmp_path)
    epochs = []
    again = single(epochs=3).fit(
        gaussian, checkpoint=tmp_path, report=lambda done, note="": epochs.append(done)
    )
    assert epochs == []
    assert (again.predict_proba(gaussian) == first.predict_proba(gaussian)).all()


def test_a_checkpoint_of_another_training_is_refused(gaussian, tmp_path):
    single(epochs=2).fit(gaussian, checkpoint=tmp_path)
    for other, what in (
        (single(epochs=3), "recipe"),
        (single(epochs=2, gamma=2.0), "hyper-parameters"),
        (single(epochs=2, random_state=1), "seed"),
    ):
        with pytest.raises(SettingError, match=f"another training, which differs in {what}"):
            other.fit(gaussian, checkpoint=tmp_path)
    with pytest.raises(SettingError, match="differs in data"):
        single(epochs=2).fit(gaussian[:30], checkpoint=tmp_path)


def test_a_damaged_checkpoint_is_refused(gaussian, tmp_path):
    single(epochs=1).fit(gaussian, checkpoint=tmp_path)
    (file,) = tmp_path.rglob("checkpoint.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StorageError, match=r"damaged.*delete it to train from the start"):
        single(epochs=1).fit(gaussian, checkpoint=tmp_path)


def test_a_changed_bit_of_a_checkpoint_is_refused(gaussian, tmp_path):
    single(epochs=1).fit(gaussian, checkpoint=tmp_path)
    (file,) = tmp_path.rglob("checkpoint.safetensors")
    whole = file.read_bytes()
    for place in (-1, -len(whole) // 3, whole.index(b'"epoch":"1"') + 9):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(StorageError, match=r"it differs from its checksum.*delete it to train"):
            single(epochs=1).fit(gaussian, checkpoint=tmp_path)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_stopped_resumes_to_the_same_model(end, gaussian, tmp_path):
    """A real process is trained, stopped in the middle by a real signal, and started again."""
    gaussian.save(tmp_path / "bags.npz")
    command = [sys.executable, "-m", "mipl.cli", "fit", str(tmp_path / "bags.npz"), "--method", "mam-cn"]
    command += [
        *("--set", f"epochs={EPOCHS}", "--set", "ensemble=3"),
        "--json",
        "--checkpoint",
        str(tmp_path / "state"),
        "--out",
        str(tmp_path / "m"),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # what is started in the background of a shell is deaf to SIGINT, and so would its children be
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    state, deadline = tmp_path / "state", time.monotonic() + 60
    while not list(state.rglob("checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(end)
    _, errors = process.communicate(timeout=60)
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert "run the same command to resume" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "m").exists()
    resumed = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert json.loads(resumed.stdout)["epochs"] == EPOCHS
    whole = CDLClassifier("mam", "cn", epochs=EPOCHS, ensemble=3).fit(Bags.load(tmp_path / "bags.npz"))
    found = load(tmp_path / "m").network_.state_dict()
    assert all((found[key] == value).all() for key, value in whole.network_.state_dict().items())
    files = {path.name for path in state.rglob("*") if path.is_file()}
    assert files == {"checkpoint.safetensors"} or end == signal.SIGKILL


@pytest.mark.parametrize("d", [5, 300])
def test_instances_scaled_once_train_the_same_network(tmp_path, d):
    """In memory they are scaled, and projected where they are wide, once; from a file in every step."""
    bags = gaussian_bags(bags=30, k=4, d=d)
    bags.save(tmp_path / "bags.npz")
    for members in (1, 3):
        given = {"epochs": 3, "ensemble": members, "weight_decay": 0.01}
        predicted = [
            make_classifier("sam-cn", **given).fit(each).predict_proba(bags)
            for each in (bags, Bags.load(tmp_path / "bags.npz", mapped=True))
        ]
        np.testing.assert_allclose(*predicted, atol=1e-4)
