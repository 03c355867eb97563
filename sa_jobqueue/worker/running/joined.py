"""A handler in the transaction of another session, behind a savepoint, so that the caller keeps or undoes what the handler wrote.

Tests run handlers in it (`sa_jobqueue.testing`), and trials (`trial.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, cast

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
from ...sql.apply import Answer
from ...sql.steps import Recorded
from ...sql.store import Store, store_of
from ...sql.workflows.pruning import Input
from ...tasks.registry import Registry
from ...util.sqlalchemy_internals import savepoints_since
from .attempt_end import LOST, RunEnding, ToWrite, Written
from .batches import BatchCall, Mixed, in_halves, is_for_all
from .call import Call, with_inputs
from .gathering import BatchRun, Member
from .life import Life, at_once
from .reopening import Sessions
from .run import Run
from .steps import Checkpoints, Steps
from .timeouts import timeout_of, within
from .transaction import SHARED, HandlerTransaction, refuse, written
from .verdict import of_error, of_value, suspends, unstarted

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
        self.committing, self.unopened, self.committing_all = None, None, {}
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

    def complete_all(self, changes: Sequence[Change]) -> Mapping[int, Answer] | None:
        """Keep what the handler of a batch wrote, together with `changes`: see `HandlerTransaction.complete_all`."""
        self._come_back()
        self.session.flush()
        if self.session.autobegin or self.session.in_transaction():
            self.session.commit()
        if not self._savepoints:
            return None
        self._closed = True
        answers = self._write_all(connection_of(self._outer, self._job), changes)
        if Answer.LOST not in answers.values():
            self._end(keep=True)
        return answers

    def complete(self, change: Change) -> RunEnding:
        """Keep what the handler wrote, together with `change`; if the claim is no longer valid, nothing."""
        self._come_back()
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
        on: Callable[[Callable[[], Any]], Awaitable[Any]],
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
    """Of the run, made by `steps`."""

    def __init__(self, outer: Session, notes: Notes, *, registry: Registry, job: type[JobMixin]) -> None:
        self._session, self._registry, self._job = outer, registry, job
        self._store, self._given = store_of(job), notes
        self._records = self._store
        self.life = Life(registry.start_hooks, registry.stop_hooks)
        self._sessions = JoinedSessions(
            maker=registry.sessionmaker, async_maker=registry.async_sessionmaker, store=self._store, outer=outer, job=job,
            transaction=self.transaction, life=self.life,
        )  # fmt: skip
        outer.flush()

    @property
    def _connection(self) -> sa.Connection:
        return connection_of(self._session, self._job)

    def run(self, run: Run) -> R:
        """Run a `def` handler."""
        if (outcome := unstarted(run)) is not None:
            return self._ended(run, outcome)
        call = self._begin(run, at_once)
        try:
            return self._succeed(call, call.invoke())
        except BaseException as error:
            return self._fail(call, error)
        finally:
            self._steps.end()

    async def run_async(self, run: Run, on: Callable[[Callable[[], R]], Awaitable[R]]) -> R:
        """Run an `async def` handler. `on`: does what uses the session's connection."""
        if (outcome := unstarted(run)) is not None:
            return await on(lambda: self._ended(run, outcome))
        call = self._begin(run, on)
        try:
            seconds = None if run.timeout_at is None or run.started is None else run.timeout_at - run.started
            value = await (call.invoke() if seconds is None else within(seconds, run, call.invoke()))
            return await on(lambda: self._succeed(call, value))
        except BaseException as error:
            failure = error
            if not isinstance(error, (asyncio.CancelledError, HandlerTimeout)):
                await self._steps.idle()
            return await on(lambda: self._fail(call, failure))
        finally:
            self._steps.end()

    async def run_alone(self, run: Run, on: Callable[[Callable[[], R]], Awaitable[R]]) -> R:
        """Like `run_async`, in an event loop that ends with it, so the shared values that were made in it are closed, too."""
        try:
            return await self.run_async(run, on)
        finally:
            await self.life.close(at_once)

    async def run_batch_alone(
        self, batch: BatchRun, on: Callable[[Callable[[], list[R]]], Awaitable[list[R]]]
    ) -> list[R]:
        """`run_alone` for a batch."""
        try:
            return await self.run_batch_async(batch, on)
        finally:
            await self.life.close(at_once)

    def run_batch(self, batch: BatchRun) -> list[R]:
        """Run a batch of a `def` handler, in halves where it fails."""
        told, parts = list[R](), [batch]
        while parts:
            if (call := self._begin_batch(parts.pop(0), told)) is not None:
                try:
                    told += self._succeed_batch(call, call.invoke())
                except BaseException as error:
                    parts = [*self._fail_batch(call, error, told), *parts]
        return told

    async def run_batch_async(
        self, batch: BatchRun, on: Callable[[Callable[[], list[R]]], Awaitable[list[R]]]
    ) -> list[R]:
        """`run_batch` for an `async def` handler. `on`: see `run_async`."""
        told, parts = list[R](), [batch]
        while parts:
            if (call := self._begin_batch(parts.pop(0), told)) is not None:
                try:
                    seconds = call.batch.task.timeout
                    value = await (call.invoke() if seconds is None else within(seconds, call.run, call.invoke()))
                    told += await on(partial(self._succeed_batch, call, value))
                except BaseException as error:
                    left: list[BatchRun] = []
                    told += await on(partial(self._fail_batch_into, call, error, left))
                    parts = [*left, *parts]
        return told

    def _begin_batch(self, batch: BatchRun, told: list[R]) -> BatchCall | None:
        for run in batch.runs:
            run.started = monotonic()
            run.settled = (outcome := unstarted(run)) is not None
            if outcome is not None:
                told.append(self._ended(run, outcome))
        batch.runs = [run for run in batch.runs if not run.settled]
        if not batch.runs:
            return None
        call = BatchCall(batch, self._sessions, self._given)
        if batch.runs:
            return call
        told += self._end_failures(call)
        return None

    def _succeed_batch(self, call: BatchCall, value: Any) -> list[R]:
        """The handler of a batch has returned `value`."""
        runs = call.batch.runs
        outcomes = cast("list[Outcome]", call.outcomes(value))  # no other worker can have claimed the jobs
        changes = [self._decide(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)]
        answers = None if call.transaction is None else call.transaction.complete_all(changes)
        call.close()
        told = self._end_failures(call)
        kept = written(changes, answers) if answers is not None else {}
        for run, change in zip(runs, changes, strict=True):
            change = kept.get(change.id) or self._write(change)  # noqa: PLW2901
            result = None if change.result is None else load(change.result)
            told.append(self._told(run, change, call.batch.singled_out.get(run.job.id), result))
        if call.batch.end is not None:
            call.batch.end.tell("completed", None)
        return told

    def _fail_batch(self, call: BatchCall, error: BaseException, told: list[R]) -> list[BatchRun]:
        """The handler of a batch has raised `error`. Returns the batches to run next."""
        call.close(failed=True)
        if not isinstance(error, (Exception, JobStopped, BaseExceptionGroup)):
            raise error
        told += self._end_failures(call)
        runs = call.batch.runs
        if call.batch.end is not None:
            call.batch.end.tell("released", error)
        if isinstance(error, Mixed):
            groups: dict[Any, list[Member]] = defaultdict(list)
            for run in runs:
                groups[run.group].append(run)
            return [BatchRun.of(part) for part in groups.values()]
        if not is_for_all(call, error):
            return [BatchRun.of(part) for part in in_halves(runs)]
        for run in runs:
            told.append(self._ended(run, of_error(run, error), error))
        return []

    def _fail_batch_into(self, call: BatchCall, error: BaseException, parts: list[BatchRun]) -> list[R]:
        told: list[R] = []
        parts += self._fail_batch(call, error, told)
        return told

    def _end_failures(self, call: BatchCall) -> list[R]:
        """End the jobs that were not in the call."""
        failures, call.failures = call.failures, []
        return [self._ended(run, of_error(run, error), error) for run, error in failures]

    def _begin(self, run: Run, on: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Call:
        run.started = monotonic()
        run.timeout_at = timeout_of(run, run.started)
        call = Call(run, self._sessions, self._given)
        call.steps = self._steps = self.steps(call, self._sessions, self._records, lambda: self._connection, on)
        return call

    def _succeed(self, call: Call, value: Any) -> R:
        """The handler has returned `value`."""
        self._steps.refuse_swallowed()
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
        waits = suspends(error)
        if not isinstance(error, (Exception, JobStopped, BaseExceptionGroup)) and not waits:
            raise error
        self._steps.keep()
        outcome = of_error(call.run, error)
        assert outcome is not LOST, "no other worker can have claimed the job"
        return self._ended(call.run, outcome, None if waits else error)

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
