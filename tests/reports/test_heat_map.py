"""The grid that patches lie on, and the heat map over it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mipl.data.images.patches import patch_grid
from mipl.errors import DataError
from mipl.reports.heat_map import VECTORS, grid_spacing, heat_map


def grid(columns, rows, width, height):
    return np.stack(np.meshgrid(np.arange(columns) * width, np.arange(rows) * height), -1).reshape(-1, 2)


def drawn(figure, label):
    return next(c for c in figure.axes[0].collections if c.get_label() == label)


@given(
    st.integers(3, 9),
    st.integers(3, 9),
    st.sampled_from([1, 224, 256, 0.5]),
    st.sampled_from([1, 224, 512]),
    st.integers(0, 2**32 - 1),
)
def test_the_spacing_is_found_in_any_order_at_any_place(columns, rows, width, height, seed):
    rng = np.random.default_rng(seed)
    places = grid(columns, rows, width, height) + rng.integers(-5000, 5000, size=2)
    assert grid_spacing(places[rng.permutation(len(places))]) == (width, height)


def test_pieces_with_shifted_grids_and_holes_keep_the_spacing():
    rng = np.random.default_rng(0)
    pieces = np.concatenate([grid(9, 7, 256, 256) + shift for shift in ((0, 0), (2801, 13), (77, 2099))])
    assert grid_spacing(pieces[rng.random(len(pieces)) < 0.8]) == (256, 256)


def test_one_row_has_square_cells_and_scattered_points_have_no_grid():
    assert grid_spacing([[0, 5], [224, 5], [448, 5]]) == (224, 224)
    assert grid_spacing([[5, 0], [5, 96]]) == (96, 96)
    assert grid_spacing(np.random.default_rng(0).random((80, 2))) is None
    assert grid_spacing([[3, 4]]) is None
    assert grid_spacing([[3, 4], [3, 4]]) is None


def test_cells_lie_where_the_patches_are_and_are_as_dark_as_their_attention():
    places = grid(4, 3, 10, 20) + 100
    attention = np.arange(12) / 66
    figure = heat_map(attention, places, marked=2)
    cells = drawn(figure, "cells")
    np.testing.assert_allclose(cells.get_array(), attention * 12)
    for path, place in zip(cells.get_paths(), places, strict=True):
        np.testing.assert_allclose(path.vertices.min(axis=0), place)
        np.testing.assert_allclose(path.vertices.max(axis=0), place + np.array([10, 20]))
    frames = [path.vertices.min(axis=0).tolist() for path in drawn(figure, "frames").get_paths()]
    assert frames == [places[11].tolist(), places[10].tolist()]
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts] == ["1", "2"]
    assert ax.get_xlim() == (100, 140)
    assert ax.get_ylim() == (160, 100)  # y goes down, as on a slide
    assert ax.get_aspect() == 1


def test_a_large_slide_is_a_bitmap_and_ranks_do_not_stand_on_each_other():
    places = grid(60, 50, 256, 256)
    attention = np.where(np.arange(3000) < 10, 1.0, 0.001)  # ten cells beside each other
    figure = heat_map(attention / attention.sum(), places)
    assert len(places) > VECTORS
    assert drawn(figure, "cells").get_rasterized()
    assert len(drawn(figure, "frames").get_paths()) == 10
    shown = [int(text.get_text()) for text in figure.axes[0].texts]
    assert shown[0] == 1
    assert 1 < len(shown) < 10
    assert not drawn(heat_map(np.ones(9) / 9, grid(3, 3, 1, 1)), "cells").get_rasterized()


def test_scattered_places_are_dots_with_the_most_important_on_top():
    rng = np.random.default_rng(1)
    places, attention = rng.random((30, 2)), rng.dirichlet(np.ones(30))
    (dots,) = heat_map(attention, places).axes[0].collections
    np.testing.assert_allclose(dots.get_array(), np.sort(attention * 30))
    np.testing.assert_allclose(dots.get_offsets()[-1], places[attention.argmax()])


@pytest.mark.parametrize(
    ("attention", "places", "sentence"),
    [
        ([0.5, 0.5], [[0, 0]], "2 weights and coordinates of shape"),
        ([], np.zeros((0, 2)), "0 weights"),
        ([0.5, 0.5], [[0, 0, 0], [1, 0, 0]], "give"),
        ([1.5, -0.5], [[0, 0], [1, 0]], "negative"),
        ([np.nan, 1], [[0, 0], [1, 0]], "not finite"),
        ([0.5, 0.5], [[0, np.inf], [1, 0]], "not finite"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(attention, places, sentence):
    with pytest.raises(DataError, match=sentence):
        heat_map(attention, places)


@pytest.mark.parametrize(("height", "width"), [(60, 60), (63, 101), (40, 77)])
def test_a_drawn_cell_covers_the_pixels_that_its_patch_came_from(height, width):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    patches, places = patch_grid(image, 16)
    cells = drawn(heat_map(np.full(16, 1 / 16), places), "cells")
    for cell, patch in zip(cells.get_paths(), patches, strict=True):
        (left, top), (right, bottom) = cell.get_extents().get_points().round().astype(int)
        np.testing.assert_array_equal(image[top:bottom, left:right], patch)


def test_steps_that_single_precision_rounds_are_one_grid():
    places = (grid(30, 30, 224.3, 112.7) + 1000.1).astype(np.float32)
    assert grid_spacing(places) == pytest.approx((224.3, 112.7), rel=1e-5)
