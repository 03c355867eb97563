"""Where a claim goes on: behind the last job that was claimed, not at the front of the index.

While an old snapshot is open anywhere (a report, a backup, a forgotten transaction), the index entries of jobs already
done cannot be removed, and they lie at the front. Behind 200,000 of them a claim of 100 is ten times as slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from ...context import ClaimedJob
from ...statements.claim import Point, Slot

__all__ = ["ResumePoints"]

#: From the front again after so many times what it took: it costs a twentieth at most, ...
_SHARE = 20
#: ... and between so many seconds: whatever became visible behind a point (a transaction that committed late, a job
#: that was given back) starts within a second.
_SOONEST, _LATEST = 0.05, 0.8


class ResumePoints:
    """By slot, the (run_at, id) of the last job that was claimed there.

    A claim begins at the front of all its queues, or of none. But each queue has a time of its own for that: a busy one is
    claimed from far more often, and would do it each time when the others are not looked at.
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

    def begin(self, queues: Iterable[str]) -> Mapping[Slot, Point] | None:
        """Behind which points to claim now from these queues; None: from the front."""
        self._queues = tuple(queues)
        now = monotonic()
        self.swept = not self._points or any(self.sweep_at(queue) <= now for queue in self._queues)
        return None if self.swept else self._points

    def end(self, jobs: Sequence[ClaimedJob], seconds: float) -> None:
        """What was claimed, in the order of `operations.claim`, and how long that took."""
        if self.swept:
            later = monotonic() + min(max(_SHARE * seconds, _SOONEST), _LATEST)
            self._sweep_at |= dict.fromkeys(self._queues, later)
        for slot, point in _last(jobs).items():
            if self.swept and point < self._points.get(slot, point):
                self._sweep_at[slot[0]] = 0.0  # there was something behind the point, and there may be more
            else:
                self._points[slot] = point


def _last(jobs: Sequence[ClaimedJob]) -> dict[Slot, Point]:
    return {(job.queue, job.priority): (job.run_at, job.id) for job in jobs}
