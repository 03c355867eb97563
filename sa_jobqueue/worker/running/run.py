"""A run: a claimed job in this process, from the claim to the moment its outcome is written."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from time import monotonic
from typing import Any, TypeVar

from ...arguments.context import ClaimedJob
from ...rules.lifecycle import Change
from ...sql.apply import Answer
from ...tasks.middleware import Attempt
from ...tasks.tasks import Task
from ...util.log import get_logger
from ..tally import Observer
from .attempt_end import AttemptEnd
from .notes import JobReports

R = TypeVar("R", bound="Run")


class WorkflowsToAdvance:
    """Workflows in which something has happened. Any thread adds them; the claimer's thread, which `wake` wakes, advances them."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self.any = False
        """Whether a member of a workflow was claimed here. Set by the claimer's thread, read by any thread."""
        self._ids: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._ids)

    def note(self, changes: Iterable[Change]) -> None:
        """Add the workflows of committed changes."""
        self.add([change.workflow for change in changes if change.workflow is not None])

    def add(self, ids: Iterable[int]) -> None:
        """Add workflows in which something has happened."""
        if ids := list(ids):
            self._ids.extend(ids)
            self.wake()

    def take(self) -> set[int]:
        """Take out all ids that were added."""
        return {self._ids.popleft() for _ in range(len(self._ids))}


logger = get_logger(__name__)


class Kind(Enum):
    """What runs a handler."""

    ASYNC = 0
    THREAD = 1
    PROCESS = 2  # a thread that waits for a child process
    BATCH_ASYNC = 3
    BATCH_THREAD = 4


#: Used for each run: an attribute access on the enum takes 0.06 µs in Python 3.11.
_ASYNC, _THREAD, _PROCESS, *_ = Kind


class Stop(StrEnum):
    """Why a run should stop before its end."""

    CANCEL = "cancel"  # an operator asked for it
    LOST = "lost"  # the claim is no longer valid
    TIMEOUT = "timeout"  # it took too long
    SHUTDOWN = "shutdown"  # the worker leaves


class Run:
    """One run of one claimed job.

    Several threads share it. Below, "claimer" is the thread that claims and writes, "runner" the thread or task that
    runs the handler, "maintenance" the thread of the chores, "loop" the event loop, "watchdog" the thread that checks the
    loop. A field that no comment gives to a thread does not change.
    """

    __slots__ = (
        "_unsettled", "abandoned", "arrived", "attempt_end", "claimed", "ended", "interrupted", "job", "kind",
        "noticed", "renewed", "runner", "settled", "started", "stop", "task", "timeout_at", "undecoded", "wake",
    )  # fmt: skip

    def __init__(
        self, job: ClaimedJob, task: Task[Any, Any, Any], arrived: float, claimed_at: float, unsettled: set[Run]
    ) -> None:
        self.job = job
        self.task = task
        self.kind = _ASYNC if task.is_async else _THREAD if task.executor is None else _PROCESS
        self.arrived = arrived
        # When the claim was asked for: earlier than `arrived` by the fetch of long arguments, or the way to a child process.
        self.claimed = claimed_at
        # Maintenance writes and reads it.
        self.renewed = claimed_at
        # When the handler was called. The runner writes it, and again if a child process died before it began; any thread reads it.
        self.started: float | None = None
        # When the handler's timeout is over. The runner sets it; maintenance reads it, and clears it when it has passed.
        self.timeout_at: float | None = None
        # Written by `ask_to_stop`: on the loop for an async handler; for a `def` handler on claimer, maintenance or loop, and
        # if two reasons come at the same moment, either stays. Where the loop is blocked maintenance writes it. Read by the
        # runner and by the handler.
        self.stop: Stop | None = None
        # The task that runs an async handler. Only the loop writes it; watchdog and maintenance read it.
        self.runner: asyncio.Task[Any] | None = None
        # Wakes the thread that waits for a child process. The runner writes it; the thread that asks to stop calls it.
        self.wake: Callable[[], None] | None = None
        # The runner was cancelled on behalf of this job. Only the loop writes and reads it.
        self.interrupted = False
        # The handler has read `ctx.cancelled` and seen True. The handler writes it, on any thread; the runner reads it.
        self.noticed = False
        # The handler has not been called yet. Only the runner writes and reads it.
        self.undecoded = True
        # The attempt was given up while the handler still runs. Maintenance and runner write it, holding the lock of the
        # slots; the watchdog reads it.
        self.abandoned = False
        # The callbacks of middleware for the attempt's end. The runner writes it; the thread that settles the run reads it.
        self.attempt_end: AttemptEnd | None = None
        # When the outcome was reported: the writer has it, or it is written, and the run is over here. The thread that settled
        # it writes it; the loop and the tally read it.
        self.ended: float | None = None
        # There is an outcome. Any thread sets it, by `settle`; any thread reads it.
        self.settled = False
        # Runs without an outcome, shared with other runs: the thread that removes this run has the right to decide its outcome.
        # A lock or a list for each run would be a fourth object that the garbage collector counts in place of three, so
        # that it searches that much more often (0.6 µs a job where it is not tuned; November 2026).
        self._unsettled = unsettled
        self._unsettled.add(self)

    def begin_attempt(self) -> Attempt:
        """The attempt for middleware, when the handler is about to be called."""
        self.attempt_end = attempt = AttemptEnd(self.job)
        return attempt

    @property
    def runs(self) -> Sequence[Run]:
        """The runs of the jobs in the handler's call: more than this one for a batch."""
        return (self,)

    @property
    def elapsed(self) -> float:
        """Seconds since the claim was asked for: never less than since it was made."""
        return monotonic() - self.claimed

    @property
    def elapsed_here(self) -> float:
        """Seconds since the job came here: never more than since its claim was made."""
        return monotonic() - self.arrived

    def notice_stop(self) -> bool:
        """Whether the handler should end; if so, notes that it knows."""
        if self.stop is None:
            return False
        self.noticed = True
        return True

    def ask_to_stop(self, why: Stop) -> None:
        """Ask the run to end; the first reason stays. Call it on the event loop for an async handler."""
        if self.stop is None:
            self.stop = why
            if self.runner is not None:
                self.interrupted = self.runner.cancel()
            if (wake := self.wake) is not None:  # the runner may clear it just now
                wake()

    def settle(self) -> bool:
        """True for the first caller only: a run has one outcome, even if a thread goes on after its timeout.

        For any thread: `set.remove` is one step, also without the GIL.
        """
        self.settled = True
        try:
            self._unsettled.remove(self)
        except KeyError:
            return False
        return True


