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
    origin = fields.pop("origin", "rebuilt from raw data")
    measured = {"seconds": {"fit": fields.pop("seconds", 2.0)}, "parameters": fields.pop("parameters", None)}
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
    arrays = {"ids": np.arange(BAGS).astype(str), "probabilities": p, "labels": labels}
    Store(root).put(spec, info, arrays)
    return spec


def records_of(root, wants, splits=(1, 2)):
    """Leave records of every want and return them all."""
    for want in wants:
        for split in splits:
            record(root, want.dataset, want.r, want.method, split, want.given)
    return list(Store(root))
