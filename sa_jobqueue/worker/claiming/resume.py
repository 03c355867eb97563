"""Where a claim begins: behind the last job that was claimed, not at the front of the index.

While an old snapshot is open anywhere (a report, a backup, a forgotten transaction), the index entries of jobs already
done cannot be removed, and they lie at the front. Behind 200,000 of them a claim of 100 is ten times as slow.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from time import monotonic

from ...context import ClaimedJob
from ...statements.claim import Point, Slot

__all__ = ["ResumePoints"]

#: A claim begins at the front again after 20 times as long as the last one that did took: that costs at most 5 % of the time, ...
_SHARE = 20
#: ... and after this many seconds, at least and at most: a job that became visible behind a point (its transaction committed late, or
#: it was given back) starts within a second.
_SOONEST, _LATEST = 0.05, 0.8


class ResumePoints:
    """By slot, the (run_at, id) of the last job that was claimed there. Only for the claimer's thread.

    A claim begins at the front of all its queues, or of none. Each queue has a time of its own for that: a busy queue is claimed
    from far more often, and with one time for all it would use it up while the others are not polled.
    """

    def __init__(self) -> None:
        self._points: dict[Slot, Point] = {}
        self._sweep_at: dict[str, float] = {}
        self._queues: tuple[str, ...] = ()
        self.swept = True
        """Whether the last claim began at the front."""

    def sweep_at(self, queue: str) -> float:
        """When a claim from this queue begins at the front again, by the monotonic clock."""
        return self._sweep_at.get(queue, 0.0)

    def keep(self, queues: Container[str]) -> None:
        """Forget the points of all other queues."""
        self._points = {slot: point for slot, point in self._points.items() if slot[0] in queues}
        self._sweep_at = {queue: at for queue, at in self._sweep_at.items() if queue in queues}

    def begin(self, queues: Iterable[str]) -> Mapping[Slot, Point] | None:
        """The points behind which to claim from these queues now; None: from the front."""
        self._queues = tuple(queues)
        now = monotonic()
        self.swept = not self._points or any(self.sweep_at(queue) <= now for queue in self._queues)
        return None if self.swept else self._points

    def end(self, jobs: Sequence[ClaimedJob], seconds: float) -> None:
        """These jobs were claimed, in the order of `Store.claim`, and that took `seconds`."""
        if self.swept:
            later = monotonic() + min(max(_SHARE * seconds, _SOONEST), _LATEST)
            self._sweep_at |= dict.fromkeys(self._queues, later)
        for slot, point in _last(jobs).items():
            if self.swept and point < self._points.get(slot, point):
                self._sweep_at[slot[0]] = 0.0  # a job lay before the point, and there may be more
            else:
                self._points[slot] = point


def _last(jobs: Sequence[ClaimedJob]) -> dict[Slot, Point]:
    return {(job.queue, job.priority): (job.run_at, job.id) for job in jobs}
