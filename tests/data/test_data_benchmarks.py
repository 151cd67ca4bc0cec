import gzip

import numpy as np
import pytest
from random_bags import assert_same, real

from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.data.benchmarks.birdsong import birdsong_mipl
from mipl.data.benchmarks.mnist import fmnist_mipl, mnist_mipl
from mipl.data.datasets import DATASETS, build
from mipl.errors import DataError, MiplError, SettingError, StorageError

SPECIES = 13


def positives(bags):
    """Return the number of positive instances of each bag, and assert that they are of its own class."""
    for bag in bags:
        assert set(bag.instance_labels.tolist()) == {-1, bag.label}
    return np.array([(bag.instance_labels >= 0).sum() for bag in bags])


def assert_candidates(bags, r):
    assert (bags.candidates.sum(axis=1) == r + 1).all()
    assert bags.candidates[np.arange(len(bags)), bags.labels].all()


# ---- digits-mipl ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    return digits_mipl()


def test_digits_have_the_promised_counts(digits):
    assert len(digits) == 250
    assert digits.classes == ("0", "2", "4", "6", "8")
    assert digits.feature_shape == (8, 8)
    assert digits.labels.tolist() == [i // 50 for i in range(250)]
    assert digits.sizes.min() >= 32
    assert digits.sizes.max() <= 43
    counts = positives(digits)
    assert 0.0775 < counts.sum() / digits.sizes.sum() < 0.0825  # 8%
    assert len(set(digits.ids.tolist())) == 250
    assert digits.provenance["dataset"] == "digits-mipl"


def test_no_positive_digit_is_used_twice_and_negatives_are_odd(digits):
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    kind = {
        (image / 16).astype(np.float32).tobytes(): digit for image, digit in zip(images, truth, strict=True)
    }
    used = []
    for bag in digits:
        for image, label in zip(bag.instances, bag.instance_labels, strict=True):
            digit = kind[image.tobytes()]
            if label >= 0:
                assert str(digit) == digits.classes[label]
                used.append(image.tobytes())
            else:
                assert digit % 2 == 1
    assert len(used) == len(set(used)) == 750


@pytest.mark.parametrize("r", [1, 2, 3])
def test_another_r_changes_the_candidates_alone(digits, r):
    other = digits_mipl(r=r)
    assert_candidates(other, r)
    assert np.array_equal(other.instances, digits.instances)
    assert np.array_equal(other.labels, digits.labels)
    assert np.array_equal(other.instance_labels, digits.instance_labels)
    assert (other.digest() == digits.digest()) == (r == 1)


def test_a_seed_makes_the_same_digits_and_another_seed_others(digits):
    assert_same(digits_mipl(seed=0), digits)
    assert digits_mipl(seed=1).digest() != digits.digest()


def test_digits_take_no_r_beyond_the_other_classes():
    with pytest.raises(DataError, match="r = 5 false positives cannot be drawn for 5 classes"):
        digits_mipl(r=5)


# ---- Gaussian bags -------------------------------------------------------------------------------------


def test_gaussian_bags_are_as_asked_for():
    bags = gaussian_bags(bags=20, k=4, d=7, sizes=(2, 5), r=2, seed=1)
    assert (len(bags), bags.k, bags.feature_shape) == (20, 4, (7,))
    assert set(bags.sizes.tolist()) == {2, 3, 4, 5}
    assert bags.labels.tolist() == [i % 4 for i in range(20)]
    assert_candidates(bags, 2)
    assert [sum(bag.instance_labels >= 0) for bag in bags] == [max(1, n // 3) for n in bags.sizes]
    assert_same(gaussian_bags(20, 4, 7, (2, 5), 2, 1), bags)
    assert gaussian_bags(20, 4, 7, (2, 5), 2, 2).digest() != bags.digest()


def test_gaussian_classes_can_be_told_apart():
    bags = gaussian_bags(bags=60)
    centres = [bags.instances[bags.instance_labels == label].mean(axis=0) for label in range(3)]
    right = 0
    for row, label in zip(bags.instances, bags.instance_labels, strict=True):
        distances = [np.linalg.norm(row - centre) for centre in centres]
        right += label >= 0 and int(np.argmin(distances)) == label
    assert right > 0.95 * (bags.instance_labels >= 0).sum()


# ---- mnist-mipl and fmnist-mipl from IDX files ---------------------------------------------------------


def write_idx(path, array, zipped):
    content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content, 1))
    else:
        path.write_bytes(content)


def write_images(folder, images, digits, zipped=False):
    folder.mkdir(exist_ok=True)
    write_idx(folder / "train-images-idx3-ubyte", images, zipped)
    write_idx(folder / "train-labels-idx1-ubyte", digits, zipped)


def synthetic(count=30000):
    """Return 1×3 images whose bytes are the image's number (two bytes) and its digit."""
    number = np.arange(count)
    digits = np.where(number % 10 < 8, 2 * (number % 5) + 1, 2 * (number // 10 % 5)).astype(np.uint8)
    images = np.stack([number // 256, number % 256, digits], axis=1).astype(np.uint8)[:, None, :]
    return images, digits


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("idx")
    write_images(folder / "plain", *synthetic())
    write_images(folder / "zipped", *synthetic(), zipped=True)
    return folder


def assert_mnist(bags, r=1, targets=(0, 2, 4, 6, 8), fewest=35):
    """Assert Table 1 of the paper."""
    assert len(bags) == 100 * len(targets)
    assert bags.classes == tuple(str(target) for target in targets)
    assert bags.labels.tolist() == [i // 100 for i in range(len(bags))]
    assert (bags.sizes.min(), bags.sizes.max()) == (fewest, 48)
    assert 40.8 < bags.sizes.mean() < 42.2
    share = np.round(100 * positives(bags) / bags.sizes, 1)
    assert (share.min(), share.max()) == (7.0, 9.1)
    assert 7.8 < share.mean() < 8.3
    assert bags.source.dtype == np.uint8
    assert_candidates(bags, r)


def test_mnist_bags_have_the_counts_of_table_1(images):
    bags = mnist_mipl(images / "plain")
    assert_mnist(bags)
    assert bags.feature_shape == (1, 3)
    assert bags.provenance["dataset"] == "mnist-mipl"
    assert bags.ids[0] == "mnist-mipl-0000"


@pytest.mark.parametrize("targets", [(0, 2, 4, 6, 8), (8, 2)])
def test_no_image_is_used_twice_and_each_is_where_it_belongs(images, targets):
    bags = mnist_mipl(images / "plain", targets=targets)
    assert_mnist(bags, targets=targets)
    rows = bags.instances[:, 0, :].astype(int)
    numbers = 256 * rows[:, 0] + rows[:, 1]
    assert len(set(numbers.tolist())) == len(numbers)
    for digit, label in zip(rows[:, 2].tolist(), bags.instance_labels.tolist(), strict=True):
        assert digit == targets[label] if label >= 0 else digit not in targets


def test_positives_may_stand_anywhere_in_a_bag(images):
    bags = mnist_mipl(images / "plain")
    first = [bag.instance_labels[0] >= 0 for bag in bags]
    assert 10 < sum(first) < 80  # 8% of 500


def test_zipped_and_plain_files_make_the_same_bags(images):
    assert_same(mnist_mipl(images / "zipped"), mnist_mipl(images / "plain"))


def test_images_follow_the_seed_and_candidates_r(images):
    raw = images / "plain"
    first, other = mnist_mipl(raw, r=1), mnist_mipl(raw, r=3)
    assert_same(mnist_mipl(raw, r=1), first)
    assert_candidates(other, 3)
    assert np.array_equal(other.instances, first.instances)
    assert np.array_equal(other.labels, first.labels)
    assert mnist_mipl(raw, seed=1).digest() != first.digest()


def test_fashion_bags_are_drawn_apart_from_mnist(images):
    bags = fmnist_mipl(images / "plain")
    assert_mnist(bags, fewest=36)
    assert bags.provenance["dataset"] == "fmnist-mipl"
    assert not np.array_equal(bags.instances, mnist_mipl(images / "plain").instances)


@pytest.mark.parametrize("targets", [(), (0,), (0, 10), (-1, 2), tuple(range(10)), (0, 0, 2)], ids=repr)
def test_targets_that_are_not_some_of_the_ten_classes_are_refused(images, targets):
    with pytest.raises(MiplError, match=r"distinct"):
        mnist_mipl(images / "plain", targets=targets)


def test_too_few_images_are_refused_by_class(tmp_path):
    write_images(tmp_path, *synthetic(2000))
    with pytest.raises(DataError, match="mnist-mipl: the raw data have too few instances for class '"):
        mnist_mipl(tmp_path)


@pytest.mark.parametrize(
    ("images_shape", "labels_shape"),
    [((20, 2, 2), (19,)), ((20, 4), (20,)), ((20, 2, 2), (20, 1)), ((20,), (20,))],
)
def test_images_and_labels_that_do_not_agree_are_refused(tmp_path, images_shape, labels_shape):
    write_images(tmp_path, np.zeros(images_shape, np.uint8), np.zeros(labels_shape, np.uint8))
    with pytest.raises(StorageError, match=r"has images of shape .* and labels of shape"):
        mnist_mipl(tmp_path)


# ---- birdsong-mipl from text files ---------------------------------------------------------------------


def write_birdsong(folder, names=True, species=SPECIES, labelled=12, unlabelled=400):
    """Write text files of HJA Birdsong's form; a segment's features are its number and its species."""
    folder.mkdir(exist_ok=True)
    kinds = np.concatenate([np.repeat(np.arange(1, species + 1), labelled), np.full(unlabelled, -1)])
    kinds = np.random.default_rng(0).permutation(kinds)
    rows = ["bag_id, [segment features]"]
    for number, kind in enumerate(kinds):
        rows.append(",".join([str(number // 20 + 1), *(f"{x:f}" for x in [number, kind, *[0.5] * 36])]))
    (folder / "hja_birdsong_features.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    rows = ["bag_id, instance_label", *(f"{number // 20 + 1},{kind}" for number, kind in enumerate(kinds))]
    (folder / "hja_birdsong_instance_labels.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    if names:
        rows = [f"{kind}\tSP{kind:02d} - Some bird" for kind in range(1, species + 1)]
        (folder / "hja_birdsong_class_names.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def assert_birdsong(bags, r=1):
    """Assert Table 1 of the paper, as far as bags synthesised from segments can have it."""
    assert len(bags) == 1300
    assert bags.k == SPECIES
    assert bags.feature_shape == (38,)
    assert bags.source.dtype == np.float32
    assert bags.labels.tolist() == [i // 100 for i in range(1300)]
    assert bags.sizes.min() >= 25
    assert bags.sizes.max() <= 76
    assert 36.8 < bags.sizes.mean() < 37.8
    counts = positives(bags)
    assert counts.tolist() == [(n + 6) // 12 for n in bags.sizes.tolist()]
    share = 100 * counts / bags.sizes
    assert share.min() > 6.85  # 2 of 29
    assert share.max() <= 10
    assert 8.1 < share.mean() < 8.5
    assert_candidates(bags, r)


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_birdsong(tmp_path_factory.mktemp("birds"))


def test_birdsong_bags_have_the_counts_of_table_1(birds):
    bags = birdsong_mipl(birds, r=3)
    assert_birdsong(bags, 3)
    assert bags.classes == tuple(f"SP{kind:02d}" for kind in range(1, SPECIES + 1))


def test_segments_are_of_the_bags_species_or_unlabelled(birds):
    bags = birdsong_mipl(birds)
    wanted = np.where(bags.instance_labels >= 0, bags.instance_labels + 1, -1)
    assert np.array_equal(bags.instances[:, 1], wanted)


def test_birdsong_follows_the_seed_and_r_changes_the_candidates_alone(birds):
    first, other = birdsong_mipl(birds), birdsong_mipl(birds, r=12)
    assert_same(birdsong_mipl(birds), first)
    assert_candidates(other, 12)
    assert np.array_equal(other.instances, first.instances)
    assert birdsong_mipl(birds, seed=1).digest() != first.digest()


def test_species_without_a_name_are_numbered(tmp_path):
    write_birdsong(tmp_path, names=False)
    assert birdsong_mipl(tmp_path).classes == tuple(f"species {kind}" for kind in range(1, SPECIES + 1))
    (tmp_path / "hja_birdsong_class_names.txt").write_bytes(b"1\tA\xff - x\n\xb2\ty\nno tab\n3\t\n2\tB - y\n")
    assert birdsong_mipl(tmp_path).classes[:4] == ("A\ufffd", "B", "species 3", "species 4")


FEATURES, LABELS = "hja_birdsong_features.txt", "hja_birdsong_instance_labels.txt"


@pytest.mark.parametrize("name", [FEATURES, LABELS])
@pytest.mark.parametrize(
    "content",
    [
        b"bag_id, what\n1,x\n",
        b"bag_id, what\n1,2\n1,2,3\n",
        b"bag_id, what\n1\n2\n",
        b"bag_id, what\n\xff\xfe\n",
        b"bag_id, what\n1,nan\n",
        b"\x00\x01\x02\n\x00",
        None,
    ],
    ids=repr,
)
def test_a_birdsong_file_that_is_not_one_is_named(tmp_path, name, content):
    write_birdsong(tmp_path, labelled=2, unlabelled=5)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=name):
        birdsong_mipl(tmp_path)


@pytest.mark.filterwarnings("ignore:loadtxt")
def test_an_empty_birdsong_file_is_named(tmp_path):
    write_birdsong(tmp_path, labelled=2, unlabelled=5)
    (tmp_path / FEATURES).write_bytes(b"")
    with pytest.raises(StorageError, match=FEATURES):
        birdsong_mipl(tmp_path)


def test_birdsong_files_of_different_length_are_refused(tmp_path):
    write_birdsong(tmp_path, labelled=2, unlabelled=5)
    text = (tmp_path / LABELS).read_text(encoding="utf-8")
    (tmp_path / LABELS).write_text(text + "9,1\n", encoding="utf-8")
    with pytest.raises(StorageError, match="has 31 segments but 32 instance labels"):
        birdsong_mipl(tmp_path)


@pytest.mark.parametrize("counts", [{"species": 12}, {"unlabelled": 0}])
def test_other_species_than_hja_birdsongs_are_refused(tmp_path, counts):
    with pytest.raises(StorageError, match="species with labelled segments: HJA Birdsong has 13"):
        birdsong_mipl(write_birdsong(tmp_path, **{"labelled": 2, **counts}))


# ---- by name, and from the real files ------------------------------------------------------------------


def test_a_data_set_is_built_by_its_name(images, birds, digits):
    assert list(DATASETS)[:5] == ["digits-mipl", "mnist-mipl", "fmnist-mipl", "birdsong-mipl", "sival-mipl"]
    assert_same(build("digits-mipl"), digits)
    vectors = build("digits-mipl-vectors")
    np.testing.assert_array_equal(vectors.source, digits.source.reshape(-1, 64))
    np.testing.assert_array_equal(vectors.candidates, digits.candidates)
    assert_same(build("mnist-mipl", 2, 1, images / "plain"), mnist_mipl(images / "plain", 2, 1))
    assert_same(build("birdsong-mipl", raw=str(birds)), birdsong_mipl(birds))


def test_a_name_that_is_none_gets_a_suggestion():
    with pytest.raises(SettingError, match=r"no data set 'digit-mipl'. Did you mean 'digits-mipl'\?"):
        build("digit-mipl")


@pytest.mark.parametrize("name", ["mnist-mipl", "fmnist-mipl", "birdsong-mipl"])
def test_raw_files_are_asked_for(name, tmp_path):
    with pytest.raises(SettingError, match=f"{name} is built from raw files: say where they are with --raw"):
        build(name)
    with pytest.raises(StorageError, match=str(tmp_path)):
        build(name, raw=tmp_path)


@pytest.mark.parametrize(("folder", "builder"), [("mnist", mnist_mipl), ("fashion-mnist", fmnist_mipl)])
def test_the_real_images_give_table_1(folder, builder):
    bags = builder(real(folder), r=2)
    assert_mnist(bags, 2, fewest=35 if folder == "mnist" else 36)
    assert bags.feature_shape == (28, 28)


def test_the_real_birdsong_gives_table_1():
    bags = birdsong_mipl(real("hja-birdsong"), r=2)
    assert_birdsong(bags, 2)
    assert bags.classes[:2] == ("BRCR", "WIWR")


def test_built_bags_survive_a_file(digits, tmp_path):
    digits.save(tmp_path / "digits.npz")
    assert_same(Bags.load(tmp_path / "digits.npz"), digits)


def test_noisy_digits_are_digits_with_noise():
    from sklearn.datasets import load_digits

    bags = build("digits-mipl-noisy", 2)
    assert (
        bags.digest() == build("digits-mipl-noisy", 2).digest() != build("digits-mipl-noisy", 2, 1).digest()
    )
    assert np.bincount(bags.labels).tolist() == [50] * 5
    assert 10 <= bags.sizes.min() <= bags.sizes.max() <= 19
    assert (bags.candidates.sum(axis=1) == 3).all()
    assert bags.candidates[np.arange(250), bags.labels].all()
    clean = load_digits().data / 16.0
    for bag in bags[::50]:
        positive = bag.instance_labels == bag.label
        assert positive.sum() == 3
        distance = np.linalg.norm(bag.instances[:, None] - clean[None], axis=2)  # (n, 1797)
        nearest = load_digits().target[distance.argmin(axis=1)]
        assert (nearest[~positive] % 2 == 1).mean() > 0.7  # noise moves some to another digit
        assert 0.2 < distance.min(axis=1).mean() / 8 < 0.32  # at most the standard deviation
