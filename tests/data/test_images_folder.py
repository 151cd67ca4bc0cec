"""Folders of images: what is listed, read, written, refused, and finished after an interruption."""

import csv
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_bags import attempt, real
from torch import nn

from mipl.data.images import PatchEncoder, generate, image_bags, list_images, make_generator, patches
from mipl.data.images.folder import read_image
from mipl.data.names import IMAGES as SUFFIXES
from mipl.errors import DataError, SettingError, StorageError

CLASSES = ("AC", "H")


def picture(seed, height=48, width=40):
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3)).astype(np.uint8)


def save(path, pixels):
    """Write RGB, in OpenCV's order of channels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels[..., ::-1] if pixels.ndim == 3 else pixels)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two classes of five images."""
    for i, label in enumerate(CLASSES):
        for j in range(5):
            save(tmp_path / "images" / label / f"{j}.png", picture(5 * i + j))
    return tmp_path / "images"


def contents(out):
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def stored(path):
    with h5py.File(path) as file:
        return file["features"][()], file["coords"][()]


# ---- listing -------------------------------------------------------------------------------------------


def test_images_of_a_flat_folder_in_order(tmp_path):
    for name in ("b.JPG", "a.tiff", "c.png", "text.txt", ".hidden.png", "d.png.part", "noimage"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "empty").mkdir()
    images = list_images(tmp_path)
    assert [(image.path.name, image.id, image.label) for image in images] == [
        ("a.tiff", "a", None),
        ("b.JPG", "b", None),
        ("c.png", "c", None),
    ]


def test_images_of_class_folders_in_order(tmp_path):
    for name in ("V/b.jpg", "AC/c.bmp", "V/a.tif", "AC/deeper/x.png", ".cache/y.png", "other/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    images = list_images(tmp_path)
    assert [(image.id, image.label) for image in images] == [("AC__c", "AC"), ("V__a", "V"), ("V__b", "V")]


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4, unique=True))
@settings(deadline=None, max_examples=60)
def test_ids_are_safe_names_of_files_and_distinct(names):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in names:
            assume(not set("/\0") & set(name))
            try:
                (root / f"{name}.png").write_bytes(b"")
            except UnicodeEncodeError:
                assume(False)
        images, complaint = attempt(list_images, root)
        if images is None:
            assert re.search("would both be the bag|has no images", complaint)
            return
        ids = [image.id for image in images]
        assert all(re.fullmatch(r"[\w-][\w.-]*", id_) and id_.strip() == id_ for id_ in ids)
        assert len({id_.casefold() for id_ in ids}) == len(ids)


@pytest.mark.parametrize(
    ("one", "two"),
    [("a.jpg", "a.png"), ("a b.png", "a_b.png"), ("A__b/c.png", "A/b__c.png"), ("x/a.png", "X/A.png")],
)
def test_two_images_of_one_name_are_both_named(tmp_path, one, two):
    for name in (one, two):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"would both be the bag '.*': rename one of them") as caught:
        list_images(tmp_path)
    assert str(tmp_path / one) in str(caught.value)
    assert str(tmp_path / two) in str(caught.value)


