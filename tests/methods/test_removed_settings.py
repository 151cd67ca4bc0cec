"""Settings of earlier versions: stored models and finished runs that name them are still found."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import mipl
from mipl.errors import SettingError
from mipl.experiments.runner import is_present
from mipl.methods import METHODS
from mipl.records.pack import read_pack
from mipl.registry import active_settings, restored
from mipl.training.recipe import RECIPE_VERSION

RECORDS = Path(__file__).parents[2] / "results" / "records"
ATTENTION = [name for name in METHODS if METHODS[name].cls.removed]


@pytest.fixture
def stored(gaussian, tmp_path):
    """Return a trained model, its folder, and a function that adds ``shared_gate`` to the saved settings."""
    model = mipl.make_classifier("sam-cn", epochs=2, ensemble=1).fit(gaussian)
    model.save(tmp_path / "m")

    def add(value):
        info = json.loads((tmp_path / "m" / "model.json").read_text())
        info["method"]["shared_gate"] = info["params"]["shared_gate"] = value
        (tmp_path / "m" / "model.json").write_text(json.dumps(info))
        (tmp_path / "m" / "checksums.json").unlink()

    return model, tmp_path / "m", add


def test_a_model_that_names_the_setting_loads(stored, gaussian):
    model, folder, add = stored
    add(False)
    loaded = mipl.load(folder)
    assert loaded.method_ == model.method_
    np.testing.assert_array_equal(loaded.predict_proba(gaussian), model.predict_proba(gaussian))


def test_a_model_that_used_the_setting_is_refused(stored):
    _, folder, add = stored
    add(True)
    with pytest.raises(SettingError, match=r"^shared_gate = True is no longer supported: train again"):
        mipl.load(folder)


@pytest.mark.parametrize("name", ATTENTION)
def test_the_setting_remains_part_of_the_identity_of_a_run(name):
    method = METHODS[name].make()
    identity = active_settings(method)
    assert identity["shared_gate"] is False
    assert restored(type(method), identity) == method
    assert "shared_gate" not in dataclasses.asdict(method)
    with pytest.raises(SettingError, match="no setting 'shared_gate'"):
        METHODS[name].make(shared_gate=False)


def test_published_runs_of_the_present_recipe_are_found():
    for record in read_pack(RECORDS):
        if record.recipe_version == RECIPE_VERSION:
            assert is_present(record)
