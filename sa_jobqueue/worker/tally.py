"""Counting what jobs came to: by queue and task, in plain integers, a batch at a time.

To call a metrics library for each job would take several times as long (prometheus_client 5 µs, OpenTelemetry 8 µs; November 2026).
So everything that shows numbers reads them from here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from ..context import ClaimedJob
from ..histogram import BUCKETS, RANGES, bucket_of
from ..lifecycle import COUNTED, OUTCOMES, Change, Event
from ..tally import OTHER_QUEUES, UNKNOWN_TASK, TaskTally

__all__ = ["EndedRun", "InTable", "Tally", "outcomes_of"]

_COMPLETE = Event.COMPLETE
#: Queues with their tasks from which on new ones of jobs that did not run here, or were lost, are counted as one queue: any worker
#: rescues the jobs of any queue, and names come out of rows.
_MOST = 2_000
#: No job waits this many seconds, but one whose `run_at` is -infinity seems to.
_TOO_LONG = RANGES[-1][1]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class EndedRun(Protocol):
    """What a tally looks at of a run whose claim has ended."""

    job: ClaimedJob
    started: float | None
    ended: float | None

    @property
    def task(self) -> _Named: ...


class _Counts:
    """What is counted of one task in one queue. `outcomes`: by event."""

    __slots__ = ("lost", "outcomes", "run_seconds", "runs", "wait_seconds", "waits")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.lost = 0
        self.run_seconds = self.wait_seconds = 0.0
        self.runs, self.waits = [0] * BUCKETS, [0] * BUCKETS


#: Stands in until the first run of a batch: nothing is added to it.
_NO_COUNTS = _Counts()


@dataclass(slots=True)
class InTable:
    """How much of a tally is in the table `stat`. Each batch has a number, and stays as it is until the database has it.

    It outlives a `serve()`, as the worker's row does when it cannot be deleted: that row has the number of the last batch.
    """

    counted: dict[tuple[str, str], TaskTally] = field(default_factory=dict)
    """What is in the table."""
    batch: list[TaskTally] = field(default_factory=list)
    made_of: list[TaskTally] = field(default_factory=list)
    """What the tally said when the batch was made."""
    number: int = 1
    """Of this batch, or of the next one."""


class Tally:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Counts] = {}
        self._changed: set[tuple[str, str]] = set()
        """Of which something was counted since `take_changed` took them. Under the lock."""
        self._lock = threading.Lock()
        self.zero = time.time() - monotonic()
        """When `monotonic()` was 0, in seconds since 1970, by the database's clock once that is known. Maintenance writes it."""

        self.written = InTable()
        """Maintenance alone writes and reads it."""

    def add(self, changes: Sequence[Change], runs: Sequence[EndedRun | None]) -> None:
        """These changes are in the database; the run of each, where it had one. Changes without a run are for `add_one`.

        Batches are mostly of one task, and their durations in one bucket: these are counted in local variables.
        """
        with self._lock:
            zero, task, queue, counts = self.zero, None, "", _NO_COUNTS
            completed = took_here = waited_here = 0
            took_in = waited_in = 0
            took_above = waited_above = 0.0
            took_to = waited_to = -1.0  # so that the first of each finds its bucket
            for change, run in zip(changes, runs, strict=True):
                if run is None:
                    continue
                job = run.job
                if run.task is not task or job.queue != queue:
                    if task is not None:
                        counts.outcomes[_COMPLETE] += completed
                        counts.runs[took_in] += took_here
                        counts.waits[waited_in] += waited_here
                        completed = took_here = waited_here = 0
                    task, queue = run.task, job.queue
                    counts = self._counts_of(queue, task.name)
                if change.event is _COMPLETE:
                    completed += 1
                else:
                    counts.outcomes[change.event] += 1
                started, ended = run.started, run.ended
                if started is None or ended is None:
                    continue
                took = ended - started
                if not took_above < took <= took_to:
                    counts.runs[took_in] += took_here
                    took_in, took_here = bucket_of(took), 0
                    took_above, took_to = RANGES[took_in]
                took_here += 1
                counts.run_seconds += took
                # It may have been enqueued for a time in the past.
                due, created = job.run_at, job.created_at
                waited = started + zero - max(due, created)
                if not waited_above < waited <= waited_to:
                    if not 0.0 <= waited <= _TOO_LONG:  # two clocks, or a `created_at` that was written by hand
                        waited = 0.0
                    counts.waits[waited_in] += waited_here
                    waited_in, waited_here = bucket_of(waited), 0
                    waited_above, waited_to = RANGES[waited_in]
                waited_here += 1
                counts.wait_seconds += waited
            if task is not None:
                counts.outcomes[_COMPLETE] += completed
                counts.runs[took_in] += took_here
                counts.waits[waited_in] += waited_here

    def add_one(self, queue: str, task: str | None, event: Event) -> None:
        """`event` happened to a job that did not run here. `task` is None if its name is not registered here."""
        with self._lock:
            self._counts_of_others(queue, task).outcomes[event] += 1

    def lose(self, queue: str, task: str | None) -> None:
        """The outcome of a job came too late: its claim was over."""
        with self._lock:
            self._counts_of_others(queue, task).lost += 1

    def snapshot(self) -> list[TaskTally]:
        """All that was counted so far, by queue and task."""
        with self._lock:
            return [_value(key, counts) for key, counts in sorted(self._counts.items())]

    @property
    def changed(self) -> int:
        """How many `take_changed` would return."""
        return len(self._changed)

    def take_changed(self, most: int) -> list[TaskTally]:
        """The tallies of up to `most` queues with their tasks: of those for which something was counted since they were last taken."""
        with self._lock:
            keys = [self._changed.pop() for _ in range(min(most, len(self._changed)))]
            return [_value(key, self._counts[key]) for key in keys]

    def _counts_of(self, queue: str, task: str) -> _Counts:
        """To add to them."""
        key = queue, task
        self._changed.add(key)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = _Counts()
        return found

    def _counts_of_others(self, queue: str, task: str | None) -> _Counts:
        """The same where the queue may be any, and the task unknown here."""
        name = task or UNKNOWN_TASK
        if len(self._counts) >= _MOST and (queue, name) not in self._counts:
            queue = OTHER_QUEUES
        return self._counts_of(queue, name)


def _value(key: tuple[str, str], counts: _Counts) -> TaskTally:
    queue, task = key
    return TaskTally(
        queue, task, **{OUTCOMES[event]: number for event, number in counts.outcomes.items()}, lost=counts.lost,
        run_seconds=counts.run_seconds, wait_seconds=counts.wait_seconds, runs=tuple(counts.runs), waits=tuple(counts.waits),
    )  # fmt: skip


def outcomes_of(tallies: Iterable[TaskTally]) -> Counter[str]:
    """What was counted, by outcome; and "unknown", the jobs that were given back because their tasks are not registered."""
    counted: Counter[str] = Counter()
    for one in tallies:
        counted.update({name: getattr(one, name) for name in COUNTED if getattr(one, name)})
        if one.task == UNKNOWN_TASK and one.released:
            counted["unknown"] += one.released
    return counted
