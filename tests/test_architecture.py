"""The rooms import only what stands before them."""

import ast
from pathlib import Path

import pytest

import mipl

ROOT = Path(mipl.__file__).parent
BASE = {"errors", "seeding", "registry", "files", "machine"}
# room -> the rooms it may know, besides itself and the base
MAY_KNOW = {
    "data": {"annotators"},
    "nn": set(),
    "losses": set(),
    "metrics": set(),
    "theory": set(),
    "annotators": set(),
    "pseudo_labels": {"losses", "annotators"},
    "methods": {"data", "nn", "losses", "annotators", "pseudo_labels"},
    "calibration": {"data"},
    "training": {"annotators", "data", "nn", "losses", "pseudo_labels", "methods", "metrics", "calibration"},
    "estimators": {
        "annotators",
        "data",
        "nn",
        "losses",
        "pseudo_labels",
        "methods",
        "training",
        "calibration",
    },
    "triage": set(),
    "watch": set(),
    "records": set(),
    "reports": {"data", "records", "metrics"},
    "experiments": {"data", "nn", "methods", "training", "estimators", "metrics", "records", "reports"},
    "paper": {"data", "metrics", "records", "reports", "experiments"},
    "explain": {"data", "estimators", "reports"},
    "export": {"data", "nn", "methods", "estimators", "calibration", "metrics"},
    "serve": {"data", "estimators", "calibration", "triage", "metrics"},
    "testing": {"data", "methods", "estimators"},
    "doctor": {"data", "methods", "estimators"},
    "cli": {
        "annotators",
        "data",
        "doctor",
        "methods",
        "training",
        "estimators",
        "calibration",
        "triage",
        "watch",
        "explain",
        "export",
        "metrics",
        "records",
        "experiments",
        "reports",
        "paper",
        "serve",
    },
}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path):
    """Every mipl room that a file imports, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [node.module] if node.module != "mipl" else [f"mipl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mipl" and len(parts) > 1:
                yield parts[1]


def test_every_room_is_known():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms == BASE | set(MAY_KNOW)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    room = room_of(path)
    if room == "__init__":
        return
    allowed = BASE if room in BASE else BASE | {room} | MAY_KNOW[room]
    assert set(imports(path)) <= allowed | {"versions"}


def test_only_the_command_line_imports_the_paper():
    importers = {room_of(path) for path in FILES if "paper" in imports(path)}
    assert importers <= {"cli", "paper"}


def test_reports_never_import_a_model():
    """Neither themselves nor through another package."""
    known, waiting = set(), {"reports"}
    while waiting:
        known |= waiting
        waiting = {room for path in FILES if room_of(path) in waiting for room in imports(path)} - known
    assert not known & {"nn", "losses", "pseudo_labels", "methods", "training", "calibration", "estimators"}


def test_only_files_one_reader_can_hold():
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 430}
    assert long == {}


def test_nothing_is_unpickled():
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "joblib", "dill", "cloudpickle"} & {
                    name.split(".")[0] for name in names
                }, path
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", "") == "load" and ast.unparse(called) in ("np.load", "torch.load"):
                safe = {"allow_pickle=False", "weights_only=True"}
                assert safe & {ast.unparse(keyword) for keyword in node.keywords}, f"{path}:{node.lineno}"
