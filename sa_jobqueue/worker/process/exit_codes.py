"""Why a worker ended, as its exit code."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Ending"]


class Ending(IntEnum):
    """Why `run()` returned, as an exit code."""

    STOPPED = 0
    """It was stopped, by a signal, `stop()` or an operator; with `until_idle`: nothing was due any more."""
    INTERRUPTED = 4
    """With `until_idle`: it was stopped before it knew that nothing is due."""
    RECYCLE = 75
    """It asks to be restarted: max_jobs, max_memory, all slots stuck, or the event loop blocked for good."""
