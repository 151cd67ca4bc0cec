"""Training on several devices or machines: the communication between its processes.

Lightning Fabric starts the processes, assigns their devices and sums tensors over them. Every process has the
same network and takes the same steps: it computes the losses of its own bags of a batch, and gradients are
summed, so that the number of processes affects only the time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mipl.errors import SettingError, TrainingError
from mipl.seeding import seed_for

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = ("32-true", "bf16-mixed")  # others need loss scaling, or parameters of another type


def launch(devices: int, nodes: int, accelerator: str, precision: str) -> Fabric | None:
    """Start the processes of a training and return their Fabric; None where one process is enough.

    Each process runs this command again, one per device. With several machines, MASTER_ADDR and MASTER_PORT
    name the one whose NODE_RANK is 0.
    """
    if devices == nodes == 1 and accelerator == "auto" and precision == "32-true":
        return None
    _check_precision(precision)
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise SettingError("Several devices need Lightning Fabric: pip install 'mipl[devices]'.") from error
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if devices * nodes > 1 else "auto",
            precision=precision,  # type: ignore[arg-type]
        )
        fabric.launch()
    except (ImportError, RuntimeError, ValueError, TypeError) as error:
        raise SettingError(f"The devices cannot be used: {str(error).splitlines()[0]}") from error
    return fabric


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise SettingError(f"precision = {precision} is not supported: use {' or '.join(PRECISIONS)}.")


def device_named(name: str) -> torch.device:
    """Return the device called auto, cpu or cuda; one that this machine lacks is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA raises the second
        raise SettingError(f"This machine has no device '{name}': use auto, cpu or cuda.") from error


class ProcessGroup:
    """The process group of a training in one process."""

    rank, processes, full_precision = 0, 1, True

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""

    def join(self, rows: Tensor, bags: int) -> Tensor:
        """Return the rows of all ``bags`` from those of each process."""
        return rows

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the network computes in the requested precision."""
        return contextlib.nullcontext()


class FabricGroup(ProcessGroup):
    """The process group of a training on the processes of a launched Fabric."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric.device)
        _check_precision(fabric.strategy.precision.precision)
        if fabric.world_size > 1 and not torch.distributed.is_initialized():
            raise SettingError("The Fabric has not been launched: call fabric.launch() before fit.")
        self.fabric, self.rank, self.processes = fabric, fabric.global_rank, fabric.world_size
        self.full_precision = fabric.strategy.precision.precision == PRECISIONS[0]

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        with _reported_failures():
            for tensor in tensors:
                tensor.copy_(self.fabric.all_reduce(tensor, reduce_op="sum"))  # type: ignore[arg-type]

    def join(self, rows: Tensor, bags: int) -> Tensor:
        """Return the rows of all ``bags``: bag i is row i // processes of process i mod processes."""
        every = rows.new_zeros((bags, *rows.shape[1:]))
        every[self.rank :: self.processes] = rows
        self.add([every])
        return every

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the Fabric's own context."""
        return self.fabric.autocast()


@contextlib.contextmanager
def _reported_failures() -> Iterator[None]:
    """Raise a TrainingError where another process cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            "Another process of this training has ended or cannot be reached: start it again; "
            f"with a checkpoint it resumes after the last finished epoch ({str(error).splitlines()[0]})."
        ) from error


@contextlib.contextmanager
def randomness(group: ProcessGroup, *names: str | int) -> Iterator[None]:
    """Seed torch from these names inside the block, and restore its generator afterwards."""
    with torch.random.fork_rng(devices=[] if group.device.type == "cpu" else None):
        torch.manual_seed(seed_for(*names))
        yield
