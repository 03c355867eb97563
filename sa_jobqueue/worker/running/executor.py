"""Running one job: arguments decoded, handler called, outcome decided, and, where the handler used `ctx.session`, its
writes committed together with the job's completion.

`run` is for threads and `run_async` for the event loop; they differ in how they call and wait, everything else is
shared.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from ...context import AsyncJobContext, JobContext
from ...errors import HandlerTimeout, PayloadError, SessionUnavailable
from ...lifecycle import Change, Event, decide
from ...log import get_logger
from ...makers import AsyncSessionMaker, SessionMaker
from ...models import Job
from ...operations import Answer
from ...outcomes import (
    Cancel,
    Cancelled,
    Completed,
    Discard,
    ErrorEntry,
    Failed,
    Outcome,
    Released,
    Retry,
    Snooze,
    Undecodable,
)
from ...retry import RetryPolicy, describe, entry
from .joblog import JobLog, fields_of
from .run import Run, Stop
from .transaction import HandlerTransaction

__all__ = ["Executor", "Sessions"]

logger = get_logger(__name__)

R = TypeVar("R")

_SIGNALS = (Retry, Snooze, Cancel, Discard)
_COMPLETED = Completed()
_FAILURES = {Event.RETRY, Event.FAIL}
#: About so many seconds a job waits that went back because there was no connection for its session.
_AGAIN = 1.0
#: What a handler may return by mistake, from behind a decorator: its own body, not begun.
_UNRUN = (CoroutineType, GeneratorType, AsyncGeneratorType)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Where handlers' sessions come from: the worker's engines, or the user's own sessionmakers."""

    engine: Engine | None = None
    async_engine: AsyncEngine | None = None
    maker: SessionMaker | None = None
    async_maker: AsyncSessionMaker | None = None
    translate: Mapping[str | None, str | None] | None = None
    idle_timeout: float | None = None
    job: type[Job] = Job

    def open(self) -> tuple[Session, HandlerTransaction]:
        """A session for a `def` handler, and the unit that it belongs to."""
        session = Session(self.engine) if self.maker is None else _checked(self.maker(), Session)
        return session, self._unit(session, self.engine)

    def open_async(self) -> tuple[AsyncSession, HandlerTransaction]:
        """The same for an `async def` handler; does no I/O."""
        if self.async_maker is None:
            session = AsyncSession(expire_on_commit=False)
        else:
            session = _checked(self.async_maker(), AsyncSession)
        engine = None if self.async_engine is None else self.async_engine.sync_engine
        return session, self._unit(session.sync_session, engine)

    def _unit(self, session: Session, engine: Engine | None) -> HandlerTransaction:
        return HandlerTransaction(
            session,
            engine=engine,
            database=None if self.engine is None else self.engine.url,
            translate=self.translate,
            idle=self.idle_timeout,
            job=self.job,
        )


def _checked(made: R, wanted: type[R]) -> R:
    """A session of the application's making; one of the other kind would keep nothing, and say nothing of it."""
    if not isinstance(made, wanted):
        raise SessionUnavailable(f"the application's sessionmaker made {made!r}; a {wanted.__name__} is expected")
    return made


