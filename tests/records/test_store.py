"""Records: whole or not there, named by what made them."""

import dataclasses
import json

import numpy as np
import pytest

from mipl.errors import MiplNotice
from mipl.records.spec import RunSpec, spec_hash
from mipl.records.store import Store
from mipl.records.summary import summarise

SPEC = RunSpec("digits-mipl", 1, "d1", "sam-cn", "stable", {"gamma": 1.0}, {"epochs": 3}, 1, "stratified", 0)


def put(store, spec, accuracy=0.5):
    arrays = {
        "ids": np.array(["a", "b"]),
        "probabilities": np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32),
        "labels": np.array([1, 0]),
    }
    metrics = {"accuracy": accuracy, "expected_calibration_error": 0.1}
    store.put(spec, {"metrics": metrics, "seconds": {"fit": 1.0}}, arrays)
    return arrays


def test_what_is_put_is_got(tmp_path):
    store = Store(tmp_path / "deep" / "store")
    assert store.get(SPEC) is None
    arrays = put(store, SPEC)
    record = store.get(SPEC)
    assert record.spec == SPEC.to_dict()
    assert record.metrics["accuracy"] == 0.5
    assert all((record.arrays[name] == arrays[name]).all() for name in arrays)
    assert [record.spec for record in store] == [SPEC.to_dict()]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RunSpec)])
def test_any_change_of_the_spec_is_another_run(field):
    value = getattr(SPEC, field)
    changes = {
        "str": lambda v: v + "x",
        "int": lambda v: v + 1,
        "float": lambda v: v / 2,
        "dict": lambda v: {**v, "x": 1},
    }
    other = changes[type(value).__name__]
    assert dataclasses.replace(SPEC, **{field: other(value)}).hash != SPEC.hash


def test_the_hash_does_not_depend_on_the_order_of_settings():
    one = dataclasses.replace(SPEC, hyper_parameters={"a": 1, "b": 2})
    assert one.hash == dataclasses.replace(SPEC, hyper_parameters={"b": 2, "a": 1}).hash
    assert SPEC.hash == "560cae3cd6692157"  # a hash that moved would orphan every record on disk


def damages():
    return {
        "no json": lambda f: (f / "record.json").unlink(),
        "bad json": lambda f: (f / "record.json").write_text("{"),
        "no arrays": lambda f: (f / "predictions.npz").unlink(),
        "cut arrays": lambda f: (f / "predictions.npz").write_bytes(
            (f / "predictions.npz").read_bytes()[:60]
        ),
        "another run": lambda f: (f / "record.json").write_text(
            (f / "record.json").read_text().replace('"split": 1', '"split": 2')
        ),
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_record_is_found_and_replaced(damage, tmp_path):
    store = Store(tmp_path)
    put(store, SPEC)
    damages()[damage](tmp_path / SPEC.hash)
    for file in ("", "checksums.json"):  # a record written before there were checksums has none
        if file:
            (tmp_path / SPEC.hash / file).unlink()
        with pytest.warns(MiplNotice, match=f"{SPEC.hash}.*The record is skipped: delete its folder"):
            assert store.get(SPEC) is None
        with pytest.warns(MiplNotice, match=SPEC.hash):
            assert list(store) == []
    put(store, SPEC, accuracy=0.75)
    assert store.get(SPEC).metrics["accuracy"] == 0.75
    assert [p.name for p in tmp_path.iterdir()] == [SPEC.hash]


@pytest.mark.filterwarnings("ignore::mipl.errors.MiplNotice")
def test_one_changed_byte_of_the_arrays_is_found_or_harmless(tmp_path):
    """Of a record that was written before there were checksums."""
    store = Store(tmp_path)
    arrays = put(store, SPEC)
    (tmp_path / SPEC.hash / "checksums.json").unlink()
    file = tmp_path / SPEC.hash / "predictions.npz"
    whole = file.read_bytes()
    found = 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        record = store.get(SPEC)
        found += record is None
        assert record is None or all((record.arrays[name] == arrays[name]).all() for name in arrays)
    assert found > len(whole) / 3


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError):
        store.put(SPEC, {"metrics": {"accuracy": float("nan")}}, {"ids": np.array(["a"])})
    assert list(tmp_path.iterdir()) == []


def test_summary_is_mean_and_deviation_over_splits(tmp_path):
    store = Store(tmp_path)
    for split, accuracy in ((1, 0.5), (2, 0.7), (3, 0.9)):
        put(store, dataclasses.replace(SPEC, split=split), accuracy)
    (row,) = summarise(store)
    assert (row["method"], row["runs"]) == ("sam-cn", 3)
    assert row["accuracy"] == pytest.approx(70)
    assert row["accuracy_std"] == pytest.approx(20)
    assert row["accuracy_min"] == pytest.approx(50)
    assert json.dumps(row)


def test_a_single_run_has_no_standard_deviation(tmp_path):
    put(Store(tmp_path), SPEC)
    (row,) = summarise(Store(tmp_path))
    assert (row["runs"], row["accuracy_std"], row["ece_std"]) == (1, None, None)


@pytest.mark.parametrize(
    "changes", [{"data_digest": "d2"}, {"recipe_version": 2}, {"recipe_settings": {"epochs": 4}}, {"seed": 5}]
)
def test_other_data_versions_and_seeds_are_rows_of_their_own(changes, tmp_path):
    store = Store(tmp_path)
    put(store, SPEC, 0.5)
    put(store, dataclasses.replace(SPEC, split=2, **changes), 0.7)
    assert [row["runs"] for row in summarise(store)] == [1, 1]


def test_fields_that_came_later_are_left_out_at_their_defaults():
    """So that records without them are still found under their hash."""
    assert not {"share", "split_digest", "recipe_version"} & SPEC.to_dict().keys()
    later = dataclasses.replace(SPEC, share=0.5, split_digest="s", recipe_version=2)
    assert RunSpec(**json.loads(json.dumps(later.to_dict()))).hash == later.hash


def test_a_record_with_a_field_that_was_removed_still_loads(tmp_path):
    """Its spec is stored as it was, and so keeps its hash."""
    store = Store(tmp_path)
    put(store, SPEC)
    old = {**SPEC.to_dict(), "together": [1, 2]}
    assert spec_hash(old) == "698a04fe8fd45b1d"  # as computed when the field existed
    (tmp_path / SPEC.hash).rename(tmp_path / spec_hash(old))
    file = tmp_path / spec_hash(old) / "record.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps({**info, "spec": old, "hash": spec_hash(old)}))
    (file.parent / "checksums.json").unlink()
    (record,) = store
    assert record.spec == old
    assert [row["runs"] for row in summarise([record, record])] == [1]
