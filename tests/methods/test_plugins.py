"""Methods of other packages: loaded, or named in a notice and left out."""

import sys
import warnings
from importlib.metadata import EntryPoint

import pytest

from mipl import make_classifier
from mipl.errors import MiplNotice
from mipl.methods import METHODS, PLUGINS
from mipl.methods.plugins import load_plugins

MODULE = '''
import dataclasses
from mipl.methods.proden import PRODEN

@dataclasses.dataclass(frozen=True)
class Good(PRODEN):
    """PRODEN under another name."""

@dataclasses.dataclass(frozen=True)
class Unfinished(PRODEN.__mro__[1]):
    summary = citation = "Unfinished."

class NoMethod:
    pass
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Import a module of plugins, and forget them afterwards."""
    (tmp_path / "made_up_plugin.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "made_up_broken.py").write_text("import nothing_of_this_name", encoding="utf-8")
    (tmp_path / "made_up_exit.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    methods, plugins = dict(METHODS._entries), dict(PLUGINS)
    yield
    METHODS._entries.clear()
    METHODS._entries.update(methods)
    PLUGINS.clear()
    PLUGINS.update(plugins)
    for name in ("made_up_plugin", "made_up_broken", "made_up_exit"):
        sys.modules.pop(name, None)


def entry(name, value):
    return EntryPoint(name, value, "mipl.methods")


def test_a_method_of_another_package_is_one_among_others(plugin, gaussian):
    load_plugins([entry("made-up", "made_up_plugin:Good")])
    assert not PLUGINS["made-up"].problem
    assert make_classifier("made-up", epochs=4).fit(gaussian).score(gaussian) > 0.5


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("a", "made_up_broken", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("a", "made_up_exit:Method", "SystemExit: 3"),
        ("a", "made_up_plugin:Absent", "AttributeError"),
        ("a", "made_up_plugin:NoMethod", "it is not a subclass of mipl.methods.Method"),
        ("a", "made_up_plugin:Unfinished", "it does not define objective"),
        ("sam-cn", "made_up_plugin:Good", "There is already a method 'sam-cn'"),
    ],
)
def test_a_broken_one_is_named_and_does_not_break_the_rest(name, value, problem, plugin):
    with pytest.warns(MiplNotice, match=r"is left out, because .* cannot be used: ") as found:
        load_plugins([entry(name, value), entry("made-up", "made_up_plugin:Good")])
    assert problem in str(found[0].message)
    assert name in str(found[0].message)
    assert problem in PLUGINS[name].problem
    assert "made-up" in METHODS._entries


def test_a_worker_does_not_repeat_the_notice(plugin, monkeypatch):
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "the parent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_plugins([entry("a", "made_up_broken")])
    assert PLUGINS["a"].problem
