"""The verdict on a run: what a handler's value, its exception, or a reason to stop means for the job.

Nothing here waits or writes. `Lost` stands for a run whose claim is over: nothing is to be written.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from sqlalchemy.exc import DBAPIError

from ...errors import JobStopped, JobSuspended, PayloadError
from ...rules.failures import describe, entry
from ...rules.lifecycle import Change, decide, not_started
from ...rules.outcomes import (
    Cancel,
    Cancelled,
    Completed,
    Discard,
    ErrorEntry,
    Failed,
    Outcome,
    RateLimited,
    Released,
    Retry,
    Snooze,
    Suspended,
    Undecodable,
)
from ...rules.retry import RetryPolicy
from ...util.log import get_logger
from .attempt_end import LOST, Lost
from .run import Run, Stop
from .timeouts import timed_out

logger = get_logger(__name__)

_SIGNALS = (Retry, Snooze, RateLimited, Cancel, Discard)
_COMPLETED = Completed()
#: The SQLSTATE of a statement in a transaction that an earlier statement has ended.
_IN_FAILED_TRANSACTION = "25P02"
#: What a decorated handler may return by mistake: its own body, not begun.
_UNRUN = (CoroutineType, GeneratorType, AsyncGeneratorType)
#: The files between the worker and the handler: a traceback begins below them.
_OURS = frozenset(
    str(Path(__file__).with_name(name))
    for name in ("executor.py", "batches.py", "call.py", "timeouts.py", "joined.py", "life.py")
)


def of_value(run: Run, value: Any) -> Outcome | Lost:
    """The outcome of a handler that returned `value`. Raises TypeError for what no handler may return."""
    if value is None and run.stop is None and not run.task.record:  # nearly all handlers: the fast path
        return _COMPLETED
    if run.stop is Stop.LOST:
        return LOST  # the handler knows that its claim is over: nothing is committed, even if the fence would allow it
    if left_early(run, value):
        return of_stop(run)
    if isinstance(value, _SIGNALS):
        return value
    if isinstance(value, type) and issubclass(value, _SIGNALS):
        raise TypeError(f"the handler returned the class {value.__name__}: write {value.__name__}(...)")
    if isinstance(value, _UNRUN):
        if not isinstance(value, AsyncGeneratorType):
            value.close()  # otherwise Python warns about it
        raise TypeError(
            f"the handler returned a {type(value).__name__}, and nothing runs it: a decorator around an `async def` or a "
            "generator must itself await it or run it to its end"
        )
    if not run.task.record:
        return _COMPLETED
    try:
        return Completed(run.task.encode_result(value))
    except PayloadError as error:
        logger.warning("job %d: %s", run.job.id, error, extra=run.job.fields)
        return Completed(error=describe(error))


def of_error(run: Run, error: BaseException) -> Outcome | Lost:
    """The outcome of a run whose handler raised `error`, or whose session did at the end."""
    if run.stop is Stop.LOST:
        return LOST
    if isinstance(error, _SIGNALS):
        return error
    if suspends(error):
        return Suspended()
    if run.stop is Stop.SHUTDOWN:
        return of_stop(run)
    if run.stop in {Stop.CANCEL, Stop.TIMEOUT} and isinstance(error, asyncio.CancelledError | JobStopped):
        return of_stop(run)
    if isinstance(error, PayloadError) and run.undecoded:
        return Undecodable(replace(describe(error), traceback=""))
    if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _IN_FAILED_TRANSACTION:
        error.add_note(
            "An earlier statement of the handler failed, which ended its transaction. To catch such an error and go on, run "
            "that statement in session.begin_nested()."
        )
    return Failed(error, describe(error, hide=_OURS))


def suspends(error: BaseException) -> bool:
    """Whether this exception ends the run because the handler waits."""
    return isinstance(error, JobSuspended) or (
        isinstance(error, BaseExceptionGroup) and error.split(JobSuspended)[1] is None
    )


def of_stop(run: Run) -> Outcome | Lost:
    """The outcome of a run that ended because it was asked to stop."""
    match run.stop:
        case Stop.CANCEL:
            why = "it was cancelled while it ran: by an operator, its workflow, a limit or its schedule"
            return Cancelled(ErrorEntry("Cancelled", why))
        case Stop.SHUTDOWN:
            return Released(started=run.started is not None)
        case Stop.TIMEOUT:
            error = timed_out(run)
            return Failed(error, describe(error))
        case _:
            return LOST


def unstarted(run: Run) -> Outcome | Lost | None:
    """The outcome of a run that must not start: stopped, expired or past its deadline while it waited for a slot; else None."""
    if run.stop is not None:  # nobody will ask it again
        return of_stop(run)
    if run.job.extra is None or not_started(run.job, run.elapsed) is None:
        return None
    # If the claim or long arguments took long to arrive, the time may not be over by the clock that counts, the database's. Then the
    # job goes back, and is claimed again or ended there.
    return not_started(run.job, run.elapsed_here) or Released()


def left_early(run: Run, value: Any) -> bool:
    """Whether the handler read `ctx.cancelled`, saw True and returned: it did not complete, and its writes are not kept."""
    return run.stop is not None and run.noticed and not isinstance(value, _SIGNALS)


def may_go_back(run: Run, error: BaseException) -> bool:
    """Whether a run does not count as an attempt because its session got no connection, whichever error the handler raised.

    Retry, Snooze and the like are the handler's own decision. A job that may not run twice does not go back, because the worker
    cannot know what its handler did before.
    """
    decided = isinstance(error, _SIGNALS) or run.stop in {Stop.CANCEL, Stop.LOST, Stop.SHUTDOWN}
    return run.task.rules.rescue and not decided


def unruly(run: Run, error: BaseException) -> Change:
    """The change for a failed attempt of which no outcome could be made, because its rules or the description of `error` raise."""
    reason = entry("OutcomeNotMade", f"no outcome could be made of the run: {type(error).__name__}")
    rules = replace(run.task.rules, policy=RetryPolicy())
    return decide(run.job, Failed(RuntimeError(), reason), rules, random=random.random(), elapsed=run.elapsed)
