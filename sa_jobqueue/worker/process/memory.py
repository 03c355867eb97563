"""How much memory this process has."""

from __future__ import annotations

import os
import sys

__all__ = ["resident"]


def resident() -> int:
    """Bytes of memory resident now; where the system does not tell that, the most there ever were."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
