"""Packed records are read like the folders they were made of."""

import json

import numpy as np
import pytest

from mipl.cli import main
from mipl.errors import StorageError
from mipl.records import load_table
from mipl.records.pack import PREDICTIONS, RUNS, read_pack, write_pack
from mipl.records.spec import RunSpec
from mipl.records.store import Store
from mipl.training.recipe import RECIPE_VERSION


@pytest.fixture
def store(tmp_path):
    """Three runs, one of an earlier recipe version."""
    rng, store = np.random.default_rng(0), Store(tmp_path / "runs")
    for split, version in ((1, RECIPE_VERSION), (2, RECIPE_VERSION), (3, 1)):
        spec = RunSpec(
            "birdsong-mipl",
            1,
            "d",
            "sam-cn",
            "stable",
            {},
            {},
            split,
            "stratified",
            0,
            recipe_version=version,
        )
        p = rng.dirichlet(np.full(4, 0.3), size=50).astype(np.float32)
        p[0] = [1, 0, 0, 0]
        arrays = {
            "ids": np.array([f"bag {i}" for i in range(50)]),
            "probabilities": p,
            "labels": rng.integers(4, size=50),
            "attention": rng.random(500),
        }
        metrics = {"accuracy": rng.random(), "expected_calibration_error": rng.random()}
        store.put(spec, {"metrics": metrics, "given": {}, "seconds": {"fit": 3.0}}, arrays)
    return store


def test_a_pack_is_read_like_a_folder(store, tmp_path):
    write_pack(store, tmp_path / "pack")
    packed = {record.info["hash"]: record for record in Store(tmp_path / "pack")}
    assert len(packed) == 3
    for record in store:
        own = packed[record.info["hash"]]
        assert own.info == record.info  # metrics in full precision
        assert set(own.arrays) == {"ids", "probabilities", "labels"}
        np.testing.assert_array_equal(own.arrays["ids"], record.arrays["ids"])
        np.testing.assert_array_equal(own.arrays["labels"], record.arrays["labels"])
        p = record.arrays["probabilities"]
        np.testing.assert_allclose(own.arrays["probabilities"], p, rtol=3e-3, atol=1e-20)
        np.testing.assert_allclose(own.arrays["probabilities"].sum(axis=1), 1, rtol=1e-6)
    assert load_table(tmp_path / "pack").equals(load_table(store.root))


def test_a_run_that_is_there_twice_counts_once(store):
    write_pack(store, store.root)
    assert len(list(store)) == 3
    assert all("attention" in record.arrays for record in store)  # the folder is read, not the pack


def test_the_same_records_make_the_same_files(store, tmp_path):
    for name in ("a", "b"):
        write_pack(store, tmp_path / name)
    for name in (RUNS, PREDICTIONS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_command_packs_the_present_recipe_alone(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mipl.experiments.runner.is_present", lambda record: record.recipe_version > 1)
    assert main(["results", str(store.root), "--pack", str(tmp_path / "pack")]) == 0
    assert "2 runs packed" in capsys.readouterr().err
    assert main(["results", str(tmp_path / "pack"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["runs"] == 2


@pytest.mark.parametrize("name", [RUNS, PREDICTIONS])
def test_a_damaged_or_missing_file_is_named(store, tmp_path, name):
    write_pack(store, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    with pytest.raises(StorageError, match="damaged"):
        list(read_pack(tmp_path))
    (tmp_path / name).unlink()
    with pytest.raises(StorageError, match="damaged"):
        list(read_pack(tmp_path))
