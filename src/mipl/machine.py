"""Properties of the machine; all dependence on the operating system is here."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path


def memory() -> float:
    """Return the memory of the machine in bytes, or infinity if it is unknown."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return math.inf


def peak_memory_mb() -> float | None:
    """Return the peak memory of this process in MB, or None if it is unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, kilobytes elsewhere


def forget_peak_memory() -> None:
    """Let :func:`peak_memory_mb` count from now on, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
