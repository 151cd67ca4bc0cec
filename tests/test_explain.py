"""Attention of single bags: the table, the figure and the files."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mipl
from mipl import make_classifier
from mipl.cli import main
from mipl.data.bag import Bag
from mipl.data.bags import Bags
from mipl.data.geometry import placement
from mipl.data.images.patches import patch_grid
from mipl.data.sources import Source
from mipl.errors import DataError, SettingError, StorageError
from mipl.explain import COLUMNS, Explanation, explain, file_names, write_explanations
from mipl.nn.network import BagNetwork, members_of


@pytest.fixture(scope="module")
def slides():
    """Bags of patches on a grid."""
    rng = np.random.default_rng(0)
    arrays, places = [], []
    for i in range(20):
        spots = np.stack(np.meshgrid(np.arange(6), np.arange(5)), -1).reshape(-1, 2) * 256
        kept = rng.random(30) < 0.7
        places.append(spots[kept])
        arrays.append(rng.normal(size=(kept.sum(), 4)) + 2 * (i % 3))
    labels = [i % 3 for i in range(20)]
    sets = [{y, (y + 1) % 3} for y in labels]
    ids = [f"slide-{i}" for i in range(20)]
    return Bags.from_list(arrays, sets, labels, ["a", "b", "c"], ids=ids, coordinates=places)


@pytest.fixture(scope="module")
def model(slides):
    return make_classifier("sam-cn", ensemble=3, epochs=3).fit(slides)


def texts(figure):
    return [text.get_text() for text in figure.texts]


def test_an_explanation_agrees_with_the_model(model, slides):
    first, second = explain(model, slides, ["slide-7", "slide-2", "slide-7"])
    assert (first.bag.id, second.bag.id) == ("slide-7", "slide-2")
    p = model.predict_proba(slides[7:8])[0]
    assert first.label == str(model.classes_[p.argmax()])
    assert first.confidence == pytest.approx(p.max(), abs=1e-6)
    assert first.truth == "b"
    np.testing.assert_allclose(first.attention, model.attention_weights(slides[7:8])[0], atol=1e-6)
    assert (first.positions == slides[7].coordinates).all()


def test_the_classes_of_the_bags_may_be_in_another_order(model, slides):
    other = Bags.from_list([slides[0].instances], None, ["c"], ["c", "a", "b"])
    (found,) = explain(model, other, ["0"])
    assert found.truth == "c"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_rows_rank_the_instances_by_attention(scores):
    attention = np.array(scores, dtype=float) + 1
    bag = Bag("b", np.zeros((len(scores), 2)), coordinates=np.arange(2 * len(scores)).reshape(-1, 2))
    rows = Explanation(bag, "a", 0.5, None, attention / attention.sum()).rows()
    assert [row["index"] for row in rows] == list(range(len(scores)))
    assert [(row["x"], row["y"]) for row in rows] == [(2 * i, 2 * i + 1) for i in range(len(scores))]
    ranked = sorted(rows, key=lambda row: row["rank"])
    assert [row["rank"] for row in ranked] == list(range(1, len(scores) + 1))
    # an independent route: decreasing attention, ties in the order of the bag
    assert [row["index"] for row in ranked] == sorted(range(len(scores)), key=lambda i: (-attention[i], i))


def test_bags_with_coordinates_have_a_heat_map(model, slides):
    (found,) = explain(model, slides, ["slide-1"])
    figure = found.figure()
    cells = next(c for c in figure.axes[0].collections if c.get_label() == "cells")
    np.testing.assert_allclose(cells.get_array(), found.attention * len(found.attention))
    assert texts(figure)[0] == "slide-1"
    assert f"predicted {found.label}, confidence {found.confidence:.1%}; true label b" in texts(figure)


@pytest.mark.parametrize(
    ("instances", "shape"),
    [
        (np.ones((5, 8, 8), dtype=np.uint8) * 51, (8, 8)),
        (np.ones((5, 1, 8, 8)) * 0.2, (8, 8)),
        (np.ones((5, 3, 8, 8), dtype=np.uint8) * 51, (8, 8, 3)),
        (np.ones((5, 2, 8, 8)) * 0.2, (8, 8)),
    ],
    ids=["uint8", "one channel", "colours", "two channels"],
)
def test_images_are_drawn_in_the_order_of_attention(instances, shape):
    attention = np.array([0.1, 0.4, 0.2, 0.05, 0.25])
    bag = Bag("b", instances, label=0, instance_labels=np.array([-1, 0, -1, -1, -1]))
    figure = Explanation(bag, "a", 0.5, "a", attention).figure()
    (ax,) = figure.axes
    assert [image.get_array().shape for image in ax.images] == [shape] * 5
    assert np.asarray(ax.images[0].get_array()).max() == pytest.approx(0.2)
    numbers = [text.get_text() for text in ax.texts if text.get_text().startswith("#")]
    assert numbers == ["#1", "#4", "#2", "#0", "#3"]  # the indices of the CSV
    assert any("framed: of the true class" in text for text in texts(figure))


def test_normalised_images_are_brought_into_range():
    instances = np.random.default_rng(0).normal(size=(3, 3, 8, 8))
    figure = Explanation(Bag("b", instances), "a", 0.5, None, np.ones(3) / 3).figure()
    shown = np.stack([image.get_array() for image in figure.axes[0].images])
    assert (shown.min(), shown.max()) == (0, 1)


@pytest.mark.parametrize("coordinates", [None, np.zeros((4, 3))], ids=["none", "three columns"])
def test_vectors_without_coordinates_are_bars(coordinates):
    bag = Bag("b", np.zeros((4, 6)), coordinates=coordinates)
    found = Explanation(bag, "a", 0.5, None, np.array([0.1, 0.6, 0.1, 0.2]))
    bars = [patch for patch in found.figure().axes[0].patches if patch.get_label() == "share"]
    heights = [bar.get_height() for bar in bars]
    np.testing.assert_allclose(np.divide(heights, heights[0]), np.array([0.6, 0.2, 0.1, 0.1]) / 0.6)
    assert {(row["x"], row["y"]) for row in found.rows()} == {(None, None)}


def test_long_and_odd_names_stay_inside_the_figure():
    bag = Bag("$x^2$_" + "long " * 40, np.zeros((2, 3)))
    figure = Explanation(bag, "$a$", 0.5, None, np.array([0.5, 0.5])).figure()
    figure.draw_without_rendering()
    for text in figure.texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.axes[0].bbox.y1 <= box.y0
        assert box.y1 <= figure.bbox.y1


def test_the_files_agree_with_the_explanation(model, slides, tmp_path):
    found = explain(model, slides, ["slide-3", "slide-4"])
    listed = write_explanations(tmp_path / "out", found)
    assert json.loads((tmp_path / "out" / "explain.json").read_text())["bags"] == listed
    names = {name for about in listed for name in about["files"]} | {"explain.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    with (tmp_path / "out" / "slide-4.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    others = [name for name in rows[0] if name not in COLUMNS]
    assert tuple(rows[0]) == (*COLUMNS, *others)
    assert others[0] == f"evidence({found[1].label})"
    assert [float(row[others[1]]) for row in rows] == list(found[1].evidence.values())[1].tolist()
    assert [float(row["attention"]) for row in rows] == found[1].attention.tolist()
    assert [(float(row["x"]), float(row["y"])) for row in rows] == list(map(tuple, slides[4].coordinates))
    assert (tmp_path / "out" / "slide-3.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "slide-3.svg").read_text(encoding="utf-8")
    before = (tmp_path / "out" / "slide-3.svg").read_bytes()
    write_explanations(tmp_path / "out", found[:1])  # an existing folder is replaced, with the same bytes
    assert not (tmp_path / "out" / "slide-4.csv").exists()
    assert (tmp_path / "out" / "slide-3.svg").read_bytes() == before


def test_a_failure_leaves_what_was_there(model, slides, tmp_path):
    write_explanations(tmp_path / "out", explain(model, slides, ["slide-3"]))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    broken = Explanation(slides[5], "a", 0.5, None, np.full(len(slides[5]), -1.0))
    with pytest.raises(DataError, match="negative"):
        write_explanations(tmp_path / "out", [*explain(model, slides, ["slide-4"]), broken])
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(StorageError, match="not replaced"):
        write_explanations(tmp_path / "mine", explain(model, slides, ["slide-3"]))


@given(st.lists(st.text(max_size=90), min_size=1, max_size=8))
def test_every_id_has_a_file_name_of_its_own(ids):
    names = file_names(ids)
    assert len({name.lower() for name in names}) == len(ids)
    for name in names:
        assert name
        assert not set(name) & set('/\\:*?"<>|\0\n $')
        assert not name.startswith(".")


def test_an_unknown_bag_suggests_the_nearest(model, slides):
    with pytest.raises(DataError, match=r"no bag 'slide_17' in the data. Did you mean 'slide-17'\?"):
        explain(model, slides, ["slide-1", "slide_17"])
    with pytest.raises(DataError, match="Did you mean 'slide-"):  # however far it is
        explain(model, slides, ["s"])


@pytest.mark.parametrize("name", ["proden", "fastmipl", "miplgp"])
def test_a_method_without_attention_says_so(name, slides):
    other = make_classifier(name, ensemble=1, epochs=1).fit(slides)
    with pytest.raises(SettingError, match=f"{name} has no attention over instances"):
        explain(other, slides, ["slide-1"])


def test_a_bag_of_an_image_is_drawn_where_its_pixels_are(tmp_path):
    """From an image through ``mipl data images`` to the heat map: the cell is over what it describes."""
    cv2 = pytest.importorskip("cv2")
    image = np.full((171, 163, 3), 90, dtype=np.uint8)
    image[118:121, 80:83] = 200  # in one of SIFT's 5 × 5 cells
    (tmp_path / "in").mkdir()
    cv2.imwrite(str(tmp_path / "in" / "a.png"), image)
    words = ["data", "images", tmp_path / "in", "--generator", "sift", "--out", tmp_path / "out"]
    assert main([str(word) for word in words]) == 0
    bag = Source(str(tmp_path / "out")).open()[0]
    (i,) = np.flatnonzero(bag.instances.any(axis=1))
    figure = Explanation(bag, "a", 1.0, None, np.full(25, 1 / 25)).figure()
    cells = next(c for c in figure.axes[0].collections if c.get_label() == "cells")
    (left, top), (right, bottom) = cells.get_paths()[i].get_extents().get_points()
    assert left <= 80 < 83 <= right
    assert top <= 118 < 121 <= bottom


@pytest.mark.parametrize("name", ["sam-cn", "dam-cc", "mam-cn", "demipl"])
@pytest.mark.parametrize("members", [1, 3])
def test_evidence_adds_up_to_the_scores_of_the_bag(name, members, slides):
    """An independent route: the last layer on the bags' own features z."""
    own = make_classifier(name, ensemble=members, epochs=1).fit(slides)
    nets = members_of(own.network_)
    z = np.split(own.embed(slides), len(nets), axis=1)
    heads = [(net.head.weight.detach().numpy(), net.head.bias.detach().numpy()) for net in nets]
    scores = np.mean([part @ w.T + b for part, (w, b) in zip(z, heads, strict=True)], axis=0)
    centred = scores - scores.mean(axis=1, keepdims=True)
    sums = np.array([values.sum(axis=0) for values in own.evidence(slides)])
    np.testing.assert_allclose(sums, centred, atol=1e-5)