def test_links_are_followed_within_the_folder_only(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    save(outside / "secret.png", picture(0))
    save(root / "a.png", picture(1))
    (root / "linked.png").symlink_to(root / "a.png")
    (root / "out.png").symlink_to(outside / "secret.png")
    (root / "up.png").symlink_to(Path("..") / "outside" / "secret.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "nowhere.png").symlink_to(root / "missing.png")
    (root / "class").symlink_to(outside)
    assert [image.id for image in list_images(root)] == ["a", "linked"]
    (tmp_path / "door").symlink_to(root)  # the folder itself may be reached by a link
    assert [image.id for image in list_images(tmp_path / "door")] == ["a", "linked"]
    (root / "a.png").unlink()
    with pytest.raises(DataError, match=r"has no images .* links out of it are not followed"):
        list_images(root)


def test_a_folder_that_is_not_of_images(tmp_path):
    with pytest.raises(StorageError, match="nowhere is not a folder: give the folder of the images"):
        list_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no images"):
        list_images(tmp_path)
    save(tmp_path / "a.png", picture(0))
    save(tmp_path / "AC" / "b.png", picture(0))
    with pytest.raises(
        DataError, match=r"such as a\.png, and in subfolders, such as AC/b\.png: put all in it"
    ):
        list_images(tmp_path)


@pytest.mark.parametrize("name", ["a|b", " a", "a\n"])
def test_a_folder_that_cannot_name_a_class(tmp_path, name):
    save(tmp_path / name / "b.png", picture(0))
    with pytest.raises(DataError, match="cannot name a class: rename it"):
        list_images(tmp_path)


# ---- reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_colours_are_red_green_blue(tmp_path, suffix):
    pixels = np.zeros((40, 40, 3), dtype=np.uint8)
    pixels[...] = (200, 100, 30)
    read = read_image(save(tmp_path / f"a{suffix}", pixels))
    assert (read.shape, read.dtype) == ((40, 40, 3), np.uint8)
    assert np.abs(read.astype(int) - pixels).max() <= 3  # JPEG is not exact


def test_other_kinds_of_pixels(tmp_path):
    grey = picture(0)[..., 0]
    assert np.array_equal(
        read_image(save(tmp_path / "grey.png", grey)), np.repeat(grey[..., None], 3, axis=2)
    )
    for suffix in ("png", "tif"):
        deep = read_image(save(tmp_path / f"deep.{suffix}", picture(0).astype(np.uint16) * 257))
        assert np.abs(deep.astype(int) - picture(0)).max() <= 1
    assert cv2.imwrite(str(tmp_path / "alpha.png"), np.dstack([picture(0)[..., ::-1], grey]))
    assert np.array_equal(read_image(tmp_path / "alpha.png"), picture(0))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.98])
def test_part_of_an_image_is_no_image(tmp_path, suffix, share):
    path = save(tmp_path / f"a{suffix}", picture(0, 100, 100))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StorageError, match=rf"a\{suffix} cannot be read as an image: replace or remove it"):
        read_image(path)


# ---- bags in memory ------------------------------------------------------------------------------------


def test_bags_in_memory(folder):
    seen = []
    bags = list(image_bags(folder, "row", report=lambda done, note: seen.append((done, note))))
    assert [(bag.id, bag.label) for bag in bags] == [(f"{c}__{j}", c) for c in CLASSES for j in range(5)]
    assert seen == [(i + 1, bag.id) for i, bag in enumerate(bags)]
    generator = make_generator("row")
    for i, (_, _, instances) in enumerate(bags):
        assert np.array_equal(instances.features, generator.make([picture(i)])[0].features)


def test_bags_in_memory_name_what_is_wrong(folder):
    (folder / "H" / "2.png").write_bytes(b"no image")
    with pytest.raises(StorageError, match=r"H/2\.png cannot be read as an image: replace or remove it\.$"):
        list(image_bags(folder, "row"))
    save(folder / "H" / "2.png", picture(0, 48, 7))
    with pytest.raises(DataError, match=r"H/2\.png: The image has 7×48 pixels; row needs at least 8×8\.$"):
        list(image_bags(folder, "row"))
    with pytest.raises(DataError, match=r"AC/0\.png: .* lite0-25 needs at least 64×64"):
        list(image_bags(folder, patches(64, own_encoder(), "lite0-25")))
    with pytest.raises(SettingError, match=r"Did you mean 'row'\?"):
        list(image_bags(folder, "rows"))


# ---- files ---------------------------------------------------------------------------------------------


