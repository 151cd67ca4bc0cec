"""The same gated-attention network trained by torchmil, with its data set, collate function and trainer.

    python other_library.py JSON

Runs in an environment of its own that has torchmil and not mipl (see `rival`), on folders of arrays that
`rival` writes; prints JSON.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmil.data import collate_fn
from torchmil.datasets import ProcessedMILDataset
from torchmil.models import MILModel
from torchmil.nn import masked_softmax
from torchmil.utils.trainer import Trainer


class PartialLabels(MILModel):  # type: ignore[misc]
    """Encoder, gated score, softmax within bags, linear head; the likelihood of candidate sets as loss."""

    def __init__(self, d: int, width: int, k: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Dropout(0.5))
        self.tanh_gate = nn.Sequential(nn.Linear(width, k), nn.Tanh())
        self.sigmoid_gate = nn.Sequential(nn.Linear(width, k), nn.Sigmoid())
        self.score = nn.Sequential(nn.Linear(k, 128), nn.ReLU(), nn.Linear(128, 1))
        self.head, self.scale = nn.Linear(width, k), width**-0.5

    def forward(self, X: Tensor, mask: Tensor, return_att: bool = False) -> Tensor:
        """(b, n, d) and (b, n) -> logits (b, k)."""
        h = self.encoder(X)
        scores = self.score(self.tanh_gate(h) * self.sigmoid_gate(h)) * self.scale  # (b, n, 1)
        weights = masked_softmax(scores, mask[..., None])
        logits: Tensor = self.head((weights * h).sum(dim=1))
        return logits

    def compute_loss(self, Y: Tensor, X: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits and −log Σ_S p of the sets Y (b, k)."""
        logits = self.forward(X, mask)
        outside = logits.log_softmax(dim=1).masked_fill(Y == 0, -torch.inf)
        return logits, {"likelihood": -outside.logsumexp(dim=1).mean()}

    def predict(self, X: Tensor, mask: Tensor, return_inst_pred: bool = False) -> Tensor:
        """Return the logits."""
        return self.forward(X, mask)


class Covered(torchmetrics.Metric):  # type: ignore[misc]
    """The share of bags whose predicted class is a candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.zeros(()))
        self.add_state("bags", torch.zeros(()))

    def update(self, logits: Tensor, sets: Tensor) -> None:
        """Count a batch."""
        self.hits += sets.gather(1, logits.argmax(dim=1, keepdim=True)).sum()
        self.bags += len(logits)

    def compute(self) -> Tensor:
        """Return the share so far."""
        return self.hits / self.bags


def run(folder: str, k: int, width: int, epochs: int, batch: int, in_memory: bool) -> dict[str, Any]:
    """Train on ``folder``/train, predict ``folder``/test; return seconds, accuracy and peak memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = Path(folder)

    def loader(part: str, shuffle: bool, names: list[str] | None = None) -> DataLoader[Any]:
        data = ProcessedMILDataset(
            features_path=str(place / part / "features"), labels_path=str(place / part / "sets"),
            bag_keys=["X", "Y"], bag_names=names, load_at_init=in_memory, verbose=False,
        )  # fmt: skip
        return DataLoader(data, batch_size=batch, shuffle=shuffle, collate_fn=functools.partial(collate_fn))

    started = time.process_time()
    train = loader("train", True)
    few = loader("train", False, names=train.dataset.bag_names[:batch])  # type: ignore[attr-defined]
    model = PartialLabels(next(iter(train))["X"].shape[2], width, k)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    # validation on one batch: on the training set, the trainer's default, every epoch has a second pass
    trainer = Trainer(
        model, optimizer, {"covered": Covered()}, "covered", device="cpu", disable_pbar=True, verbose=False
    )
    trainer.train(epochs, train, few)
    fitted = time.process_time()
    model.eval()
    tests = loader("test", False)
    with torch.inference_mode():
        top = torch.cat([model.predict(each["X"], each["mask"]).argmax(dim=1) for each in tests]).numpy()
    predicted = time.process_time()
    names = tests.dataset.bag_names  # type: ignore[attr-defined]
    truth = np.array([np.load(place / "test" / "labels" / f"{name}.npy")[0] for name in names])
    return {
        "fit": fitted - started,
        "predict": predicted - fitted,
        "accuracy": float((top == truth).mean()),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
