"""Cohorts as they are: patients with several slides, joined tables, single vectors, very large bags."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.data.formats.h5 import open_folder, patient_bags
from mipl.data.formats.labels import apply_label_table
from mipl.data.sources import Source
from mipl.errors import DataError, MiplNotice


def write_slides(folder, slides, width=3):
    """Write one .npy file per slide and return the arrays."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(rows, width)).astype(np.float32) for name, rows in slides.items()}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


@pytest.fixture
def cohort(tmp_path):
    arrays = write_slides(tmp_path / "slides", {"b1": 2, "a1": 3, "b2": 4, "c": 1})
    (tmp_path / "labels.csv").write_text(
        "slide_id,patient,candidates,label\nb1.svs,B,x|y,x\na1.svs,A,y,y\nb2.svs,B,x|z,x\nc,C,z,z\n"
    )
    return tmp_path, arrays


def test_slides_of_a_patient_are_one_bag(cohort):
    folder, arrays = cohort
    bags = open_folder(folder / "slides", folder / "labels.csv", by_patient=True)
    assert bags.ids.tolist() == ["A", "B", "C"]
    assert bags.sizes.tolist() == [3, 6, 1]
    together = {"A": ["a1"], "B": ["b1", "b2"], "C": ["c"]}
    for bag in bags:
        np.testing.assert_array_equal(bag.instances, np.concatenate([arrays[s] for s in together[bag.id]]))
    sets = [{bags.classes[j] for j in np.flatnonzero(row)} for row in bags.candidates]
    assert sets == [{"y"}, {"x", "y", "z"}, {"z"}]  # the union over the slides
    assert [bags.classes[label] for label in bags.labels] == ["y", "x", "z"]
    assert bags.groups.tolist() == bags.ids.tolist()


def test_bags_in_memory_and_on_disk_are_joined_alike(cohort):
    folder, _ = cohort
    slides = open_folder(folder / "slides", folder / "labels.csv")
    on_disk, in_memory = patient_bags(slides), patient_bags(slides.packed())
    assert on_disk.digest() == in_memory.digest()
    slides.save(folder / "bags.npz")
    assert Source(str(folder / "bags.npz"), bag="patient").open().digest() == on_disk.digest()


def test_patients_that_cannot_be_joined(cohort, capsys):
    folder, _ = cohort
    (folder / "two.csv").write_text(
        "slide_id,patient,candidates,label\nb1,B,x|y,x\na1,A,y,y\nb2,B,x|y,y\nc,C,x,x\n"
    )
    with pytest.raises(DataError, match="Patient 'B' has slides with different labels"):
        open_folder(folder / "slides", folder / "two.csv", by_patient=True)
    words = ["data", "info", str(folder / "slides"), "--bag"]
    assert main([*words, "patient"]) == 2
    assert "patients of the slides are unknown" in capsys.readouterr().err
    assert main([*words, "lesion"]) == 2
    assert "--bag lesion must be slide or patient" in capsys.readouterr().err


def test_one_vector_per_file_is_a_bag_of_one(tmp_path):
    rng = np.random.default_rng(0)
    vectors = {f"s{i}": rng.normal(size=5).astype(np.float32) for i in range(3)}
    for name, vector in vectors.items():
        np.save(tmp_path / f"{name}.npy", vector)
    np.save(tmp_path / "s3.npy", rng.normal(size=(2, 5)).astype(np.float32))
    bags = open_folder(tmp_path)
    assert bags.sizes.tolist() == [1, 1, 1, 2]
    for name, vector in vectors.items():
        np.testing.assert_array_equal(bags[bags.ids.tolist().index(name)].instances, vector[None])


def test_later_tables_win_and_a_note_says_what_was_joined(cohort):
    folder, _ = cohort
    (folder / "late.csv").write_text("bag_id,candidates\n/data/a1.tiff,x|z\nc.svs,z\n")
    with pytest.warns(
        MiplNotice, match=r"4 bags from .*labels.csv; 2 bags from .*late.csv \(2 in place of earlier"
    ):
        bags = Source(
            str(folder / "slides"),
            labels=(str(folder / "labels.csv"), str(folder / "late.csv")),
            missing_truth=True,
        ).open()
    sets = {bag.id: {bags.classes[j] for j in np.flatnonzero(bag.candidates)} for bag in bags}
    assert sets == {"b1": {"x", "y"}, "a1": {"x", "z"}, "b2": {"x", "z"}, "c": {"z"}}
    assert {bag.id: bag.group for bag in bags} == {"b1": "B", "a1": "A", "b2": "B", "c": "C"}


def test_reviewers_who_disagree_are_both_candidates(cohort):
    folder, _ = cohort
    head = "bag_id,label,reviewer,time,comment,selected\n"
    (folder / "r.csv").write_text(f"{head}a1,x,Ann,,,random\na1,z,Bo,,,random\nc,y,Ann,,,chosen\n")
    tables = (str(folder / "labels.csv"), str(folder / "r.csv"))
    with pytest.warns(MiplNotice, match="Labels joined"):
        bags = Source(str(folder / "slides"), labels=tables).open()
    sets = {bag.id: {bags.classes[j] for j in np.flatnonzero(bag.candidates)} for bag in bags}
    assert sets["a1"] == {"x", "z"}
    assert sets["c"] == {"y"}
    assert bags.labels is None  # one bag asks for a decision
    (folder / "r.csv").write_text(f"{head}a1,x,Ann,,,random\na1,x,Bo,,,random\nc,y,Ann,,,chosen\n")
    with pytest.warns(MiplNotice, match="Labels joined"):
        bags = Source(str(folder / "slides"), labels=tables).open()
    assert {bag.id: bags.classes[bag.label] for bag in bags} == {"b1": "x", "a1": "x", "b2": "x", "c": "y"}


