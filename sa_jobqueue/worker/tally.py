"""Counting how jobs ended: by queue and task, in plain integers, a batch at a time.

A call of a metrics library for each job would take several times as long (prometheus_client 5 µs, OpenTelemetry 8 µs; November 2026).
So everything that shows numbers reads them from here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol
from weakref import ref

from ..arguments.context import ClaimedJob
from ..rules.lifecycle import COUNTED, OUTCOMES, Change, Event
from ..rules.tally import BUCKETS, OTHER_QUEUES, RANGES, UNKNOWN_TASK, TaskTally, bucket_of

_COMPLETE = Event.COMPLETE
#: Once there are this many queues with their tasks, new queues of jobs that did not run here, or were lost, are counted together: any
#: worker rescues the jobs of any queue, and names come out of rows.
_MOST = 2_000
#: No job waits this many seconds, except that a `run_at` of -infinity gives such a time.
_TOO_LONG = RANGES[-1][1]


class EndedRun(Protocol):
    """The fields that a tally reads of a run whose claim has ended."""

    job: ClaimedJob
    started: float | None
    ended: float | None
    task: Any


class _Counts:
    """The counts of a task in a queue. `outcomes`: by event."""

    __slots__ = ("lost", "outcomes", "run_seconds", "runs", "wait_seconds", "waits")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.lost = 0
        self.run_seconds = self.wait_seconds = 0.0
        self.runs, self.waits = [0] * BUCKETS, [0] * BUCKETS


#: Stands in until the first run of a batch: only zeros are added to it.
_NO_COUNTS = _Counts()


@dataclass(slots=True)
class InTable:
    """The part of a tally that is in the table `stat`. Each batch has a number, and does not change until the database has it.

    It outlives a `serve()`, as the worker's row does when it cannot be deleted: that row has the number of the last batch.
    """

    counted: dict[tuple[str, str], TaskTally] = field(default_factory=dict)
    """The counts in the table."""
    batch: list[TaskTally] = field(default_factory=list)
    made_of: list[TaskTally] = field(default_factory=list)
    """The tally's counts when the batch was made."""
    number: int = 1
    """The number of this batch, or of the next."""


