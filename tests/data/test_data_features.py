"""Names of features, masked values, and features whose scale is tiny."""

import numpy as np
import pytest
import torch

from mipl.data.bags import Bags
from mipl.data.features import aligned
from mipl.errors import DataError
from mipl.estimators import make_classifier
from mipl.nn.encoders import Standardize
from mipl.training.scaling import fit_scaling

SETS = [["a", "b"], ["b", "c"], ["a", "c"]] * 4


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, 2)).astype(np.float32) + i % 3 for i in range(len(SETS))]


def named(names=("u", "v"), columns=slice(None)):
    return Bags.from_list([array[:, columns] for array in arrays()], SETS, feature_names=names)


def test_names_stay_with_selections_and_files(tmp_path):
    bags = named()
    assert bags[2:5].packed().feature_names == ("u", "v")
    bags.save(tmp_path / "b.npz")
    for mapped in (False, True):
        again = Bags.load(tmp_path / "b.npz", mapped=mapped)
        assert again.feature_names == ("u", "v")
        turned = aligned(again, ("v", "u"))
        np.testing.assert_array_equal(turned.instances, bags.instances[:, ::-1])
        np.testing.assert_array_equal(aligned(turned, ("u", "v")).instances, bags.instances)
    with pytest.raises(DataError, match="3 feature names for instances of shape"):
        named(("u", "v", "w"))
    with pytest.raises(DataError, match="occurs twice"):
        named(("u", "u"))


def test_a_model_puts_the_order_right_and_refuses_other_names(tmp_path):
    model = make_classifier("sam-cn", epochs=2, ensemble=1).fit(named())
    expected = model.predict_proba(named())
    model.save(tmp_path / "m")
    for loaded in (model, type(model).load(tmp_path / "m")):
        turned = named(("v", "u"), [1, 0])
        np.testing.assert_array_equal(loaded.predict_proba(turned), expected)
        np.testing.assert_array_equal(loaded.predict_proba(arrays()), expected)  # without names: as given
        with pytest.raises(DataError, match="lacks v and also has w"):
            loaded.predict_proba(named(("u", "w")))


def test_data_frames_bring_their_names():
    pd = pytest.importorskip("pandas")
    frames = [pd.DataFrame(array, columns=["u", "v"]) for array in arrays()]
    frames[1] = frames[1][["v", "u"]]
    bags = Bags.from_list(frames, SETS)
    assert bags.feature_names == ("u", "v")
    np.testing.assert_array_equal(bags.instances, named().instances)
    frames[2].columns = ["u", "w"]
    with pytest.raises(DataError, match="Bag '2' does not have the features of bag '0'"):
        Bags.from_list(frames, SETS)
    with pytest.raises(DataError, match="give every bag as a frame"):
        Bags.from_list([*frames[:2], arrays()[2]], SETS[:3])


def test_masked_values_are_refused():
    masked = np.ma.masked_array(arrays()[1], mask=np.array([[0, 0], [0, 1], [0, 0]]))
    with pytest.raises(DataError, match=r"Bag '1': a masked array has a masked value at \(1, 1\)"):
        Bags.from_list([arrays()[0], masked])
    whole = Bags.from_list([np.ma.masked_array(array) for array in arrays()])  # nothing is masked
    np.testing.assert_array_equal(whole.instances, named().instances)
    matrix = np.ma.masked_array(np.ones((12, 3), dtype=int), mask=np.eye(12, 3, k=-1))
    with pytest.raises(DataError, match="candidate matrix has a masked value in row 1"):
        Bags.from_list(arrays(), matrix)


def test_a_feature_is_constant_relative_to_its_magnitude():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(50, 1))
    table = np.hstack([normal, 1e-9 * normal, np.full((50, 1), 1e-9), np.full((50, 1), 0.1), 5 + normal])
    scaling = Standardize((5,))
    fit_scaling(scaling, Bags.from_list([table.astype(np.float32)]))
    scaled = scaling(torch.from_numpy(table.astype(np.float32)))
    assert scaled.std(dim=0, correction=0)[[0, 1, 4]].numpy() == pytest.approx(1.0, rel=1e-4)
    assert scaled[:, [2, 3]].abs().max() < 1e-6
    assert scaling.std[[2, 3]].tolist() == [1.0, 1.0]
