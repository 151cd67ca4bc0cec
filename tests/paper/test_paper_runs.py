"""Which records a number is made of."""

import math
from dataclasses import replace

import pytest
from made_up import record

from mipl.paper.names import mark_of, method_title, set_title
from mipl.paper.runs import RunIndex, RunQuery
from mipl.records.store import Store

BIRD = RunQuery("birdsong-mipl", 1, "sam-cn")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_only_what_was_asked_for_is_used(store):
    wanted = [record(store.root, "birdsong-mipl", 1, "sam-cn", split) for split in (2, 1)]
    for split, given, changes in (
        (11, (), {}),
        (1, (("gamma", 2.0),), {}),
        (1, (("epochs", 5),), {}),
        (1, (), {"recipe": "paper"}),
        (1, (), {"seed": 1}),
        (1, (), {"splits": "fold of 3"}),
        (1, (), {"splits": "official"}),
        (1, (), {"share": 0.5}),
        (1, (), {"data_digest": "other"}),
    ):
        record(store.root, "birdsong-mipl", 1, "sam-cn", split, given, **changes)
    runs = RunIndex(store)
    assert [found.spec["split"] for found in runs.find(BIRD)] == [1, 2]
    assert set(runs.used) == {spec.hash for spec in wanted}
    mean = runs.mean(BIRD, "accuracy")
    values = [100 * found.metrics["accuracy"] for found in runs.find(BIRD)]
    assert (mean.mean, mean.runs) == (pytest.approx(sum(values) / 2), 2)
    assert mean.std == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    with_epochs = RunIndex(store, epochs=5)
    assert with_epochs.mean(BIRD, "ece").runs == 1
    assert with_epochs.mean(BIRD, "ece").std is None


def test_obsolete_runs_are_never_averaged_with_current_ones(store):
    for split in (1, 2, 3):
        record(store.root, "birdsong-mipl", 1, "sam-cn", split, recipe_version=2)
        record(store.root, "birdsong-mipl", 1, "miplma", split, recipe_version=2)
    new = record(store.root, "birdsong-mipl", 1, "sam-cn", 1, recipe_version=3)
    runs = RunIndex(store)
    assert [found.info["hash"] for found in runs.find(BIRD)] == [new.hash]
    assert runs.mean(BIRD, "accuracy").std is None
    assert runs.gain(BIRD, replace(BIRD, method="miplma"), "accuracy") is None
    assert RunIndex(store, splits=[2]).mean(BIRD, "accuracy").runs == 1


def test_official_splits_are_not_mixed_with_others(store):
    for split in (1, 2):
        record(store.root, "birdsong-mipl", 1, "sam-cn", split)
    for split in (1, 2, 3, 4):
        record(store.root, "birdsong-mipl", 1, "sam-cn", split, splits="official")
    assert {found.spec["splits"] for found in RunIndex(store).find(BIRD)} == {"official"}


def test_a_record_without_what_is_asked_for_is_missing(store):
    record(store.root, "birdsong-mipl", 1, "sam-cn", 1, cost=False)
    runs = RunIndex(store, splits=[1, 2], folder="here")
    for extras in ("features", "training", "cost"):
        assert runs.find(replace(BIRD, extras=(extras,), first_split=True)) == []
    assert runs.find(replace(BIRD, share=0.2)) == []
    words = "mipl run birdsong-mipl -r 1 --raw DIR --methods sam-cn"
    assert runs.commands()[1:] == [
        f"{words} --with training --splits 1 --out here",
        f"{words} --with cost --splits 1 --out here",
        f"{words} --share 0.2 --splits 1-2 --out here",
    ]
    for split in (2, 1):
        record(store.root, "birdsong-mipl", 1, "sam-cn", split, extras=True)
    found = RunIndex(store).find(replace(BIRD, extras=("features", "training"), first_split=True))
    assert [each.spec["split"] for each in found] == [1]


def test_the_embedded_data_have_epochs_of_their_own(store):
    record(store.root, "digits-mipl", 1, "sam-cn", 1, (("epochs", 5),))
    digits = RunQuery("digits-mipl", 1, "sam-cn")
    assert RunIndex(store, quick_epochs=5).find(digits)
    assert not RunIndex(store).find(digits)
    assert not RunIndex(store, epochs=5).find(digits)
    assert "--raw" not in RunIndex(store).command(digits)


def test_what_is_missing_has_one_command_for_each_data_set(store):
    runs = RunIndex(store, splits=[1, 2, 3], folder="here")
    for method in ("dam-cc", "dam-cn"):
        assert runs.mean(RunQuery("sival-mipl", 2, method), "accuracy") is None
    runs.find(RunQuery("c-row", None, "sam-cn", (("gamma", 2.0),)))
    runs.find(RunQuery("c-row", None, "pop"), required=False)
    assert runs.commands() == [
        "mipl run sival-mipl -r 2 --raw DIR --methods dam-cc,dam-cn --splits 1-3 --out here",
        "mipl run c-row --raw DIR --methods sam-cn --set gamma=2.0 --splits 1-3 --out here",
    ]
    noise = runs.command(RunQuery("sival-mipl class noise 0.2", 1, "miplma"))
    assert (
        noise
        == "mipl run sival-mipl -r 1 --raw DIR --class-noise 0.2 --methods miplma --splits 1-3 --out here"
    )
    other = RunIndex(store, splits=[1, 4], recipe="paper", epochs=7)
    assert other.command(BIRD).endswith("--set epochs=7 --recipe paper --splits 1,4 --out RECORDS")


def test_marks_and_names(store):
    for dataset, origin, mark in (
        ("birdsong-mipl", "rebuilt from raw data", "†"),
        ("c-row", "the authors' file", ""),
        ("crc5-row", "rebuilt from raw data", "‡"),
    ):
        spec = record(store.root, dataset, None, "sam-cn", 1, origin=origin)
        assert mark_of([store.get(spec)]) == mark
    assert set_title("fmnist-mipl", 2) == "FMNIST-MIPL, r = 2"
    assert set_title("c-r34-25") == "C-R34-25"
    assert set_title("sival-mipl class noise 0.2", 1) == "SIVAL-MIPL class noise 0.2, r = 1"
    assert set_title("crc5-lite0-9") == "crc5-lite0-9"
    assert method_title("elimipl") == "ELIMIPL"
    assert method_title("sam-cn", {"gamma": 2.0}) == "SAM-CN (gamma = 2.0)"
    assert method_title("pop-cc", (("pooling", "maxmin"),)) == "POP-CC MaxMin"
