"""The model card: what a model is, what it was trained on, how good it was measured to be, and its limits.

Every number has a source: the model's files, or a measurement that the card describes. What is not known is
said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mipl
from mipl.calibration.conformal import WAYS
from mipl.calibration.model import Calibration, check_unseen, truth_of
from mipl.data.bags import Bags
from mipl.data.splits import one_per_group
from mipl.errors import DataError
from mipl.estimators import BagClassifier
from mipl.files import atomic_file, read_json
from mipl.metrics import area_under_risk_coverage, bootstrap_interval, evaluate, reliability_curve

DRAWS = 1000  # of the bootstrap
BINS = 10  # of the reliability table
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def model_card(folder: Path, classifier: BagClassifier, labelled: tuple[str, Bags] | None = None) -> str:
    """Return the card of the model in ``folder``, loaded as ``classifier``, as Markdown.

    ``labelled``: a name and bags with true labels that the model was neither trained nor calibrated on.
    """
    info = read_json(folder / "model.json")
    measured = None if labelled is None else _measured(classifier, labelled[1])
    sections = [
        _title(info, classifier),
        _data(info["trained_on"]),
        _method(info, classifier),
        _metrics(labelled, measured),
        _calibration(classifier.calibration_, measured),
        _use(classifier),
        _limits(classifier, measured is not None),
    ]
    return "\n\n".join(sections) + "\n"


def write_card(path: str | Path, text: str) -> None:
    """Write a card as a file that appears whole or not at all."""
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _measured(classifier: BagClassifier, bags: Bags) -> tuple[Floats, Ints, Bags]:
    """Return probabilities (m, k), labels (m,) and the bags measured: of a patient's bags one."""
    if bags.labels is None:
        raise DataError("The bags for the card have no true labels: give some that have, or no --data.")
    check_unseen(classifier, bags)
    bags = bags[one_per_group(bags, "card")] if bags.groups is not None else bags
    return classifier.predict_proba(bags), truth_of(classifier, bags).argmax(axis=1), bags


def _title(info: Mapping[str, Any], classifier: BagClassifier) -> str:
    weights = sum(parameter.numel() for parameter in classifier.network_.parameters())
    shape = " × ".join(str(side) for side in info["feature_shape"])
    rows = {
        "classes": ", ".join(str(name) for name in info["classes"]),
        "input": f"a bag of any number of instances, each of {shape} numbers",
        "output": f"a probability for each of {len(info['classes'])} classes",
        "trained weights": f"{weights:,}",
        "made with": ", ".join(f"{name} {version}" for name, version in info["versions"].items()),
    }
    return (
        f"# Model card: {info['method']['name']}\n\nWritten by mipl {mipl.__version__}. Unless said "
        f"otherwise, numbers are from the model's own files.\n\n{_pairs(rows)}"
    )


def _data(trained_on: Mapping[str, Any]) -> str:
    rows = {
        "bags": f"{trained_on['bags']:,}",
        "instances": f"{trained_on['instances']:,}",
        "candidate labels a bag, mean": trained_on["candidates_per_bag"],
        **{f"origin: {name}": value for name, value in trained_on["provenance"].items()},
        "digest": f"`{trained_on['digest']}`",
    }
    unknown = (
        ""
        if trained_on["provenance"]
        else "\n\nThe bags carried nothing about where they come from: add it here."
    )
    return (
        "## Training data\n\nBags with candidate labels; true labels were not used in training.\n\n"
        f"{_pairs(rows)}{unknown}"
    )


def _method(info: Mapping[str, Any], classifier: BagClassifier) -> str:
    method, recipe, history = info["method"], info["recipe"], info["history"]
    cls = type(classifier.method_)
    facts = {"seed": info["seed"], "scaling of features": info["params"].get("scale", "auto")}
    for name, text in (("loss", "mean loss in the last epoch"), ("seconds", "seconds of training")):
        if history.get(name):
            facts[text] = f"{history[name][-1] if name == 'loss' else sum(history[name]):.4g}"
    return "\n\n".join(
        [
            f"## Method\n\n**{method['name']}**. {cls.summary}",
            f"Reference: {cls.citation}",
            _pairs({name: value for name, value in method.items() if name != "name"}, "setting"),
            f"## Recipe\n\n**{recipe['name']}**.",
            _pairs({**{name: v for name, v in recipe.items() if name != "name"}, **facts}, "setting"),
        ]
    )