class _Call:
    """One call of a handler: its context, and its session if it opens one."""

    __slots__ = ("_ended", "_sessions", "_settled", "async_session", "run", "transaction")

    def __init__(self, run: Run, sessions: Sessions) -> None:
        self.run, self._sessions = run, sessions
        self.transaction: HandlerTransaction | None = None
        self.async_session: AsyncSession | None = None
        self._settled = self._ended = False

    def settle(self) -> bool:
        """Whether the outcome of this run is the one that counts."""
        self._settled = self._settled or self.run.settle()
        return self._settled

    def close(self, *, failed: bool = False) -> None:
        """Roll back what was not committed; a connection that is broken by now has done so itself."""
        self._ended = True
        if self.transaction is not None:
            try:
                self.transaction.close(failed=failed)
            except Exception:
                logger.debug("a handler's session did not close", exc_info=True)

    async def in_greenlet(self, work: Callable[[], R]) -> R:
        """Do what is written for a `Session` with an `AsyncSession`."""
        if self.async_session is None:
            return work()
        return await self.async_session.run_sync(lambda _: work())

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with; PayloadError if the stored arguments do not fit it."""
        run = self.run
        job, task = run.job, run.task
        if job.rescues and not task.rules.rescue:
            raise Discard("its worker died, and it may not run twice (rescue=False)")
        args, kwargs = task.decode(job.args or "")
        run.undecoded = False
        if task.context is None:
            return args, kwargs
        if task.is_async:
            return (AsyncJobContext(run.job, self._open_async, run.notice_stop), *args), kwargs
        return (JobContext(run.job, self._open, run.notice_stop), *args), kwargs

    def _open(self) -> Session:
        self._refuse_late()
        session, self.transaction = self._sessions.open()
        self._refuse_late()  # a thread that was left behind may open it just when the job ends
        return session

    def _open_async(self) -> AsyncSession:
        self._refuse_late()
        self.async_session, self.transaction = self._sessions.open_async()
        self._refuse_late()
        return self.async_session

    def _refuse_late(self) -> None:
        """What is opened after the end would be nobody's to commit or to close."""
        if self._ended:
            self.close()
            raise SessionUnavailable("the job has ended: ctx.session cannot be opened any more")


def _nobody_hears(run: Run, engine: Engine, why: str) -> None:
    """For an executor without lanes to close."""


