"""SIVAL, tissue images, the authors' files and Table 1."""

import numpy as np
import pytest

from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl
from mipl.data.benchmarks.crc import CRC5
from mipl.data.candidates import add_confusable
from mipl.data.datasets import DATASETS, build
from mipl.data.formats.mat import write_mat
from mipl.data.statistics import bag_statistics
from mipl.errors import DataError, SettingError, StorageError


def write_sival(folder, classes=3, images=4, seed=0):
    """One-against-the-rest files: every image is in two files, positive in its own class's."""
    rng = np.random.default_rng(seed)
    regions = {
        f"image{c}_{i}": rng.standard_normal((int(rng.integers(3, 6)), 30)).round(6)
        for c in range(classes)
        for i in range(images)
    }
    for c in range(classes):
        lines = []
        for image, values in regions.items():
            own = int(image[5])
            if own not in (c, (c + 1) % classes):
                continue
            for j, row in enumerate(values):
                label = int(own == c and j == 0)
                lines.append(",".join([f"{image}_{j}", image, *(repr(float(v)) for v in row), f"{label}."]))
        (folder / f"class{c}.data").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return regions


def test_sival_from_c45_files(tmp_path):
    regions = write_sival(tmp_path)
    bags = build("sival-mipl", 1, 0, tmp_path)
    assert bags.classes == ("class0", "class1", "class2")
    assert len(bags) == 12
    for bag in bags:
        np.testing.assert_array_equal(bag.instances, regions[bag.id].astype(np.float32))
        assert bag.label == int(bag.id[5])
        assert bag.instance_labels.tolist() == [bag.label] + [-1] * (len(bag) - 1)
    assert (bags.candidates.sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "is not C4.5 data"),
        ("a,b,1,x,1\n", "row 1 is not two names"),
        ("i,a,1,2,0\ni,b,1,0\n", "row 2 is not two names"),
        ("a,b,1,nan,1\n", "row 1 has a number that is not finite"),
        ("a,b,1,2,7\n", "does not end in 0 or 1"),
        ("\xff\x00", "is not C4.5 data"),
    ],
)
def test_bad_sival_files(text, message, tmp_path):
    write_sival(tmp_path)
    (tmp_path / "class1.data").write_text(text, encoding="latin-1" if "\xff" in text else "utf-8")
    with pytest.raises(StorageError, match=message if "\xff" not in text else "cannot be read"):
        build("sival-mipl", 1, 0, tmp_path)


def test_an_image_of_two_classes_is_named(tmp_path):
    write_sival(tmp_path)
    text = (tmp_path / "class0.data").read_text(encoding="utf-8")
    (tmp_path / "class2.data").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"is positive in class0\.data and in class2\.data"):
        build("sival-mipl", 1, 0, tmp_path)


def write_tiles(folder, classes, each=3, side=40):
    import cv2

    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 256, size=(side, side, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / name / f"{i}.png"), pixels)


def test_tissue_stand_ins(tmp_path):
    write_tiles(tmp_path, ("H", "AC", "S", "T", "V"))
    bags = build("crc5-row", None, 1, tmp_path)
    assert bags.classes == ("AC", "H", "S", "T", "V")
    assert bags.feature_shape == (9,)
    assert set(bags.sizes) == {8}
    assert bags.provenance["candidates"] == "drawn from a confusion table"
    other = build("crc5-sbn", None, 1, tmp_path)
    np.testing.assert_array_equal(
        bags.candidates, other.candidates
    )  # one set of annotators for all generators
    assert (bags.candidates != build("crc5-row", None, 2, tmp_path).candidates).any()
    with pytest.raises(SettingError, match="has its own candidate sets"):
        build("crc5-row", 2, 1, tmp_path)
    with pytest.raises(DataError, match="c-row is built from seven folders"):
        build("c-row", None, 1, tmp_path)


def test_seven_classes_of_tissue(tmp_path):
    write_tiles(tmp_path, [f"tissue{i}" for i in range(7)])
    bags = build("c-sbn", None, None, tmp_path)
    assert (bags.k, bags.feature_shape, set(bags.sizes)) == (7, (15,), {9})


def test_confusable_candidates_follow_the_table():
    names = list(CRC5)
    confusion = np.array([[CRC5[y].get(j, 0.0) for j in names] for y in names])
    labels = np.repeat(np.arange(5), 4000)
    candidates = add_confusable(labels, confusion, "test")
    assert candidates[np.arange(len(labels)), labels].all()
    share = np.array([candidates[labels == y].mean(axis=0) for y in range(5)])
    np.testing.assert_allclose(share, confusion + np.eye(5), atol=0.03)
    np.testing.assert_allclose(candidates.sum(axis=1).mean(), 2.1, atol=0.03)


def test_the_authors_file_is_read_where_it_lies(tmp_path):
    images = digits_mipl(1, 0)
    big = [np.zeros((n, 784)) for n in images.sizes[:6]]
    write_mat(Bags.from_list(big, images.candidates[:6], images.labels[:6]), tmp_path / "MNIST_MIPL_r2.mat")
    bags = build("mnist-mipl", 2, None, tmp_path)
    assert bags.feature_shape == (28, 28)
    assert bags.provenance["origin"] == "the authors' file"
    with pytest.raises(SettingError, match="has no seed"):
        build("mnist-mipl", 2, 3, tmp_path)


def test_statistics_by_hand():
    bags = Bags.from_list(
        [np.zeros((2, 3)), np.zeros((4, 3))],
        [[0, 1], [1]],
        [0, 1],
        range(2),
        instance_labels=[[0, -1], [1, 1, 1, -1]],
    )
    row = bag_statistics(bags)
    assert (row.bags, row.instances, row.max_instances, row.min_instances, row.mean_instances) == (
        2,
        6,
        4,
        2,
        3,
    )
    assert (row.max_positives, row.min_positives, row.mean_positives) == (0.75, 0.5, 0.625)
    assert (row.dimension, row.classes, row.mean_candidates) == (3, 2, 1.5)


@pytest.mark.parametrize("name", sorted(name for name, dataset in DATASETS.items() if dataset.table1))
def test_the_papers_rows_agree_with_themselves(name):
    row = DATASETS[name].table1_row(2)
    assert row.mean_instances == pytest.approx(row.instances / row.bags, abs=0.006)
    assert row.min_instances <= row.mean_instances <= row.max_instances
    assert row.mean_candidates == (3 if DATASETS[name].takes_r else 2.08)
