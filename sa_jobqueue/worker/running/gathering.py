"""Gather the claimed jobs of batch tasks into batches. Each batch takes one slot and is one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from math import inf
from time import monotonic
from typing import Any

from ...arguments.context import ClaimedJob
from ...errors import JobStopped
from ...rules.lifecycle import extra
from ...tasks.batching import Group
from ...tasks.middleware import Attempt
from ...tasks.tasks import Task
from ...tasks.upcasts import version_of
from .attempt_end import AttemptEnd
from .run import Kind, Run, Stop

#: A job whose worker has died this many times runs alone, because it may be the cause.
DEATHS = 2


class Member(Run):
    """The run of a job in a batch. The job has its own lease, cancel, deadline and outcome, and shares the handler's call."""

    __slots__ = ("batch", "group")

    def __init__(
        self, job: ClaimedJob, task: Task[Any, Any, Any], arrived: float, claimed_at: float, unsettled: set[Run]
    ) -> None:
        super().__init__(job, task, arrived, claimed_at, unsettled)
        # Written under the lock of the slots, before the handler is called.
        self.batch: BatchRun | None = None
        # The value of `Batching.by`. The claimer writes it, and a runner, once objects are loaded, before the run is gathered again.
        self.group: Group = _group_of(job, task)

    def again(self) -> Member:
        """Another run of this claim, with a separate outcome."""
        made = Member(self.job, self.task, monotonic(), self.claimed, self._unsettled)
        made.renewed, made.group = self.renewed, self.group
        made.stop = self.stop
        return made

    def ask_to_stop(self, why: Stop) -> None:
        """Note that this job should stop. The handler's call is stopped once all of its jobs should: see `BatchRun.notice_stop`."""
        if self.stop is None:
            self.stop = why
            if self.batch is not None:
                self.batch.interrupt()


def current_text(job: ClaimedJob, task: Task[Any, Any, Any]) -> str:
    """The job's arguments as JSON text, of the version that the handler takes."""
    text = job.args or ""
    is_old = job.extra is not None or task.version != 1
    return task.upcasts.current(text, version_of(extra(job))) if is_old else text


def _group_of(job: ClaimedJob, task: Task[Any, Any, Any]) -> Group:
    try:
        return None if task.grouping is None else task.grouping.stored(current_text(job, task))
    except (
        Exception,
        SystemExit,
    ):  # from an upcaster, or for annotations that cannot be resolved: the attempt fails with the reason
        return None


