"""The model card: training data, method, measured performance, calibration, intended use and limitations.

Every number comes from the model's files or from a measurement that the card describes. Unknown facts are
reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mipl
from mipl.calibration.conformal import GUARANTEES
from mipl.calibration.model import Calibration, check_unseen, truth_of
from mipl.data.bags import Bags
from mipl.data.formats.origin import describe
from mipl.data.splits import one_per_group
from mipl.errors import DataError
from mipl.estimators import BagClassifier
from mipl.files import atomic_file, read_json
from mipl.metrics import area_under_risk_coverage, bootstrap_interval, evaluate, reliability_curve

BOOTSTRAP_DRAWS = 1000
BINS = 10  # of the reliability table
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def model_card(folder: Path, classifier: BagClassifier, labelled: tuple[str, Bags] | None = None) -> str:
    """Return the model card as Markdown.

    Args:
        folder: The model's folder.
        classifier: The model loaded from it.
        labelled: A name and bags with true labels that the model was neither trained nor calibrated on.
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
        _limitations(classifier, measured is not None),
    ]
    return "\n\n".join(sections) + "\n"


def write_card(path: str | Path, text: str) -> None:
    """Write a card atomically."""
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _measured(classifier: BagClassifier, bags: Bags) -> tuple[Floats, Ints, Bags]:
    """Return probabilities (m, k), labels (m,) and the measured bags, one per group (patient)."""
    if bags.labels is None:
        raise DataError("The bags for the card have no true labels: give others, or leave --data out.")
    check_unseen(classifier, bags)
    bags = bags[one_per_group(bags, "card")] if bags.groups is not None else bags
    return classifier.predict_proba(bags), truth_of(classifier, bags).argmax(axis=1), bags


def _title(info: Mapping[str, Any], classifier: BagClassifier) -> str:
    weights = sum(parameter.numel() for parameter in classifier.network_.parameters())
    shape = " × ".join(str(side) for side in info["feature_shape"])
    rows = {
        "classes": ", ".join(str(name) for name in info["classes"]),
        "input": f"a bag of any number of instances of shape {shape}",
        "output": f"probabilities of {len(info['classes'])} classes",
        "parameters": f"{weights:,}",
        "software": ", ".join(f"{name} {version}" for name, version in info["versions"].items()),
    }
    return (
        f"# Model card: {info['method']['name']}\n\nWritten by mipl {mipl.__version__}. Unless stated "
        f"otherwise, numbers come from the model's own files.\n\n{_pairs(rows)}"
    )


def _data(trained_on: Mapping[str, Any]) -> str:
    rows = {
        "bags": f"{trained_on['bags']:,}",
        "instances": f"{trained_on['instances']:,}",
        "mean candidate labels per bag": trained_on["candidates_per_bag"],
        "features": describe(trained_on["provenance"].get("features")) or "unknown",
        **{
            f"origin: {name}": value for name, value in trained_on["provenance"].items() if name != "features"
        },
        "digest": f"`{trained_on['digest']}`",
    }
    unknown = "" if trained_on["provenance"] else "\n\nThe provenance of the bags is unknown: add it here."
    return (
        "## Training data\n\nBags with candidate labels; true labels were not used for training.\n\n"
        f"{_pairs(rows)}{unknown}"
    )


