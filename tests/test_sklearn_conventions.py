"""Conventions of scikit-learn that users hit. `check_estimator` itself does not apply: bags are no arrays."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.validation import check_is_fitted

from mipl import Bags, CDLClassifier, load, make_classifier
from mipl.data.splits import GroupedFolds
from mipl.errors import DataError, SettingError

pytestmark = pytest.mark.filterwarnings("ignore:The model has learned nothing")
NAMES = (3, 7, 42, 100)


def small(**settings):
    return make_classifier("rc", **{"epochs": 4, **settings})


def arrays(bags):
    return [bag.instances for bag in bags]


def test_any_integers_are_classes(gaussian, tmp_path):
    sets = [[NAMES[c] for c in np.flatnonzero(row)] for row in gaussian.candidates]
    truth = [NAMES[y] for y in gaussian.labels]
    model = small().fit(arrays(gaussian), sets)
    assert model.classes_.tolist() == list(NAMES)
    assert set(model.predict(arrays(gaussian)).tolist()) <= set(NAMES)
    assert model.score(arrays(gaussian), truth) > 0.5
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").classes_.tolist() == list(NAMES)
    bags = Bags.from_list(arrays(gaussian), sets, truth, classes=NAMES)
    bags.save(tmp_path / "bags.npz")
    assert Bags.load(tmp_path / "bags.npz").digest() == bags.digest()
    with pytest.raises(DataError, match="the class 5, which is not among 3, 7, 42, 100"):
        bags.with_candidates([[5]] * len(bags))


def test_equal_sample_weights_change_nothing_and_others_do(gaussian):
    for name, ensemble in (("rc", 1), ("sam-cn", 3), ("sam-cn", 1)):
        plain = make_classifier(name, epochs=2, ensemble=ensemble)
        one = plain.fit(gaussian).predict_proba(gaussian)
        same = clone(plain).fit(gaussian, sample_weight=np.full(len(gaussian), 5.0)).predict_proba(gaussian)
        np.testing.assert_allclose(one, same, atol=1e-6)
        only = clone(plain).fit(gaussian, sample_weight=(gaussian.labels == 0).astype(float))
        assert (only.predict_proba(gaussian) != one).any()


def test_bags_of_weight_zero_are_not_learned_from(gaussian):
    only = small(epochs=20).fit(gaussian, sample_weight=(gaussian.labels == 0).astype(float))
    assert only.predict_proba(gaussian)[:, 0].mean() > 0.6


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "has the shape"), (np.full(80, -1.0), "not negative"), (np.zeros(80), "not 0 for every bag")],
)
def test_wrong_sample_weights_are_refused(weights, message, gaussian):
    with pytest.raises(DataError, match=message):
        small().fit(gaussian, sample_weight=weights)


def test_features_are_counted_and_named(gaussian, tmp_path):
    model = small().fit(gaussian)
    assert model.n_features_in_ == 5
    assert not hasattr(model, "feature_names_in_")
    named = Bags.from_rows(
        gaussian.instances[:80], gaussian.candidates, classes=range(4), feature_names=list("abcde")
    )
    assert small().fit(named).feature_names_in_.tolist() == list("abcde")
    assert not hasattr(small(), "n_features_in_")


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_a_generator_gives_the_seed_and_a_saved_model_keeps_it(make, gaussian, tmp_path):
    one, same = (small(random_state=make(3)).fit(gaussian) for _ in range(2))
    assert one.seed_ == same.seed_
    assert one.seed_ != small(random_state=make(4)).fit(gaussian).seed_
    one.save(tmp_path / "model")
    assert load(tmp_path / "model").random_state == one.seed_


def test_folds_keep_the_groups_of_bags_together(gaussian):
    groups = np.arange(len(gaussian)) // 4
    bags = Bags.from_list(arrays(gaussian), gaussian.candidates, gaussian.labels, range(4), groups=groups)
    folds = GroupedFolds(4)
    tested = []
    for train, test in folds.split(bags):
        assert not set(groups[train]) & set(groups[test])
        tested += test.tolist()
    assert sorted(tested) == list(range(len(bags)))
    assert len(cross_val_score(small(epochs=2), bags, cv=folds)) == folds.get_n_splits() == 4
    with pytest.raises(SettingError, match="splits Bags"):
        next(folds.split([1, 2]))
    with pytest.raises(SettingError, match="n_splits = 1"):
        GroupedFolds(1)


def test_estimators_are_cloned_searched_and_know_when_they_are_fitted(gaussian):
    model = small()
    assert is_classifier(model)
    with pytest.raises(Exception, match="not fitted yet"):
        check_is_fitted(model)
    before = model.get_params()
    assert model.fit(gaussian) is model
    assert model.get_params() == before
    check_is_fitted(model)
    assert not hasattr(clone(model), "network_")
    search = GridSearchCV(small(), {"epochs": [1, 3]}, cv=GroupedFolds(2)).fit(gaussian)
    assert search.best_params_["epochs"] in (1, 3)
    state = np.random.RandomState(0)
    assert isinstance(clone(CDLClassifier(random_state=state)).random_state, np.random.RandomState)


def test_rows_become_bags_only_when_asked(gaussian):
    rows = gaussian.instances[:80]
    bags = Bags.from_rows(rows, gaussian.candidates)
    assert bags.sizes.tolist() == [1] * 80
    assert (bags.instances == rows).all()
    with pytest.raises(DataError, match=r"Bags\.from_rows"):
        small().fit(rows, gaussian.candidates)
    with pytest.raises(DataError, match="two-dimensional"):
        Bags.from_rows([[1.0, 2.0]])
