"""Run jobs in the test's process, on the connection of its session: claim, call and record like a worker, one job or batch at a time.

Differences to a worker: everything happens in the session's transaction, with savepoints where a worker commits; a `def` handler
has no timeout; and a job of `executor="process"` runs in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..arguments.context import ClaimedJob
from ..arguments.storable import load, shown
from ..errors import TaskError
from ..models import Job, JobMixin, status_in
from ..rules.lifecycle import Change, Event, Rules, decide, sources, unwritable
from ..rules.outcomes import Released
from ..sql.apply import Answer, kept_for_now
from ..sql.claims import claim_jobs, claim_listed, fault_of
from ..sql.limits.claims import LimitedRequest, picked_jobs
from ..sql.parts import table_of
from ..tasks.registry import Registry
from ..tasks.tasks import AnyTask
from ..util.urls import without_secrets
from ..worker.claiming.intake import probing
from ..worker.running.attempt_end import ToWrite, Written, outcome_of
from ..worker.running.call import Call, taken_by
from ..worker.running.gathering import BatchRun, Member
from ..worker.running.joined import MIDDLE, JoinedRuns, with_all_inputs
from ..worker.running.notes import JobReports
from ..worker.running.run import Run
from .clock import resume_waiting
from .steps import KitSteps
from .transaction import Listed

#: Jobs that are listed as text, at most.
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that was run."""

    job_id: int
    task: str
    queue: str
    args: Mapping[str, Any]
    """As they are stored: plain JSON. Secret and sensitive arguments are "(hidden)"."""
    attempt: int
    outcome: str
    """"completed", "retried", "failed", "cancelled", "snoozed", "suspended" (it waits), "released", or "crashed" by `crash_after`."""
    error: BaseException | None = None
    """What the handler has raised."""
    result: Any = None
    """What it returned, as plain JSON, if its task says `record=True`."""
    waits_for: str | None = None
    """The signal, time or jobs that a suspended job waits for, such as "signal 'order:17:approve'"."""

    def __str__(self) -> str:
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.args.items())
        why = "" if self.error is None else f" ({type(self.error).__name__}: {self.error})"
        why = why if self.waits_for is None else f" (waits for {self.waits_for})"
        return f"job {self.job_id} {self.task}({given}): {self.outcome}{why}"


class Drained(Listed[Ran]):
    """The jobs that were run, in that order."""

    def __init__(self, ran: Sequence[Ran], left: str) -> None:
        super().__init__(ran)
        self.left = left
        """`left`: what was not run, and why; see `explain`. It is looked at only if nothing was run."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many jobs ended in which way: `{"completed": 2, "retried": 1}`. An outcome that no job had is 0."""
        return Counter(ran.outcome for ran in self.listed)

    @property
    def errors(self) -> list[BaseException]:
        """What handlers have raised."""
        return [ran.error for ran in self.listed if ran.error is not None]

    def __repr__(self) -> str:
        if not self.listed:
            return f"<nothing was run: {self.left}>"
        first: Sequence[Ran] = self.listed
        if len(self) > _NAMED:
            first = sorted(self.listed, key=lambda ran: ran.outcome == "completed")[:_NAMED]
        text = "; ".join(map(str, first))
        if len(self) > _NAMED:
            counts = ", ".join(f"{number:,} {outcome}" for outcome, number in self.outcomes.items())
            text = f"{len(self):,} jobs: {counts}; {text}; and {len(self) - _NAMED:,} more"
        return f"<{text}>"


#: Seconds of a claim's lease. Nothing renews it, and a clock that is moved lets it run out.
_LEASE = 60.0
#: Bytes of arguments that a claim returns: all that can be read back.
_ALL = 2**30 - 1


