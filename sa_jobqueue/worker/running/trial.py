"""A trial of a job: its handler is called in a transaction that is rolled back, and its writes are read before that.

The job is not claimed, so its row does not change. Its steps are not recorded, and a wait ends the trial. Only effects in the transaction of `ctx.session` are undone: `@task(dry_run=True)` declares
that the handler has no others, or that they do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn

from ...arguments.context import ClaimedJob
from ...errors import JobQueueError
from ...models import Job, JobMixin, companions_of
from ...rules.lifecycle import Change
from ...rules.outcomes import ErrorEntry
from ...sql.apply import Answer
from ...sql.claims import as_claimed
from ...sql.store import Store
from ...tasks.registry import Registry
from ...tasks.tasks import AnyTask
from ..connections.service import setting
from .attempt_end import ToWrite, outcome_of
from .effects import Comparison, Effects, Writes
from .joined import JoinedRuns, JoinedTransaction, with_all_inputs
from .life import at_once
from .notes import Line, line_from
from .run import Run

#: Seconds that a handler may take at most, and for which its statements wait for a lock.
SECONDS, _LOCK_SECONDS = 30.0, 2.0
#: Log lines that are kept, and bytes of arguments that are read: all that can be read back.
_LINES, _ALL = 200, 2**30 - 1
_COMMENT = r"--[^\n]*\n|/\*(?:(?!\*/).)*\*/"
#: A text that begins with the end of the transaction. A rollback to a savepoint is allowed.
_END = re.compile(
    rf"(?:[\s;]|{_COMMENT})*(?:COMMIT|END|ABORT|ROLLBACK(?!(?:\s+(?:WORK|TRANSACTION))?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
#: A COMMIT fails by this constraint, also if a longer text or the driver's own connection sends it.
_GUARD = (
    "CREATE TEMPORARY TABLE sa_jobqueue_trial (a int CONSTRAINT a_trial_is_never_committed UNIQUE DEFERRABLE INITIALLY DEFERRED)",
    "INSERT INTO pg_temp.sa_jobqueue_trial VALUES (1), (1)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of a trial."""

    outcome: str
    """How the attempt would have ended: "completed", "retried", "failed", "cancelled", "snoozed" or "suspended"."""
    error: ErrorEntry | None
    result: Any
    """Plain JSON, if the task says `record=True`."""
    effects: Effects
    """The rows that would have been written; of job tables, the jobs that would have been enqueued."""
    writes: Mapping[str, Writes]
    lines: Sequence[Line]
    steps: Mapping[str, bool]
    """The steps that ended, and whether each returned a result that a worker had recorded."""
    waits_for: str | None
    """The signal, time or jobs that the job would wait for."""


def try_job(
    engine: sa.Engine | AsyncEngine, id: int, task: AnyTask, *, registry: Registry, job: type[JobMixin] = Job
) -> Tried:
    """Call the job's handler on a connection of its own, undo its writes, and return them. It blocks: call it on a thread of its own.

    An `async def` handler is cancelled after 30 seconds. A `def` handler goes on, but the server ends its transaction.

    Raises JobQueueError if there is no such job, or the handler has ended the transaction.
    """
    limited = task.options()
    limited.timeout, limited.keep_logs = min(task.timeout or SECONDS, SECONDS), _LINES
    is_async = isinstance(engine, AsyncEngine)
    own = engine.sync_engine if isinstance(engine, AsyncEngine) else engine

    def call() -> Tried:
        driver = own.pool.recreate().connect()
        for name in ("commit", "rollback"):
            setattr(driver, name, _refuse)
        connection = sa.Connection(own, driver)
        try:
            _begin(connection)
            row = connection.execute(as_claimed(id, args_limit=_ALL, job=job)).first()
            if row is None:
                raise JobQueueError(f"there is no job {id}")
            trial = _Trial(Session(connection), registry=registry, job=job)
            return trial.tried(ClaimedJob._make(row), limited, is_async)
        finally:
            event.remove(connection, "before_cursor_execute", _refuse_end)
            connection.invalidate()  # closes it, which ends the transaction
            connection.close()

    return asyncio.run(greenlet_spawn(call)) if is_async else call()