class Executor:
    """Runs flights.

    `report(flight, change)` gets the change to write; None: nothing is left to write. `committed(change)` hears of one
    that was written already, together with what the handler wrote. `leaving()`: all tasks of the loop are being cancelled.
    `unopened(flight, engine, why)`: its session got no connection of this engine.
    `max_rescues`: how often a job's worker may die, or leave while it runs. `log_jobs`: say at INFO how each job ended, not
    only those that failed.
    """

    def __init__(
        self,
        sessions: Sessions,
        report: Callable[[Run, Change | None], None],
        committed: Callable[[Change], None],
        leaving: Callable[[], bool] = lambda: False,
        unopened: Callable[[Run, Engine, str], None] = _nobody_hears,
        *,
        max_rescues: int,
        log_jobs: bool = False,
    ) -> None:
        self._sessions, self._report, self._noted, self.leaving = sessions, report, committed, leaving
        self._unopened, self._max_rescues = unopened, max_rescues
        self._log = JobLog(every=log_jobs)
        self._says_all = self._log.says_all

    def run(self, run: Run) -> None:
        """Run a `def` handler, on the thread that calls."""
        if self._ends_unbegun(run):
            return
        call = _Call(run, self._sessions)
        self._start(run)
        try:
            args, kwargs = call.arguments()
            value = run.task.handler(*args, **kwargs)
            change = self.decide(run, self._returned(run, value))
            if change is None or call.transaction is None or _left_early(run, value):
                self._finish(call, change)
            elif call.settle():
                self._committed(run, change, call.transaction.complete(change))
            else:
                call.close()
        except BaseException as error:
            self._finish(call, self._raised(call, error), error)

    async def run_async(self, run: Run, runner: asyncio.Task[Any]) -> None:
        """Run an `async def` handler in `runner`, the task that calls."""
        if self._ends_unbegun(run):
            return
        call = _Call(run, self._sessions)
        self._start(run)
        run.runner = runner
        try:
            args, kwargs = call.arguments()
            if run.task.timeout is None:
                value = await run.task.handler(*args, **kwargs)
            else:
                value = await self._await(run, run.task.timeout, args, kwargs)
            run.runner = None  # from here on nobody may cancel: the outcome is about to be written
            if runner.cancelling():
                await self._take_back(runner, run)
            change = self.decide(run, self._returned(run, value))
            transaction = call.transaction
            if transaction is None:
                self._finish(call, change)
            elif change is None or _left_early(run, value):
                await self._finish_async(call, change)
            elif call.settle():
                completion = change
                self._committed(run, change, await call.in_greenlet(lambda: transaction.complete(completion)))
            else:
                await call.in_greenlet(call.close)
        except BaseException as error:
            run.runner = None
            cancelled = isinstance(error, asyncio.CancelledError) and not run.interrupted and runner.cancelling()
            if cancelled and self.leaving():
                await self._finish_async(call, self.decide(run, Released(started=True)))
                raise  # the loop itself is ending
            await self._take_back(runner, run)
            await self._finish_async(call, self._raised(call, error), error)
        finally:
            if run.interrupted:
                runner.uncancel()  # it goes on with other jobs, which were not cancelled

    async def _take_back(self, runner: asyncio.Task[Any], run: Run) -> None:
        """Take back what a handler cancelled by itself: it was this job's affair, and the runner goes on with others."""
        ours = 1 if run.interrupted else 0
        if runner.cancelling() <= ours or self.leaving():
            return
        while runner.cancelling() > ours:
            runner.uncancel()
        # Before Python 3.13 a cancel that was not raised yet still would be, in the middle of what comes next.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def broke(self, run: Run, error: BaseException) -> None:
        """What surrounds the handler has failed; its job has, and its runner goes on."""
        run.settle()
        if not run.reported:
            change = self._unruly(run, error)
            self._say_end(run, change, error)
            self._report(run, change)

    def _unruly(self, run: Run, error: BaseException) -> Change:
        """The attempt failed, by what even its rules or its description cannot be asked about."""
        reason = entry("OutcomeNotMade", f"no outcome could be made of the run: {type(error).__name__}")
        rules = replace(run.task.rules, policy=RetryPolicy())
        return decide(run.job, Failed(RuntimeError(), reason), rules, random=random.random())

    def decide(self, run: Run, outcome: Outcome | None) -> Change | None:
        """The change that `outcome` means for this flight; None for None."""
        if outcome is None:
            return None
        rules = run.task.rules
        if isinstance(outcome, Released):  # how often a worker may have left is the worker's to say, not the task's
            rules = replace(rules, max_rescues=self._max_rescues)
        return decide(run.job, outcome, rules, random=random.random())

    def _ends_unbegun(self, run: Run) -> bool:
        """Whether it was told to stop while it waited for its slot; then it has ended. (Nobody would tell it again.)"""
        if run.stop is None:
            return False
        self.give_up(run, self._stopped(run))
        return True

    def give_up(self, run: Run, outcome: Outcome | None, note: str = "") -> bool:
        """End a flight without its handler: not started, timed out, or in the way of leaving. None: nothing is left to
        write. False: it has ended. `note`: what the log adds.
        """
        if not run.settle():
            return False
        change = None if run.stop is Stop.LOST else self.decide(run, outcome)
        self._say_end(run, change, outcome.exception if isinstance(outcome, Failed) else None, note)
        self._report(run, change)
        return True

    def _start(self, run: Run) -> None:
        run.started = monotonic()
        if run.task.timeout is not None:
            run.timeout_at = run.started + run.task.timeout
        if self._says_all:
            self._log.begins(run)

    async def _await(self, run: Run, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await run.task.handler(*args, **kwargs)
        except TimeoutError as error:
            if limit.expired():
                raise timed_out(run) from error
            raise

    def _returned(self, run: Run, value: Any) -> Outcome | None:
        if value is None and run.stop is None and not run.task.record:  # nearly all: by the shortest way
            return _COMPLETED
        if run.stop is Stop.LOST:
            return None  # it knows that its claim is over: nothing it wrote is committed, whatever the fence would say
        if _left_early(run, value):
            return self._stopped(run)
        if isinstance(value, _SIGNALS):
            return value
        if isinstance(value, type) and issubclass(value, _SIGNALS):
            raise TypeError(f"the handler returned the class {value.__name__}: write {value.__name__}(...)")
        if isinstance(value, _UNRUN):
            if not isinstance(value, AsyncGeneratorType):
                value.close()  # else Python warns of it
            raise TypeError(
                f"the handler returned a {type(value).__name__}, and nobody runs it: a decorator around an `async def` or a "
                "generator must itself await it or run it to its end"
            )
        if not run.task.record:
            return _COMPLETED
        try:
            return Completed(run.task.encode_result(value))
        except PayloadError as error:
            logger.warning("job %d: %s", run.job.id, error, extra=fields_of(run))
            return Completed(error=describe(error))

    def _raised(self, call: _Call, error: BaseException) -> Change | None:
        run = call.run
        try:
            if (
                (transaction := call.transaction) is not None
                and transaction.unopened is not None
                and self._may_go_back(run, error)
            ):
                if transaction.engine is not None:
                    self._unopened(run, transaction.engine, transaction.unopened)
                return self.decide(run, Released(_AGAIN * random.uniform(0.5, 1.5)))
            return self.decide(run, self._outcome_of(run, error))
        except BaseException as failure:  # of the application's: a rule, an exception's own method, a filter of logs
            return self._unruly(run, failure)

    def _may_go_back(self, run: Run, error: BaseException) -> bool:
        """Whether a run whose session got no connection, and which raises whatever for that, is no attempt.

        What a handler says by Retry, Snooze and the like is its own decision; and where a job may not run twice, nobody knows
        what the handler did before.
        """
        of_others = isinstance(error, _SIGNALS) or run.stop in {Stop.CANCEL, Stop.LOST, Stop.SHUTDOWN}
        return run.task.rules.rescue and not of_others

    def _outcome_of(self, run: Run, error: BaseException) -> Outcome | None:
        if run.stop is Stop.LOST:
            return None
        if isinstance(error, _SIGNALS):
            return error
        if run.stop is Stop.SHUTDOWN:
            return self._stopped(run)
        if run.stop in {Stop.CANCEL, Stop.TIMEOUT} and isinstance(error, asyncio.CancelledError):
            return self._stopped(run)
        if isinstance(error, PayloadError) and run.undecoded:
            return Undecodable(replace(describe(error), traceback=""))
        return Failed(error, describe(error, hide=__file__))

    def _stopped(self, run: Run) -> Outcome | None:
        match run.stop:
            case Stop.CANCEL:
                return Cancelled(ErrorEntry("Cancelled", "an operator asked for it to be cancelled while it ran"))
            case Stop.SHUTDOWN:
                return Released(started=run.started is not None)
            case Stop.TIMEOUT:
                error = timed_out(run)
                return Failed(error, describe(error))
            case _:
                return None

    def _finish(self, call: _Call, change: Change | None, error: BaseException | None = None) -> None:
        call.close(failed=_failed(change))
        if call.settle():
            self._end(call.run, change, error)

    async def _finish_async(self, call: _Call, change: Change | None, error: BaseException | None = None) -> None:
        await call.in_greenlet(lambda: call.close(failed=_failed(change)))
        if call.settle():
            self._end(call.run, change, error)

    def _end(self, run: Run, change: Change | None, error: BaseException | None) -> None:
        if error is not None or self._says_all or (change is not None and change.error is not None):
            self._say_end(run, change, error)
        self._report(run, change)

    def _say_end(self, run: Run, change: Change | None, error: BaseException | None, note: str = "") -> None:
        if change is not None:
            # Whatever the application's own filters and handlers of logs do: the outcome stands.
            with suppress(BaseException):
                self._log.ends(run, change, error, note)

    def _committed(self, run: Run, change: Change, answer: Answer | None) -> None:
        if answer is Answer.APPLIED:
            self._noted(change)
        elif answer is Answer.LOST:
            logger.warning("job %d: its claim was lost; nothing it wrote was kept", run.job.id, extra=fields_of(run))
        if answer is not Answer.LOST and (self._says_all or change.error is not None):
            self._say_end(run, change, None)
        self._report(run, change if answer is None else None)


def _failed(change: Change | None) -> bool:
    return change is not None and change.event in _FAILURES


def _left_early(run: Run, value: Any) -> bool:
    """It looked at `ctx.cancelled`, saw True and returned: it did not complete, and what it wrote is not kept."""
    return run.stop is not None and run.noticed and not isinstance(value, _SIGNALS)


def timed_out(run: Run) -> HandlerTimeout:
    """The exception that stands for a timeout."""
    return HandlerTimeout(f"{run.task.name} took longer than its timeout of {run.task.timeout:g} s")
