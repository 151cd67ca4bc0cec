"""Folders of slide features in every layout, and what is wrong with them."""

import json
import pickle

import h5py
import numpy as np
import pytest
import torch

from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.formats.h5 import open_folder, write_folder
from mipl.data.lazy import FileArray
from mipl.data.splits import official_split, stratified_fold, stratified_split
from mipl.errors import DataError, StorageError
from mipl.estimators import make_classifier

CLASSES = ("normal", "serrated", "tumour")


def cohort(slides=12, d=6, seed=0, dtype=np.float32):
    """Slides with coordinates, two to a patient, as bags in memory."""
    rng = np.random.default_rng(seed)
    labels = np.arange(slides) % 3
    arrays = [
        (rng.standard_normal((int(rng.integers(5, 40)), d)) + 3 * (label - 1)).astype(dtype)
        for label in labels
    ]
    candidates = np.eye(3, dtype=bool)[labels] | np.eye(3, dtype=bool)[(labels + 1) % 3]
    return Bags.from_list(
        arrays,
        candidates,
        labels,
        CLASSES,
        ids=[f"slide_{i:02d}" for i in range(slides)],
        coordinates=[np.stack([np.arange(len(a)) * 256, np.arange(len(a))], 1) for a in arrays],
        groups=[f"case_{i // 2}" for i in range(slides)],
    )


