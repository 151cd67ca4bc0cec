"""One contract over every method: what a user may rely on, whichever name was chosen."""

import numpy as np
import pytest

from mipl import list_methods, load, make_classifier
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.errors import DataError, SettingError
from mipl.methods import METHODS as METHOD_REGISTRY

METHODS = list_methods()
EPOCHS = 12
pytestmark = pytest.mark.filterwarnings("ignore:The model has learned nothing")  # a few epochs


def made(name, **settings):
    """Return the classifier of a method, a small ensemble where an ensemble is the default."""
    ensembled = METHOD_REGISTRY[name].make().ensembled
    return make_classifier(name, ensemble=3 if ensembled else 1, **settings)


@pytest.fixture(scope="module")
def fitted(gaussian):
    """Every method, trained once on the Gaussian bags."""
    return {name: made(name, epochs=EPOCHS).fit(gaussian) for name in METHODS}


def test_every_name_of_the_paper_is_there():
    attentions = ("dam", "sam", "mam")
    expected = {f"{a}-{c}" for a in attentions for c in ("cc", "cn", "mdl")}
    expected |= {f"{a}-{c}" for a in ("sam", "mam") for c in ("fl", "ifl", "ls")}
    expected |= {f"{a}-{c}" for a in ("abmil", "abmil-gated") for c in ("cc", "cn", "mdl")}
    expected |= {"demipl", "elimipl", "miplma", "promipl", "fastmipl", "uamipl", "miplgp", "agopmipl"}
    expected |= {"proden", "rc", "cc", "lws", "pop", "pop-cc", "pop-cn"}
    assert expected <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_learns_at_least_half_way_from_chance_to_perfect(name, fitted, gaussian):
    chance = 1 / gaussian.k
    assert fitted[name].score(gaussian) >= chance + (1 - chance) / 2


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_are_probabilities(name, fitted, gaussian):
    model = fitted[name]
    p = model.predict_proba(gaussian)
    assert p.shape == (len(gaussian), gaussian.k)
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.log(p), model.predict_log_proba(gaussian), atol=1e-9)
    assert (model.predict(gaussian) == model.classes_[p.argmax(axis=1)]).all()


@pytest.mark.parametrize("name", METHODS)
def test_permuting_instances_or_batching_with_others_changes_nothing(name, fitted, gaussian):
    model, rng = fitted[name], np.random.default_rng(0)
    together = model.predict_proba(gaussian)
    shuffled = [bag.instances[rng.permutation(len(bag))] for bag in gaussian]
    np.testing.assert_allclose(model.predict_proba(shuffled), together, atol=1e-5)
    alone = np.concatenate([model.predict_proba([bag.instances]) for bag in gaussian])
    np.testing.assert_allclose(alone, together, atol=1e-5)
    order = rng.permutation(len(gaussian))
    np.testing.assert_allclose(model.predict_proba(gaussian[order]), together[order], atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name, fitted, gaussian):
    again = made(name, epochs=EPOCHS).fit(gaussian)
    state, twin = fitted[name].network_.state_dict(), again.network_.state_dict()
    assert all((state[key] == twin[key]).all() for key in state)
    other = made(name, epochs=EPOCHS, random_state=1).fit(gaussian)
    assert any((state[key] != value).any() for key, value in other.network_.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_predicts_the_same(name, fitted, gaussian, tmp_path):
    fitted[name].save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert (loaded.predict_proba(gaussian) == fitted[name].predict_proba(gaussian)).all()
    assert loaded.get_params() == fitted[name].get_params()
    assert loaded.history_ == fitted[name].history_


@pytest.mark.parametrize("name", METHODS)
def test_training_resumed_after_any_epoch_is_the_same_training(name, fitted, gaussian, tmp_path):
    class StopHereError(Exception):
        pass

    def stop_after_five(done, note=""):
        if done == 5:
            raise StopHereError

    with pytest.raises(StopHereError):
        made(name, epochs=EPOCHS).fit(gaussian, checkpoint=tmp_path, report=stop_after_five)
    resumed = made(name, epochs=EPOCHS).fit(gaussian, checkpoint=tmp_path)
    state = fitted[name].network_.state_dict()
    assert all((state[key] == value).all() for key, value in resumed.network_.state_dict().items())
    assert resumed.history_["loss"] == fitted[name].history_["loss"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "bags",
    [
        gaussian_bags(bags=40, sizes=(1, 60), seed=1),
        gaussian_bags(bags=40, d=1, k=2, seed=2),
        gaussian_bags(bags=100, k=25, d=8, seed=3),
        gaussian_bags(bags=30, r=0, seed=4),
        gaussian_bags(bags=30, r=2, seed=5),
    ],
    ids=["ragged", "one feature", "25 classes", "one candidate", "every label a candidate"],
)
@pytest.mark.filterwarnings("ignore:Every bag has one candidate")
def test_odd_data_train_to_finite_probabilities(name, bags):
    p = made(name, epochs=2).fit(bags).predict_proba(bags)
    assert np.isfinite(p).all()


def digits_with_few_negatives(negatives=3):
    """Return digits-mipl with three positives and three negatives per bag: a sixth of the time to train."""
    bags = digits_mipl()
    kept = []
    for bag in bags:
        positive = bag.instance_labels >= 0
        kept.append(bag.instances[positive | (np.cumsum(~positive) <= negatives)])
    return Bags.from_list(kept, bags.candidates, bags.labels, classes=bags.classes)


DATA = {  # and the epochs that a sound method needs for twice the chance
    "digits": (digits_with_few_negatives()[::2], 20),
    "ragged": (gaussian_bags(bags=60, sizes=(1, 200), seed=1), EPOCHS),
    "one feature": (gaussian_bags(bags=60, d=1, seed=7), EPOCHS),
    "25 classes": (gaussian_bags(bags=150, k=25, d=8, seed=3), EPOCHS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("data", DATA)
def test_learns_twice_the_chance_on_other_data(name, data):
    bags, epochs = DATA[data]
    model = make_classifier(name, ensemble=1, epochs=epochs).fit(bags)
    assert model.score(bags) >= 2 / bags.k


@pytest.mark.parametrize("name", METHODS)
def test_every_method_explains_itself(name):
    cls = METHOD_REGISTRY[name].cls
    for text in (cls.summary, cls.advice, cls.cost, cls.citation):
        assert text.strip().endswith((".", ")"))
        assert "\n" not in text
    assert len(cls.summary) > 80


@pytest.mark.parametrize("name", METHODS)
def test_bad_input_is_refused_with_a_sentence(name, fitted, gaussian):
    with pytest.raises(DataError, match=r"instances of shape \(3,\).*trained on \(5,\)"):
        fitted[name].predict([np.ones((4, 3))])
    with pytest.raises(DataError, match="Bag '0' has a NaN"):
        fitted[name].predict([np.full((4, 5), np.nan)])
    with pytest.raises(DataError, match="no candidate sets"):
        make_classifier(name).fit(Bags.from_list([np.ones((2, 5))]))
    with pytest.raises(SettingError, match=r"no setting 'epoch'. Did you mean 'epochs'"):
        make_classifier(name, epoch=3)
