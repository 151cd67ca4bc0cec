"""What feature files say of their features, and what a model refuses because of it."""

import h5py
import numpy as np
import pytest

import mipl
from mipl import make_classifier
from mipl.cli import main
from mipl.data.formats.h5 import open_folder, write_folder
from mipl.errors import DataError, StorageError


def write(path, rows=6, width=4, seed=0, *, file=None, features=None, coords=None):
    """Write a feature file with attributes of the file and of its arrays."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as store:
        store["features"] = rng.normal(size=(rows, width)).astype(np.float32)
        store["coords"] = np.stack([np.arange(rows) * 512, np.zeros(rows)], axis=1)
        store.attrs.update(file or {})
        store["features"].attrs.update(features or {})
        store["coords"].attrs.update(coords or {})


TRIDENT = {"patch_size": 256, "patch_size_level0": 512, "level0_width": 4000, "level0_height": 3000}
CLAM = {"patch_size": 256, "downsample": (2.0, 2.0), "level_dim": (2000, 1500), "name": "s", "save_path": "x"}
STAMP = {"extractor": "uni", "unit": "um", "tile_size_um": 256.0, "tile_size_px": 224}


@pytest.mark.parametrize(
    ("attributes", "known", "geometry"),
    [
        (
            {"coords": {**TRIDENT, "target_magnification": 20}, "features": {"encoder": "uni_v1"}},
            {"encoder": "uni_v1", "magnification": 20, "patch_size": 256},
            (512, 512, 4000, 3000),
        ),
        ({"coords": CLAM}, {"patch_size": 256}, (512, 512, 4000, 3000)),
        ({"file": STAMP}, {"encoder": "uni", "patch_size": 224}, (256, 256, np.nan, np.nan)),
        ({"file": {"encoder": np.array(["a", "b"], dtype=object)}}, None, None),
        ({"coords": {"level0_width": -3, "patch_size_level0": np.inf}}, None, None),
    ],
    ids=["TRIDENT", "CLAM", "STAMP", "text array", "impossible"],
)
def test_attributes_of_other_tools(tmp_path, attributes, known, geometry):
    write(tmp_path / "s" / "a.h5", **attributes)
    bags = open_folder(tmp_path / "s")
    assert bags.provenance.get("features") == known
    if geometry is None:
        assert bags.geometry is None or np.isnan(bags.geometry).all()
    else:
        np.testing.assert_array_equal(bags.geometry, [geometry])


def test_the_folder_of_an_encoder_names_it(tmp_path):
    write(tmp_path / "20x" / "features_conch" / "a.h5")
    assert open_folder(tmp_path).provenance["features"] == {"encoder": "conch"}


def test_features_of_two_encoders_are_refused(tmp_path):
    for name, encoder in (("a", "uni"), ("b", "conch")):
        write(tmp_path / f"{name}.h5", file={"encoder": encoder})
    with pytest.raises(DataError, match="not all of one encoder: uni in a, but conch in b"):
        open_folder(tmp_path)


def test_the_origin_survives_files_and_folders(tmp_path):
    write(tmp_path / "in" / "a.h5", coords=TRIDENT, file={"encoder": "uni"})
    bags = open_folder(tmp_path / "in")
    bags.save(tmp_path / "bags.npz")
    loaded = mipl.data.bags.Bags.load(tmp_path / "bags.npz")
    write_folder(bags, tmp_path / "out")
    again = open_folder(tmp_path / "out")
    for other in (loaded, again):
        assert other.provenance["features"] == bags.provenance["features"]
        np.testing.assert_array_equal(other.geometry, bags.geometry)
    np.testing.assert_array_equal(bags[[0]].geometry, bags.geometry)
    assert bags[0].geometry.tolist() == [512, 512, 4000, 3000]


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    """A model of one encoder's features, and folders of the same, another, and unknown features."""
    place = tmp_path_factory.mktemp("cohorts")
    for folder, encoder in (("same", "uni"), ("other", "conch"), ("unknown", None)):
        for i in range(4):
            about = {} if encoder is None else {"encoder": encoder}
            write(place / folder / f"s{i}.h5", seed=i, file=about, coords={"patch_size": 256})
    rows = "\n".join(f"s{i}.svs,{'ab'[i % 2]}|c" for i in range(4))
    (place / "labels.csv").write_text(f"slide_id,candidates\n{rows}\n")
    bags = open_folder(place / "same", place / "labels.csv")
    make_classifier("sam-cn", ensemble=1, epochs=1).fit(bags).save(place / "model")
    return place


def test_a_model_refuses_other_features_in_one_sentence(cohorts, tmp_path, capsys):
    command = ["predict", str(cohorts / "model"), "--out", str(tmp_path / "p.csv")]
    assert main([*command, str(cohorts / "same")]) == 0
    assert main([*command, str(cohorts / "unknown")]) == 0  # nothing is known against it
    (tmp_path / "p.csv").unlink()
    capsys.readouterr()
    assert main([*command, str(cohorts / "other")]) == 2
    message = capsys.readouterr().err.strip()
    assert "features of another encoder, 'conch', than the model was trained on, 'uni'" in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "p.csv").exists()


def test_the_card_names_the_features(cohorts, tmp_path):
    assert main(["export", str(cohorts / "model"), "--card", str(tmp_path / "card.md")]) == 0
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert "| features | encoder 'uni', patch size 256 |" in card


def test_damaged_files_are_refused_as_before(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"0" * 100)
    with pytest.raises((StorageError, DataError), match="cannot be read as features"):
        open_folder(tmp_path)
