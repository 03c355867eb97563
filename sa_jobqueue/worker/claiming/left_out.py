"""Jobs that this worker leaves out of its claims for now: those that cannot be claimed, and those that must wait for another.

Each is tried again by itself, so that it fails no claim of others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

__all__ = ["MOST", "LeftOut"]

#: As many are left out at most. Each claim compares all that it walks over with all of them: a sweep of as many takes 4 ms.
MOST = 1_000
#: Seconds after which a job that cannot be claimed is tried again, doubled each time, up to the second. So what kept it, if it has
#: passed (the tenant's other job has ended, a trigger is mended), keeps it for twice as long at most.
_FIRST, _LONGEST = 0.2, 30.0
#: Trying takes a fifth of the time at most, and 100 a second are tried in vain: the server logs an error for each.
_SHARE, _EACH = 4, 0.01
#: As many are tried at once at most.
_AT_ONCE = 100


@dataclass(slots=True)
class _Refused:
    queue: str
    wait: float
    at: float


class LeftOut:
    """By id. Only for the service's thread."""

    def __init__(self) -> None:
        self._refused: dict[int, _Refused] = {}
        self._parked: dict[int, str] = {}
        self._rests_until = 0.0

    def __len__(self) -> int:
        return len(self._refused) + len(self._parked)

    @property
    def full(self) -> bool:
        """Whether no more can be left out."""
        return len(self) >= MOST

    def ids(self) -> list[int]:
        """What no claim of several is to take."""
        return [*self._refused, *self._parked]

    def refuse(self, id: int, queue: str) -> bool:
        """It cannot be claimed. Whether that is new."""
        self._parked.pop(id, None)
        one = self._refused.get(id)
        if one is None:
            if self.full:
                return False
            one = self._refused[id] = _Refused(queue, _FIRST, 0.0)
            new = True
        else:
            one.wait = min(2 * one.wait, _LONGEST)
            new = False
        one.at = monotonic() + one.wait * random.uniform(0.8, 1.2)
        return new

    def park(self, id: int, queue: str) -> bool:
        """It is to be claimed when `due` is asked `alone`. False: there is no room."""
        if not self.full:
            self._parked[id] = queue
        return id in self._parked

    def forget(self, ids: Iterable[int]) -> None:
        """These have been claimed or ended by others, it seems."""
        for gone in ids:
            self._refused.pop(gone, None)
            self._parked.pop(gone, None)

    def claimed(self, ids: Iterable[int]) -> None:
        """These could be claimed. What kept them keeps others no more, perhaps: those are tried soon."""
        before = len(self._refused)
        self.forget(ids)
        if len(self._refused) == before:
            return
        soon = monotonic() + _FIRST
        for one in self._refused.values():
            one.wait, one.at = _FIRST, min(one.at, soon)

    def rest(self, seconds: float, *, in_vain: int) -> None:
        """To try some took so long, and so many were refused again."""
        self._rests_until = monotonic() + max(_SHARE * seconds, _EACH * in_vain)

    def due(self, free: Mapping[str, int], *, alone: bool, at_once: bool = False) -> dict[int, str]:
        """What to try now, by id the queue: at most so many of each queue, and one of those that are parked if `alone`.

        `at_once`: whenever their time would be.
        """
        now, left = monotonic(), dict(free)
        found: dict[int, str] = {}
        refused = self._refused if at_once or now >= self._rests_until else {}
        for key, one in refused.items():
            if (at_once or one.at <= now) and left.get(one.queue, 0) > 0 and len(found) < _AT_ONCE:
                left[one.queue] -= 1
                found[key] = one.queue
        for key, queue in self._parked.items() if alone else ():
            if left.get(queue, 0) > 0:
                found[key] = queue
                break
        return found

    def next_at(self, queues: Iterable[str], *, alone: bool) -> float | None:
        """When `due` has something of these queues, by `monotonic()`."""
        wanted = set(queues)
        if alone and not wanted.isdisjoint(self._parked.values()):
            return 0.0
        times = [one.at for one in self._refused.values() if one.queue in wanted]
        return max(min(times), self._rests_until) if times else None
