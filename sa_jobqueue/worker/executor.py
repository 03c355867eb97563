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

from ..context import AsyncJobContext, JobContext
from ..errors import HandlerTimeout, PayloadError, SessionUnavailable
from ..lifecycle import Change, Event, decide
from ..log import get_logger
from ..makers import AsyncSessionMaker, SessionMaker
from ..models import Job
from ..operations import Answer
from ..outcomes import (
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
from ..retry import RetryPolicy, describe, entry
from .flight import Flight, Stop
from .joblog import JobLog, fields_of
from .unit import Unit

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

    def open(self) -> tuple[Session, Unit]:
        """A session for a `def` handler, and the unit that it belongs to."""
        session = Session(self.engine) if self.maker is None else _checked(self.maker(), Session)
        return session, self._unit(session, self.engine)

    def open_async(self) -> tuple[AsyncSession, Unit]:
        """The same for an `async def` handler; does no I/O."""
        if self.async_maker is None:
            session = AsyncSession(expire_on_commit=False)
        else:
            session = _checked(self.async_maker(), AsyncSession)
        engine = None if self.async_engine is None else self.async_engine.sync_engine
        return session, self._unit(session.sync_session, engine)

    def _unit(self, session: Session, engine: Engine | None) -> Unit:
        return Unit(
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


class _Run:
    """One call of a handler: its context, and its session if it opens one."""

    __slots__ = ("_ended", "_sessions", "_settled", "async_session", "flight", "unit")

    def __init__(self, flight: Flight, sessions: Sessions) -> None:
        self.flight, self._sessions = flight, sessions
        self.unit: Unit | None = None
        self.async_session: AsyncSession | None = None
        self._settled = self._ended = False

    def settle(self) -> bool:
        """Whether the outcome of this run is the one that counts."""
        self._settled = self._settled or self.flight.settle()
        return self._settled

    def close(self, *, failed: bool = False) -> None:
        """Roll back what was not committed; a connection that is broken by now has done so itself."""
        self._ended = True
        if self.unit is not None:
            try:
                self.unit.close(failed=failed)
            except Exception:
                logger.debug("a handler's session did not close", exc_info=True)

    async def in_greenlet(self, work: Callable[[], R]) -> R:
        """Do what is written for a `Session` with an `AsyncSession`."""
        if self.async_session is None:
            return work()
        return await self.async_session.run_sync(lambda _: work())

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with; PayloadError if the stored arguments do not fit it."""
        flight = self.flight
        job, task = flight.job, flight.task
        if job.rescues and not task.rules.rescue:
            raise Discard("its worker died, and it may not run twice (rescue=False)")
        args, kwargs = task.decode(job.args or "")
        flight.undecoded = False
        if task.context is None:
            return args, kwargs
        if task.is_async:
            return (AsyncJobContext(flight.job, self._open_async, flight.notice_stop), *args), kwargs
        return (JobContext(flight.job, self._open, flight.notice_stop), *args), kwargs

    def _open(self) -> Session:
        self._refuse_late()
        session, self.unit = self._sessions.open()
        self._refuse_late()  # a thread that was left behind may open it just when the job ends
        return session

    def _open_async(self) -> AsyncSession:
        self._refuse_late()
        self.async_session, self.unit = self._sessions.open_async()
        self._refuse_late()
        return self.async_session

    def _refuse_late(self) -> None:
        """What is opened after the end would be nobody's to commit or to close."""
        if self._ended:
            self.close()
            raise SessionUnavailable("the job has ended: ctx.session cannot be opened any more")


def _nobody_hears(flight: Flight, engine: Engine, why: str) -> None:
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
        report: Callable[[Flight, Change | None], None],
        committed: Callable[[Change], None],
        leaving: Callable[[], bool] = lambda: False,
        unopened: Callable[[Flight, Engine, str], None] = _nobody_hears,
        *,
        max_rescues: int,
        log_jobs: bool = False,
    ) -> None:
        self._sessions, self._report, self._noted, self.leaving = sessions, report, committed, leaving
        self._unopened, self._max_rescues = unopened, max_rescues
        self._log = JobLog(every=log_jobs)
        self._says_all = self._log.says_all

    def run(self, flight: Flight) -> None:
        """Run a `def` handler, on the thread that calls."""
        if self._ends_unbegun(flight):
            return
        run = _Run(flight, self._sessions)
        self._start(flight)
        try:
            args, kwargs = run.arguments()
            value = flight.task.handler(*args, **kwargs)
            change = self.decide(flight, self._returned(flight, value))
            if change is None or run.unit is None or _left_early(flight, value):
                self._finish(run, change)
            elif run.settle():
                self._committed(flight, change, run.unit.complete(change))
            else:
                run.close()
        except BaseException as error:
            self._finish(run, self._raised(run, error), error)

    async def run_async(self, flight: Flight, runner: asyncio.Task[Any]) -> None:
        """Run an `async def` handler in `runner`, the task that calls."""
        if self._ends_unbegun(flight):
            return
        run = _Run(flight, self._sessions)
        self._start(flight)
        flight.runner = runner
        try:
            args, kwargs = run.arguments()
            if flight.task.timeout is None:
                value = await flight.task.handler(*args, **kwargs)
            else:
                value = await self._await(flight, flight.task.timeout, args, kwargs)
            flight.runner = None  # from here on nobody may cancel: the outcome is about to be written
            if runner.cancelling():
                await self._take_back(runner, flight)
            change = self.decide(flight, self._returned(flight, value))
            unit = run.unit
            if unit is None:
                self._finish(run, change)
            elif change is None or _left_early(flight, value):
                await self._finish_async(run, change)
            elif run.settle():
                completion = change
                self._committed(flight, change, await run.in_greenlet(lambda: unit.complete(completion)))
            else:
                await run.in_greenlet(run.close)
        except BaseException as error:
            flight.runner = None
            cancelled = isinstance(error, asyncio.CancelledError) and not flight.interrupted and runner.cancelling()
            if cancelled and self.leaving():
                await self._finish_async(run, self.decide(flight, Released(started=True)))
                raise  # the loop itself is ending
            await self._take_back(runner, flight)
            await self._finish_async(run, self._raised(run, error), error)
        finally:
            if flight.interrupted:
                runner.uncancel()  # it goes on with other jobs, which were not cancelled

    async def _take_back(self, runner: asyncio.Task[Any], flight: Flight) -> None:
        """Take back what a handler cancelled by itself: it was this job's affair, and the runner goes on with others."""
        ours = 1 if flight.interrupted else 0
        if runner.cancelling() <= ours or self.leaving():
            return
        while runner.cancelling() > ours:
            runner.uncancel()
        # Before Python 3.13 a cancel that was not raised yet still would be, in the middle of what comes next.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def broke(self, flight: Flight, error: BaseException) -> None:
        """What surrounds the handler has failed; its job has, and its runner goes on."""
        flight.settle()
        if not flight.reported:
            change = self._unruly(flight, error)
            self._say_end(flight, change, error)
            self._report(flight, change)

    def _unruly(self, flight: Flight, error: BaseException) -> Change:
        """The attempt failed, by what even its rules or its description cannot be asked about."""
        reason = entry("OutcomeNotMade", f"no outcome could be made of the run: {type(error).__name__}")
        rules = replace(flight.task.rules, policy=RetryPolicy())
        return decide(flight.job, Failed(RuntimeError(), reason), rules, random=random.random())

    def decide(self, flight: Flight, outcome: Outcome | None) -> Change | None:
        """The change that `outcome` means for this flight; None for None."""
        if outcome is None:
            return None
        rules = flight.task.rules
        if isinstance(outcome, Released):  # how often a worker may have left is the worker's to say, not the task's
            rules = replace(rules, max_rescues=self._max_rescues)
        return decide(flight.job, outcome, rules, random=random.random())

    def _ends_unbegun(self, flight: Flight) -> bool:
        """Whether it was told to stop while it waited for its slot; then it has ended. (Nobody would tell it again.)"""
        if flight.stop is None:
            return False
        self.give_up(flight, self._stopped(flight))
        return True

    def give_up(self, flight: Flight, outcome: Outcome | None, note: str = "") -> bool:
        """End a flight without its handler: not started, timed out, or in the way of leaving. None: nothing is left to
        write. False: it has ended. `note`: what the log adds.
        """
        if not flight.settle():
            return False
        change = None if flight.stop is Stop.LOST else self.decide(flight, outcome)
        self._say_end(flight, change, outcome.exception if isinstance(outcome, Failed) else None, note)
        self._report(flight, change)
        return True

    def _start(self, flight: Flight) -> None:
        flight.started = monotonic()
        if flight.task.timeout is not None:
            flight.deadline = flight.started + flight.task.timeout
        if self._says_all:
            self._log.begins(flight)

    async def _await(self, flight: Flight, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await flight.task.handler(*args, **kwargs)
        except TimeoutError as error:
            if limit.expired():
                raise timed_out(flight) from error
            raise

    def _returned(self, flight: Flight, value: Any) -> Outcome | None:
        if value is None and flight.stop is None and not flight.task.record:  # nearly all: by the shortest way
            return _COMPLETED
        if flight.stop is Stop.LOST:
            return None  # it knows that its claim is over: nothing it wrote is committed, whatever the fence would say
        if _left_early(flight, value):
            return self._stopped(flight)
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
        if not flight.task.record:
            return _COMPLETED
        try:
            return Completed(flight.task.encode_result(value))
        except PayloadError as error:
            logger.warning("job %d: %s", flight.job.id, error, extra=fields_of(flight))
            return Completed(error=describe(error))

    def _raised(self, run: _Run, error: BaseException) -> Change | None:
        flight = run.flight
        try:
            if (unit := run.unit) is not None and unit.unopened is not None and self._may_go_back(flight, error):
                if unit.engine is not None:
                    self._unopened(flight, unit.engine, unit.unopened)
                return self.decide(flight, Released(_AGAIN * random.uniform(0.5, 1.5)))
            return self.decide(flight, self._outcome_of(flight, error))
        except BaseException as failure:  # of the application's: a rule, an exception's own method, a filter of logs
            return self._unruly(flight, failure)

    def _may_go_back(self, flight: Flight, error: BaseException) -> bool:
        """Whether a run whose session got no connection, and which raises whatever for that, is no attempt.

        What a handler says by Retry, Snooze and the like is its own decision; and where a job may not run twice, nobody knows
        what the handler did before.
        """
        of_others = isinstance(error, _SIGNALS) or flight.stop in {Stop.CANCEL, Stop.LOST, Stop.SHUTDOWN}
        return flight.task.rules.rescue and not of_others

    def _outcome_of(self, flight: Flight, error: BaseException) -> Outcome | None:
        if flight.stop is Stop.LOST:
            return None
        if isinstance(error, _SIGNALS):
            return error
        if flight.stop is Stop.SHUTDOWN:
            return self._stopped(flight)
        if flight.stop in {Stop.CANCEL, Stop.TIMEOUT} and isinstance(error, asyncio.CancelledError):
            return self._stopped(flight)
        if isinstance(error, PayloadError) and flight.undecoded:
            return Undecodable(replace(describe(error), traceback=""))
        return Failed(error, describe(error, hide=__file__))

    def _stopped(self, flight: Flight) -> Outcome | None:
        match flight.stop:
            case Stop.CANCEL:
                return Cancelled(ErrorEntry("Cancelled", "an operator asked for it to be cancelled while it ran"))
            case Stop.SHUTDOWN:
                return Released(started=flight.started is not None)
            case Stop.TIMEOUT:
                error = timed_out(flight)
                return Failed(error, describe(error))
            case _:
                return None

    def _finish(self, run: _Run, change: Change | None, error: BaseException | None = None) -> None:
        run.close(failed=_failed(change))
        if run.settle():
            self._end(run.flight, change, error)

    async def _finish_async(self, run: _Run, change: Change | None, error: BaseException | None = None) -> None:
        await run.in_greenlet(lambda: run.close(failed=_failed(change)))
        if run.settle():
            self._end(run.flight, change, error)

    def _end(self, flight: Flight, change: Change | None, error: BaseException | None) -> None:
        if error is not None or self._says_all or (change is not None and change.error is not None):
            self._say_end(flight, change, error)
        self._report(flight, change)

    def _say_end(self, flight: Flight, change: Change | None, error: BaseException | None, note: str = "") -> None:
        if change is not None:
            # Whatever the application's own filters and handlers of logs do: the outcome stands.
            with suppress(BaseException):
                self._log.ends(flight, change, error, note)

    def _committed(self, flight: Flight, change: Change, answer: Answer | None) -> None:
        if answer is Answer.APPLIED:
            self._noted(change)
        elif answer is Answer.LOST:
            logger.warning(
                "job %d: its claim was lost; nothing it wrote was kept", flight.job.id, extra=fields_of(flight)
            )
        if answer is not Answer.LOST and (self._says_all or change.error is not None):
            self._say_end(flight, change, None)
        self._report(flight, change if answer is None else None)


def _failed(change: Change | None) -> bool:
    return change is not None and change.event in _FAILURES


def _left_early(flight: Flight, value: Any) -> bool:
    """It looked at `ctx.cancelled`, saw True and returned: it did not complete, and what it wrote is not kept."""
    return flight.stop is not None and flight.noticed and not isinstance(value, _SIGNALS)


def timed_out(flight: Flight) -> HandlerTimeout:
    """The exception that stands for a timeout."""
    return HandlerTimeout(f"{flight.task.name} took longer than its timeout of {flight.task.timeout:g} s")
