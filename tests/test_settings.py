"""Settings: the same values are allowed, and the same sentences said, in Python, scikit-learn and the CLI."""

import json
import math
import types
import typing

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import mipl
from mipl.cli import main
from mipl.errors import SettingError, TrainingError
from mipl.estimators import BagClassifier, CDLClassifier, make_classifier
from mipl.methods import METHODS
from mipl.registry import parse_setting, settings_of
from mipl.training.recipe import Recipe

# one method for every class of methods, and every setting that it or the recipe has
BY_CLASS = {METHODS[name].cls: name for name in METHODS}
OWNED = [
    (owner, method, name)
    for owner, method in [*BY_CLASS.items(), (Recipe, "pop")]
    for name in settings_of(owner)
]
NEVER = [math.nan, math.inf, -math.inf, [1], (0.5,), {"a": 1}, np.array([4, 8]), object(), b"cn", 1j]
WRONG = {
    int: ["5", 2.5, 8.0, True, np.bool_(True), np.float64(8.0), -1, "auto "],
    float: ["0.5", True, -1, -0.5, np.float32(-0.5), 10**400, np.float64("nan"), "none"],
    bool: [0, 1, "true", np.int64(1)],
    str: [-5, True, "", "no such word"],
}


def wrong_values(owner, name):
    """Return values that no type of the setting has."""
    hint = typing.get_type_hints(owner)[name]
    either = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if either else (hint,)
    words = [str if typing.get_origin(kind) is typing.Literal else kind for kind in kinds]
    return [*NEVER, *([] if type(None) in kinds else [None]), *(v for k in words for v in WRONG.get(k, []))]


@pytest.mark.parametrize(("owner", "method", "name"), OWNED)
def test_a_wrong_value_of_any_setting_is_refused_with_its_name_and_what_is_allowed(owner, method, name):
    for value in wrong_values(owner, name):
        with pytest.raises(SettingError, match=rf"^{name} = .* must be .*\.$"):
            BagClassifier(method, **{name: value}).parts()


@pytest.mark.parametrize(("owner", "method", "name"), OWNED)
def test_numpy_scalars_are_python_values_in_every_setting(owner, method, name):
    made = {Recipe: BagClassifier("pop").parts()[1]}.get(owner) or METHODS[method].make()
    value = getattr(made, name)
    as_numpy = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}.get(type(value), lambda v: v)
    given = as_numpy(value)
    classifier = BagClassifier(method, **{name: given})
    assert classifier.get_params()[name] is given
    assert clone(classifier).get_params()[name] is given
    found = getattr(classifier.parts()[owner is Recipe], name)
    assert (type(found), found) == (type(value), value)
    json.dumps(found)


@pytest.mark.parametrize(("owner", "method", "name"), OWNED)
def test_the_command_line_reads_what_python_writes_and_refuses_the_same(owner, method, name):
    value = getattr(Recipe() if owner is Recipe else METHODS[method].make(), name)
    assert parse_setting(owner, name, str(value)) == value
    if name != "layers":  # any text; its form is looked at where the method is made
        with pytest.raises(SettingError, match=rf"^{name} = '?(nan|no such word)'? must be"):
            parse_setting(owner, name, "nan" if isinstance(value, float) else "no such word")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dropout": 2}, "dropout = 2 must be a number in [0, 1)."),
        ({"width": 2.5}, "width = 2.5 must be an integer of at least 1."),
        ({"epochs": "5"}, "epochs = '5' must be an integer of at least 1."),
        ({"lr": 0}, "lr = 0 must be a finite number above 0."),
        ({"batch_size": 0}, "batch_size = 0 must be an integer of at least 1 or None."),
        ({"attention": "dim"}, "attention = 'dim' must be 'dam', 'sam', 'mam', 'abmil' or 'abmil-gated'."),
        ({"trust": 2.0}, "trust = 2.0 must be a number in (0, 1] or 'estimate'."),
        ({"tau_start": 0.01}, "tau_start = 0.01 must be at least tau_min = 0.1."),
        ({"encoder": "x"}, "encoder = 'x' must be a torch Module or None."),
        ({"random_state": 1.5}, "random_state = 1.5 must be an integer or None."),
        ({"random_state": "1"}, "random_state = '1' must be an integer or None."),
        ({"scale": None}, "scale = None must be 'auto' or 'none'."),
        ({"device": 3}, "device = 3 must be a string."),
        ({"verbose": "yes"}, "verbose = 'yes' must be True, False or an integer."),
    ],
)
def test_the_sentence_names_the_setting_at_fault(settings, sentence, gaussian):
    with pytest.raises(SettingError) as caught:
        BagClassifier("sam-cn", **settings).fit(gaussian)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", [3, None, ["sam-cn"], {}])
def test_a_method_or_recipe_that_is_no_name_is_refused(name):
    with pytest.raises(SettingError, match="There is no method"):
        BagClassifier(name)
    with pytest.raises(SettingError, match="There is no recipe"):
        BagClassifier("pop", recipe=name).parts()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("dropout=2", "dropout = 2.0 must be a number in [0, 1)"),
        ("width=2.5", "width = '2.5' must be an integer of at least 1"),
        ("lr=nan", "lr = nan must be a finite number above 0"),
    ],
)
def test_the_command_line_says_the_same_sentence(settings, sentence, capsys, tmp_path):
    assert main(["fit", "digits-mipl", "--out", str(tmp_path / "m"), "--set", settings]) == 2
    assert sentence in capsys.readouterr().err


def test_a_search_over_numpy_arrays_gives_a_model_that_is_saved_and_resumed(gaussian, tmp_path):
    grid = {"width": np.array([4, 8]), "lr": np.array([0.01], np.float32), "update": np.array(["after"])}
    base = make_classifier(
        "sam-cn", epochs=np.int64(2), ensemble=np.int64(1), random_state=np.int64(1), gamma=np.float32(1)
    )
    best = GridSearchCV(base, grid, cv=2).fit(gaussian).best_estimator_
    best.save(tmp_path / "m")
    loaded = mipl.load(tmp_path / "m")
    assert loaded.get_params() == best.get_params()
    np.testing.assert_array_equal(loaded.predict_proba(gaussian), best.predict_proba(gaussian))
    again = clone(best).fit(gaussian, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(gaussian), best.predict_proba(gaussian))
    given = {name: value.item() for name, value in best.get_params().items() if isinstance(value, np.generic)}
    plain = clone(best).set_params(**given).fit(gaussian, checkpoint=tmp_path / "c")  # the same training
    np.testing.assert_array_equal(plain.predict_proba(gaussian), best.predict_proba(gaussian))


def test_training_that_diverges_is_answered_with_a_learning_rate_that_does_not(gaussian):
    settings = {"epochs": 3, "ensemble": 1}
    with pytest.raises(TrainingError, match=r"at lr = 1e\+06: lower lr, for example to 0\.006\.$"):
        CDLClassifier(lr=1e6, **settings).fit(gaussian)
    assert np.isfinite(CDLClassifier(lr=0.006, **settings).fit(gaussian).predict_proba(gaussian)).all()
    assert Recipe(lr=0.01, clip_norm=None).divergence(2) == (
        "The loss became NaN or infinite in epoch 2 at lr = 0.01: lower lr, for example to 0.001, "
        "or set clip_norm to 1, which clips gradients."
    )


def test_an_encoder_of_the_user_is_a_module(gaussian):
    for encoder in ("x", torch.nn.Linear, lambda x: x):
        with pytest.raises(SettingError, match=r"^encoder = .* must be a torch Module or None\.$"):
            CDLClassifier(encoder=encoder).fit(gaussian)
