"""The contract of a method: what users rely on, whichever method they choose.

A package with a method of its own tests it in one line, ``check_method("my-method")``, or check by check::

    from mipl.testing import CHECKS, MethodContract

    contract = MethodContract("my-method")

    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check):
        getattr(contract, check)()
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import DataError, MiplNotice, SettingError
from mipl.estimators import BagClassifier, load, make_classifier
from mipl.methods import METHODS

ODD_DATA: dict[str, Callable[[], Bags]] = {
    "ragged": lambda: gaussian_bags(bags=40, sizes=(1, 60), seed=1),
    "one feature": lambda: gaussian_bags(bags=40, d=1, k=2, seed=2),
    "25 classes": lambda: gaussian_bags(bags=100, k=25, d=8, seed=3),
    "one candidate": lambda: gaussian_bags(bags=30, r=0, seed=4),
    "every label a candidate": lambda: gaussian_bags(bags=30, r=2, seed=5),
    "one instance": lambda: gaussian_bags(bags=40, sizes=(1, 1), seed=6),
}


class _StopHereError(Exception):
    pass


class MethodContract:
    """The checks of one registered method; each raises an :class:`AssertionError` that says what is wrong.

    Args:
        name: a name of :func:`mipl.list_methods`.
        bags: bags that the method must learn; by default 80 Gaussian bags of four classes.
        epochs: epochs of a training.
    """

    def __init__(self, name: str, bags: Bags | None = None, epochs: int = 12) -> None:
        self.name = name
        # two of four labels are candidates: with two of three, a constant answer fits too well
        self.bags = gaussian_bags(bags=80, k=4) if bags is None else bags
        self.epochs = epochs

    def made(self, **settings: Any) -> BagClassifier:
        """Return the untrained classifier, a small ensemble where an ensemble is the default."""
        ensembled = METHODS[self.name].make().ensembled
        return make_classifier(self.name, ensemble=3 if ensembled else 1, **settings)

    @functools.cached_property
    def fitted(self) -> BagClassifier:
        """The classifier, trained once."""
        with _quiet():
            return self.made(epochs=self.epochs).fit(self.bags)

    def check_learning(self) -> None:
        """Training reaches at least half of the way from chance to perfect."""
        chance, score = 1 / self.bags.k, self.fitted.score(self.bags)
        _require(score >= chance + (1 - chance) / 2, f"the accuracy on the training bags is {score:.3f}")

    def check_probabilities(self) -> None:
        """Probabilities are in [0, 1] and sum to 1; predictions and log-probabilities agree with them."""
        model, bags = self.fitted, self.bags
        p = model.predict_proba(bags)
        _require(p.shape == (len(bags), bags.k), f"the probabilities have the shape {p.shape}")
        _require(bool((p >= 0).all()), "a probability is negative")
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
        np.testing.assert_allclose(np.log(p), model.predict_log_proba(bags), atol=1e-9)
        top = model.classes_[p.argmax(axis=1)]
        _require(bool((model.predict(bags) == top).all()), "predict is not the most probable class")

    def check_order_and_batches(self) -> None:
        """Neither the order of instances nor the other bags of a batch change a prediction."""
        model, bags, rng = self.fitted, self.bags, np.random.default_rng(0)
        together = model.predict_proba(bags)
        shuffled = [bag.instances[rng.permutation(len(bag))] for bag in bags]
        np.testing.assert_allclose(model.predict_proba(shuffled), together, atol=1e-5)
        alone = np.concatenate([model.predict_proba([bag.instances]) for bag in bags])
        np.testing.assert_allclose(alone, together, atol=1e-5)
        order = rng.permutation(len(bags))
        np.testing.assert_allclose(model.predict_proba(bags[order]), together[order], atol=1e-5)

    def check_seeds(self) -> None:
        """The same seed gives the same weights, another seed others."""
        with _quiet():
            again = self.made(epochs=self.epochs).fit(self.bags)
            other = self.made(epochs=self.epochs, random_state=1).fit(self.bags)
        _require(_same_weights(self.fitted, again), "the same seed gives other weights")
        _require(not _same_weights(self.fitted, other), "another seed gives the same weights")

    def check_saving(self) -> None:
        """A model that is saved and loaded predicts the same, with the same parameters and history."""
        with tempfile.TemporaryDirectory() as folder:
            self.fitted.save(Path(folder) / "model")
            loaded = load(Path(folder) / "model")
        same = loaded.predict_proba(self.bags) == self.fitted.predict_proba(self.bags)
        _require(bool(same.all()), "a loaded model predicts something else")
        _require(loaded.get_params() == self.fitted.get_params(), "a loaded model has other parameters")
        _require(loaded.history_ == self.fitted.history_, "a loaded model has another history")

    def check_resuming(self) -> None:
        """Training that is resumed after five epochs gives the same bits."""

        def stop_after_five(done: int, note: str = "") -> None:
            if done == 5:
                raise _StopHereError

        with tempfile.TemporaryDirectory() as folder, _quiet():
            with contextlib.suppress(_StopHereError):
                self.made(epochs=self.epochs).fit(self.bags, checkpoint=folder, report=stop_after_five)
            resumed = self.made(epochs=self.epochs).fit(self.bags, checkpoint=folder)
        _require(_same_weights(self.fitted, resumed), "resumed training gives other weights")
        same = resumed.history_["loss"] == self.fitted.history_["loss"]
        _require(same, "resumed training has another history")

    def check_odd_data(self) -> None:
        """Bags of all sizes, one feature, many classes, one or all candidates give finite probabilities."""
        for kind, make in ODD_DATA.items():
            bags = make()
            with _quiet():
                p = self.made(epochs=2).fit(bags).predict_proba(bags)
            _require(bool(np.isfinite(p).all()), f"a probability is not finite on bags with {kind}")

    def check_texts(self) -> None:
        """The method explains itself: summary, advice, cost and citation are sentences."""
        cls = METHODS[self.name].cls
        for kind in ("summary", "advice", "cost", "citation"):
            text = getattr(cls, kind)
            sentence = text.strip().endswith((".", ")")) and "\n" not in text
            _require(sentence, f"{kind} is not a sentence on one line")
        _require(len(cls.summary) > 80, "the summary is too short to explain the method")

    def check_refusals(self) -> None:
        """Bad input is refused with a sentence."""
        wide, deep = self.bags.feature_shape[0] + 1, self.bags.feature_shape
        _refused(DataError, "trained on", lambda: self.fitted.predict([np.ones((4, wide))]))
        _refused(DataError, "has a NaN", lambda: self.fitted.predict([np.full((4, *deep), np.nan)]))
        unlabelled = Bags.from_list([np.ones((2, *deep))])
        _refused(DataError, "no candidate sets", lambda: make_classifier(self.name).fit(unlabelled))
        _refused(SettingError, "no setting 'epoch'", lambda: make_classifier(self.name, epoch=3))


CHECKS = tuple(name for name in vars(MethodContract) if name.startswith("check_"))


def check_method(name: str, bags: Bags | None = None) -> None:
    """Run all checks of a method; see :class:`MethodContract`."""
    contract = MethodContract(name, bags)
    for check in CHECKS:
        getattr(contract, check)()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ignore notices: a few epochs learn little."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MiplNotice)
        yield


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def _same_weights(one: BagClassifier, other: BagClassifier) -> bool:
    state, twin = one.network_.state_dict(), other.network_.state_dict()
    return all(bool((state[key] == twin[key]).all()) for key in state)


def _refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    try:
        with _quiet():
            call()
    except kind as error:
        _require(words in str(error), f"the error '{error}' does not say '{words}'")
    else:
        raise AssertionError(f"bad input is not refused: expected a {kind.__name__} with '{words}'")
