"""Runs a job: calls its handler, decides the outcome, ends the handler's session, and reports the ending.

Where the handler used `ctx.session`, its writes are committed together with the job's completion. `run` is for threads and
`run_async` for the event loop. They differ only in how they wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeGuard, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.util import await_only, greenlet_spawn

from ...arguments.context import Notes
from ...errors import HandlerTimeout
from ...rules.failures import describe
from ...rules.lifecycle import Event, completed, decide
from ...rules.outcomes import Completed, Crashed, Failed, Outcome, Released
from ...sql.claims import is_data_fault
from ...util.log import get_logger
from .attempt_end import LOST, InDoubt, Lost, MaybeWritten, RunEnding, Telling, ToWrite, outcome_of
from .call import Call
from .joblog import JobLog
from .reopening import Sessions
from .run import Run, Stop
from .steps import Steps, on_thread
from .timeouts import timeout_of, within
from .verdict import left_early, may_go_back, of_error, of_value, unruly, unstarted

logger = get_logger(__name__)

R = TypeVar("R")

_FAILURES = {Event.RETRY, Event.FAIL}
#: Seconds, on average, until a job runs again that went back because there was no connection for its session.
AGAIN = 1.0
#: In place of a handler's value.
_RAISED = object()


class Executor:
    """Runs jobs, and passes the ending of each to `report`.

    `pause(queue, engine, why)` is called when the session of a queue's job got no connection of this engine. `leaving()`:
    whether all tasks of the loop are being cancelled. `max_rescues`: how often a job's worker may die, or leave while the job
    runs. `log_jobs`: log at INFO how each job ended, not only those that failed. `notes` receives handlers' progress and log lines.
    `telling` calls callbacks of middleware.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        report: Callable[[Run, RunEnding], None],
        pause: Callable[[str, sa.Engine, str], None],
        leaving: Callable[[], bool],
        max_rescues: int,
        log_jobs: bool,
        notes: Notes,
        telling: Telling,
    ) -> None:
        self._sessions, self._report, self._pause = sessions, report, pause
        self.leaving, self._max_rescues, self._notes = leaving, max_rescues, notes
        self._log = JobLog(every=log_jobs)
        self.telling = telling

    # ---- a run: begin, call, judge, conclude, end

    def run(self, run: Run) -> None:
        """Run a `def` handler on the calling thread."""
        if (call := self._begin(run)) is None:
            return
        try:
            self._succeed(call, call.invoke())
        except BaseException as error:
            self._fail(call, error)

    async def run_async(self, run: Run, runner: asyncio.Task[Any]) -> None:
        """Run an `async def` handler in `runner`, the current task."""
        if (call := self._begin(run)) is None:
            return
        run.runner = runner
        try:
            seconds = None if run.timeout_at is None or run.started is None else run.timeout_at - run.started
            value = await (call.invoke() if seconds is None else within(seconds, run, call.invoke()))
            run.runner = None  # from here on a cancel would come too late: the outcome is about to be written
            if runner.cancelling() and not self.leaving():
                await take_back(runner, run)
            if call.transaction is None and call.steps is None:
                self._succeed(call, value)
            else:
                await greenlet_spawn(self._succeed, call, value)
        except BaseException as error:
            error = await self._record_others(call, error)
            run.runner = None
            if not (leaving := self.leaving()):
                await take_back(runner, run)
            # The loop itself is ending if it has cancelled the runner, and not on behalf of this run.
            cancelled = isinstance(error, asyncio.CancelledError) and not run.interrupted and runner.cancelling() > 0
            await greenlet_spawn(partial(self._fail, call, error, released=leaving and cancelled))
            if leaving and cancelled:
                raise error
        finally:
            if run.interrupted:
                runner.uncancel()  # the runner goes on with other jobs, which were not cancelled

    def _begin(self, run: Any, /) -> Call | None:
        """Start the run's clock and make its call; None if the run may not start, which ends it."""
        if (run.stop is not None or run.job.extra is not None) and (outcome := unstarted(run)) is not None:
            self.give_up(run, outcome)
            return None
        run.started = monotonic()
        if run.task.timeout is not None or run.job.extra is not None:
            run.timeout_at = timeout_of(run, run.started)
        if self._log.says_all:
            self._log.begins(run)
        return Call(run, self._sessions, self._notes)

    def _succeed(self, call: Any, value: Any) -> None:
        """The handler has returned `value`. For an async handler that has used its session or steps, in a greenlet."""
        run = call.run
        decided = self._decide(run, of_value(run, value))
        if call.steps is not None and (names := call.steps.unused_in(decided)):
            _waiting(call, call.steps.note_unused, names)
        self._end(run, self._conclude(call, decided, value))

    def _fail(self, call: Any, error: BaseException, *, released: bool = False) -> None:
        """The handler has raised `error`, or what it wrote could not be committed. `released`: the loop is ending. For an async handler in a
        greenlet.
        """
        run = call.run
        judged = self._decide(run, Released(started=True)) if released else self._judge(call, error)
        ending = self._conclude(call, judged, _RAISED)
        if is_suspended(ending):
            ending = _waiting(call, self._suspend, call, ending)
        self._end(run, ending, None if released else error)

    def _decide(self, run: Run, outcome: Outcome | Lost) -> ToWrite | Lost:
        """The change to write for `outcome`."""
        if outcome is LOST:
            return LOST
        rules = run.task.rules
        if isinstance(outcome, Completed):
            return ToWrite(completed(run.job, outcome, rules))
        if isinstance(outcome, (Released, Crashed)):
            # How often that may happen is an option of the worker, not of the task.
            rules = replace(rules, max_rescues=self._max_rescues)
        elapsed = 0.0 if run.job.extra is None else run.elapsed  # only a deadline needs it
        return ToWrite(decide(run.job, outcome, rules, random=random.random(), elapsed=elapsed))

    def _judge(self, call: Call, error: BaseException) -> ToWrite | MaybeWritten | Lost:
        """The ending of a run whose handler, or the end of its session, has raised `error`."""
        run, transaction = call.run, call.transaction
        decided: ToWrite | Lost
        try:
            unopened = None if transaction is None else transaction.unopened
            if call.steps is not None:
                unopened = unopened or call.steps.unopened
            if call.steps is not None and call.steps.is_lost:
                decided = LOST
            elif unopened is None or not may_go_back(run, error):
                decided = self._decide(run, of_error(run, error))
            else:
                self._pause(run.job.queue, *unopened)
                decided = self._decide(run, Released(AGAIN * random.uniform(0.5, 1.5)))
        except BaseException as failure:  # the application's: a rule, an exception's own method, a log filter
            decided = ToWrite(unruly(run, failure))
        if transaction is None or (committing := transaction.committing.get(run.job.id)) is None:
            return decided
        return MaybeWritten(committing) if decided is LOST else InDoubt(decided.change, committing)

    def _conclude(self, call: Call, decided: ToWrite | MaybeWritten | Lost, value: Any) -> RunEnding | None:
        """End the handler's session. Unless the handler has `_RAISED` or left early, what it wrote is committed with the change.

        None: another thread has given the run up, and reports it. In a greenlet for an async handler.
        """
        if value is not _RAISED and call.steps is not None:
            call.steps.refuse_swallowed()
        if (transaction := call.transaction) is None:
            call.close()
            return decided if call.settle() else None
        if value is _RAISED or not isinstance(decided, ToWrite) or left_early(call.run, value):
            call.close(failed=isinstance(decided, ToWrite) and decided.change.event in _FAILURES)
            return decided if call.settle() else None
        ending = transaction.complete([decided.change])[0] if call.settle() else None
        call.close()
        if ending is LOST:
            job = call.run.job
            logger.warning("job %d: its claim was lost; nothing it wrote was kept", job.id, extra=job.fields)
        return ending

    async def _record_others(self, call: Call, error: BaseException) -> BaseException:
        """Wait until the steps that other tasks of the handler still run are recorded. Returns the exception with which the run ends."""
        run, steps = call.run, call.steps
        if steps is None or run.stop is not None or isinstance(error, (asyncio.CancelledError, HandlerTimeout)):
            return error
        try:
            await (steps.idle() if run.timeout_at is None else within(run.timeout_at - monotonic(), run, steps.idle()))
        except BaseException as interrupted:
            return interrupted
        return error

    def _suspend(self, call: Call, ending: ToWrite) -> RunEnding:
        """Write the ending of a run that waits. If that fails, the job goes back to its queue, and its next run waits again."""
        try:
            return cast(Steps, call.steps).write(ending.change)
        except Exception as error:
            if not isinstance(error, SQLAlchemyError) or (isinstance(error, DBAPIError) and is_data_fault(error)):
                return self._decide(call.run, Failed(error, describe(error)))
            logger.warning("job %d could not be suspended: %r", call.run.job.id, error, extra=call.run.job.fields)
            return self._decide(call.run, Released(AGAIN * random.uniform(0.5, 1.5)))

    # ---- the end of a run

    def give_up(self, run: Run, outcome: Outcome | Lost, note: str = "") -> bool:
        """End a run without its handler: not started, timed out, or abandoned by a leaving worker. `note` is added to the log line.

        False: the run has ended already. For any thread.
        """
        if not run.settle():
            return False
        try:
            decided = LOST if run.stop is Stop.LOST else self._decide(run, outcome)
        except BaseException as error:  # the application's, as in `_judge`; nobody else can report the outcome now
            decided = ToWrite(unruly(run, error))
        self._end(run, decided, outcome.exception if isinstance(outcome, Failed) else None, note)
        return True

    def adopt(self, run: Run, ending: RunEnding) -> None:
        """End a run as a child process has decided and logged; nothing if it has ended here already."""
        if run.settle():
            self._report(run, ending)

    def broke(self, run: Run, error: BaseException) -> None:
        """Fail a run because the code around its handler raised `error`; its runner goes on."""
        run.settle()
        if run.ended is None:
            self._end(run, ToWrite(unruly(run, error)), error)

    def _end(
        self, run: Run, ending: RunEnding | None, error: BaseException | None = None, note: str | None = None
    ) -> None:
        """Log and report an ending, and call middleware. `ending` is None where another thread does that. `note`: for a run that
        was given up, whose middleware is called on another thread.
        """
        if ending is None:
            return
        if ending is not LOST and not isinstance(ending, MaybeWritten):
            change = ending.change
            if error is not None or self._log.says_all or change.error is not None:
                with suppress(BaseException):  # of the application's log filters and handlers: the outcome stands
                    self._log.ends(run, change, error, note or "")
        if run.attempt_end is None or run.attempt_end.end_unheard(ending, error):
            self._report(run, ending)
        elif note is not None:
            self._report(run, ending)
            self.telling.tell(run.attempt_end, outcome_of(ending), error)
        else:
            with self.telling.here():
                try:
                    self._report(run, ending)
                finally:
                    run.attempt_end.tell(outcome_of(ending), error)


def _waiting(call: Call, work: Callable[..., R], *args: Any) -> R:
    """Do work that blocks. For an async handler it is done on a thread, and the greenlet waits."""
    return await_only(on_thread(work, *args)) if call.run.task.is_async else work(*args)


def is_suspended(ending: RunEnding | None) -> TypeGuard[ToWrite]:
    """Whether the run ends because its handler waits."""
    return isinstance(ending, ToWrite) and ending.change.event is Event.SUSPEND


async def take_back(runner: asyncio.Task[Any], run: Run) -> None:
    """Undo the cancels that the handler itself made of its task: they concern this job only."""
    ours = 1 if run.interrupted else 0
    if runner.cancelling() <= ours:
        return
    while runner.cancelling() > ours:
        runner.uncancel()
    # Before Python 3.13 a cancel that was not raised yet still would be, in the middle of what comes next.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