class Tally:
    """The counts of a worker by queue and task. All methods are for any thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Counts] = {}
        self._changed: set[tuple[str, str]] = set()
        """Keys of counts that changed since `take_changed` took them. Under the lock."""
        self._lock = threading.Lock()
        self.zero = time.time() - monotonic()
        """When `monotonic()` was 0, in seconds since 1970, by the database's clock once that is known. Maintenance writes it."""

        self.written = InTable()
        """Maintenance alone writes and reads it."""

    def add(self, changes: Sequence[Change], runs: Sequence[EndedRun | None]) -> None:
        """Count changes that are in the database, with the run of each, or None. Changes without a run are for `add_one`.

        Most batches have a single task, and durations in a single bucket, which are counted in local variables.
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
                # The job may have been enqueued for a time in the past.
                waited = started + zero - max(job.run_at, job.created_at)
                if not waited_above < waited <= waited_to:
                    if not 0.0 <= waited <= _TOO_LONG:  # two clocks, or a `created_at` that was written by hand
                        waited = 0.0
                    counts.waits[waited_in] += waited_here
                    waited_in, waited_here = bucket_of(waited), 0
                    waited_above, waited_to = RANGES[waited_in]
                waited_here += 1
                counts.wait_seconds += waited
            counts.outcomes[_COMPLETE] += completed
            counts.runs[took_in] += took_here
            counts.waits[waited_in] += waited_here

    def add_one(self, queue: str, task: str | None, event: Event) -> None:
        """Count an `event` of a job that did not run here. `task` is None if its name is not registered here."""
        with self._lock:
            self._counts_of_others(queue, task).outcomes[event] += 1

    def lose(self, queue: str, task: str | None) -> None:
        """Count a job whose outcome came too late: its claim was over."""
        with self._lock:
            self._counts_of_others(queue, task).lost += 1

    def snapshot(self) -> list[TaskTally]:
        """All counts so far, by queue and task."""
        with self._lock:
            return [_value(key, counts) for key, counts in sorted(self._counts.items())]

    @property
    def changed(self) -> int:
        """How many `take_changed` would return."""
        return len(self._changed)

    def take_changed(self, most: int) -> list[TaskTally]:
        """The tallies of up to `most` queues with their tasks whose counts have changed since they were last taken."""
        with self._lock:
            keys = [self._changed.pop() for _ in range(min(most, len(self._changed)))]
            return [_value(key, self._counts[key]) for key in keys]

    def _counts_of(self, queue: str, task: str) -> _Counts:
        """The counts to add to."""
        key = queue, task
        self._changed.add(key)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = _Counts()
        return found

    def _counts_of_others(self, queue: str, task: str | None) -> _Counts:
        """The counts to add to for any queue, and a task that may be unknown here."""
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
    """The counts by outcome; and "unknown", the jobs that were given back because their tasks are not registered."""
    counted: Counter[str] = Counter()
    for tally in tallies:
        counted.update({name: getattr(tally, name) for name in COUNTED if getattr(tally, name)})
        if tally.task == UNKNOWN_TASK and tally.released:
            counted["unknown"] += tally.released
    return counted


# ---- The totals of all workers of this process, also of workers that are gone: a program may make a worker for each drain, and
# counters must not go back.

_lock = threading.Lock()
#: The workers that were alive at the last check, and their tallies. Under the lock.
_counted: list[tuple[ref[object], Tally]] = []
#: The sums of workers that are gone. Under the lock.
_gone: dict[tuple[str, str], TaskTally] = {}


def add_to_totals(worker: object, tally: Tally) -> None:
    """Add the counts in `tally` to the totals. `worker`: counts in it as long as it is alive."""
    with _lock:
        _settle()
        _counted.append((ref(worker), tally))


def totals() -> list[TaskTally]:
    """All counts so far in this process, by queue and task. For any thread."""
    with _lock:
        _settle()
        sums = dict(_gone)
        for _, tally in _counted:
            _add(sums, tally)
    return list(sums.values())


def _settle() -> None:
    """Add up the tallies of workers that are gone, and forget these workers."""
    for entry in [entry for entry in _counted if entry[0]() is None]:
        _add(_gone, entry[1])
        _counted.remove(entry)


def _add(sums: dict[tuple[str, str], TaskTally], tally: Tally) -> None:
    for counts in tally.snapshot():
        before = sums.get(counts.key)
        sums[counts.key] = counts if before is None else before.plus(counts)


# ---- Counting the events of a worker's jobs: claimed, started, ended, written, rescued.


class SlotCounts(Protocol):
    """Slots, which count their jobs: a call for each job would cost more than the rest of this module."""

    @property
    def started(self) -> int: ...

    @property
    def jobs_ended(self) -> int: ...


class Observer:
    """Counts claims here, and how jobs ended in `tally`, which outlives this worker's `serve()`.

    Any thread may call a method that names no thread.
    """

    def __init__(self, tally: Tally, slots: Mapping[str, SlotCounts]) -> None:
        self._tally, self._slots = tally, slots
        self._aside: dict[tuple[int, int | None], tuple[str, str | None]] = {}
        """The queue and task of claimed jobs that get an outcome without a run. The claimer's thread adds, any thread removes."""
        self.claimed = 0
        """Jobs claimed and handed on. Only the claimer's thread writes it."""
        self.claims = [0] * BUCKETS
        """Claims by how long they took, also claims that brought no job. Only the claimer's thread writes it."""
        self.claim_seconds = 0.0
        """How long all claims together took. Only the claimer's thread writes it."""
        self.rescued = 0
        """Jobs of other workers rescued. Only the maintenance thread writes it."""

    @property
    def started(self) -> int:
        """Jobs that got a slot, so far."""
        return sum(slots.started for slots in list(self._slots.values()))

    @property
    def ended(self) -> int:
        """Jobs whose handlers have come back, so far."""
        return sum(slots.jobs_ended for slots in list(self._slots.values()))

    def claim(self, jobs: int) -> None:
        """Count `jobs` that were claimed and handed on. On the claimer's thread."""
        self.claimed += jobs

    def claim_took(self, seconds: float) -> None:
        """Count a claim and its time, with the outcomes written in the same statement. On the claimer's thread."""
        self.claims[bucket_of(seconds)] += 1
        self.claim_seconds += seconds

    def set_aside(self, job: ClaimedJob, task: str | None) -> None:
        """Note a claimed job that gets an outcome without a run. `task`: None if it is not registered. On the claimer's thread."""
        self._aside[job.id, job.claim_token] = job.queue, task

    def written(self, changes: Sequence[Change], runs: Sequence[EndedRun | None]) -> None:
        """Count changes that are in the database, with the run of each, or None."""
        self._tally.add(changes, runs)
        if self._aside:
            for change in changes:
                if (found := self._aside.pop((change.id, change.claim_token), None)) is not None:
                    self._tally.add_one(*found, change.event)

    def lost(self, claims: Iterable[Change | ClaimedJob], runs: Sequence[EndedRun | None]) -> None:
        """Count jobs whose outcomes were not written, because their claims were over."""
        for claim, run in zip(claims, runs, strict=True):
            found = self._aside.pop((claim.id, claim.claim_token), None)
            if run is not None:
                found = run.job.queue, run.task.name
            if found is not None:
                self._tally.lose(*found)

    def rescue(self, queue: str, task: str | None, event: Event) -> None:
        """Count a job of another worker that was rescued, or failed by that. On the maintenance thread."""
        self.rescued += 1
        self._tally.add_one(queue, task, event)

    def end_late(self, queue: str, task: str | None, event: Event) -> None:
        """Count a job that was ended because it waited past its expiry or deadline. On the maintenance thread."""
        self._tally.add_one(queue, task, event)


