"""The other side of the comparison: a plain bag-by-bag loop as anyone would write it in torch.

Network, loss, weights of candidates and SGD settings are the paper's (recipe ``paper``), written without this
library's modules: one bag a step from a DataLoader, forward, loss, backward, step.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mipl.data.bags import Bags
from mipl.data.splits import stratified_split
from mipl.training.recipe import make_recipe

WIDTH, DROPOUT = 128, 0.5
TAU_START, TAU_DECAY, TAU_MIN = 5.0, 0.95, 0.1


class BagDataset(Dataset[tuple[Tensor, Tensor, int]]):
    """Bags as tensors that are ready for the network: no work is left for the loop."""

    def __init__(self, bags: Bags, mean: Tensor | float = 0.0, std: Tensor | float = 1.0) -> None:
        assert bags.candidates is not None
        scale = 255.0 if bags.source.dtype == "uint8" else 1.0
        self.bags = [(torch.tensor(bag.instances, dtype=torch.float32) / scale - mean) / std for bag in bags]
        if len(bags.feature_shape) == 2:
            self.bags = [bag[:, None] for bag in self.bags]
        self.candidates = torch.tensor(bags.candidates)

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        return self.bags[i], self.candidates[i], i


class Network(nn.Module):
    """Encoder, gated score, attention and linear head for one bag (n, …) -> logits (1, k)."""

    def __init__(self, feature_shape: tuple[int, ...], k: int, attention: str) -> None:
        super().__init__()
        self.attention, self.tau = attention, TAU_START
        if len(feature_shape) == 1:
            body: list[nn.Module] = [nn.Linear(feature_shape[0], WIDTH)]
        else:
            kernel, padding, flat = (5, 0, 800) if feature_shape[-1] == 28 else (3, 1, 200)
            body = [
                nn.Conv2d(1, 20, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(20, 50, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(flat, WIDTH),
            ]  # fmt: skip
        self.encoder = nn.Sequential(*body, nn.ReLU(), nn.Dropout(DROPOUT))
        self.tanh_gate = nn.Sequential(nn.Linear(WIDTH, k), nn.Tanh())
        self.sigmoid_gate = nn.Sequential(nn.Linear(WIDTH, k), nn.Sigmoid())
        self.score = nn.Sequential(nn.Linear(k, 128), nn.ReLU(), nn.Linear(128, 1))
        self.head = nn.Linear(WIDTH, k)

    def forward(self, bag: Tensor) -> Tensor:
        h = self.encoder(bag)  # (n, L)
        scores = self.score(self.tanh_gate(h) * self.sigmoid_gate(h)).T  # (1, n)
        if self.attention == "dam":
            weights = scores.sigmoid() / scores.sigmoid().sum()
        elif self.attention == "sam":
            weights = (scores / math.sqrt(WIDTH)).softmax(dim=1)
        else:
            z = (scores - scores.mean()) / (scores.std().detach() + 1e-3)
            weights = (z / math.sqrt(WIDTH) / self.tau).softmax(dim=1)
        logits: Tensor = self.head(weights @ h)
        return logits


def cdl_cn(logits: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Return the calibratable disambiguation loss of one bag with γ = 1, all arguments (1, k)."""
    p = logits.softmax(dim=1)
    disambiguation = -(weights * logits.log_softmax(dim=1)).sum()
    return (1 - p[candidates].max() + p[~candidates].max()) * disambiguation


def run(
    bags: str,
    split: int,
    method: str,
    epochs: int,
    *,
    warm: int = 0,
    measure: int | None = None,
    stop_at: float | None = None,
    limit: float = math.inf,
    seed: int = 0,
) -> dict[str, Any]:
    """Train on a split of an ``.npz`` of bags; return milliseconds a bag and, of whole trainings, accuracies.

    ``measure``: end after so many bags, timed after ``warm`` others. ``stop_at``: test after each epoch, not
    timed, and end at this accuracy or after ``limit`` seconds.
    """
    attention, competitor = method.split("-")
    assert competitor == "cn", "the loop is written for the CN loss"
    everything = Bags.load(Path(bags))
    train, test = stratified_split(everything, split)
    known = everything[train]
    mean: Tensor | float = 0.0
    std: Tensor | float = 1.0
    if len(known.feature_shape) == 1:
        instances = torch.tensor(known.instances, dtype=torch.float32)
        mean, std = instances.mean(dim=0), instances.std(dim=0).clamp(min=1e-7)
    data = BagDataset(known, mean, std)
    torch.manual_seed(seed)
    net = Network(known.feature_shape, known.k, attention)
    recipe = make_recipe("paper", epochs=epochs)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=recipe.lr, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    table = data.candidates / data.candidates.sum(dim=1, keepdim=True)
    loader = DataLoader(data, batch_size=1, shuffle=True)
    spent, seen, accuracies, started = 0.0, -warm, [], time.perf_counter()
    for epoch in range(1, epochs + 1):
        net.train()
        net.tau = max(TAU_MIN, TAU_START * TAU_DECAY ** (epoch - 1))
        alpha = recipe.alpha_at(epoch)
        for bag, candidates, index in loader:
            if seen == 0:
                started = time.perf_counter()
            optimizer.zero_grad()
            logits = net(bag[0])
            with torch.no_grad():
                inside = logits.masked_fill(~candidates, -math.inf).softmax(dim=1)
                weights = alpha * table[index] + (1 - alpha) * inside
                table[index] = weights
            loss = cdl_cn(logits, candidates, weights)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += 1
            if seen == measure:
                return _timed(time.perf_counter() - started, seen)
        schedule.step()
        if stop_at is not None:
            spent += time.perf_counter() - started
            accuracies.append(_accuracy(net, everything[test], mean, std))
            if accuracies[-1] >= stop_at or spent > limit:
                break
            started = time.perf_counter()
    if stop_at is None:
        spent = time.perf_counter() - started
        accuracies.append(_accuracy(net, everything[test], mean, std))
    reached = stop_at is not None and accuracies[-1] >= stop_at
    return {**_timed(spent, seen), "accuracies": accuracies, "epochs": epoch, "reached": reached}


def _timed(seconds: float, bags: int) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "bags": bags,
        "ms_per_bag": 1000 * seconds / max(bags, 1),
        "threads": torch.get_num_threads(),
    }


def _accuracy(net: Network, bags: Bags, mean: Tensor | float, std: Tensor | float) -> float:
    assert bags.labels is not None
    net.eval()
    with torch.inference_mode():
        top = [int(net(bag).argmax()) for bag in BagDataset(bags, mean, std).bags]
    return float((torch.tensor(top) == torch.tensor(bags.labels)).double().mean())
