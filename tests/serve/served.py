"""Helpers of the server tests: a small model, bags it misclassifies, request bodies, and a server process."""

import contextlib
import dataclasses
import functools
import io
import os
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import h5py
import numpy as np

from mipl import CDLClassifier
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.serve.app import make_app
from mipl.serve.dashboard import Dashboard
from mipl.serve.reviews import Reviews
from mipl.serve.server import listen, make_server

NAMES = ["ash", "birch", "cedar", "elm"]


def noisy_bags(first, last):
    """Return noisy bags, some of which a model misclassifies."""
    bags = gaussian_bags(bags=last, k=4)
    rng = np.random.default_rng(0)
    arrays = [bag.instances + 4 * rng.normal(size=bag.instances.shape) for bag in bags]
    known = (bags.candidates[first:last], bags.labels[first:last], NAMES)
    return Bags.from_list(arrays[first:last], *known, ids=[f"bag{i}" for i in range(first, last)])


def with_places(bags):
    """Return bags whose instances lie on a grid of four columns in an image of 96 pixels."""
    rows = np.concatenate([np.arange(size) for size in bags.sizes])
    return dataclasses.replace(bags.packed(), coordinates=np.stack([rows % 4, rows // 4], axis=1) * 24)


BAGS_WITH_PLACES = with_places(noisy_bags(120, 130))


@functools.cache
def small_model():
    """Return a model trained on bags 0 to 119, once for all tests."""
    return CDLClassifier(epochs=5, random_state=0).fit(noisy_bags(0, 120))


def app_of(model, bags=None, path=None, images=None, **kwargs):
    if bags is None:
        return make_app(model, **kwargs)
    dashboard = Dashboard(model, bags, images)
    return make_app(model, dashboard, Reviews(path, dashboard.index, dashboard.classes), **kwargs)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def h5(**arrays):
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        for name, array in arrays.items():
            store[name] = array
    return file.getvalue()


def save_files(folder, bags):
    small_model().save(folder / "model")
    bags.save(folder / "bags.npz")
    return folder


@contextlib.contextmanager
def in_a_thread(app):
    """Yield the address of an app served by a thread, which starts faster than a process."""
    server = make_server(app)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def serving(files, reviews, *words):
    """Yield the process of ``mipl serve`` on the files of `save_files`, and its address."""
    command = [sys.executable, "-m", "mipl.cli", "serve", files / "model", "--data", files / "bags.npz"]
    log = reviews.with_suffix(".log").open("w")  # an unread pipe would block the server when full
    process = subprocess.Popen(
        [str(word) for word in (*command, "--reviews", reviews, "--port", "0", *words)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "MIPL_TOKEN"},
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving on http://127.0.0.1:"), log_of(reviews)
        yield process, urlsplit(line.split()[-1]).netloc
    finally:
        process.kill()
        process.communicate()
        log.close()


def log_of(reviews):
    return reviews.with_suffix(".log").read_text()
