"""A checkpoint: everything that training needs to resume bit for bit, in one safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mipl.errors import SettingError, StorageError
from mipl.files import atomic_file
from mipl.pseudo_labels import PseudoLabels
from mipl.training.distributed import ProcessGroup
from mipl.training.optimizer import Optimizer

FILE = "checkpoint.safetensors"
History = dict[str, list[float]]  # one value per epoch for each name


def save_checkpoint(
    folder: Path,
    spec: Mapping[str, Any],
    epoch: int,
    net: nn.Module,
    optimizer: Optimizer,
    table: PseudoLabels,
    histories: Sequence[History],
    group: ProcessGroup,
    bags: int,
    mean: nn.Module | None = None,
) -> None:
    """Write the state after ``epoch``; the previous checkpoint is replaced in one step.

    With several processes, each holds the rows of its own bags: they are gathered, and the first process
    writes.

    Args:
        folder: where the checkpoint is written.
        spec: what identifies the training.
        epoch: the last finished epoch.
        net: the network, or the members of an ensemble.
        optimizer: its optimiser.
        table: the pseudo-label weights.
        histories: one history per network.
        group: the processes of the training.
        bags: the number of rows of the table over all processes.
        mean: the averaged network (SWA), where there is one.
    """
    rows = {"weights": table.weights, "log_prior": table.log_prior}
    joined = {name: group.join(own, bags) for name, own in rows.items() if own is not None}
    if group.rank:
        return
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    if mean is not None:
        tensors |= {f"mean.{name}": value for name, value in mean.state_dict().items()}
    tensors |= {f"optimizer.{name}": value for name, value in optimizer.tensors().items()}
    tensors |= {f"memory.{name}": value for name, value in table.memory.items()}
    tensors |= joined
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    metadata = {
        "spec": json.dumps(spec, sort_keys=True),
        "epoch": str(epoch),
        "history": json.dumps(histories),
    }
    metadata |= {"sha256": _sha256(metadata, tensors)}
    with atomic_file(folder / FILE) as temporary:
        # bytes first: Python's own write says why it failed, for example on a full disk
        temporary.write_bytes(save(tensors, metadata))


def last_epoch(folder: Path) -> int:
    """Return the last finished epoch of a folder's checkpoint; 0 where there is none, or a damaged one."""
    try:
        with safe_open(folder / FILE, framework="pt") as stored:
            return int((stored.metadata() or {})["epoch"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return 0


def load_checkpoint(
    folder: Path,
    spec: Mapping[str, Any],
    net: nn.Module,
    optimizer: Optimizer,
    table: PseudoLabels,
    group: ProcessGroup,
    mean: nn.Module | None = None,
) -> tuple[int, list[History]]:
    """Restore net, mean, optimiser and table; return the last finished epoch (0: none) and the histories."""
    path = folder / FILE
    if not path.exists():
        return 0, []
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            for name in stored.keys():  # noqa: SIM118 (not a mapping)
                tensors[name] = stored.get_tensor(name)
        # a checkpoint written before there were checksums has none
        if metadata.pop("sha256", None) not in (None, _sha256(metadata, tensors)):
            raise ValueError("it differs from its checksum")
        found, epoch, histories = (
            json.loads(metadata["spec"]),
            int(metadata["epoch"]),
            json.loads(metadata["history"]),
        )
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise StorageError(f"{path} is damaged ({error}): delete it to train from the start.") from error
    differing = [name for name in spec if found.get(name) != json.loads(json.dumps(spec[name]))]
    if differing:
        raise SettingError(
            f"{folder} holds the checkpoint of another training, which differs in "
            f"{', '.join(sorted(differing))}: give another folder, or delete it."
        )
    for part, prefix in ((net, "net."), (mean, "mean.")):
        if part is not None:
            stored_part = {name: value for name, value in tensors.items() if name.startswith(prefix)}
            part.load_state_dict({name.removeprefix(prefix): value for name, value in stored_part.items()})
    for name, value in optimizer.tensors().items():
        value.copy_(tensors[f"optimizer.{name}"])
    for name in ("weights", "log_prior"):
        own = tensors[name][group.rank :: group.processes].to(group.device) if name in tensors else None
        setattr(table, name, own)
    for name, value in tensors.items():
        if name.startswith("memory."):
            table.memory[name.removeprefix("memory.")] = value.to(table.weights.device)
    return epoch, histories


def _sha256(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the checksum of the names, types, shapes and values of a checkpoint."""
    found = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
