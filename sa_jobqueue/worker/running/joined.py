"""A handler in the transaction of another session, behind a savepoint, so that the caller keeps or undoes what the handler wrote.

Tests run handlers in it (`sa_jobqueue.testing`), and trials (`trial.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, ClassVar, Generic, ParamSpec, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IllegalStateChangeError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.util import await_only

from ...arguments.context import ClaimedJob, Notes, StepCall
from ...arguments.storable import load
from ...errors import HandlerTimeout, JobStopped, SessionUnavailable
from ...models import JobMixin
from ...rules.lifecycle import Change, completed, decide, extra
from ...rules.outcomes import Completed, Outcome
from ...rules.settings import WorkerSettings
from ...sql.steps import Recorded
from ...sql.store import Store, store_of
from ...sql.workflows.pruning import Input
from ...tasks.registry import Registry
from ...util.sqlalchemy_internals import savepoints_since
from .attempt_end import LOST, Lost, RunEnding, ToWrite, Written
from .batches import BatchCall
from .call import Call, with_inputs
from .gathering import BatchRun
from .life import Life, at_once
from .reopening import Sessions
from .run import Run
from .steps import Checkpoints, Steps
from .timeouts import timeout_of, within
from .transaction import SHARED, HandlerTransaction, endings_of, refuse
from .verdict import of_error, suspends, unstarted

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
        self.committing, self.unopened = {}, None
        self._closed, self._opening = False, Lock()
        self._savepoints: dict[sa.Connection, sa.NestedTransaction] = {}
        self._released: dict[sa.Connection, list[str]] = {}
        """The names of savepoints that were released for a step: see `step_aside`."""
        self._has_written = False
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
            self._come_back()
        finally:
            self._opening.release()
        if self._closed:
            refuse()
        self._has_written = self._has_written or not _reads(options.get("clause"))
        return connection

    def step_aside(self) -> None:
        """Release the savepoints if the handler has written nothing, so that their rollback does not undo the writes of a step on the same
        connection. They are set again at the handler's next statement.
        """
        if not (self._has_written or self._released):
            for connection, savepoint in self._savepoints.items():
                self._released[connection] = names = savepoints_since(savepoint)
                connection.exec_driver_sql(f"RELEASE SAVEPOINT {names[0]}")

    def _come_back(self) -> None:
        for connection, names in list(self._released.items()):
            if savepoints_since(self._savepoints[connection]) == names:  # not within the block of a step's session
                del self._released[connection]
                for name in names:
                    connection.exec_driver_sql(f"SAVEPOINT {name}")

    def commit_step(self, record: Callable[[sa.Connection], None]) -> bool:
        """Keep the writes together with the record of a step: see `HandlerTransaction.commit_step`."""
        self.session.flush()
        if not self._savepoints:
            return False
        record(connection_of(self._outer, self._job))
        self.session.commit()
        self._closed = True
        self._end(keep=True)
        return True

    def complete(self, changes: Sequence[Change]) -> list[RunEnding]:
        """Keep the handler's writes together with `changes`, or nothing if a claim is no longer valid."""
        self._come_back()
        self.session.flush()
        if self.session.autobegin or self.session.in_transaction():
            self.session.commit()
        if not self._savepoints:
            return [ToWrite(change) for change in changes]
        self._closed = True
        endings = endings_of(changes, self._write(connection_of(self._outer, self._job), changes))
        if LOST not in endings:
            self._end(keep=True)
        return endings

    def close(self, *, failed: bool = False) -> None:
        """Undo what was not kept, also by a task or thread that the handler left behind."""
        self._closed = True
        try:
            self._come_back()
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