def own_encoder(seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return PatchEncoder(module, name="own")


@pytest.mark.parametrize("name", ["row", "sbn", "kmeans", "sift", "own-9", "own-16", "own-25"])
def test_one_file_an_image(folder, tmp_path, name):
    generator = patches(int(name[4:]), own_encoder()) if name.startswith("own") else make_generator(name)
    summary = generate(folder, generator, tmp_path / "out")
    assert (summary.made, summary.kept, summary.skipped) == (10, 0, ())
    bags = list(image_bags(folder, generator))
    assert {path.name for path in (tmp_path / "out" / "h5_files").iterdir()} == {
        f"{bag.id}.h5" for bag in bags
    }
    for bag in bags:
        features, coordinates = stored(tmp_path / "out" / "h5_files" / f"{bag.id}.h5")
        assert features.dtype == np.float32
        assert np.array_equal(features, bag.instances.features)
        assert np.array_equal(coordinates, bag.instances.coordinates)
    record = json.loads((tmp_path / "out" / "generator.json").read_text())
    assert record == {"generator": name, "settings": generator.settings}
    with (tmp_path / "out" / "labels.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["slide_id", "label", "candidates"],
            *([bag.id, bag.label, bag.label] for bag in bags),
        ]


def test_without_classes_there_is_no_table(folder, tmp_path):
    generate(folder / "AC", "row", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"generator.json", "h5_files"}


def test_finished_files_are_kept_and_the_others_made(folder, tmp_path):
    out, generator = tmp_path / "out", patches(9, own_encoder())
    generate(folder, generator, out)
    whole = contents(out)
    times = {path: (out / path).stat().st_mtime_ns for path in whole}
    summary = generate(folder, generator, out)
    assert (summary.made, summary.kept) == (0, 10)
    assert {path: (out / path).stat().st_mtime_ns for path in whole if path.suffix == ".h5"} == {
        path: time for path, time in times.items() if path.suffix == ".h5"
    }
    files = out / "h5_files"
    (files / "AC__0.h5").write_bytes(whole[Path("h5_files/AC__0.h5")][:-100])
    (files / "AC__3.h5").write_bytes(b"")
    (files / "H__1.h5").unlink()
    with h5py.File(files / "H__2.h5", "w") as file:
        file["features"] = np.zeros((9, 4), dtype=np.float32)
    with h5py.File(files / "H__3.h5", "r+") as file:
        file["features"][0, 0] = np.nan
    seen = []
    summary = generate(folder, generator, out, report=lambda done, note: seen.append((done, note)))
    assert (summary.made, summary.kept) == (5, 5)
    assert seen == [(5, ""), (6, "AC__0"), (7, "AC__3"), (8, "H__1"), (9, "H__2"), (10, "H__3")]
    assert contents(out) == whole


def test_the_features_of_a_changed_image_are_made_again(folder, tmp_path):
    generate(folder, "row", tmp_path / "out")
    save(folder / "AC" / "4.png", picture(99))
    summary = generate(folder, "row", tmp_path / "out")
    assert (summary.made, summary.kept) == (1, 9)
    features, _ = stored(tmp_path / "out" / "h5_files" / "AC__4.h5")
    assert np.array_equal(features, make_generator("row").make([picture(99)])[0].features)


def test_another_generator_is_refused(folder, tmp_path):
    generate(folder, "row", tmp_path / "row")
    before = contents(tmp_path / "row")
    with pytest.raises(StorageError, match="has features of row, not of sbn: give another folder"):
        generate(folder, "sbn", tmp_path / "row")
    assert contents(tmp_path / "row") == before
    generate(folder, patches(9, own_encoder(0)), tmp_path / "own")
    with pytest.raises(StorageError, match=r"of own-9 \(patches = 9, .* weights = .*not of own-9"):
        generate(folder, patches(9, own_encoder(1)), tmp_path / "own")
    (tmp_path / "own" / "generator.json").write_text("{")
    with pytest.raises(StorageError, match=r"generator\.json is not valid JSON"):
        generate(folder, patches(9, own_encoder(0)), tmp_path / "own")


def test_somebody_elses_folder_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError, match=r"mine exists and holds no generator\.json"):
        generate(folder, "row", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_unreadable_image_is_an_error_or_is_skipped(folder, tmp_path):
    bad = [folder / "AC" / "1.png", folder / "H" / "4.png"]
    for path in bad:
        path.write_bytes(path.read_bytes()[:300])
    generator, out = patches(9, own_encoder()), tmp_path / "out"
    with pytest.raises(StorageError, match=r"AC/1\.png cannot be read .* use --skip-unreadable\.$"):
        generate(folder, generator, out)
    assert not (out / "labels.csv").exists()
    seen = []
    summary = generate(folder, generator, out, skip_unreadable=True, report=lambda done, _: seen.append(done))
    assert (summary.made, summary.kept, summary.skipped) == (8, 0, tuple(bad))
    assert seen[-1] == 10
    assert len(list((out / "h5_files").iterdir())) == 8
    assert "AC__1" not in (out / "labels.csv").read_text()
    again = generate(folder, generator, out, skip_unreadable=True)
    assert (again.made, again.kept, again.skipped) == (0, 8, tuple(bad))
    for path, seed in zip(bad, (1, 9), strict=True):
        save(path, picture(seed))
    assert generate(folder, generator, out).made == 2
    assert len((out / "labels.csv").read_text().splitlines()) == 11


def test_an_image_too_small_names_its_file(folder, tmp_path):
    save(folder / "H" / "0.png", picture(0, 48, 23))
    with pytest.raises(DataError, match=r"H/0\.png: The image has 23×48 pixels; own-9 needs at least 24×24"):
        generate(folder, patches(9, own_encoder()), tmp_path / "out", skip_unreadable=True)


# ---- interruptions -------------------------------------------------------------------------------------

WORK = """
import os, signal, sys, time
from pathlib import Path
import torch
import mipl.files
from mipl.data.images import generate

torch.set_num_threads(1)
flush, written = mipl.files._flush, []

def killed(path):
    written.append(path)
    if len(written) == 8:  # generator.json and six images are whole, and this one is not yet renamed
        os.kill(os.getpid(), signal.SIGKILL)
    flush(path)

def slow(done, note):
    print(done, note, flush=True)
    time.sleep(0.1)

if sys.argv[3] == "kill":
    mipl.files._flush = killed
generate(Path(sys.argv[1]), "lite0-9", Path(sys.argv[2]), report=slow)
"""


def start(folder, out, how):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", WORK, str(folder), str(out), how]
    return subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # what is started in the background of a shell is deaf to SIGINT, and so would its children be
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_stopped_process_is_finished_by_the_next(folder, tmp_path, how):
    out = tmp_path / "out"
    process = start(folder, out, how)
    for line in process.stdout:
        if how == "interrupt" and line.startswith("6 "):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -(signal.SIGKILL if how == "kill" else signal.SIGINT), errors
    names = [path.name for path in (out / "h5_files").iterdir()]
    left = [name for name in names if name.startswith(".")]
    finished = [name for name in names if not name.startswith(".")]
    assert len(left) == (1 if how == "kill" else 0)
    assert 6 <= len(finished) < 10  # of a first batch of seven: the seventh, encoded alone, would differ
    whole = contents(out)
    summary = generate(folder, "lite0-9", out)
    assert (summary.made, summary.kept) == (10 - len(finished), len(finished))
    for name in finished:
        assert whole[Path("h5_files") / name] == (out / "h5_files" / name).read_bytes()
    generate(folder, "lite0-9", tmp_path / "uninterrupted")
    assert contents(out) == contents(tmp_path / "uninterrupted")


# ---- real tiles ----------------------------------------------------------------------------------------


def test_real_tiles(tmp_path):
    tiles = real("crc-tiles")
    for label in ("AC", "V"):
        (tmp_path / "tiles" / label).mkdir(parents=True)
        for path in sorted((tiles / label).iterdir())[:2]:
            (tmp_path / "tiles" / label / path.name).write_bytes(path.read_bytes())
    shapes = {"row": ({8}, 9), "sbn": ({9}, 15), "kmeans": ({3, 4, 5, 6}, 6), "sift": ({25}, 128)}
    shapes |= {f"lite0-{n}": ({n}, 1280) for n in (9, 16, 25)}
    for name, (sizes, width) in shapes.items():
        bags = list(image_bags(tmp_path / "tiles", name))
        assert [bag.label for bag in bags] == ["AC", "AC", "V", "V"]
        for bag in bags:
            assert len(bag.instances.features) in sizes
            assert bag.instances.features.shape[1] == width
    image = read_image(list_images(tmp_path / "tiles")[0].path)
    first = next(image_bags(tmp_path / "tiles", "row"))
    assert np.allclose(first.instances.features[:, :3].mean(axis=0), image.mean(axis=(0, 1)) / 255, atol=1e-5)
