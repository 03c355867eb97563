"""Running one job: call the handler, decide what came of it, end its session, and report the ending.

Where the handler used `ctx.session`, its writes are committed together with the job's completion. `run` is for threads and
`run_async` for the event loop. They differ in how they wait; what they decide and report is the same code.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import sqlalchemy as sa

from ...arguments.context import Notes
from ...rules.lifecycle import OUTCOMES, Change, Event, completed, decide
from ...rules.outcomes import Completed, Crashed, Failed, Outcome, Released
from ...util.log import get_logger
from .attempt_end import LOST, InDoubt, Lost, MaybeWritten, RunEnding, Telling, ToWrite, outcome_of
from .call import Call
from .joblog import JobLog
from .reopening import Sessions
from .run import Run, Stop
from .timeouts import timeout_of, within
from .verdict import left_early, may_go_back, of_error, of_value, unruly, unstarted


def is_foreign(error: BaseException, run: Run, runner: asyncio.Task[Any]) -> bool:
    """Whether the runner was cancelled, and not on behalf of this run."""
    return isinstance(error, asyncio.CancelledError) and not run.interrupted and runner.cancelling() > 0


async def take_back(runner: asyncio.Task[Any], run: Run) -> None:
    """Undo the cancels that the handler itself made of its task: they were this job's affair."""
    ours = 1 if run.interrupted else 0
    if runner.cancelling() <= ours:
        return
    while runner.cancelling() > ours:
        runner.uncancel()
    # Before Python 3.13 a cancel that was not raised yet still would be, in the middle of what comes next.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


logger = get_logger(__name__)

_FAILURES = {Event.RETRY, Event.FAIL}
#: Seconds, on average, that a job waits which went back because there was no connection for its session.
_AGAIN = 1.0


