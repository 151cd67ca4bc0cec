"""What the tests of the server share: a small model, bags with and without labels, and a client."""

import functools
import io

import h5py
import numpy as np

from mipl import CDLClassifier
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.serve.app import make_app
from mipl.serve.board import Board
from mipl.serve.reviews import Reviews

NAMES = ["ash", "birch", "cedar", "elm"]


def noisy_bags(first, last, names=NAMES):
    """Bags on which a model errs now and then."""
    bags = gaussian_bags(bags=last, k=4)
    rng = np.random.default_rng(0)
    arrays = [bag.instances + 4 * rng.normal(size=bag.instances.shape) for bag in bags]
    known = (bags.candidates[first:last], bags.labels[first:last], names)
    return Bags.from_list(arrays[first:last], *known, ids=[f"bag{i}" for i in range(first, last)])


@functools.cache
def small_model():
    """Trained once for all tests, on bags 0 to 119."""
    return CDLClassifier(epochs=8, random_state=0).fit(noisy_bags(0, 120))


def app_of(model, bags=None, path=None, **kwargs):
    if bags is None:
        return make_app(model, **kwargs)
    board = Board(model, bags)
    return make_app(model, board, Reviews(path, board.place, board.classes), **kwargs)


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