def _reads(statement: Any) -> bool:
    if isinstance(statement, sa.TextClause):
        return statement.text.lstrip()[:6].upper() == "SELECT"
    return isinstance(statement, sa.SelectBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSessions(Sessions):
    """Sessions for handlers, made as in production: by the registry's makers, or plain. They join the transaction of the session `outer`."""

    outer: Session
    job: type[JobMixin]
    transaction: type[JoinedTransaction]

    def open_async(self) -> tuple[AsyncSession, HandlerTransaction]:
        """A session for an `async def` handler, and its transaction."""
        session, transaction = Sessions.open_async(self)
        event.listen(session.sync_session, "do_orm_execute", _read)
        return session, transaction

    def _transaction(self, session: Session, engine: Any) -> HandlerTransaction:
        return self.transaction(session, outer=self.outer, job=self.job, store=self.store)


def _read(state: ORMExecuteState) -> Any:
    """Read the rows of plain SQL at once, because an AsyncSession closes their cursor in a way that sync drivers do not have."""
    result = state.invoke_statement()
    return result.freeze()() if isinstance(result, sa.CursorResult) and result.returns_rows else result


# ---- Handlers in that transaction.

#: The least seconds that count for a step that is tried again at once.
_LEAST = 0.5

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: Calls a function that uses the session's connection, and waits for it.
On: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
#: Where in its range a backoff's jitter lies: each time at the same place.
MIDDLE = 0.5


class _JoinedCheckpoints(Checkpoints):
    """Records steps in the outer transaction, each in a savepoint."""

    def __init__(self, store: Store, connection: Callable[[], sa.Connection]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.store, self.lease, self._connection = store, WorkerSettings().lease, connection

    @contextmanager
    def begin(self, *, several: bool = False) -> Generator[sa.Connection]:
        connection = self._connection()
        with connection.begin_nested():
            yield connection

    def write(self, id: int, write: Callable[[sa.Connection], T]) -> T:
        """Call `write`, a statement about the job `id`."""
        with self.begin() as connection:
            return write(connection)


class JoinedSteps(Steps):
    """The steps of a run in the outer transaction. Records that were undone together with the handler's writes are written again: see `keep`.

    `on`: runs a function that uses the connection, for an async handler.
    """

    def __init__(
        self,
        call: Call,
        sessions: Sessions,
        store: Store,
        connection: Callable[[], sa.Connection],
        on: On,
    ) -> None:
        task, home = call.run.task, call.run.task.registry
        # A statement is not tried again if the database is away.
        super().__init__(
            call.run.job, _JoinedCheckpoints(store, connection), sessions, lambda: float("-inf"),
            policy=task.steps, limit=home.max_payload, callbacks=home.callbacks,
        )  # fmt: skip
        self._call, self._on, self._turn, self._connection = call, on, asyncio.Lock(), connection
        self.met: dict[str, bool] = {}
        """The steps that ended in this run, and whether each had a record."""
        self._written: dict[str, Callable[[sa.Connection], Any] | None] = {}
        """The writes of the steps recorded in this run; None for the step of a session."""
        self._skipped: defaultdict[float, float] = defaultdict(float)
        self._has_ended = False

    def lose(self, name: str) -> None:
        """Called when the writes of this step's session were undone together with earlier writes of the handler's session."""

    def _find(self, full: str) -> Recorded | None:
        if not self._call.run.task.is_async:
            self._step_aside()
        if (found := super()._find(full)) is not None:
            self.met[full] = True
        return found

    def _try(
        self, name: str, write: Callable[[sa.Connection], T], connection: sa.Connection | None = None
    ) -> T | Recorded:
        self._refuse_late()
        self.passing(name, recorded=False)
        found = super()._try(name, write, connection)
        if found not in {None, False}:
            self._written[name] = write if connection is None else None
            self.met[name] = False
            if connection is None:
                self.passing(name, recorded=True)
        return found

    def _delay(self, error: Exception, call: StepCall, tries: int, began: float) -> float:
        """A step is tried again at once, as if the time had passed."""
        self._skipped[began] += max(super()._delay(error, call, tries, began - self._skipped[began]), _LEAST)
        return 0.0

    async def acall(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that uses the connection, one call at a time."""

        def call() -> T:
            self._step_aside()
            return method(*args, **kwargs)

        async with self._turn:
            self._refuse_late()
            return cast("T", await self._on(call))

    def _step_aside(self) -> None:
        if isinstance(transaction := self._call.transaction, JoinedTransaction):
            transaction.step_aside()

    def keep(self) -> None:
        """Write lost records again. The next run repeats a step with a session instead, because the writes of the session are lost too."""
        if not self._written:
            return
        kept, _ = self._store.read_steps(self._connection(), self._job.id, self._job.claim_token)
        for name, write in self._written.items():
            if name in kept and kept[name].is_ours:
                continue
            if write is None:
                self.lose(name)
            else:
                super()._try(name, write)

    def end(self) -> None:
        """Refuse steps of tasks and threads that outlive the handler."""
        self._has_ended = True

    def _refuse_late(self) -> None:
        if self._has_ended:
            raise SessionUnavailable("the job has ended, so it can have no more steps")


class JoinedRuns(Generic[R]):
    """Calls handlers in the transaction of the session `outer`. Everything here is written for a `Session`; with an `AsyncSession` it is
    called inside of its `run_sync`, but `run_async` is awaited.
    """

    transaction: ClassVar[type[JoinedTransaction]] = JoinedTransaction
    steps: ClassVar[type[JoinedSteps]] = JoinedSteps
    _steps: Any
    """Of the run, made by `steps`; None for a batch."""

    def __init__(self, outer: Session, notes: Notes, *, registry: Registry, job: type[JobMixin]) -> None:
        self._session, self._registry, self._job = outer, registry, job
        self._store, self._given = store_of(job), notes
        self._records = self._store
        self.answers: list[R] = []
        """The answers about the jobs of the last `run`."""
        self.life = Life(registry.start_hooks, registry.stop_hooks)
        self._sessions = JoinedSessions(
            maker=registry.sessionmaker, async_maker=registry.async_sessionmaker, store=self._store, outer=outer, job=job,
            transaction=self.transaction, life=self.life,
        )  # fmt: skip
        outer.flush()

    @property
    def _connection(self) -> sa.Connection:
        return connection_of(self._session, self._job)

    def run(self, unit: Run) -> list[R]:
        """Run a `def` handler, and a batch in halves after a failure. Returns the answers about its jobs."""
        self.answers, left = [], [unit]
        while left:
            if (call := self._begin(left.pop(0), at_once)) is not None:
                try:
                    self._succeed(call, call.invoke())
                except BaseException as error:
                    left = [*self._fail(call, error), *left]
                finally:
                    self._end_steps()
        return self.answers

    async def run_async(self, unit: Run, on: On) -> list[R]:
        """`run` for an `async def` handler. `on`: runs a function that uses the session's connection."""
        self.answers, left = [], [unit]
        while left:
            unit = left.pop(0)
            if (call := await on(partial(self._begin, unit, on))) is None:
                continue
            try:
                seconds = None if unit.timeout_at is None or unit.started is None else unit.timeout_at - unit.started
                value = await (call.invoke() if seconds is None else within(seconds, unit, call.invoke()))
                await on(partial(self._succeed, call, value))
            except BaseException as error:
                if call.steps is not None and not isinstance(error, (asyncio.CancelledError, HandlerTimeout)):
                    await call.steps.idle()
                left = [*await on(partial(self._fail, call, error)), *left]
            finally:
                self._end_steps()
        return self.answers

    async def run_alone(self, unit: Run, on: On) -> list[R]:
        """Like `run_async`, in a new event loop, whose shared values are closed at its end."""
        try:
            return await self.run_async(unit, on)
        finally:
            await self.life.close(at_once)

    def _begin(self, unit: Run, on: On) -> Call | None:
        """Make the call of the jobs that may start; None if no job may start."""
        for run in list(unit.runs):
            if (outcome := unstarted(run)) is not None:
                run.settled = True
                self._end(run, outcome)
        if isinstance(unit, BatchRun):
            return self._begin_batch(unit)
        if unit.settled:
            return None
        unit.started = monotonic()
        unit.timeout_at = timeout_of(unit, unit.started)
        call = Call(unit, self._sessions, self._given)
        call.steps = self._steps = self.steps(call, self._sessions, self._records, lambda: self._connection, on)
        return call

    def _begin_batch(self, batch: BatchRun) -> Call | None:
        self._steps = None
        batch.runs = [run for run in batch.runs if not run.settled]
        if not batch.runs:
            return None
        batch.start()
        call = BatchCall(batch, self._sessions, self._given)
        if batch.runs:
            return call
        self._end_failures(call)
        return None

    def _succeed(self, call: Call, value: Any) -> None:
        """The handler has returned `value`."""
        if call.steps is not None:
            call.steps.refuse_swallowed()
        runs = call.run.runs
        changes = [self._decide(run, outcome) for run, outcome in zip(runs, call.outcomes(value), strict=True)]
        endings: Sequence[RunEnding | None] = [None] * len(runs)
        if call.transaction is not None:
            endings = call.transaction.complete(changes)
        call.close()
        self._end_failures(call)
        for run, change, ending in zip(runs, changes, endings, strict=True):
            if isinstance(ending, Written):
                change = ending.change  # noqa: PLW2901
            elif LOST not in endings:
                change = self._write(change)  # noqa: PLW2901
            result = None if change.result is None else load(change.result)
            self.answers.append(self._told(run, change, call.error_of(run), result))
        call.tell("completed", None)

    def _fail(self, call: Call, error: BaseException) -> list[BatchRun]:
        """After the handler raised `error`, or its writes could not be kept. Exceptions that stop the test are raised again.

        Returns the batches to run next.
        """
        call.close(failed=True)
        waits = suspends(error)
        if not isinstance(error, (Exception, JobStopped, BaseExceptionGroup)) and not waits:
            raise error
        if self._steps is not None:
            self._steps.keep()
        self._end_failures(call)
        call.tell("released", error)
        if not (parts := call.parts(error)):
            for run in call.run.runs:
                self._end(run, of_error(run, error), None if waits else error)
        return [BatchRun.of(part) for part in parts]

    def _end_steps(self) -> None:
        if self._steps is not None:
            self._steps.end()

    def _end_failures(self, call: Call) -> None:
        """End the jobs that were left out of the call."""
        for run, error in call.take_failures():
            self._end(run, of_error(run, error), error)

    def _end(self, run: Run, outcome: Outcome | Lost, error: BaseException | None = None) -> None:
        self.answers.append(self._told(run, self._write(self._decide(run, outcome)), error))

    def _decide(self, run: Run, outcome: Outcome | Lost) -> Change:
        assert outcome is not LOST, "another worker cannot have claimed the job"
        if isinstance(outcome, Completed):
            return completed(run.job, outcome, run.task.rules)
        return decide(run.job, outcome, run.task.rules, random=MIDDLE, elapsed=run.elapsed)

    def _write(self, change: Change) -> Change:
        """Write the outcome of a job. Returns the change that was written."""
        raise NotImplementedError

    def _told(self, run: Run, change: Change, error: BaseException | None, result: Any = None) -> R:
        """The answer about a run that has ended."""
        raise NotImplementedError