class Executor:
    """Runs jobs, and tells `report` how each has ended.

    `pause(queue, engine, why)` is called when the session of a queue's job got no connection of this engine. `leaving()`:
    whether all tasks of the loop are being cancelled. `max_rescues`: how often a job's worker may die, or leave while the job
    runs. `log_jobs`: log at INFO how each job ended, not only those that failed. `notes`: what takes what handlers say.
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
    ) -> None:
        self._sessions, self._report, self._pause = sessions, report, pause
        self.leaving, self._max_rescues = leaving, max_rescues
        self._log = JobLog(every=log_jobs)
        self._notes = notes
        self.telling = Telling()

    # ---- running

    def run(self, run: Run) -> None:
        """Run a `def` handler, on the thread that calls."""
        if (run.stop is not None or run.job.extra is not None) and (outcome := unstarted(run)) is not None:
            self.give_up(run, outcome)
            return
        call = self._begin(run)
        try:
            value = call.invoke()
            decided = self._decide(run, of_value(run, value))
            self._end(run, self._conclude(call, decided, value))
        except BaseException as error:
            self._end(run, self._close(call, self._judge(call, error)), error)

    async def run_async(self, run: Run, runner: asyncio.Task[Any]) -> None:
        """Run an `async def` handler in `runner`, the task that calls."""
        if (run.stop is not None or run.job.extra is not None) and (outcome := unstarted(run)) is not None:
            self.give_up(run, outcome)
            return
        call = self._begin(run)
        run.runner = runner
        try:
            seconds = None if run.timeout_at is None or run.started is None else run.timeout_at - run.started
            value = await (call.invoke() if seconds is None else within(seconds, run, call.invoke()))
            run.runner = None  # from here on a cancel would come too late: the outcome is about to be written
            if runner.cancelling() and not self.leaving():
                await take_back(runner, run)
            decided = self._decide(run, of_value(run, value))
            if call.transaction is None:
                self._end(run, self._close(call, decided))
            else:
                self._end(run, await call.in_greenlet(lambda: self._conclude(call, decided, value)))
        except BaseException as error:
            run.runner = None
            if is_foreign(error, run, runner) and self.leaving():
                released = self._decide(run, Released(started=True))
                self._end(run, await call.in_greenlet(lambda: self._close(call, released)))
                raise  # the loop itself is ending
            if not self.leaving():
                await take_back(runner, run)
            judged = self._judge(call, error)
            self._end(run, await call.in_greenlet(lambda: self._close(call, judged)), error)
        finally:
            if run.interrupted:
                runner.uncancel()  # the runner goes on with other jobs, which were not cancelled

    def _begin(self, run: Run) -> Call:
        run.started = monotonic()
        if run.task.timeout is not None or run.job.extra is not None:
            run.timeout_at = timeout_of(run, run.started)
        if self._log.says_all:
            self._log.begins(run)
        return Call(run, self._sessions, self._notes)

    # ---- ending without a handler

    def give_up(self, run: Run, outcome: Outcome | Lost, note: str = "") -> bool:
        """End a run without its handler: not started, timed out, or in the way of leaving. `note`: what the log adds.

        False: the run has ended already. For any thread.
        """
        if not run.settle():
            return False
        try:
            decided = LOST if run.stop is Stop.LOST else self._decide(run, outcome)
        except BaseException as error:  # the application's, as in `_judge`: the outcome is ours alone to report
            decided = ToWrite(unruly(run, error))
        exception = outcome.exception if isinstance(outcome, Failed) else None
        if decided is not LOST:
            self._say_end(run, decided.change, exception, note)
        self._report(run, decided)
        if run.attempt_end is not None:
            self.telling.tell(run.attempt_end, outcome_of(decided), exception)
        return True

    def adopt(self, run: Run, ending: RunEnding) -> None:
        """End a run as a child process has decided and logged; nothing if it has ended here already."""
        if run.settle():
            self._report(run, ending)

    def broke(self, run: Run, error: BaseException) -> None:
        """The code around the handler has failed: so has the job, and its runner goes on."""
        run.settle()
        if run.ended is None:
            change = unruly(run, error)
            self._say_end(run, change, error)
            self._report(run, ToWrite(change))
            if run.attempt_end is not None:
                run.attempt_end.tell(OUTCOMES[change.event], error)

    # ---- deciding

    def _decide(self, run: Run, outcome: Outcome | Lost) -> ToWrite | Lost:
        """What is to be written for `outcome`."""
        if outcome is LOST:
            return LOST
        rules = run.task.rules
        if isinstance(outcome, Completed):
            return ToWrite(completed(run.job, outcome, rules))
        if isinstance(outcome, (Released, Crashed)):  # how often that may happen is the worker's to say, not the task's
            rules = replace(rules, max_rescues=self._max_rescues)
        elapsed = 0.0 if run.job.extra is None else run.elapsed  # only a deadline asks for it
        return ToWrite(decide(run.job, outcome, rules, random=random.random(), elapsed=elapsed))

    def _judge(self, call: Call, error: BaseException) -> ToWrite | MaybeWritten | Lost:
        """What is to be written because the handler, or what ends it, has raised `error`."""
        decided = self._judge_error(call, error)
        committing = None if call.transaction is None else call.transaction.committing
        if committing is None:
            return decided
        return MaybeWritten(committing) if decided is LOST else InDoubt(decided.change, committing)

    def _judge_error(self, call: Call, error: BaseException) -> ToWrite | Lost:
        """What is to be written, regardless of what the commit may have written already."""
        run, transaction = call.run, call.transaction
        try:
            unopened = None if transaction is None else transaction.unopened
            if unopened is None or not may_go_back(run, error):
                return self._decide(run, of_error(run, error))
            self._pause(run.job.queue, *unopened)
            return self._decide(run, Released(_AGAIN * random.uniform(0.5, 1.5)))
        except BaseException as failure:  # the application's: a rule, an exception's own method, a log filter
            return ToWrite(unruly(run, failure))

    # ---- the handler's session

    def _conclude(self, call: Call, decided: ToWrite | Lost, value: Any) -> RunEnding | None:
        """End the handler's session: commit it together with the change, if anything is to be committed.

        None: another thread gave the run up meanwhile, and reports it. In a greenlet for an async handler.
        """
        transaction = call.transaction
        if transaction is None or decided is LOST or left_early(call.run, value):
            return self._close(call, decided)
        ending = transaction.complete(decided.change) if call.settle() else None
        call.close()
        if ending is LOST:
            run = call.run
            logger.warning("job %d: its claim was lost; nothing it wrote was kept", run.job.id, extra=run.job.fields)
        return ending

    def _close(self, call: Call, decided: ToWrite | MaybeWritten | Lost) -> ToWrite | MaybeWritten | Lost | None:
        """End the handler's session without a commit."""
        if call.transaction is None:
            call.close()
        else:
            call.close(failed=isinstance(decided, ToWrite) and decided.change.event in _FAILURES)
        return decided if call.settle() else None

    # ---- reporting

    def _end(self, run: Run, ending: RunEnding | None, error: BaseException | None = None) -> None:
        if ending is None:
            return
        if ending is not LOST and not isinstance(ending, MaybeWritten):
            change = ending.change
            if error is not None or self._log.says_all or change.error is not None:
                self._say_end(run, change, error)
        if run.attempt_end is None:
            self._report(run, ending)
            return
        with self.telling.here():
            try:
                self._report(run, ending)
            finally:
                run.attempt_end.tell(outcome_of(ending), error)

    def _say_end(self, run: Run, change: Change, error: BaseException | None, note: str = "") -> None:
        # Whatever the application's own log filters and handlers do: the outcome stands.
        with suppress(BaseException):
            self._log.ends(run, change, error, note)
