"""What is known of the machine; not every system can say it, and nothing else depends on the system."""

from __future__ import annotations

import contextlib
import math
import os
import sys


def memory() -> float:
    """Return the bytes of memory that the machine has, or infinity where that cannot be known."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return math.inf


def peak_memory_mb() -> float | None:
    """Return the most memory that this process has had, in MB; None where that cannot be known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes elsewhere
