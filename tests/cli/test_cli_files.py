"""Model folders from another machine, and damaged ones, on the command line."""

import json

import pytest
from command import run

from mipl.data.benchmarks import gaussian_bags
from mipl.estimators import CDLClassifier


@pytest.fixture(scope="module")
def model():
    return CDLClassifier(ensemble=1, epochs=2).fit(gaussian_bags(bags=20))


@pytest.fixture
def words(model, tmp_path):
    gaussian_bags(bags=20).save(tmp_path / "bags.npz")
    model.save(tmp_path / "m")
    return ["predict", tmp_path / "m", tmp_path / "bags.npz", "--out", tmp_path / "p.csv"]


def test_a_model_that_was_saved_with_a_device_predicts_without_it(words, tmp_path, capsys):
    info = json.loads((tmp_path / "m" / "model.json").read_text())
    info["params"]["device"] = "cuda"
    (tmp_path / "m" / "model.json").write_text(json.dumps(info))
    (tmp_path / "m" / "checksums.json").unlink()
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert "20 bags predicted" in out


def test_a_damaged_model_is_one_sentence(words, tmp_path, capsys):
    weights = tmp_path / "m" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"mipl: {weights} is damaged: it differs from its checksum. Restore the folder")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "p.csv").exists()
