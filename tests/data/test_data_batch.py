import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, many

from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.errors import DataError

quick = settings(deadline=None, max_examples=60)


def assert_holds(batch, bags):
    """Assert that a batch is its bags one after the other, with nothing between them."""
    assert batch.instances.dtype == torch.float32
    assert batch.sizes.dtype == batch.index.dtype == torch.int64
    assert len(batch.instances) == batch.sizes.sum()
    assert len(batch.sizes) == len(batch.index)
    start = 0
    for row, (i, size) in enumerate(zip(batch.index.tolist(), batch.sizes.tolist(), strict=True)):
        wanted = bags[i].instances.astype(np.float32)
        if bags[i].instances.dtype == np.uint8:
            wanted = wanted / np.float32(255)
        assert np.array_equal(batch.instances[start : start + size].numpy(), wanted)
        if bags.candidates is None:
            assert batch.candidates is None
        else:
            assert batch.candidates.dtype == torch.bool
            assert batch.candidates[row].tolist() == bags[i].candidates.tolist()
        start += size


@given(given_=arguments(), data=st.data())
@quick
def test_a_batch_is_its_bags_one_after_the_other(given_, data):
    m = len(given_["arrays"])
    bags = Bags.from_list(**given_)[data.draw(st.permutations(range(m)))]
    index = np.array(data.draw(st.lists(st.integers(0, m - 1), max_size=6)), dtype=np.int64)
    batch = BagLoader(bags).batch(index)
    assert batch.index.tolist() == index.tolist()
    assert_holds(batch, bags)


@given(given_=arguments(), size=st.integers(1, 9), seed=st.integers(0, 99))
@quick
def test_an_epoch_has_every_bag_once(given_, size, seed):
    bags = Bags.from_list(**given_)
    batches = list(BagLoader(bags).epoch(size, np.random.default_rng(seed)))
    for batch in batches:
        assert_holds(batch, bags)
    assert [len(batch.index) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    order = [i for batch in batches for i in batch.index.tolist()]
    assert sorted(order) == list(range(len(bags)))
    again = BagLoader(bags).epoch(size, np.random.default_rng(seed))
    assert [i for batch in again for i in batch.index.tolist()] == order


def test_epochs_are_shuffled_each_anew():
    loader, rng = BagLoader(many([1] * 30)), np.random.default_rng(0)
    first, second = ([i for b in loader.epoch(4, rng) for i in b.index.tolist()] for _ in range(2))
    assert list(range(30)) != first != second != list(range(30))


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 7, 60, 400]), min_size=1, max_size=30), limit=st.integers(1, 80)
)
@quick
def test_in_order_keeps_the_order_and_bounds_the_batches(sizes, limit):
    bags = many(sizes, width=1)
    batches = list(BagLoader(bags).in_order(limit))
    for batch in batches:
        assert len(batch.index) >= 1
        assert_holds(batch, bags)
        # without its first bag, which may begin before the batch's share, a batch is within the limit
        assert batch.sizes[1:].sum() < limit
    assert [i for batch in batches for i in batch.index.tolist()] == list(range(len(bags)))


def test_small_bags_are_not_predicted_one_by_one():
    batches = list(BagLoader(many([4] * 100)).in_order(100))
    assert len(batches) == 4


def test_no_bag_gives_no_batch():
    none = BagLoader(many([1, 2])[[]])
    assert list(none.in_order()) == []
    assert list(none.epoch(2, np.random.default_rng(0))) == []


def test_bytes_are_scaled_to_one_and_other_numbers_are_not():
    image = np.array([[0, 51, 255]], dtype=np.uint8)
    scaled = BagLoader(Bags.from_list([image])).batch(np.array([0])).instances
    assert scaled.tolist() == [[0.0, pytest.approx(0.2), 1.0]]
    kept = BagLoader(Bags.from_list([image.astype(np.float64)])).batch(np.array([0])).instances
    assert kept.tolist() == [[0.0, 51.0, 255.0]]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_writing_to_a_batch_changes_neither_bags_nor_the_users_arrays(dtype):
    arrays = [np.ones((2, 3), dtype), np.ones((1, 3), dtype)]
    bags = Bags.from_list(arrays, [[0], [0, 1]])
    loader, digest = BagLoader(bags), bags.digest()
    for batch in (*loader.in_order(), *loader.epoch(2, np.random.default_rng(0))):
        batch.instances.fill_(7)
        batch.sizes.fill_(7)
        batch.candidates.fill_(False)
    assert bags.digest() == digest
    assert all((array == 1).all() for array in arrays)
    (batch,) = loader.in_order()
    assert_holds(batch, bags)