class Inline(JoinedRuns[Ran]):
    """Claims and runs jobs in the transaction of `session`. Everything here is written for a `Session`; with an `AsyncSession` it is
    called inside of its `run_sync`, but `run_async` is awaited.
    """

    steps = KitSteps

    def __init__(
        self, session: Session, *, registry: Registry, queues: Collection[str] | None, job: type[JobMixin] = Job
    ) -> None:
        self._notes = JobReports()
        super().__init__(session, self._notes, registry=registry, job=job)
        self._queues, self._worker = queues, str(uuid4())
        self._claimed: list[Run] = []
        """A job that was claimed for a batch, but has another task."""

    # ---- claiming

    def next(self) -> Run | None:
        """Claim the due job that a worker with all of these queues would start first. None: no worker would start a job."""
        if self._claimed:
            return self._claimed.pop()
        connection, table = self._connection, table_of(self._job)
        self._move_workflows()
        due = (status_in(table.c.status, sources(Event.CLAIM)), table.c.run_at > sa.func.now())
        # In a transaction that is open for long, now() is its beginning, which no worker's is.
        passed = table.c.run_at <= sa.func.clock_timestamp()
        connection.execute(sa.update(table).where(*due, passed).values(run_at=sa.func.now()))
        for queue in connection.scalars(self._due_queues()).all():
            if (found := self._claim_from(connection, queue)) is not None:
                return self._run(found)
        return self.next() if resume_waiting(connection, self._store) else None

    def _move_workflows(self) -> None:
        """Release the members of workflows that waited for others, as far as these have ended."""
        while found := self._store.stray_workflows(self._connection):
            done = self._store.advance(self._connection, dict.fromkeys(found, 0))
            if not done.read:  # another transaction has them locked
                return

    def this(self, job_id: int) -> Run | None:
        """Claim this job, regardless of the limits of its queue and its key. None if it is not due, or not queued."""
        found = self._claim(job_id)
        return None if found is None else self._run(found)

    def _due_queues(self) -> sa.Select[Any]:
        """The queues with due jobs, in the order in which their first jobs would be started."""
        columns = table_of(self._job).c
        wanted = [] if self._queues is None else [columns.queue.in_(list(self._queues))]
        return (
            sa.select(columns.queue)
            .where(status_in(columns.status, sources(Event.CLAIM)), columns.run_at <= sa.func.now(), *wanted)
            .group_by(columns.queue)
            .order_by(sa.func.max(columns.priority).desc(), sa.func.min(columns.run_at), sa.func.min(columns.id))
        )

    def _claim_from(self, connection: sa.Connection, queue: str) -> ClaimedJob | None:
        limits = self._store.read_limits(connection, [queue])
        if queue not in limits.queues and not limits.tasks:
            statement = claim_jobs(
                worker=self._worker,
                queues={queue: 1},
                lease=_LEASE,
                known=limits.version,
                args_limit=_ALL,
                job=self._job,
            )
            row = connection.execute(statement).first()
            return None if row is None else ClaimedJob._make(row)
        # In two statements: a single statement takes no job that was enqueued in a savepoint of the same transaction.
        request = LimitedRequest(self._worker, {queue: 1}, _LEASE, tasks=limits.tasks, known=limits.version)
        picked = connection.scalars(picked_jobs(request, job=self._job)).first()
        found = None if picked is None else self._claim(picked)
        return found if found is None or found.task not in limits.broken else probing(found)

    def _claim(self, job_id: int) -> ClaimedJob | None:
        statement = claim_listed(ids=[job_id], worker=self._worker, lease=_LEASE, args_limit=_ALL, job=self._job)
        row = self._connection.execute(statement).first()
        return None if row is None else ClaimedJob._make(row)

    def unit(self, run: Run, *, alone: bool) -> Run:
        """The runs in the handler's call with this job. For a batch task, they include the task's jobs that a worker would start next, unless
        `alone`.
        """
        if not isinstance(run, Member):
            return run
        batch = BatchRun.of([run])
        while not (alone or batch.is_full) and (following := self._next_in(run.job.queue)) is not None:
            if not isinstance(following, Member) or following.task is not run.task or following.group != run.group:
                self._claimed.append(following)
                break
            batch.add(following)
        return batch

    def _next_in(self, queue: str) -> Run | None:
        found = self._claim_from(self._connection, queue)
        return None if found is None else self._run(found)

    def _run(self, claimed: ClaimedJob) -> Run:
        task: AnyTask | None = self._registry.get(claimed.task)
        if task is None:
            self._write(decide(claimed, Released(), Rules(), random=MIDDLE))
            raise TaskError(
                f"job {claimed.id}: no task is called {claimed.task!r} here: import its module, or give the registry that has it, "
                "drain(session, registry=...)"
            )
        job = with_all_inputs(claimed, self._store, self._connection)
        return (Run if task.batch is None else Member)(job, task, monotonic(), monotonic(), set())

    # ---- what becomes of a run

    def _succeed(self, call: Call, value: Any) -> None:
        if self._is_killed:
            self._crash(call)
        else:
            super()._succeed(call, value)

    def _fail(self, call: Call, error: BaseException) -> list[BatchRun]:
        if not self._is_killed:
            return super()._fail(call, error)
        self._crash(call)
        return []

    @property
    def _is_killed(self) -> bool:
        return self._steps is not None and self._steps.is_killed

    def _crash(self, call: Call) -> None:
        """Leave the job as a killed worker leaves it, with a lease that has run out."""
        call.close(failed=True)
        self._steps.keep()
        table = table_of(self._job)
        over = sa.update(table).where(table.c.id == call.run.job.id).values(lease_expires_at=sa.func.now())
        self._connection.execute(over)
        self.answers.append(_ran(call.run, "crashed"))

    def _write(self, change: Change) -> Change:
        """Write the outcome of a job. Returns the change that was written."""
        if change.event is Event.SUSPEND:
            written = self._steps.write(change)
            assert isinstance(written, Written), "no other worker can have claimed the job"
            return written.change
        try:
            with self._connection.begin_nested():
                answer = self._store.apply_one(self._connection, change)
        except DBAPIError as error:
            if change.deletes:  # a row of the application's refers to it
                return self._write(kept_for_now(change, fault_of(error)))
            instead = unwritable(change, str(error.orig))
            if instead is None:
                raise
            return self._write(instead)
        return change.cancelled if answer is Answer.CANCELLED else change

    def _told(self, run: Run, change: Change, error: BaseException | None, result: Any = None) -> Ran:
        outcome = outcome_of(ToWrite(change))
        if run.attempt_end is not None:
            run.attempt_end.tell(outcome, error)
        self._write_notes(change)
        waits = str(self._steps.suspension) if change.event is Event.SUSPEND else None
        return _ran(run, outcome, error, result, waits)

    def _write_notes(self, change: Change) -> None:
        if not self._notes.any:
            return
        self._notes.end([change], applied=True)
        batch, connection = self._notes.take(all=True), self._connection
        reported = self._store.write_progress(connection, batch.reports) if batch.reports else frozenset()
        written = self._store.write_logs(connection, batch.logs) if batch.logs else frozenset()
        self._notes.settle(batch, reported, written)


def _ran(run: Run, outcome: str, *end: Any) -> Ran:
    job, taken = run.job, taken_by(run.job) if run.job.extra is not None else None
    args = without_secrets(load((job.args if taken is None else taken.args) or "{}"))
    return Ran(job.id, job.task, job.queue, args, job.attempt, outcome, *end)