class BatchRun(Run):
    """Jobs of one task that run in one call of the handler and take one slot. Each job has its own outcome.

    The slots' lock protects `runs` until a runner has taken the batch. Afterwards only the runner changes them; maintenance reads them.
    """

    __slots__ = ("_first", "_runner", "along", "key", "runs", "singled_out", "size", "start_at")

    runs: list[Member]

    def __init__(self, first: Member) -> None:
        batching = first.task.batch
        assert batching is not None
        self._first = first  # before `runner` is set
        super().__init__(first.job, first.task, inf, first.claimed, set())
        self.kind = Kind.BATCH_ASYNC if first.task.is_async else Kind.BATCH_THREAD
        self.size, self.key = batching.size, (first.job.queue, first.task.name, first.group)
        self.runs = []  # pyright: ignore[reportIncompatibleMethodOverride]
        # The time at which the batch starts even if it is not full, and `arrived`, from which it could start. Under the slots' lock.
        self.start_at = monotonic() + batching.seconds
        # The exceptions and outcomes from `ctx.fail` and `ctx.retry`, by job.
        self.singled_out: dict[int, BaseException] = {}
        # The number of jobs that share the slot of the first job. Under the slots' lock.
        self.along = 0
        self.add(first)

    @classmethod
    def of(cls, runs: Sequence[Member]) -> BatchRun:
        """A batch of these jobs."""
        made = cls(runs[0])
        for run in runs[1:]:
            made.add(run)
        return made

    def begin(self) -> int:
        """Note that the batch has a slot, and return `along`."""
        self.along = len(self.runs) - 1
        return self.along

    def start(self) -> float:
        """Start the clocks of the call and its jobs, and return the time."""
        self.started = now = monotonic()
        self.timeout_at = None if self.task.timeout is None else now + self.task.timeout
        for run in self.runs:
            run.started = now
        return now

    def begin_attempt(self) -> Attempt:
        """The attempt of the batch. Each job also has its own callbacks. Raises JobStopped if all jobs were given up meanwhile."""
        attempts: list[AttemptEnd] = []
        for run in self.runs:
            run.attempt_end = attempt = AttemptEnd(run.job)
            attempts.append(attempt)
        self.attempt_end = made = AttemptEnd(self.job, attempts)
        if all(run.settled for run in self.runs):
            raise JobStopped("all jobs of the batch were given up before their handler was called")
        return made

    def add(self, run: Member) -> None:
        """Add a job to the batch."""
        self.runs.append(run)
        run.batch = self

    @property
    def runner(self) -> asyncio.Task[Any] | None:
        """As in `Run`. The first run has it, too, for the watchdog."""
        return self._runner

    @runner.setter
    def runner(self, task: asyncio.Task[Any] | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._runner = self._first.runner = task

    @property
    def is_full(self) -> bool:
        """Whether the batch is full."""
        return len(self.runs) >= self.size

    @property
    def jobs(self) -> Sequence[ClaimedJob]:
        """Its jobs."""
        return [run.job for run in self.runs]

    @property
    def stops(self) -> bool:
        """Whether all its jobs should stop."""
        return all(run.stop is not None for run in self.runs)

    def notice_stop(self) -> bool:
        """Whether the handler should stop. If so, notes that the handler has seen it."""
        if not self.stops:
            return False
        self.noticed = True
        return True

    def interrupt(self) -> None:
        """Cancel an async handler, if all of its jobs should stop. On the event loop."""
        if self.runner is not None and not self.interrupted and self.stops:
            self.interrupted = self.runner.cancel()


def runs_of(units: Iterable[Run]) -> list[Run]:
    """The runs of the jobs in these runs and batches."""
    return [run for unit in units for run in unit.runs]


class Gathering:
    """The batches of a queue that still take jobs. The slots' lock protects it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, Group], BatchRun] = {}
        """By queue, task and group."""
        self.per_slot = 1.0
        """The mean number of jobs per slot, measured on the last jobs; 1 without jobs of batch tasks."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, runs: Iterable[Run]) -> list[Run]:
        """Put jobs into batches. Returns what can start: batches that need not wait for more jobs, and the runs of other tasks, in the order of their first jobs."""
        ready: list[Run] = []
        slots, count, made, tasks = 0.0, 0, 0, set[str]()
        for run in runs:
            count += 1
            if not isinstance(run, Member):
                slots += 1
                ready.append(run)
                continue
            if run.job.rescues >= DEATHS:
                slots += 1
                self._start(BatchRun(run), ready)
                continue
            tasks.add(run.task.name)
            key = run.job.queue, run.task.name, run.group
            if (batch := self._open.get(key)) is None:
                batch = self._open[key] = BatchRun(run)
                made += 1
                if run.task.batch is not None and not run.task.batch.seconds:
                    self._start(batch, ready)
            else:
                batch.add(run)
            slots += 1 / batch.size
            if batch.is_full:
                self._start(batch, ready)
                self.taken(batch)
        # If `by` makes many small batches, each batch takes a slot.
        self.per_slot = max(count / max(slots, made - len(tasks)), 1.0)
        return ready

    def _start(self, batch: BatchRun, ready: list[Run]) -> None:
        if batch.arrived == inf:
            batch.arrived = monotonic()
            ready.append(batch)

    def taken(self, batch: BatchRun) -> None:
        """Close this batch for more jobs."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]

    def take(self, units: Iterable[Run]) -> list[Run]:
        """Close batches for more jobs. Returns the runs of the jobs in these batches and other runs."""
        for unit in units if self._open else ():
            if isinstance(unit, BatchRun):
                self.taken(unit)
        return runs_of(units)

    def start(self, queue: str | None = None, *, due_by: float = inf) -> list[Run]:
        """Close and return the batches of this queue, or of any queue, whose wait is over at `due_by`."""
        ready: list[Run] = []
        for batch in self._waiting:
            if batch.start_at <= due_by and queue in (None, batch.key[0]):
                self._start(batch, ready)
        return ready

    def clear(self) -> list[Run]:
        """Take out the jobs of all batches that wait for more jobs."""
        waiting, self._open = runs_of(self._waiting), {}
        return waiting

    @property
    def _waiting(self) -> list[BatchRun]:
        return [batch for batch in self._open.values() if batch.arrived == inf]

    @property
    def next_at(self) -> float:
        """The end of a batch's wait."""
        return min((batch.start_at for batch in self._waiting), default=inf)

    @property
    def slots(self) -> float:
        """The number of slots that the waiting batches will take."""
        return sum(len(batch.runs) / batch.size for batch in self._waiting)
