"""Python's garbage collector, tuned for a process that does nothing but work.

For programs that are the worker's alone; elsewhere the application decides.
"""

from __future__ import annotations

import gc

__all__ = ["tune_gc"]

#: Objects made and not freed since, after which the young ones are searched. With Python's 700, or 2,000, a few dozen concurrent
#: handlers would cause searches all the time, which find nothing, because the objects are in use.
_YOUNG = 5_000


def tune_gc() -> None:
    """Search less often, and never through the objects loaded so far. Call it after loading all, before the first job."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:  # 0: the application has turned it off
        gc.set_threshold(_YOUNG, *older)
