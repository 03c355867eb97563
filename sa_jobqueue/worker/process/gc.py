"""Python's search for garbage, in a process that does nothing but work.

For programs that are the worker's alone: it is the application's to decide elsewhere.
"""

from __future__ import annotations

import gc

__all__ = ["tune_gc"]

#: Objects made, and not freed since, before the young ones are looked through. By Python's 700, or 2,000, a few dozen
#: handlers that are under way at once have it done all the time, and find nothing: their objects are in use.
_YOUNG = 5_000


def tune_gc() -> None:
    """Search less often, and never through what was loaded so far. Call it when all is loaded, before the first job."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:  # 0: the application has turned it off
        gc.set_threshold(_YOUNG, *older)