# ---- The state of a worker at one moment, as a value.


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue in this process: its `slots`, how many of them are `running` a handler, and the jobs `waiting` for a slot.

    `stuck`: slots held by handlers that timed out and have not come back; they count as running. `paused`: no job is started,
    because the database gives handlers no connection.
    """

    slots: int
    running: int
    waiting: int
    stuck: int
    paused: bool


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker at one moment.

    `serving`: it has begun and not ended. `listening`: it hears of new jobs by NOTIFY. `blocked`: its event loop does not answer.
    `leaving`: it claims no more. `away`: the database did not answer the last time. `late`: seconds since the thread that claims, or
    the maintenance thread, should have moved on; it grows while the thread waits for the database.
    `pressure`: why the worker claims only for this `share` of its slots; None: it claims for all.
    `claimed`, `started`, `ended`, `rescued`: jobs since `run()` or `serve()` began. `unfinished`: jobs claimed here whose outcome
    is not known yet. `unwritten`: outcomes that wait to be written, including those `refused` by the database. `counts`: how jobs
    ended, as `Worker.counts`. `claims`: claims by how long they took, in the buckets of `sa_jobqueue.rules.tally`, also claims
    that brought no job, and with the outcomes that were written along; `claim_seconds`: all together. `memory`: bytes resident.
    `loop_lag`: seconds that the event loop lately took to answer. The numbers are read one by one while the worker goes on, so two
    of them may differ by the jobs of a moment.
    """

    serving: bool
    queues: Mapping[str, QueueState]
    counts: Mapping[str, int]
    listening: bool = False
    blocked: bool = False
    leaving: bool = False
    away: bool = False
    late: float = 0.0
    pressure: str | None = None
    share: float = 1.0
    claimed: int = 0
    started: int = 0
    ended: int = 0
    rescued: int = 0
    unfinished: int = 0
    unwritten: int = 0
    refused: int = 0
    claims: tuple[int, ...] = (0,) * BUCKETS
    claim_seconds: float = 0.0
    memory: int = 0
    loop_lag: float = 0.0

    @property
    def slots(self) -> int:
        """Slots of all queues."""
        return sum(queue.slots for queue in self.queues.values())

    @property
    def running(self) -> int:
        """Handlers that run, including stuck handlers."""
        return sum(queue.running for queue in self.queues.values())

    @property
    def waiting(self) -> int:
        """Jobs claimed that wait for a slot."""
        return sum(queue.waiting for queue in self.queues.values())

    @property
    def stuck(self) -> int:
        """Slots held by handlers that timed out."""
        return sum(queue.stuck for queue in self.queues.values())