@quick
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    drop=st.floats(0.01, 0.99),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_dropped_instances_leave_every_bag_a_part_of_itself(sizes, drop, batch_size, seed):
    bags = many(sizes)
    seen = []
    for batch in BagLoader(bags).epoch(batch_size, np.random.default_rng(seed), drop):
        parts = torch.split(batch.instances, batch.sizes.tolist())
        for place, part in zip(batch.index.tolist(), parts, strict=True):
            rows = bags[place].instances.tolist()
            kept = part.tolist()
            assert 1 <= len(kept) <= len(rows)
            places = [rows.index(row) for row in kept]
            assert places == sorted(places)  # in order, none twice
            assert len(set(places)) == len(places)
            seen.append(place)
    assert sorted(seen) == list(range(len(bags)))


def test_the_share_of_dropped_instances_is_the_one_asked_for():
    bags = many([100] * 50)
    kept = sum(len(b.instances) for b in BagLoader(bags).epoch(4, np.random.default_rng(0), 0.3))
    assert kept == pytest.approx(0.7 * 5000, rel=0.03)


@given(
    given_=arguments(),
    size=st.integers(1, 9),
    processes=st.integers(1, 4),
    drop=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 99),
)
@quick
def test_the_shares_of_a_batch_are_the_batch(given_, size, processes, drop, seed):
    bags = Bags.from_list(**given_)
    whole = list(BagLoader(bags).epoch(size, np.random.default_rng(seed), drop))
    shares = [
        list(BagLoader(bags, shard=(rank, processes)).epoch(size, np.random.default_rng(seed), drop))
        for rank in range(processes)
    ]
    for batch, *parts in zip(whole, *shares, strict=True):
        instances = torch.split(batch.instances, batch.sizes.tolist())
        wanted = dict(zip(batch.index.tolist(), instances, strict=True))
        found = {}
        for rank, part in enumerate(parts):
            assert part.step == batch.step == len(batch.index)
            for place, bag in zip(
                part.index.tolist(), part.instances.split(part.sizes.tolist()), strict=True
            ):
                found[place * processes + rank] = bag
            if bags.candidates is not None:
                places = part.index * processes + rank
                assert torch.equal(part.candidates, torch.tensor(bags.candidates)[places])
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[i], wanted[i]) for i in wanted)


def test_batches_read_ahead_are_those_in_memory(tmp_path):
    bags = many([3, 1, 4, 1, 5, 9, 2, 6])
    bags.save(tmp_path / "bags.npz")
    mapped = Bags.load(tmp_path / "bags.npz", mapped=True)
    assert type(mapped.source) is not np.ndarray
    pairs = zip(
        BagLoader(bags).epoch(3, np.random.default_rng(0), 0.3),
        BagLoader(mapped).epoch(3, np.random.default_rng(0), 0.3),
        strict=True,
    )
    for ours, theirs in pairs:
        assert ours.index.tolist() == theirs.index.tolist()
        assert torch.equal(ours.instances, theirs.instances)


def test_what_goes_wrong_while_reading_ahead_is_raised(tmp_path, monkeypatch):
    many([3, 1, 4]).save(tmp_path / "bags.npz")
    loader = BagLoader(Bags.load(tmp_path / "bags.npz", mapped=True))
    batches = loader.epoch(1, np.random.default_rng(0))
    next(batches)
    monkeypatch.setattr(loader, "read", lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(batches)


@given(given_=arguments(), part=st.integers(1, 7))
@quick
def test_stored_rows_are_the_instances_part_by_part(given_, part):
    bags = Bags.from_list(**given_)
    loader = BagLoader(bags)
    for batch, whole in zip(loader.in_order(5, stored=0), loader.in_order(5), strict=True):
        parts = list(batch.instances.parts(part))
        assert all(len(found) == part for found in parts[:-1])
        assert torch.equal(torch.cat(parts), whole.instances)
        assert torch.equal(batch.sizes, whole.sizes)


def test_candidate_sets_of_a_batch_are_there_or_an_error_says_so():
    instances = [np.zeros((2, 3)), np.zeros((1, 3))]
    batch = BagLoader(Bags.from_list(instances, [[0, 1], [1]])).batch(np.array([1]))
    assert batch.candidate_sets.tolist() == [[False, True]]
    with pytest.raises(DataError, match="The bags have no candidate sets"):
        _ = BagLoader(Bags.from_list(instances)).batch(np.array([0])).candidate_sets
