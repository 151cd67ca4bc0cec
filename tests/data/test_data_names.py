"""Names in tables and of images stand for bags: with or without suffix, or with the original path."""

from hypothesis import given
from hypothesis import strategies as st

from mipl.data.names import SUFFIXES, NameIndex, forms

NAME = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\0", exclude_categories=["Cs", "Cc"]), min_size=1
)
PLAIN = st.text("abcxyz019-_", min_size=1, max_size=8)


@given(
    st.sets(PLAIN, min_size=1),
    st.sampled_from(SUFFIXES),
    st.sampled_from(["", "tiles/", "/data/x/", "C:\\s\\"]),
)
def test_suffixes_and_paths_are_the_same_bag(ids, suffix, folder):
    index = NameIndex(ids)
    for bag in ids:
        for name in (bag, f"{bag}{suffix}", f"{bag}{suffix.upper()}", f"{folder}{bag}{suffix}"):
            assert index.find(name) == bag


@given(st.sets(NAME, min_size=1))
def test_an_equal_id_comes_first(ids):
    index = NameIndex(ids)
    assert all(index.find(bag) == bag for bag in ids)


def test_a_name_that_two_bags_have_is_nobody_s():
    index = NameIndex(["a/x.png", "b/x.png", "y"])
    assert index.find("x") is None
    assert index.find("a/x") == "a/x.png"
    assert index.find("elsewhere/y.svs") == "y"
    assert index.find("z") is None
    assert NameIndex(["a__x", "x2"]).find("x") is None  # only a path has folders, not an id


def test_subfolders_are_joined_as_data_images_does():
    index = NameIndex(["tumour__a_1", "stroma__a_1"], {"tumour__a_1": "tumour/a 1.png"})
    assert index.find("tumour/a 1.png") == "tumour__a_1"
    assert index.find("/x/tiles/stroma/a 1.tif") == "stroma__a_1"
    assert "tumour__a_1" in forms("tumour/a 1.png")