def test_evidence_of_a_bag_that_is_read_in_parts(slides, monkeypatch):
    own = make_classifier("sam-cn", ensemble=1, epochs=1).fit(slides)
    whole = own.evidence(slides)
    monkeypatch.setattr(BagNetwork, "CHUNK", 7)
    monkeypatch.setattr(BagNetwork, "STORED", 5)
    for one, other in zip(whole, own.evidence(slides), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def tile_bag(geometry=None):
    """Return a bag of 16 patches of a tile, with the tile."""
    image = np.random.default_rng(0).integers(0, 256, (63, 101, 3), dtype=np.uint8)
    patches, places = patch_grid(image, 16)
    return image, patches, Bag("t", np.zeros((16, 2)), coordinates=places, geometry=geometry)


def explained(bag, image):
    evidence = {"a": np.linspace(-1, 1, 16), "b": np.linspace(0.5, -0.5, 16)}
    return Explanation(bag, "a", 0.7, "b", np.arange(1.0, 17) / 136, evidence, image)


def test_maps_over_an_image_are_in_register():
    image, patches, bag = tile_bag()
    figure = explained(bag, image).figure()
    panels = [ax for ax in figure.axes if ax.images]
    titles = ["image", "attention", "evidence for a", "evidence for b"]
    assert [ax.get_title(loc="left") for ax in panels] == titles
    for ax in panels:
        assert ax.images[0].get_extent() == [0, 101, 63, 0]
    for ax in panels[1:]:
        cells = next(c for c in ax.collections if c.get_label() == "cells")
        for cell, patch in zip(cells.get_paths(), patches, strict=True):
            (left, top), (right, bottom) = cell.get_extents().get_points().round().astype(int)
            np.testing.assert_array_equal(image[top:bottom, left:right], patch)
    shown = [next(c for c in ax.collections if c.get_label() == "cells").get_array() for ax in panels[1:]]
    np.testing.assert_allclose(shown[0], 16 * np.arange(1.0, 17) / 136)
    np.testing.assert_allclose(shown[2], np.linspace(0.5, -0.5, 16))
    bars = [ax for ax in figure.axes if not ax.images]
    assert len(bars) == 2  # the scales
    assert "predicted a, confidence 70.0%; true label b" in texts(figure)


def test_a_thumbnail_is_placed_by_the_size_of_the_slide():
    image, _, bag = tile_bag()
    known = dataclasses.replace(
        bag, coordinates=bag.coordinates * 40, geometry=np.array([1000.0, 600.0, 101 * 40, 63 * 40])
    )
    place = placement(known, 101, 63)
    assert (place.width, place.height) == (101 * 40, 63 * 40)
    assert place.patch == (1000, 600)
    figure = explained(known, image).figure()
    assert figure.axes[1].images[0].get_extent() == [0, 4040, 2520, 0]
    with pytest.raises(DataError, match="has 101×101 pixels, but its slide is 4040×2520"):
        placement(known, 101, 101)
    with pytest.raises(DataError, match="reach beyond its image of 101×63: give the image at full size"):
        placement(dataclasses.replace(known, geometry=None), 101, 63)
    with pytest.raises(DataError, match="has no coordinates"):
        placement(dataclasses.replace(known, coordinates=None), 101, 63)


def test_a_large_image_is_reduced_to_means():
    image = np.random.default_rng(0).integers(0, 256, (10, 3205, 3), dtype=np.uint8)
    reduced = mipl.explain._reduced(image)  # by a factor of 3
    assert reduced.shape == (4, 1069, 3)
    np.testing.assert_allclose(reduced[1, 2], image[3:6, 6:9].mean(axis=(0, 1)), atol=0.51)
    np.testing.assert_allclose(reduced[3, 1068], image[9:, 3204:].mean(axis=(0, 1)), atol=0.51)


def test_explain_with_images_from_the_command_line(model, slides, tmp_path, capsys):
    cv2 = pytest.importorskip("cv2")
    slides.save(tmp_path / "bags.npz")
    model.save(tmp_path / "model")
    images = tmp_path / "images"
    images.mkdir()
    for name in ("slide-1", "slide-2"):
        cv2.imwrite(str(images / f"{name}.png"), np.full((5 * 256, 6 * 256, 3), 200, dtype=np.uint8))
    words = ["explain", tmp_path / "model", tmp_path / "bags.npz", "--out", tmp_path / "out"]
    command = [*map(str, words), "--bag", "slide-1"]
    assert main([*command, "--image", str(images / "slide-1.png")]) == 0
    assert main([*command, "--bag", "slide-2", "--image", str(images)]) == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 2
    capsys.readouterr()
    assert main([*command, "--bag", "slide-2", "--image", str(images / "slide-1.png")]) == 2
    assert "is one image for 2 bags: give the folder" in capsys.readouterr().err
    assert main([*command, "--bag", "slide-3", "--image", str(images)]) == 2
    assert "has no image of the bag slide-3" in capsys.readouterr().err
