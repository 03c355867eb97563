"""What all workers of this process have counted, also those that are gone: a program may make one for each drain, and counters that
fall look like a restart.
"""

from __future__ import annotations

import threading
from typing import NamedTuple
from weakref import ref

from ..tally import TaskTally
from .tally import Tally

__all__ = ["add_to_totals", "totals"]


class _Counted(NamedTuple):
    worker: ref[object]
    tally: Tally


_lock = threading.Lock()
#: By workers that were there when this was last looked at. Under the lock.
_counted: list[_Counted] = []
#: By those that are gone. Under the lock.
_gone: dict[tuple[str, str], TaskTally] = {}


def add_to_totals(worker: object, tally: Tally) -> None:
    """`worker` counts in `tally` from now on, as long as it is there."""
    with _lock:
        _settle()
        _counted.append(_Counted(ref(worker), tally))


def totals() -> list[TaskTally]:
    """All that was counted so far in this process, by queue and task. For any thread."""
    with _lock:
        _settle()
        found = dict(_gone)
        for one in _counted:
            _add(found, one.tally)
    return list(found.values())


def _settle() -> None:
    """Keep the sums of workers that are gone, and no more of them."""
    for one in [one for one in _counted if one.worker() is None]:
        _add(_gone, one.tally)
        _counted.remove(one)


def _add(sums: dict[tuple[str, str], TaskTally], tally: Tally) -> None:
    for one in tally.snapshot():
        before = sums.get(one.key)
        sums[one.key] = one if before is None else before.plus(one)