def test_tables_that_do_not_join(cohort):
    folder, _ = cohort
    (folder / "more.csv").write_text("bag_id,candidates\nb1,x\n")
    (folder / "few.csv").write_text("bag_id,candidates,patient\na1,x,A\n")
    labels = (str(folder / "more.csv"), str(folder / "few.csv"))
    with pytest.raises(DataError, match="1 bag would have no patient after joining"):
        Source(str(folder / "slides"), labels=labels).open()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2**16))
def test_joining_tables_is_a_dictionary_that_is_updated(counts, seed):
    """An independent route: a Python dictionary, with the tables' rows in their order."""
    import tempfile
    import warnings
    from pathlib import Path

    rng = np.random.default_rng(seed)
    ids = [f"b{i}" for i in range(4)]
    bags = Bags.from_list([np.ones((1, 2))] * 4, ids=ids)
    expected, paths = {}, []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, count in enumerate([4, *counts]):
            rows = {bag: rng.choice(list("xyz"), 2, replace=False) for bag in rng.permutation(ids)[:count]}
            expected |= {bag: set(names) for bag, names in rows.items()}
            paths.append(Path(folder) / f"{number}.csv")
            lines = [f"{bag},{'|'.join(names)}" for bag, names in rows.items()]
            paths[-1].write_text("\n".join(["bag_id,candidates", *lines]))
        found = apply_label_table(bags, paths)
    sets = {bag.id: {found.classes[j] for j in np.flatnonzero(bag.candidates)} for bag in found}
    assert sets == expected


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 12), st.integers(0, 99))
def test_an_epoch_sees_a_sample_of_large_bags(sizes, most, seed):
    arrays = [np.stack([np.full(n, i), np.arange(n)], axis=1).astype(np.float32) for i, n in enumerate(sizes)]
    loader = BagLoader(Bags.from_list(arrays, [[0]] * len(sizes), classes=[0, 1]))
    seen = {}
    for batch in loader.epoch(2, np.random.default_rng(seed), most=most):
        for index, part in zip(
            batch.index.tolist(), batch.instances.split(batch.sizes.tolist()), strict=True
        ):
            assert set(part[:, 0].tolist()) == {index}
            seen[index] = part[:, 1].tolist()
    assert {i: len(rows) for i, rows in seen.items()} == {i: min(n, most) for i, n in enumerate(sizes)}
    for i, rows in seen.items():
        assert rows == sorted(set(rows))  # each at most once, in the order of the bag
        assert set(rows) <= set(range(sizes[i]))


def test_the_sample_is_another_one_in_each_epoch_and_unbiased():
    loader = BagLoader(Bags.from_list([np.arange(20, dtype=np.float32)[:, None]], [[0]], classes=[0, 1]))
    rng = np.random.default_rng(0)
    counts = np.zeros(20)
    for _ in range(400):
        (batch,) = loader.epoch(1, rng, most=5)
        counts[batch.instances[:, 0].long().numpy()] += 1
    assert abs(counts - 100).max() < 5 * np.sqrt(100 * 0.75)


def test_without_the_setting_no_number_is_drawn():
    loader = BagLoader(Bags.from_list([np.ones((5, 2))] * 6, [[0]] * 6, classes=[0, 1]))
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    list(loader.epoch(2, one, 0.3))
    list(loader.epoch(2, other, 0.3, most=5))  # no bag is larger
    assert one.bit_generator.state == other.bit_generator.state


def test_a_plan_says_what_is_found_and_what_is_doubtful(tmp_path, capsys):
    lines = ["bag_id,candidates,patient,f1,f2"]
    lines += [f"b{i},{'x|y' if i % 2 else 'z'},p{i // 2},{i % 3},{i}" for i in range(12)]
    (tmp_path / "bags.csv").write_text("\n".join(lines))
    assert main(["plan", str(tmp_path / "bags.csv"), "--set", "epochs=2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["found"][0].startswith("12 bags of 1 instance")
    assert "50% of the bags have one" in plan["found"][2]
    assert "6 patients" in " ".join(plan["found"])
    assert any("x and y are always candidates together" in doubt for doubt in plan["doubts"])
    assert plan["seconds"] is None
    words = ["fit", str(tmp_path / "bags.csv"), "--set", "epochs=1", "--set", "ensemble=1"]
    assert main([*words, "--out", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[1:4]] == ["Found", "Training", "Doubtful"]
    assert "1 epoch, a single network; a few seconds" in printed[2]


def test_the_time_of_training_is_measured_on_a_sample(gaussian, monkeypatch):
    from mipl import make_classifier
    from mipl.estimators import plan

    monkeypatch.setattr(plan, "QUICK", 0)
    classifier = make_classifier("sam-cn", epochs=40, ensemble=1)
    before = classifier.get_params()
    planned = plan.make_plan(classifier, gaussian)
    assert planned.seconds > 0
    assert classifier.get_params() == before
    assert not hasattr(classifier, "network_")
