"""A handler in the transaction of another session, behind a savepoint, so that the caller keeps or undoes what the handler wrote.

Tests run handlers in it (`sa_jobqueue.testing`), and trials (`trial.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IllegalStateChangeError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from ...arguments.context import ClaimedJob, Notes
from ...arguments.storable import load
from ...errors import JobStopped, SessionUnavailable
from ...models import JobMixin
from ...rules.lifecycle import Change, completed, decide, extra
from ...rules.outcomes import Completed, Outcome
from ...sql.apply import Answer
from ...sql.store import Store, store_of
from ...sql.workflows.pruning import Input
from ...tasks.registry import Registry
from .attempt_end import LOST, RunEnding, ToWrite, Written
from .call import Call, with_inputs
from .reopening import Sessions
from .run import Run
from .timeouts import timeout_of, within
from .transaction import SHARED, HandlerTransaction, refuse
from .verdict import of_error, of_value, unstarted

#: Results of other jobs that are read at once.
_PAGE = 1_000
#: Seconds between two tests whether a task or thread that a handler left behind has its savepoint.
_TEST_EVERY = 0.001


def connection_of(session: Session, job: type[JobMixin]) -> sa.Connection:
    """The connection, in the session's transaction, on which its jobs are."""
    return session.connection(bind_arguments={"mapper": job.__mapper__})


def with_all_inputs(job: ClaimedJob, store: Store, connection: sa.Connection) -> ClaimedJob:
    """The job with the results that a member of a workflow takes, however large they are."""
    if job.extra is None or "inputs" not in extra(job):
        return job
    inputs, after = list[Input](), -1
    while page := store.page_of_inputs(connection, job.id, after=after, limit=_PAGE):
        inputs += page
        after = page[-1].position or 0
    return with_inputs(job, inputs)


class JoinedTransaction(HandlerTransaction):
    """Sends what a handler's session asks for to the connections of the session `outer`.

    All that the handler writes is behind a savepoint on each: it is kept or undone as a whole. Its own commit() and rollback() are
    those of a savepoint within.
    """

    def __init__(self, session: Session, *, outer: Session, job: type[JobMixin], store: Store) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.session, self._outer, self._job, self._store = session, outer, job, store
        self.committing, self.unopened = None, None
        self._closed, self._opening = False, Lock()
        self._savepoints: dict[sa.Connection, sa.NestedTransaction] = {}
        session.join_transaction_mode = "create_savepoint"
        session.get_bind = self._bind  # type: ignore[method-assign]

    def _bind(self, *args: Any, **options: Any) -> sa.Connection:
        if self._closed:
            refuse()
        if args:
            options["mapper"] = args[0]
        if not self._opening.acquire(blocking=False):
            raise SessionUnavailable(SHARED)
        try:
            connection = self._outer.connection(bind_arguments=options)
            if connection not in self._savepoints:
                self._savepoints[connection] = connection.begin_nested()
        finally:
            self._opening.release()
        if self._closed:
            refuse()
        return connection

    def complete(self, change: Change) -> RunEnding:
        """Keep what the handler wrote, together with `change`; if the claim is no longer valid, nothing."""
        self.session.flush()
        if self.session.autobegin or self.session.in_transaction():
            self.session.commit()
        if not self._savepoints:
            return ToWrite(change)
        self._closed = True
        answer = self._write(connection_of(self._outer, self._job), change)
        if answer is Answer.LOST:
            return LOST
        self._end(keep=True)
        return Written(change.cancelled if answer is Answer.CANCELLED else change)

    def close(self, *, failed: bool = False) -> None:
        """Undo what was not kept, also by a task or thread that the handler left behind."""
        self._closed = True
        try:
            while not self._is_closed():
                if connection_of(self._outer, self._job).dialect.is_async:
                    await_only(asyncio.sleep(_TEST_EVERY))
                else:
                    time.sleep(_TEST_EVERY)
        finally:
            self._end(keep=False)

    def _is_closed(self) -> bool:
        """Close the session, unless a task or thread that was left behind is making a savepoint in it."""
        if self._opening.locked():
            return False
        try:
            self.session.close()
        except IllegalStateChangeError:
            return False
        return True

    def _end(self, *, keep: bool) -> None:
        savepoints, self._savepoints = self._savepoints, {}
        for savepoint in reversed(savepoints.values()):
            if savepoint.is_active and keep:
                savepoint.commit()
            elif savepoint.is_active:
                savepoint.rollback()


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSessions(Sessions):
    """Sessions for handlers, made as in production: by the registry's makers, or plain. They join the transaction of the session `outer`."""

    outer: Session
    job: type[JobMixin]
    transaction: type[JoinedTransaction]

    def _transaction(self, session: Session, engine: Any) -> HandlerTransaction:
        return self.transaction(session, outer=self.outer, job=self.job, store=self.store)


