"""Records of runs that nobody made, for tables and figures to be drawn from."""

import zlib

import numpy as np

from mipl.metrics import evaluate
from mipl.records.spec import RunSpec
from mipl.records.store import Store

BAGS, CLASSES = 40, 5


def record(root, dataset, r, method, split, given=(), **changes):
    """Leave a record of made-up predictions, the same for the same run; return its spec."""
    rng = np.random.default_rng(zlib.crc32(repr((dataset, r, method, given, split)).encode()))
    labels = rng.integers(CLASSES, size=BAGS)
    scores = rng.normal(size=(BAGS, CLASSES))
    scores[np.arange(BAGS), labels] += 1.5
    p = np.exp(scores)
    p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
    fields = {"recipe": "stable", "data_digest": "d", "splits": "stratified", "seed": 0, **changes}
    with_arrays = fields.pop("extras", False)
    origin = fields.pop("origin", "rebuilt from raw data")
    seconds = fields.pop("seconds", 2.0)
    measured = {
        "seconds": {
            "fit": seconds,
            "predict": 0.1,
            "fit_processor": seconds,
            "epoch_processor": seconds / 5,
            "predict_processor": 0.0,
        },
        "parameters": fields.pop("parameters", 130_000),
        "peak_memory_mb": fields.pop("memory", 500.0),
    }
    if fields.pop("cost", True):
        measured["flops"] = 90_000_000
    spec = RunSpec(
        dataset=dataset,
        r=r,
        method=method,
        hyper_parameters=dict(given),
        recipe_settings={"epochs": dict(given).get("epochs", 100)},
        split=split,
        **fields,
    )
    info = {
        "metrics": evaluate(p, labels),
        "given": dict(given),
        **measured,
        "data": {"provenance": {"origin": origin}},
        "versions": {"mipl": "0.1.0"},
        "machine": {"cores": 2},
    }
    candidates = rng.random((BAGS, CLASSES)) < 0.3
    candidates[np.arange(BAGS), labels] = True
    arrays = {
        "ids": np.arange(BAGS).astype(str),
        "probabilities": p,
        "labels": labels,
        "classes": np.array(list("abcde")),
    }
    if with_arrays:
        arrays |= {
            "features": scores.astype(np.float32),
            "training_probabilities": p,
            "training_candidates": candidates,
            "training_labels": labels,
        }
    Store(root).put(spec, info, arrays)
    return spec


def records_of(root, queries, splits=(1, 2)):
    """Leave records of every query and return them all."""
    for query in queries:
        for split in splits:
            extras = bool(query.extras)
            record(
                root,
                query.dataset,
                query.r,
                query.method,
                split,
                query.given,
                share=query.share,
                extras=extras,
            )
    return list(Store(root))