def _begin(connection: sa.Connection) -> None:
    """Begin a transaction that cannot be committed."""
    event.listen(connection, "before_cursor_execute", _refuse_end)
    connection.execution_options(isolation_level="READ COMMITTED").begin()
    limit, lock = (f"{int(seconds * 1000)}ms" for seconds in (SECONDS, _LOCK_SECONDS))
    limits = {"statement_timeout": limit, "lock_timeout": lock, "idle_in_transaction_session_timeout": limit}
    for statement in (setting(limits, local=True), *_GUARD):
        connection.exec_driver_sql(statement)


def _refuse() -> NoReturn:
    raise JobQueueError("a trial is rolled back: its handler may not end the transaction of the connection itself")


def _refuse_end(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
    """Refuse a text that ends the transaction: later statements would run, and commit, in another transaction."""
    if _END.match(statement):
        _refuse()


class _UnclaimedTransaction(JoinedTransaction):
    """Keeps what the handler wrote in the transaction of `outer`, without the outcome of its job."""

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> Mapping[int, Answer]:
        return {change.id: Answer.APPLIED for change in changes}


class _Unwritten:
    """A store that records no steps, and reads signals without taking them."""

    def __init__(self, store: Store) -> None:
        self._store, self._taken = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def record_step(self, *_: Any, **__: Any) -> bool:
        return True

    def take_signal(self, connection: sa.Connection, id: int, token: int, *, step: str, signal: str) -> str | None:
        signals = companions_of(self._store.job).signal
        of_name = signals.name == signal, signals.expires_at > sa.func.now()
        payloads = sa.select(sa.cast(signals.payload, sa.Text)).where(*of_name).order_by(signals.id)
        found: str | None = connection.scalar(payloads.offset(self._taken[signal]).limit(1))
        self._taken[signal] += found is not None
        return found


class _Trial(JoinedRuns[Tried]):
    """The call of a handler in the transaction of `outer`, which keeps its log lines, and forgets its progress."""

    transaction = _UnclaimedTransaction

    def __init__(self, outer: Session, *, registry: Registry, job: type[JobMixin]) -> None:
        super().__init__(outer, self, registry=registry, job=job)
        self._records: Any = _Unwritten(self._store)
        self._lines: deque[Line] = deque(maxlen=_LINES)
        self._comparison, self._is_kept = Comparison(outer, only_written=True), False

    def tried(self, job: ClaimedJob, task: AnyTask, is_async: bool) -> Tried:
        """Call the handler, and undo what it wrote. `is_async`: whether the connection is."""
        job = with_all_inputs(job, self._store, self._connection)
        job = job._replace(attempt=min(job.attempt + 1, job.max_attempts))
        run = Run(job, task, monotonic(), monotonic(), set())
        wait = await_only if is_async else asyncio.run
        if task.is_async:
            (tried,) = wait(self.run_alone(run, greenlet_spawn if is_async else at_once))
        else:
            try:
                (tried,) = self.run(run)
            finally:
                if not self.life.is_empty:
                    wait(self.life.close(at_once))
        if self._is_kept:
            self._comparison.compare()
        return tried

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Forget the progress."""

    def use(self, job: ClaimedJob, used: Mapping[str, int]) -> None:
        """Ignore the report: a trial takes no units from rates."""

    def keep(self, job: ClaimedJob, limit: int) -> Callable[[logging.LogRecord], None]:
        """Keep the last log lines."""
        return lambda record: self._lines.append(line_from(record))

    def _write(self, change: Change) -> Change:
        return change

    def _told(self, run: Run, change: Change, error: BaseException | None, result: Any = None) -> Tried:
        ending = outcome_of(ToWrite(change))
        if run.attempt_end is not None:
            run.attempt_end.tell(ending, error)
        self._is_kept, found = error is None, self._comparison
        steps, wait = ({}, None) if run.started is None else (self._steps.met, self._steps.suspension)
        return Tried(
            outcome=ending, error=change.error, result=result, effects=found.found, writes=found.writes, lines=self._lines,
            steps=steps, waits_for=None if wait is None else str(wait),
        )  # fmt: skip
