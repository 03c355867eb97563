"""Where a claim goes on: behind the last job that was claimed, not at the front of the index.

While an old snapshot is open anywhere (a report, a backup, a forgotten transaction), the index entries of jobs already
done cannot be removed, and they lie at the front. Behind 200,000 of them a claim of 100 is ten times as slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic

from ..context import ClaimedJob
from ..statements.claim import Slot

__all__ = ["ResumePoints"]

#: From the front again after so many times what it took: it costs a twentieth at most, ...
_SHARE = 20
#: ... and between so many seconds: whatever became visible behind a point (a transaction that committed late, a job
#: that was given back) starts within a second.
_SOONEST, _LATEST = 0.05, 0.8


class ResumePoints:
    """By slot, the (run_at, id) of the last job that was claimed there."""

    def __init__(self) -> None:
        self._points: dict[Slot, tuple[datetime, int]] = {}
        self.sweep_at = 0.0
        """When a claim begins at the front again, by the monotonic clock."""
        self.swept = True
        """Whether the last claim began at the front."""

    def begin(self) -> Mapping[Slot, tuple[datetime, int]] | None:
        """Behind which points to claim now; None: from the front."""
        self.swept = not self._points or monotonic() >= self.sweep_at
        return None if self.swept else self._points

    def end(self, jobs: Sequence[ClaimedJob], seconds: float) -> None:
        """What was claimed, in the order of `operations.claim`, and how long that took."""
        if self.swept:
            self.sweep_at = monotonic() + min(max(_SHARE * seconds, _SOONEST), _LATEST)
        for slot, point in _last(jobs).items():
            if self.swept and point < self._points.get(slot, point):
                self.sweep_at = 0.0  # there was something behind the point, and there may be more
            else:
                self._points[slot] = point


def _last(jobs: Sequence[ClaimedJob]) -> dict[Slot, tuple[datetime, int]]:
    return {(job.queue, job.priority): (job.run_at, job.id) for job in jobs}