class Runs:
    """Every claim that this process holds, by job id: the leases to renew, and the jobs that a reconnect may not give back.

    A run may outlast its claim: `all()` includes the runs that go on though their claim is lost. For any thread. `loop` runs async
    handlers; `observer` counts the claims that end with an outcome.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, observer: Observer) -> None:
        self._loop, self._observer = loop, observer
        # Read and written under the lock; `len` alone is read without it.
        self._held: dict[int, Run] = {}
        self._lost: dict[tuple[int, int | None], Run] = {}
        self._lock = threading.Lock()
        self.unsettled: set[Run] = set()
        """The runs that have no outcome yet. Each run adds and removes itself."""
        self.notes = JobReports()
        """Progress and log lines of these runs."""
        self.touched = WorkflowsToAdvance()
        """The workflows of runs that have ended."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Run]:
        with self._lock:
            return iter(list(self._held.values()))

    def all(self) -> list[Run]:
        """The runs that go on here or wait for a slot, whether their claim is held or lost."""
        with self._lock:
            return [*self._held.values(), *self._lost.values()]

    def add(self, runs: list[Run]) -> list[Run]:
        """Hold these claims. Returns the earlier runs of jobs that another worker took, and that are claimed here again."""
        held = self._held
        with self._lock:
            lost = [held[run.job.id] for run in runs if run.job.id in held]
            held.update({run.job.id: run for run in runs})
            self._lost.update({(run.job.id, run.job.claim_token): run for run in lost})
        return lost

    def renew(self, runs: Iterable[R], by: Callable[[R], R]) -> list[R]:
        """Replace runs by new runs of the claims that this process still holds."""
        with self._lock:
            made = [by(run) for run in runs if self._held.get(run.job.id) is run]
            self._held.update({run.job.id: run for run in made})
        return made

    def lose(self, run: Run) -> bool:
        """Note that this claim is lost; False if it was not held."""
        with self._lock:
            if self._held.get(run.job.id) is not run:
                return False
            del self._held[run.job.id]
            self._lost[run.job.id, run.job.claim_token] = run
            return True

    def has_lasted(self, claim: Change, lease: float) -> bool:
        """Whether no other worker can have had the job: the lease has not run out since it was last renewed here."""
        with self._lock:
            run = self._held.get(claim.id)
            if run is None or run.job.claim_token != claim.claim_token:
                run = self._lost.get((claim.id, claim.claim_token))  # also because our own commit has ended the claim
        return run is not None and monotonic() - run.renewed < lease

    def stop(self, run: Run, why: Stop) -> None:
        """Ask a run to end; an async handler is cancelled, on its loop."""
        if run.task.is_async:
            self._loop.call_soon_threadsafe(run.ask_to_stop, why)
        else:
            run.ask_to_stop(why)

    def end(self, changes: list[Change], answer: Answer) -> None:
        """End the claims of these changes, all of which got this answer from the database.

        The writer calls it for a batch, the executor for a change that was committed with its handler's writes.
        """
        runs = self._drop(changes)
        if self.notes.any:
            self.notes.end(changes, applied=answer is Answer.APPLIED)
        if answer is Answer.APPLIED:
            self._observer.written(changes, runs)
            if self.touched.any:
                self.touched.note(changes)
            return
        self._observer.lost(changes, runs)
        for change in changes:
            logger.info("job %d: the outcome (%s) came too late; its claim was over", change.id, change.event.value)

    def holds(self, job_id: int) -> bool:
        """Whether this process holds a claim of the job."""
        return job_id in self._held

    def queues(self, changes: Iterable[Change]) -> set[str | None]:
        """The queues of these claims; None stands for jobs that were given no slot."""
        with self._lock:
            runs = [self._held.get(change.id) for change in changes]
        return {None if run is None else run.job.queue for run in runs}

    def drop(self, run: Run) -> None:
        """End the claim of this run without an outcome."""
        self._drop([run.job])
        self._observer.lost([run.job], [run])
        if self.notes.any:
            self.notes.drop(run.job)

    def _drop(self, claims: Sequence[Change] | Sequence[ClaimedJob]) -> list[Run | None]:
        """Remove the runs of these claims; returns the run of each claim, or None."""
        held = self._held
        runs: list[Run | None] = []
        with self._lock:
            for claim in claims:
                run = held.get(claim.id)  # perhaps that of a later claim
                if run is not None and run.job.claim_token == claim.claim_token:
                    del held[claim.id]
                else:
                    run = self._lost.pop((claim.id, claim.claim_token), None) if self._lost else None
                runs.append(run)
        return runs

    def unrenewed(self, seconds: float) -> list[Run]:
        """The runs whose claim was made or renewed more than `seconds` ago."""
        before = monotonic() - seconds
        return [run for run in self if run.renewed <= before]

    def claims(self) -> list[tuple[int, int]]:
        """All claims held, as (id, token)."""
        return [(run.job.id, run.job.claim_token) for run in self]
