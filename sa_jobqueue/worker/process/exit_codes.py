"""Why a worker ended, as its exit code."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Ending"]


class Ending(IntEnum):
    """Why `run()` returned, as an exit code."""

    STOPPED = 0
    RECYCLE = 75
    """It asks to be restarted: max_jobs, max_memory, all slots stuck, or the event loop blocked for good."""
