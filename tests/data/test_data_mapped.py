"""Bags whose instances stay in their .npz file, and passes over data that are made together."""

import numpy as np
import pytest

from mipl import make_classifier
from mipl.data import sources
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.lazy import FileArray, Part
from mipl.data.sources import Source
from mipl.errors import DataError, StorageError


@pytest.fixture
def file(tmp_path):
    gaussian_bags(bags=40, sizes=(40, 90)).save(tmp_path / "bags.npz")
    return tmp_path / "bags.npz"


def test_mapped_bags_are_the_same_bags(file):
    whole, mapped = Bags.load(file), Bags.load(file, mapped=True)
    assert isinstance(mapped.source, FileArray)
    assert mapped.digest() == whole.digest()
    index = np.array([31, 2, 39, 3, 17])
    assert mapped[index].digest() == whole[index].digest()
    for a, b in zip(mapped[index], whole[index], strict=True):
        np.testing.assert_array_equal(a.instances, b.instances)
        np.testing.assert_array_equal(a.candidates, b.candidates)


def test_training_on_mapped_bags_gives_the_same_model(file):
    models = [make_classifier("sam-cn", epochs=3).fit(Bags.load(file, mapped=m)) for m in (False, True)]
    a, b = (model.network_.state_dict() for model in models)
    assert all((a[key] == b[key]).all() for key in a)
    p, q = (m.predict_proba(Bags.load(file, mapped=True)) for m in models)
    assert (p == q).all()


@pytest.fixture
def reads(monkeypatch):
    """The slices of rows that are read from files."""
    asked, read = [], Part.read
    monkeypatch.setattr(Part, "read", lambda self, rows: asked.append(rows) or read(self, rows))
    return asked


def test_only_the_rows_of_a_bag_are_read(file, reads):
    mapped = Bags.load(file, mapped=True)
    first, last = mapped[0], mapped[len(mapped) - 1]
    both = mapped[np.array([0, len(mapped) - 1])].instances
    assert [s.stop - s.start for s in reads] == 2 * [len(first), len(last)]
    np.testing.assert_array_equal(both, np.concatenate([first.instances, last.instances]))


@pytest.mark.parametrize(
    ("ensemble", "passes"),
    [
        # scaling and digest, one pass per epoch, and the statistics of typicality, of up to 500 bags
        (1, 1 + 2 + 1),
        # with each of two weight decays two epochs and the out-of-fold predictions, then two on all bags
        (4, 1 + 2 * (2 + 1) + 2 + 1),
    ],
)
@pytest.mark.filterwarnings("ignore:The model has learned nothing")
def test_a_fit_reads_the_instances_once_for_scaling_and_once_per_epoch(file, reads, ensemble, passes):
    mapped = Bags.load(file, mapped=True)
    make_classifier("sam-cn", ensemble=ensemble, epochs=2, instance_dropout=0.0).fit(mapped)
    read, total = sum(s.stop - s.start for s in reads), int(mapped.sizes.sum())
    assert total * passes <= read <= total * passes + passes * len(mapped[0])  # and first instances


def test_a_value_that_is_not_finite_is_named_when_it_is_read(tmp_path):
    bags = gaussian_bags(bags=6)
    file = tmp_path / "bags.npz"
    bags.save(file)
    content = dict(np.load(file))
    content["instances"][3, 1] = np.nan
    np.savez(file, **content)
    mapped = Bags.load(file, mapped=True)  # nothing read yet
    with pytest.raises(DataError, match=r"bags\.npz has a NaN, infinite or too large value in row 3"):
        make_classifier("sam-cn", epochs=1).fit(mapped)


def test_what_cannot_be_mapped_is_said(tmp_path):
    bags = gaussian_bags(bags=6)
    file = tmp_path / "bags.npz"
    bags.save(file)
    np.savez_compressed(tmp_path / "small.npz", **dict(np.load(file)))
    with pytest.raises(StorageError, match="compressed or not vectors; do not map them"):
        Bags.load(tmp_path / "small.npz", mapped=True)
    assert Bags.load(tmp_path / "small.npz").digest() == bags.digest()
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:-200])
    with pytest.raises(StorageError, match="damaged"):
        Bags.load(tmp_path / "cut.npz", mapped=True)


def test_large_files_are_mapped_by_themselves(file, monkeypatch):
    assert isinstance(Source(str(file)).open().source, np.ndarray)
    monkeypatch.setattr(sources, "MAPPED_ABOVE", 0.0)
    assert isinstance(Source(str(file)).open().source, FileArray)


def test_a_digest_with_a_visitor_shows_every_row_once_in_order():
    bags = gaussian_bags(bags=20)[np.array([4, 5, 6, 2, 19, 0])]
    seen = []
    assert bags.digest(visit=lambda block: seen.append(block.copy())) == bags.digest()
    np.testing.assert_array_equal(np.concatenate(seen), bags.instances)
