"""A trained model as a folder: weights, ``model.json``, statistics, any calibration, and checksums."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save
from torch import Tensor, nn

from mipl.calibration.model import FILE as CALIBRATION
from mipl.calibration.model import Calibration
from mipl.errors import StorageError
from mipl.files import atomic_folder, parse_json, read_folder, write_checksums, write_json

FORMAT = "mipl-model-1"
INFO = "model.json"
WEIGHTS = "model.safetensors"
STATISTICS = "statistics.safetensors"  # of the training bags; models of earlier versions have none
Arrays = dict[str, npt.NDArray[np.float32]]


def write_model(
    path: Path,
    info: dict[str, Any],
    network: nn.Module,
    calibration: Calibration | None,
    statistics: Arrays,
) -> None:
    """Write a model; an older one is replaced in one step."""
    state = {name: value.cpu().contiguous() for name, value in network.state_dict().items()}
    with atomic_folder(path, INFO) as temporary:
        # bytes first: Python's own write says why it failed, for example on a full disk
        (temporary / WEIGHTS).write_bytes(save(state))
        write_json(temporary / INFO, {"format": FORMAT, **info})
        if statistics:
            (temporary / STATISTICS).write_bytes(save_arrays(statistics))
        if calibration is not None:
            calibration.save(temporary)
        write_checksums(temporary)


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """The contents of a model's folder, all written by one :func:`write_model`."""

    path: Path
    info: dict[str, Any]  # of model.json
    files: dict[str, bytes]

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """Read a model; a file that differs from its checksum is refused."""
        files = read_folder(path, (INFO, WEIGHTS, CALIBRATION, STATISTICS))
        if INFO not in files:
            raise StorageError(f"{path} is not a model folder: it holds no {INFO}.")
        return cls(path, parse_json(files[INFO], path / INFO, FORMAT), files)

    def restore(self, network: nn.Module) -> None:
        """Give a network the weights; damaged ones, of another network or not finite, are refused."""
        try:
            state: dict[str, Tensor] = load(self.files[WEIGHTS])
        except (KeyError, SafetensorError) as error:
            raise StorageError(f"{self.path / WEIGHTS} is damaged or incomplete ({error}).") from error
        # the bounds of a Gaussian process's parameters are infinite from the start
        infinite = {name for name, value in network.state_dict().items() if value.isinf().any()}
        network.load_state_dict(state)
        for name in sorted(state.keys() - infinite):
            if not torch.isfinite(state[name]).all():
                raise StorageError(
                    f"{self.path / WEIGHTS} is damaged: '{name}' is not finite. "
                    "Restore the folder from a copy, or train the model again."
                )

    def statistics(self) -> Arrays:
        """Return the statistics of the training bags by name; none of an earlier version."""
        if STATISTICS not in self.files:
            return {}
        try:
            arrays: Arrays = load_arrays(self.files[STATISTICS])
        except SafetensorError as error:
            raise StorageError(f"{self.path / STATISTICS} is damaged or incomplete ({error}).") from error
        if not all(np.isfinite(values).all() for values in arrays.values()):
            raise StorageError(f"{self.path / STATISTICS} is damaged: a value is not finite.")
        return arrays

    def calibration(self, k: int) -> Calibration | None:
        """Return the calibration for k classes, or None where the model has none."""
        if CALIBRATION not in self.files:
            return None
        return Calibration.parse(self.files[CALIBRATION], self.path / CALIBRATION, k)