def _metrics(labelled: tuple[str, Bags] | None, measured: tuple[Floats, Ints, Bags] | None) -> str:
    if labelled is None or measured is None:
        return (
            "## Measurements\n\nNone: no labelled bags were given to this card. "
            "`mipl export MODEL --card FILE --data DATA` measures on bags with true labels."
        )
    name, given = labelled
    p, y, bags = measured
    values = evaluate(p, y, bootstrap=DRAWS)
    values |= dict(
        zip(
            ("area_under_risk_coverage", "area_under_risk_coverage_low", "area_under_risk_coverage_high"),
            bootstrap_interval(area_under_risk_coverage, p, y, draws=DRAWS),
            strict=True,
        )
    )
    rows = [
        (
            key.replace("_", " "),
            f"{values[key]:.4f}",
            f"{values[f'{key}_low']:.4f} – {values[f'{key}_high']:.4f}" if f"{key}_low" in values else "–",
        )
        for key in values
        if not key.endswith(("_low", "_high"))
    ]
    classes = np.bincount(y, minlength=p.shape[1])
    groups = "" if given.groups is None else f" Of each of {len(bags)} groups (patients) one bag was drawn."
    return "\n\n".join(
        [
            f"## Measurements\n\nOn {name}: {len(bags)} bags with true labels "
            f"(digest `{given.content_digest()}`), not a set that the model was trained or calibrated on; "
            "sets are compared whole, not bag by bag."
            f"{groups} At least {classes.min()} bags a class. Intervals: 95%, {DRAWS:,} bootstrap draws of "
            "bags; calibration errors in 15 bins.",
            _table(("metric", "value", "95% interval"), rows),
        ]
    )


def _calibration(calibration: Calibration | None, measured: tuple[Floats, Ints, Bags] | None) -> str:
    parts = ["## Calibration"]
    scaling = None if calibration is None else calibration.scaling
    if calibration is None or scaling is None:
        parts.append("The probabilities are as trained: they were not scaled after training.")
    else:
        by = "their true labels" if calibration.by == "labels" else "their candidate sets alone"
        value = "" if scaling.temperature is None else f", T = {scaling.temperature:.4g}"
        parts.append(
            f"Scaled after training by {scaling.kind} scaling{value}. {calibration.bags} bags were given for "
            f"calibration, by {by} (digest `{calibration.digest}`)."
        )
    if calibration is not None and calibration.conformal is not None:
        conformal = calibration.conformal
        parts.append(
            f"Prediction sets from the scores of {len(conformal.scores)} bags, at the coverage that is asked "
            f"for: {WAYS[conformal.way]}."
        )
    if measured is None:
        parts.append("How far confidence and accuracy agree was not measured for this card.")
        return "\n\n".join(parts)
    curve = reliability_curve(measured[0], measured[1], bins=BINS)
    rows = [
        (
            f"{curve.edges[i]:.0%} – {curve.edges[i + 1]:.0%}",
            str(curve.count[i]),
            f"{curve.confidence[i]:.1%}",
            f"{curve.accuracy[i]:.1%}",
        )
        for i in np.flatnonzero(curve.count)
    ]
    parts.append("On the bags of the measurements above; bins without a bag are left out.")
    parts.append(_table(("confidence", "bags", "mean confidence", "accuracy"), rows))
    return "\n\n".join(parts)


def _use(classifier: BagClassifier) -> str:
    advice = type(classifier.method_).advice
    return (
        "## Intended use\n\n"
        "To rank and to triage bags like those it was trained on: report confident cases, send doubtful ones "
        "to a person (`mipl triage`). It is an aid to someone who answers for the decision.\n\n"
        f"About the method: {advice}\n\n"
        "Not for bags from other sources without measuring there first, not for classes that are not listed, "
        "not as the only ground of a decision about a person. Whoever gives the model on should add here "
        "what it was made for."
    )


def _limits(classifier: BagClassifier, measured: bool) -> str:
    numbers = "The measurements above hold" if measured else "Any measurement holds"
    limits = [
        "**The candidates.** Training takes it that the true label of every bag is among its candidates. "
        "Where annotators all miss it the model learns a wrong label, and the training data do not show it.",
        f"**Shift.** {numbers} for bags drawn as the measured ones were. Another scanner, laboratory, "
        "population or year: measure and calibrate again.",
        "**What a guarantee is not.** A bound on the error from `mipl triage` is on the mean over reported "
        "bags, with the chance δ of failing; it says nothing of a bag, class or group, nor of other data. "
        "Prediction sets hold the truth on average over bags, not for each.",
        "**Unknown classes.** The probabilities sum to one over the listed classes: a bag of none of them "
        "still gets one, at times with high confidence.",
        "**Attention**, where the method has it, tells which instances weighed in the prediction, not why, "
        "and not that they show the class.",
    ]
    if getattr(classifier.method_, "head", None) == "sigmoid":
        k = len(classifier.classes_)
        limits.append(
            f"**Sigmoid head.** No confidence before scaling can pass e/(e + k − 1), for {k} classes "
            f"{np.e / (np.e + k - 1):.1%}: low confidence is not doubt."
        )
    return "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits)


def _pairs(rows: Mapping[str, Any], what: str = "") -> str:
    cells = [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in rows.items()
    ]
    return _table((what, "value" if what else ""), cells)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return text that cannot end a cell or a line of a table; names are the user's."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