def table(path, bags, id_column="slide_id", group_column="case_id", suffix="", separator=","):
    rows = [separator.join([id_column, group_column, "label", "candidates"])]
    for bag in bags:
        names = "|".join(CLASSES[j] for j in np.flatnonzero(bag.candidates))
        rows.append(separator.join([bag.id + suffix, bag.group, CLASSES[bag.label], names]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def write_h5(path, features, coords=None, key="features", coords_key="coords"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file[key] = features
        if coords is not None:
            file[coords_key] = coords


def lay_out(layout, root, bags):
    """Write the bags in a layout; return the folder a user would name, and the table."""
    csv = table(root / "cohort.csv", bags)
    for bag in bags:
        if layout == "clam":
            write_h5(root / "F" / "h5_files" / f"{bag.id}.h5", bag.instances, bag.coordinates)
            (root / "F" / "pt_files").mkdir(exist_ok=True)
            torch.save(torch.tensor(bag.instances), root / "F" / "pt_files" / f"{bag.id}.pt")
        elif layout == "clam-pt":
            (root / "F" / "pt_files").mkdir(parents=True, exist_ok=True)
            torch.save(torch.tensor(bag.instances), root / "F" / "pt_files" / f"{bag.id}.pt")
        elif layout == "trident":
            write_h5(
                root / "F" / "20x_256px" / "features_uni_v1" / f"{bag.id}.h5",
                bag.instances[None],
                bag.coordinates[None],
            )
        elif layout in ("stamp", "stamp-old"):
            key = "feats" if layout == "stamp" else "patch_embeddings"
            write_h5(root / "F" / f"{bag.id}.h5", bag.instances, bag.coordinates, key)
        elif layout == "npy":
            (root / "F").mkdir(exist_ok=True)
            np.save(root / "F" / f"{bag.id}.npy", bag.instances)
        elif layout == "npz":
            (root / "F").mkdir(exist_ok=True)
            np.savez(root / "F" / f"{bag.id}.npz", features=bag.instances, coords=bag.coordinates)
    if layout.startswith("stamp"):
        csv = table(root / "slides.csv", bags, "FILENAME", "PATIENT", ".h5")
    return root / "F", csv


LAYOUTS = ["clam", "clam-pt", "trident", "stamp", "stamp-old", "npy", "npz"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_bags(layout, tmp_path):
    wanted = cohort()
    folder, csv = lay_out(layout, tmp_path, wanted)
    bags = open_folder(folder, csv)
    assert isinstance(bags.source, FileArray)
    assert bags.ids.tolist() == wanted.ids.tolist()
    assert bags.groups.tolist() == wanted.groups.tolist()
    assert bags.classes == wanted.classes
    np.testing.assert_array_equal(bags.candidates, wanted.candidates)
    np.testing.assert_array_equal(bags.labels, wanted.labels)
    for got, bag in zip(bags, wanted, strict=True):
        np.testing.assert_array_equal(got.instances, bag.instances)
        if layout not in ("clam-pt", "npy"):
            np.testing.assert_array_equal(got.coordinates, bag.coordinates)
    assert bags.digest() == wanted.digest()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_train_the_same_model_as_memory(layout, tmp_path):
    wanted = cohort()
    bags = open_folder(*lay_out(layout, tmp_path, wanted))
    models = [make_classifier("mam-cn", ensemble=1, epochs=3, random_state=1).fit(b) for b in (bags, wanted)]
    for a, b in zip(*(m.network_.state_dict().values() for m in models), strict=True):
        assert torch.equal(a, b)
    np.testing.assert_array_equal(models[0].predict_proba(bags), models[1].predict_proba(wanted))


def test_opening_reads_no_features(tmp_path, monkeypatch):
    folder, csv = lay_out("clam", tmp_path, cohort())
    reads = []
    monkeypatch.setattr(
        "mipl.data.lazy.Part.read",
        lambda self, rows: reads.append(self.path.stem) or np.zeros((rows.stop - rows.start, self.width)),
    )
    bags = open_folder(folder, csv)
    assert not reads
    assert bags[2].instances.shape[1] == 6
    assert set(reads) == {"slide_02"}


def test_rows_in_any_order(tmp_path):
    wanted = cohort()
    source = open_folder(*lay_out("clam", tmp_path, wanted)).source
    rows = np.random.default_rng(0).integers(0, len(source), size=200)
    np.testing.assert_array_equal(source[rows], wanted.source[rows])
    np.testing.assert_array_equal(source[7:60:3], wanted.source[7:60:3])
    assert source[np.zeros(0, dtype=np.int64)].shape == (0, 6)


def test_a_folder_written_is_read_back(tmp_path):
    wanted = cohort()
    write_folder(wanted, tmp_path / "out")
    bags = open_folder(tmp_path / "out", tmp_path / "out" / "labels.csv")
    assert bags.digest() == wanted.digest()
    assert bags.groups.tolist() == wanted.groups.tolist()
    write_folder(wanted[:3], tmp_path / "out")  # replaced whole
    assert len(open_folder(tmp_path / "out")) == 3


def test_without_a_table_every_file_is_a_bag(tmp_path):
    bags = open_folder(lay_out("clam", tmp_path, cohort())[0])
    assert len(bags) == 12
    assert bags.candidates is None


def test_half_precision_and_mixed_precision(tmp_path):
    for i, dtype in enumerate((np.float16, np.float32)):
        write_h5(tmp_path / "F" / f"{i}.h5", np.ones((3, 2), dtype=dtype))
    assert open_folder(tmp_path / "F").instances.dtype == np.float32


# ---- what does not fit ----------------------------------------------------------------------------------


def test_everything_that_does_not_fit_is_in_one_report(tmp_path):
    folder, csv = lay_out("clam", tmp_path, cohort())
    for name in ("slide_03", "slide_07"):
        (folder / "h5_files" / f"{name}.h5").unlink()
    write_h5(folder / "h5_files" / "extra.h5", np.ones((3, 6), dtype=np.float32))
    write_h5(folder / "h5_files" / "slide_01.h5", np.ones((3, 9), dtype=np.float32))
    write_h5(folder / "h5_files" / "slide_02.h5", np.ones((3, 7), dtype=np.float32))
    with pytest.raises(DataError) as caught:
        open_folder(folder, csv)
    message = str(caught.value)
    for part in ("2 slides", "slide_03, slide_07", "extra", "slide_01 (9)", "slide_02 (7)"):
        assert part in message


def test_missing_slides_can_be_left_out(tmp_path):
    folder, csv = lay_out("clam", tmp_path, cohort())
    (folder / "h5_files" / "slide_03.h5").unlink()
    bags = open_folder(folder, csv, skip_missing=True)
    assert len(bags) == 11
    assert "slide_03" not in bags.ids


def test_files_in_no_row_are_named_and_left_out(tmp_path):
    folder, csv = lay_out("clam", tmp_path, cohort())
    write_h5(folder / "h5_files" / "extra.h5", np.ones((3, 6), dtype=np.float32))
    with pytest.warns(UserWarning, match=r"1 file in .* has no row .*: extra; it is ignored"):
        assert len(open_folder(folder, csv)) == 12


class Evil:
    def __reduce__(self):
        return (print, ("EXECUTED",))


def pickled(path):
    path.write_bytes(pickle.dumps(Evil()))


def torch_pickled(path):
    torch.save({"x": Evil()}, path)


def numpy_pickled(path):
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)


def truncated(path):
    write_h5(path, np.ones((3000, 6), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:3000])


BROKEN = {
    "pickle.pt": (pickled, "cannot be read as features"),
    "torch.pt": (torch_pickled, "cannot be read as features"),
    "dict.pt": (lambda p: torch.save({"x": torch.ones(2, 2)}, p), "has a dict, not one tensor"),
    "object.npy": (numpy_pickled, "cannot be read as features"),
    "cut.h5": (truncated, "cannot be read as features"),
    "text.h5": (lambda p: p.write_text("hello"), "cannot be read as features"),
    "text.npz": (lambda p: p.write_text("hello"), "cannot be read as features"),
    "key.h5": (
        lambda p: write_h5(p, np.ones((2, 2)), np.ones((2, 2)), key="embedding"),
        "has none of the arrays",
    ),
    "ints.h5": (lambda p: write_h5(p, np.ones((2, 2), dtype=np.int32)), "features of type int32"),
    "deep.h5": (lambda p: write_h5(p, np.ones((1, 1, 2, 4))), r"of shape \(1, 1, 2, 4\)"),
    "batch.h5": (lambda p: write_h5(p, np.ones((2, 3, 4))), r"of shape \(2, 3, 4\)"),
    "empty.h5": (lambda p: write_h5(p, np.ones((0, 4))), "is empty"),
    "coords.h5": (lambda p: write_h5(p, np.ones((3, 4)), np.ones((2, 2))), "coordinates of shape"),
    "strings.h5": (lambda p: write_h5(p, np.array([[b"a", b"b"]])), "features of type"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_file_is_one_sentence(name, tmp_path, capfd):
    make, message = BROKEN[name]
    make(tmp_path / name)
    with pytest.raises((DataError, StorageError), match=message) as caught:
        open_folder(tmp_path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main(["predict", "no-model", str(tmp_path), "--out", str(tmp_path / "p.csv")]) == 2
    assert "EXECUTED" not in capfd.readouterr().out


def test_a_nan_is_found_when_it_is_read(tmp_path):
    features = np.ones((5, 3), dtype=np.float32)
    features[3, 1] = np.nan
    write_h5(tmp_path / "a.h5", np.ones((5, 3), dtype=np.float32))
    write_h5(tmp_path / "b.h5", features)
    bags = open_folder(tmp_path)
    assert bags[0].instances.sum() == 15
    with pytest.raises(DataError, match=r"b\.h5 has a NaN, infinite or too large value in row 3"):
        _ = bags[1].instances


def test_a_file_that_changes_under_us_is_named(tmp_path):
    write_h5(tmp_path / "a.h5", np.ones((5, 3), dtype=np.float32))
    bags = open_folder(tmp_path)
    write_h5(tmp_path / "a.h5", np.ones((4, 3), dtype=np.float32))
    with pytest.raises(StorageError, match="has changed since it was opened"):
        _ = bags[0].instances


@pytest.mark.parametrize("slide", ["../secret", "/etc/passwd", "..", "a/../../secret", "C:\\secret"])
def test_a_path_in_the_table_reads_nothing_outside(slide, tmp_path):
    write_h5(tmp_path / "secret.h5", np.ones((3, 2), dtype=np.float32))
    write_h5(tmp_path / "F" / "a.h5", np.ones((3, 2), dtype=np.float32))
    (tmp_path / "t.csv").write_text(f"slide_id,candidates\na,x|y\n{slide},x\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"1 slide of .* has no file"):
        open_folder(tmp_path / "F", tmp_path / "t.csv")


def test_links_out_of_the_folder_are_refused(tmp_path):
    write_h5(tmp_path / "secret.h5", np.ones((3, 2), dtype=np.float32))
    (tmp_path / "F").mkdir()
    (tmp_path / "F" / "a.h5").symlink_to(tmp_path / "secret.h5")
    with pytest.raises(StorageError, match="is a link to another folder"):
        open_folder(tmp_path / "F")


def test_links_inside_an_h5_file_are_not_followed(tmp_path):
    write_h5(tmp_path / "secret.h5", np.ones((3, 2), dtype=np.float32))
    (tmp_path / "F").mkdir()
    with h5py.File(tmp_path / "F" / "a.h5", "w") as file:
        file["features"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/features")
    with pytest.raises(DataError, match="has none of the arrays"):
        open_folder(tmp_path / "F")
    with h5py.File(tmp_path / "F" / "a.h5", "w") as file:
        layout = h5py.VirtualLayout(shape=(3, 2), dtype=np.float32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "features", shape=(3, 2))
        file.create_virtual_dataset("features", layout)
    with pytest.raises(DataError, match="has none of the arrays"):
        open_folder(tmp_path / "F")


def test_two_encoders_and_two_files_for_a_slide(tmp_path):
    for encoder in ("uni", "conch"):
        write_h5(tmp_path / "20x" / f"features_{encoder}" / "a.h5", np.ones((3, 2), dtype=np.float32))
    with pytest.raises(DataError, match="several encoders"):
        open_folder(tmp_path)
    folder = tmp_path / "20x" / "features_uni"
    np.save(folder / "a.npy", np.ones((3, 2)))
    with pytest.raises(DataError, match="two files for slide 'a'"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["..", "a/b", "a\\b", ""])
def test_ids_that_are_no_file_names_are_not_written(name, tmp_path):
    bags = Bags.from_list([np.ones((2, 2))], ids=[name])
    with pytest.raises(DataError, match="cannot be the name of a file"):
        write_folder(bags, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- splits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 6))
def test_a_patient_is_on_one_side(number):
    bags = cohort(slides=60)
    for train, test in (stratified_split(bags, number), stratified_fold(bags, number, 5)):
        assert not set(bags.groups[train]) & set(bags.groups[test])
        assert sorted([*train, *test]) == list(range(60))
        assert set(bags.labels[test]) == {0, 1, 2}
    assert 0.6 < len(stratified_split(bags, number)[0]) / 60 < 0.8


def test_folds_of_groups_test_every_bag_once():
    bags = cohort(slides=61)
    tested = np.concatenate([stratified_fold(bags, n, 4)[1] for n in (1, 2, 3, 4)])
    assert sorted(tested) == list(range(61))


def test_one_patient_cannot_be_split():
    bags = cohort(slides=2)
    with pytest.raises(DataError, match="1 groups of bags are too few"):
        stratified_split(bags, 1)


def test_clam_splits(tmp_path):
    bags = cohort(slides=8)
    (tmp_path / "splits_0.csv").write_text(
        ",train,val,test\n0,slide_00,slide_04,slide_06\n1,slide_01,slide_05,slide_07\n2,slide_02,,\n",
        encoding="utf-8",
    )
    train, test = official_split(bags, tmp_path, 0)
    assert train.tolist() == [0, 1, 2]
    assert test.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("slide_00,slide_00", "names 'slide_00' a second time"),
        ("slide_00,other", "row 2 names the slide 'other'"),
        ("slide_00,", "none for testing"),
        ("slide_00,slide_01", "slides of 'case_0' in training and in testing"),
    ],
)
def test_bad_clam_splits(rows, message, tmp_path):
    (tmp_path / "splits_1.csv").write_text(f"train,test\n{rows}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        official_split(cohort(slides=8), tmp_path, 1)


# ---- the command line -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_practitioners_evening(tmp_path, capsys):
    folder, csv = lay_out("clam", tmp_path, cohort(slides=30))
    model, out = str(tmp_path / "model"), str(tmp_path / "p.csv")
    fit = ["fit", str(folder), "--labels", str(csv), "--out", model, "--set", "epochs=4", "--json"]
    assert main(fit) == 0
    assert main(["predict", model, str(folder), "--out", out, "--json"]) == 0
    capsys.readouterr()
    assert main(["evaluate", out, str(folder), "--labels", str(csv), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bags"] == 30
    records = ["run", str(folder), "--labels", str(csv), "--splits", "1", "--set", "epochs=2"]
    assert main([*records, "--out", str(tmp_path / "runs"), "--json"]) == 0
    assert main(["data", "info", str(folder), "--labels", str(csv)]) == 0
    capsys.readouterr()
    assert main(["fit", str(folder), "--out", str(tmp_path / "m2")]) == 2
    assert "candidate" in capsys.readouterr().err


def test_a_slide_named_with_and_without_its_suffix_is_one_slide_too_many(tmp_path):
    write_h5(tmp_path / "F" / "a.h5", np.ones((3, 2), dtype=np.float32))
    (tmp_path / "t.csv").write_text("slide_id,candidates\na,x|y\na.svs,x\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"1 file is named by two rows of .*: a"):
        open_folder(tmp_path / "F", tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("slide_id,candidates\na.svs,x|y\n", encoding="utf-8")
    assert open_folder(tmp_path / "F", tmp_path / "t.csv").ids.tolist() == [
        "a"
    ]  # as prediction without a table has it
