"""A process that is killed at any moment, or a full disk, leaves the old state or the new one."""

import itertools
import os
import shutil
import warnings

import numpy as np
import pytest

import mipl
from fuzz.faults import Fault, run, start, wait
from mipl.data.benchmarks import gaussian_bags
from mipl.errors import MiplNotice, StorageError
from mipl.estimators import CDLClassifier
from mipl.records.spec import RunSpec
from mipl.records.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
SPEC = RunSpec("digits-mipl", 1, "d1", "sam-cn", "stable", {"gamma": 1.0}, {"epochs": 3}, 1, "stratified", 0)
SMALL = {"ensemble": 1, "width": 4, "epochs": 2}


@pytest.fixture(scope="module")
def bags():
    return gaussian_bags(bags=24, k=3)


@pytest.fixture(scope="module")
def models(bags):
    return [CDLClassifier(random_state=seed, **SMALL).fit(bags) for seed in (0, 1)]


def put(store, accuracy):
    arrays = {
        "ids": np.array(["a", "b"]),
        "probabilities": np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32),
        "labels": np.array([1, 0]),
    }
    metrics = {"accuracy": accuracy, "expected_calibration_error": 0.1}
    store.put(SPEC, {"metrics": metrics, "seconds": {"fit": 1.0}}, arrays)


class SavedModel:
    """A model's folder; its state is which of two models predicts."""

    def __init__(self, models, bags):
        self.models, self.bags = models, bags
        self.predictions = [model.predict_proba(bags) for model in models]

    def write(self, place, which):
        self.models[which].save(place / "m")

    def read(self, place):
        try:
            p = mipl.load(place / "m").predict_proba(self.bags)
        except StorageError as error:
            if "is not a model folder" not in str(error):  # but a damaged one
                raise
            return None
        return [bool((p == known).all()) for known in self.predictions].index(True)


class StoredRecord:
    """A store with one run; its state is which accuracy was put."""

    def write(self, place, which):
        put(Store(place), float(which))

    def read(self, place):
        with warnings.catch_warnings():
            warnings.simplefilter("error", MiplNotice)
            record, listed = Store(place).get(SPEC), list(Store(place))
        assert [each.metrics for each in listed] == ([] if record is None else [record.metrics])
        return None if record is None else int(record.metrics["accuracy"])


@pytest.fixture
def saved(request, models, bags):
    return SavedModel(models, bags) if request.param == "model" else StoredRecord()


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "move aside"])
@pytest.mark.parametrize("before", [None, 0], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", ["kill", "full"])
@pytest.mark.parametrize("saved", ["model", "record"], indirect=True)
def test_a_reader_finds_the_old_state_or_the_new_one(saved, kind, before, exchange, fuzz, tmp_path):
    first = tmp_path / "before"
    first.mkdir()
    if before is not None:
        saved.write(first, before)
    counted = shutil.copytree(first, tmp_path / "counted")
    changes = run(lambda: saved.write(counted, 1), Fault(), exchange=exchange).changes
    assert len(changes) > 10
    assert saved.read(counted) == 1
    renames = [at for at, name in enumerate(changes, 1) if name in ("rename", "replace", "_exchange")]
    cases = [at for at in range(1, len(changes) + 1) if at not in renames]
    for at in itertools.chain(renames, fuzz(f"faults ({kind})", cases)):
        place = shutil.copytree(first, tmp_path / str(at))
        end = run(lambda place=place: saved.write(place, 1), Fault(kind, at), exchange=exchange)
        assert end.killed == (kind == "kill"), end
        assert saved.read(place) in (before, 1)
        if kind == "full":
            assert end.expected == bool(end.error), end.error
            assert "No space left on device" in end.error or saved.read(place) == 1
        saved.write(place, 1)  # what was left behind is in nobody's way
        assert saved.read(place) == 1
        shutil.rmtree(place)


@pytest.mark.parametrize("kind", ["kill", "full"])
def test_a_checkpoint_resumes_bit_for_bit_after_a_fault(kind, models, bags, fuzz, tmp_path):
    def fit(place):
        return CDLClassifier(random_state=0, **SMALL).fit(bags, checkpoint=place)

    changes = run(lambda: fit(tmp_path / "counted"), Fault()).changes
    assert len(changes) > 10
    for at in fuzz(f"faults ({kind})", range(1, len(changes) + 1)):
        place = tmp_path / str(at)
        end = run(lambda place=place: fit(place), Fault(kind, at))
        assert end.killed == (kind == "kill"), end
        assert end.expected == bool(end.error), end.error
        resumed = fit(place)
        assert (resumed.predict_proba(bags) == models[0].predict_proba(bags)).all()


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "move aside"])
def test_four_processes_put_one_run_and_a_reader_always_finds_it(exchange, fuzz, tmp_path):
    store = Store(tmp_path)
    put(store, 0.0)
    numbers = list(fuzz("puts of four processes", range(600)))

    def work(own):
        for number in own:
            put(store, float(number))

    children = [start(lambda n=n: work(numbers[n::4]), Fault(), exchange=exchange) for n in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", MiplNotice)
        for _ in range(len(numbers)):
            assert store.get(SPEC) is not None
    assert [wait(child).error for child in children] == [""] * 4
    assert [path.name for path in tmp_path.iterdir()] == [SPEC.hash]


def flips(folder, name, count=200):
    """Return places in a file and the bit to change there, drawn by the file's name."""
    size = (folder / name).stat().st_size
    rng = np.random.default_rng(sum(name.encode()))
    return zip(itertools.repeat(name), rng.integers(size, size=count), rng.integers(8, size=count))


def flipped(folder, fuzz, kind):
    """Yield after each change of one bit of one file of a folder, and undo it."""
    names = sorted(path.name for path in folder.iterdir())
    for name, at, bit in fuzz(kind, itertools.chain.from_iterable(flips(folder, name) for name in names)):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        yield name
        (folder / name).write_bytes(whole)


@pytest.mark.filterwarnings("ignore::mipl.errors.MiplNotice")  # one epoch teaches nothing
def test_a_flipped_bit_of_a_model_is_refused_or_harmless(bags, fuzz, tmp_path):
    model = CDLClassifier(ensemble=3, width=4, epochs=1).fit(bags)  # with a calibration
    model.save(tmp_path / "m")
    p = model.predict_proba(bags)
    refused = dict.fromkeys((path.name for path in (tmp_path / "m").iterdir()), 0)
    assert len(refused) == 5
    for name in flipped(tmp_path / "m", fuzz, "bit flips of a model"):
        try:
            loaded = mipl.load(tmp_path / "m")
        except StorageError:
            refused[name] += 1
        else:
            assert name == "checksums.json"  # white space
            assert (loaded.predict_proba(bags) == p).all()
    assert all(count >= 19 for name, count in refused.items() if name != "checksums.json")


def test_a_flipped_bit_of_a_record_is_refused_or_harmless(fuzz, tmp_path):
    store = Store(tmp_path)
    put(store, 0.5)
    sound = store.get(SPEC)
    for name in flipped(tmp_path / SPEC.hash, fuzz, "bit flips of a record"):
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            record = store.get(SPEC)
        assert [notice.category for notice in notices] == ([MiplNotice] if record is None else [])
        if record is not None:
            assert name == "checksums.json"  # white space
            assert record.info == sound.info
            assert all((record.arrays[key] == sound.arrays[key]).all() for key in sound.arrays)
