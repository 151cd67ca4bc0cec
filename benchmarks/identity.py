"""Whether two versions of the code give the same predictions: python benchmarks/identity.py > hashes.txt

Trains every method for three epochs with fixed seeds and prints one hash of its predictions per line. Run it
with the code of both versions (PYTHONPATH=other/src) and compare the outputs with diff: refactoring changes
none. One thread, since the order of sums depends on their number.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch

import mipl
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.errors import MiplError


def show(data: str, bags: Bags, method: str, **settings: Any) -> None:
    """Train a method and print the hash of its predictions, or why it refuses the settings."""
    try:
        p = mipl.make_classifier(method, random_state=3, **settings).fit(bags).predict_proba(bags)
        found = hashlib.sha256(p.tobytes()).hexdigest()[:16]
    except MiplError as error:
        found = type(error).__name__
    print(data, method, settings, found, flush=True)


def main() -> None:
    """Train on feature vectors and on images."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    vectors, images = gaussian_bags(), digits_mipl()[:40]
    for method in mipl.list_methods():
        for members in (1, 3):
            show("vectors", vectors, method, epochs=3, ensemble=members)
        show("vectors", vectors, method, epochs=3, recipe="paper")
    for method in ("sam-cn", "dam-cc", "mam-cn", "mam-mdl"):
        for trust in (0.9, "estimate"):
            show("vectors", vectors, method, epochs=3, trust=trust)
        show("vectors", vectors, method, epochs=3, ensemble=3, head="sigmoid", update="after")
    for method in ("mam-cn", "sam-cc", "proden", "demipl", "promipl", "agopmipl"):
        show("images", images, method, epochs=3, ensemble=1)
    show("images", images, "mam-cn", epochs=3)


if __name__ == "__main__":
    main()