def _method(info: Mapping[str, Any], classifier: BagClassifier) -> str:
    method, recipe, history = info["method"], info["recipe"], info["history"]
    cls = type(classifier.method_)
    facts = {"seed": info["seed"], "feature scaling": info["params"].get("scale", "auto")}
    for name, text in (("loss", "mean loss of the last epoch"), ("seconds", "training seconds")):
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
            "## Measurements\n\nNone: no labelled bags were given. "
            "`mipl export MODEL --card FILE --data DATA` measures on bags with true labels."
        )
    name, given = labelled
    p, y, bags = measured
    values = evaluate(p, y, bootstrap=BOOTSTRAP_DRAWS)
    values |= dict(
        zip(
            ("area_under_risk_coverage", "area_under_risk_coverage_low", "area_under_risk_coverage_high"),
            bootstrap_interval(area_under_risk_coverage, p, y, draws=BOOTSTRAP_DRAWS),
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
    groups = "" if given.groups is None else f" One bag was drawn from each of {len(bags)} groups (patients)."
    return "\n\n".join(
        [
            f"## Measurements\n\nOn {name}: {len(bags)} bags with true labels "
            f"(digest `{given.content_digest()}`), not the set that the model was trained or calibrated on "
            "(sets are compared as a whole, not bag by bag)."
            f"{groups} At least {classes.min()} bags per class. Intervals: 95%, {BOOTSTRAP_DRAWS:,} "
            "bootstrap draws of bags; calibration errors with 15 bins.",
            _table(("metric", "value", "95% interval"), rows),
        ]
    )


def _calibration(calibration: Calibration | None, measured: tuple[Floats, Ints, Bags] | None) -> str:
    parts = ["## Calibration"]
    scaling = None if calibration is None else calibration.scaling
    if calibration is None or scaling is None:
        parts.append("The probabilities were not scaled after training.")
    else:
        by = "their true labels" if calibration.by == "labels" else "their candidate sets alone"
        value = "" if scaling.temperature is None else f", T = {scaling.temperature:.4g}"
        parts.append(
            f"Scaled after training by {scaling.kind} scaling{value}. {calibration.bags} calibration "
            f"bags, by {by} (digest `{calibration.digest}`)."
        )
    if calibration is not None and calibration.conformal is not None:
        conformal = calibration.conformal
        parts.append(
            f"Prediction sets from the scores of {len(conformal.scores)} bags, at the requested coverage: "
            f"{GUARANTEES[conformal.way]}."
        )
    if measured is None:
        parts.append("Calibration was not measured for this card.")
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
    parts.append("On the bags of the measurements above; empty bins are left out.")
    parts.append(_table(("confidence", "bags", "mean confidence", "accuracy"), rows))
    return "\n\n".join(parts)


def _use(classifier: BagClassifier) -> str:
    advice = type(classifier.method_).advice
    return (
        "## Intended use\n\n"
        "Ranking and triage of bags like the training bags: confident predictions are reported, the others "
        "are reviewed by a person (`mipl triage`). The model assists a person who is responsible for the "
        f"decision.\n\nAbout the method: {advice}\n\n"
        "Not for bags from other sources without an evaluation on them, not for classes that are not listed, "
        "not as the only basis of a decision about a person. The publisher of the model should add its "
        "purpose here."
    )


def _limitations(classifier: BagClassifier, measured: bool) -> str:
    numbers = "The measurements above hold" if measured else "Any measurement holds"
    limits = [
        "**Candidate sets.** Training assumes that the true label of every bag is among its candidates. "
        "Where all annotators miss it, the model learns a wrong label, and the training data do not show it.",
        f"**Distribution shift.** {numbers} for bags from the same distribution. For another scanner, "
        "laboratory, population or year, evaluate and calibrate again.",
        "**Guarantees.** The error bound of `mipl triage` is for the mean over reported bags and fails with "
        "probability δ; it does not hold for a single bag, class or group, nor for other data. Prediction "
        "sets contain the true label on average over bags, not for each bag.",
        "**Unknown classes.** The probabilities sum to one over the listed classes: a bag of another class "
        "is assigned to one of them, sometimes with high confidence.",
        "**Attention**, where the method has it, shows the weight of each instance in the prediction; it "
        "does not explain the prediction, nor show that an instance is of the class.",
    ]
    if getattr(classifier.method_, "head", None) == "sigmoid":
        k = len(classifier.classes_)
        limits.append(
            f"**Sigmoid head.** Before scaling, the confidence cannot exceed e/(e + k − 1), which is "
            f"{np.e / (np.e + k - 1):.1%} for {k} classes: low confidence does not mean uncertainty."
        )
    return "## Limitations\n\n" + "\n".join(f"- {limit}" for limit in limits)


def _pairs(rows: Mapping[str, Any], heading: str = "") -> str:
    cells = [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in rows.items()
    ]
    return _table((heading, "value" if heading else ""), cells)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return text escaped for a table cell, because names are user input."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