# ---- Handlers in that transaction.

R = TypeVar("R")
#: Where in its range a backoff's jitter lies: each time at the same place.
MIDDLE = 0.5


async def at_once(work: Callable[[], R]) -> R:
    """Do it here and now."""
    return work()


class JoinedRuns(Generic[R]):
    """Calls handlers in the transaction of the session `outer`. Everything here is written for a `Session`; with an `AsyncSession` it is
    called inside of its `run_sync`, but `run_async` is awaited.
    """

    transaction: ClassVar[type[JoinedTransaction]] = JoinedTransaction

    def __init__(self, outer: Session, notes: Notes, *, registry: Registry, job: type[JobMixin]) -> None:
        self._session, self._registry, self._job = outer, registry, job
        self._store, self._given = store_of(job), notes
        self._sessions = JoinedSessions(
            maker=registry.sessionmaker, async_maker=registry.async_sessionmaker, store=self._store, outer=outer, job=job,
            transaction=self.transaction,
        )  # fmt: skip
        outer.flush()

    @property
    def _connection(self) -> sa.Connection:
        return connection_of(self._session, self._job)

    def run(self, run: Run) -> R:
        """Run a `def` handler."""
        if (outcome := unstarted(run)) is not None:
            return self._ended(run, outcome)
        call = self._begin(run)
        try:
            return self._succeed(call, call.invoke())
        except BaseException as error:
            return self._fail(call, error)

    async def run_async(self, run: Run, on: Callable[[Callable[[], R]], Awaitable[R]]) -> R:
        """Run an `async def` handler. `on`: does what uses the session's connection."""
        if (outcome := unstarted(run)) is not None:
            return await on(lambda: self._ended(run, outcome))
        call = self._begin(run)
        try:
            seconds = None if run.timeout_at is None or run.started is None else run.timeout_at - run.started
            value = await (call.invoke() if seconds is None else within(seconds, run, call.invoke()))
            return await on(lambda: self._succeed(call, value))
        except BaseException as error:
            failure = error
            return await on(lambda: self._fail(call, failure))

    def _begin(self, run: Run) -> Call:
        run.started = monotonic()
        run.timeout_at = timeout_of(run, run.started)
        return Call(run, self._sessions, self._given)

    def _succeed(self, call: Call, value: Any) -> R:
        """The handler has returned `value`."""
        run = call.run
        outcome = of_value(run, value)
        assert outcome is not LOST, "no other worker can have claimed the job"
        change = self._decide(run, outcome)
        ending = ToWrite(change) if call.transaction is None else call.transaction.complete(change)
        call.close()
        if isinstance(ending, ToWrite):
            change = self._write(change)
        result = None if change.result is None else load(change.result)
        return self._told(run, change, None, result)

    def _fail(self, call: Call, error: BaseException) -> R:
        """The handler has raised `error`, or what it wrote could not be kept. What stops the test itself is raised again."""
        call.close(failed=True)
        if not isinstance(error, (Exception, JobStopped)):
            raise error
        outcome = of_error(call.run, error)
        assert outcome is not LOST, "no other worker can have claimed the job"
        return self._ended(call.run, outcome, error)

    def _ended(self, run: Run, outcome: Any, error: BaseException | None = None) -> R:
        return self._told(run, self._write(self._decide(run, outcome)), error)

    def _decide(self, run: Run, outcome: Outcome) -> Change:
        if isinstance(outcome, Completed):
            return completed(run.job, outcome, run.task.rules)
        return decide(run.job, outcome, run.task.rules, random=MIDDLE, elapsed=run.elapsed)

    def _write(self, change: Change) -> Change:
        """Write the outcome of a job. Returns the change that was written."""
        raise NotImplementedError

    def _told(self, run: Run, change: Change, error: BaseException | None, result: Any = None) -> R:
        """The answer about a run that has ended."""
        raise NotImplementedError
