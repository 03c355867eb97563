"""Counting how jobs ended: by queue and task, in plain integers, a batch at a time.

To call a metrics library for each job would take several times as long (prometheus_client 5 µs, OpenTelemetry 8 µs; November 2026).
So everything that shows numbers reads them from here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, Protocol
from weakref import ref

from ..arguments.context import ClaimedJob
from ..rules.lifecycle import COUNTED, OUTCOMES, Change, Event
from ..rules.tally import BUCKETS, OTHER_QUEUES, RANGES, UNKNOWN_TASK, TaskTally, bucket_of

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
    """What a tally reads of a run whose claim has ended."""

    job: ClaimedJob
    started: float | None
    ended: float | None

    @property
    def task(self) -> _Named: ...


class _Counts:
    """The counts of a task in a queue. `outcomes`: by event."""

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
    """The tally's counts when the batch was made."""
    number: int = 1
    """Of this batch, or of the next."""


class Tally:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Counts] = {}
        self._changed: set[tuple[str, str]] = set()
        """Counts that changed since `take_changed` took them. Under the lock."""
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


# ---- What all workers of this process have counted, also those that are gone: a program may make one for each drain, and counters that


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


# ---- What the jobs of a worker do, told in one place: claimed, started, ended, written, rescued.


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


# ---- What a worker does just now, as a value.


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue in this process: its `slots`, how many of them are `running` a handler, and the jobs `waiting` for one.

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
    the one of maintenance, should have moved on; some while it waits for the database.
    `pressure`: why the worker claims less, which is for this `share` of its slots; None: it does not.
    `claimed`, `started`, `ended`, `rescued`: jobs since `run()` or `serve()` began. `unfinished`: jobs claimed here whose outcome
    is not known yet. `unwritten`: outcomes that wait to be written, `refused` of which the database has refused. `counts`: what
    came of the jobs, as `Worker.counts`. `claims`: claims by how long they took, in the buckets of `sa_jobqueue.rules.tally`, also those
    that brought no job, and with the outcomes that were written along; `claim_seconds`: all together. `memory`: bytes resident.
    `loop_lag`: seconds that the event loop lately took to answer. The numbers are read one after the other while the worker goes
    on, so two of them may differ by the jobs of a moment.
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
