"""Faults at the n-th change of the file system, in a real child process: SIGKILL, or a full disk.

Counted are the calls that change something: creating, writing and flushing a file, making, renaming,
exchanging and removing files and folders. To be killed before a call that only reads is to be killed before
the next change. A process that is killed in a write has written half of it.
"""

import builtins
import dataclasses
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any

import mipl.files
from mipl.errors import MiplError

FILLS = ("mkdir", "rename", "replace", "link", "symlink", "fsync", "truncate")  # may fail on a full disk
FREES = ("unlink", "remove", "rmdir")


@dataclasses.dataclass
class Fault:
    """A fault at the ``at``-th change; 0: none, the changes are only counted."""

    kind: str = "kill"  # or "full": this change fails with ENOSPC, and all after it that need space
    at: int = 0
    changes: list[str] = dataclasses.field(default_factory=list)  # the names of the calls

    def before(self, change: str) -> None:
        """Count a change, and let it fail if it is its turn."""
        self.changes.append(change)
        if self.kind == "kill" and len(self.changes) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "full" and change not in FREES and 0 < self.at <= len(self.changes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def install(self, exchange: bool) -> None:
        """Patch what Python changes files by; for a process that ends with the work."""
        if not exchange:  # as on a system without renameat2
            mipl.files._exchange = lambda one, other: False
        for module, name in (
            *((os, name) for name in (*FILLS, *FREES)),
            *(((mipl.files, "_exchange"),) if exchange else ()),
        ):
            setattr(module, name, self._counted(getattr(module, name), name))
        io.open = builtins.open = self._open

    def _counted(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.before(name)
            return call(*args, **kwargs)

        return counted

    def _open(self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **kwargs):
        if not set(mode) & set("wax+"):
            return _open(file, mode, buffering, encoding, errors, newline, **kwargs)
        self.before("open")
        raw = _Written(file, mode.replace("b", "").replace("t", ""))
        raw.fault = self
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


_open = io.open


class _Written(io.FileIO):
    fault: Fault

    def write(self, data):
        if self.fault.at == len(self.fault.changes) + 1:
            super().write(bytes(data)[: len(data) // 2])
        self.fault.before("write")
        return super().write(data)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a child process has ended."""

    killed: bool
    error: str  # "" where the work was done
    expected: bool  # whether the error is a MiplError
    changes: list[str]  # of the file system; none of a process that was killed


def run(work: Callable[[], object], fault: Fault, *, exchange: bool = True) -> Ending:
    """Do some work in a child process with a fault, and tell how it ended."""
    return wait(start(work, fault, exchange=exchange))


def start(work: Callable[[], object], fault: Fault, *, exchange: bool = True) -> tuple[int, int]:
    """Start some work in a child process; return its id and what :func:`wait` reads from."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    said = ""
    try:
        fault.install(exchange)
        work()
    except BaseException as error:
        said = f"{'expected' if isinstance(error, MiplError) else repr(error)}: {error}"
    finally:
        os.write(into, f"{','.join(fault.changes)} {said}".encode())
        os._exit(0)


def wait(child: tuple[int, int]) -> Ending:
    """Wait for a child process to end."""
    pid, out = child
    with os.fdopen(out, "rb") as pipe:
        changes, _, said = pipe.read().decode().partition(" ")
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    kind, _, error = said.partition(": ")
    return Ending(killed, error or kind, kind == "expected", changes.split(","))
