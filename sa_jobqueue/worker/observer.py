"""What the jobs of a worker do, told in one place: claimed, started, ended, written, rescued.

The parts of the worker tell it in batches and plain integers. `Worker.counts`, `Worker.state()` and metrics come from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..context import ClaimedJob
from ..histogram import BUCKETS, bucket_of
from ..lifecycle import Change, Event
from .tally import EndedRun, Tally

__all__ = ["Observer", "SlotCounts"]


class SlotCounts(Protocol):
    """Slots, which count for themselves: to be told of each job would cost more than the rest of this module."""

    @property
    def started(self) -> int: ...

    @property
    def ended(self) -> int: ...


class Observer:
    """Counts claims here, and what came of the jobs in `tally`, which outlives this worker's `serve()`.

    Any thread tells it, except where a method names one.
    """

    def __init__(self, tally: Tally, slots: Iterable[SlotCounts]) -> None:
        self._tally, self._slots = tally, slots
        self._aside: dict[tuple[int, int | None], tuple[str, str | None]] = {}
        """The queue and task of claimed jobs that get an outcome without a run. The claimer's thread writes it; each takes out its own."""
        self.claimed = 0
        """Jobs claimed and handed on. Only the claimer's thread writes it."""
        self.claims = [0] * BUCKETS
        """Claims by how long they took, also those that brought nothing. Only the claimer's thread writes it."""
        self.claim_seconds = 0.0
        """How long all claims together took. Only the claimer's thread writes it."""
        self.rescued = 0
        """Jobs of other workers rescued. Only the maintenance thread writes it."""

    @property
    def started(self) -> int:
        """Jobs that got a slot, so far."""
        return sum(slots.started for slots in self._slots)

    @property
    def ended(self) -> int:
        """Jobs whose handlers have come back, so far."""
        return sum(slots.ended for slots in self._slots)

    def claim(self, jobs: int) -> None:
        """`jobs` were claimed and handed on. On the claimer's thread."""
        self.claimed += jobs

    def claim_took(self, seconds: float) -> None:
        """A claim, with the outcomes that were written in the same statement, took so long. On the claimer's thread."""
        self.claims[bucket_of(seconds)] += 1
        self.claim_seconds += seconds

    def set_aside(self, job: ClaimedJob, task: str | None) -> None:
        """A claimed job gets an outcome without a run. `task`: None if its name is not registered. On the claimer's thread."""
        self._aside[job.id, job.claim_token] = job.queue, task

    def written(self, changes: Sequence[Change], runs: Sequence[EndedRun | None]) -> None:
        """These changes are in the database, with the run of each that had one."""
        self._tally.add(changes, runs)
        if self._aside:
            for change in changes:
                if (found := self._aside.pop((change.id, change.claim_token), None)) is not None:
                    self._tally.add_one(*found, change.event)

    def lost(self, claims: Iterable[Change | ClaimedJob], runs: Sequence[EndedRun | None]) -> None:
        """What came of these was not written: their claims were over."""
        for claim, run in zip(claims, runs, strict=True):
            found = self._aside.pop((claim.id, claim.claim_token), None)
            if run is not None:
                found = run.job.queue, run.task.name
            if found is not None:
                self._tally.lose(*found)

    def rescue(self, queue: str, task: str | None, event: Event) -> None:
        """A job of another worker was rescued, or failed by that. On the maintenance thread."""
        self.rescued += 1
        self._tally.add_one(queue, task, event)

    def end_late(self, queue: str, task: str | None, event: Event) -> None:
        """A job that waited past its expiry or deadline was ended. On the maintenance thread."""
        self._tally.add_one(queue, task, event)
