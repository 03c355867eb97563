"""Log lines about running jobs: each failure and, if asked for, each end."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from time import monotonic

from ...rules.failures import error_text, is_quick_to_format
from ...rules.lifecycle import Change, Event
from ...rules.outcomes import Retry
from ...sql.leases import Expired
from ...util.log import get_logger, place_of
from .run import Run

logger = get_logger(__name__)

_ENDS = {
    Event.COMPLETE: "completed in",
    Event.RETRY: "asked for a retry after",
    Event.SNOOZE: "snoozed after",
    Event.SUSPEND: "suspended after",
    Event.RELEASE: "was given back after",
    Event.CANCEL: "was cancelled after",
}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class JobLog:
    """Logs how jobs end: a final failure as an error, with its exception; another failure as a warning.

    `every`: log the end of each job at INFO; otherwise that is for DEBUG.
    """

    def __init__(self, *, every: bool) -> None:
        self._level = logging.INFO if every else logging.DEBUG
        self.says_all = logger.isEnabledFor(self._level)
        """Whether more than failures is logged. Decided once: a check for each job would cost too much."""

    def begins(self, run: Run) -> None:
        """Log that the run's handler is about to be called."""
        logger.debug("%s[%d] starts", run.job.task, run.job.id, extra=run.job.fields)

    def ends(self, run: Run, change: Change, error: BaseException | None = None, note: str = "") -> None:
        """Log that the run ended with `change`. `error`: the handler's exception; `note`: added to the text."""
        job, fields = run.job, run.job.fields
        again = f", again in {lasting(change.delay)}" if change.delay else ""
        if run.started is not None:
            fields["duration"] = monotonic() - run.started
            fields["wait"] = max(time.time() - fields["duration"] - job.run_at, 0.0)
        if change.event is Event.FAIL or (change.event is Event.RETRY and not isinstance(error, Retry) and error):
            final = change.event is Event.FAIL
            level = logging.ERROR if final else logging.WARNING
            shown = error is not None and (final or logger.isEnabledFor(logging.DEBUG)) and is_quick_to_format(error)
            reason = change.error
            logger.log(
                level, "%s[%d] failed in attempt %d of %d%s: %s%s%s",
                job.task, job.id, job.attempt, job.max_attempts, ", for good" if final else again or ", again at once",
                error_text(reason.type, reason.message) if reason else "", _place(run, error), note,
                extra=fields, exc_info=error if shown else None,
            )  # fmt: skip
        elif change.event is Event.RESCUE:
            reason = change.error
            logger.warning(
                "%s[%d] lost its process after %s%s: %s", job.task, job.id, lasting(fields.get("duration")), again,
                reason.message if reason else "", extra=fields,
            )  # fmt: skip
        elif run.started is None:
            logger.log(self._level, "%s[%d] was given back unstarted%s", job.task, job.id, again, extra=fields)
        else:
            logger.log(
                self._level, "%s[%d] %s %s%s (attempt %d of %d, waited %s)",
                job.task, job.id, _ENDS[change.event], lasting(fields["duration"]), again,
                job.attempt, job.max_attempts, lasting(fields["wait"]),
                extra=fields,
            )  # fmt: skip


def _place(run: Run, error: BaseException | None) -> str:
    """The last frame of the application's code; for an installed application, the last frame in its package."""
    module = str(getattr(run.task.handler, "__module__", ""))
    place = "" if error is None else place_of(error, package=module.partition(".")[0])
    return f" ({place})" if place else ""


def say_rescue(found: Expired, change: Change) -> None:
    """Log that a job was taken from a worker whose lease ran out, with `change`: as an error if the job has failed by that."""
    logger.log(
        logging.ERROR if change.event is Event.FAIL else logging.WARNING,
        "%s[%d] rescued from %s; its lease ran out %s ago%s",
        found.task, found.claim.id, holder_of(found), lasting(found.overdue),
        "; it is failed for good" if change.event is Event.FAIL else "",
        extra={
            "job_id": found.claim.id, "task": found.task, "queue": found.queue, "worker": found.worker,
            "overdue": found.overdue,
        },
    )  # fmt: skip


def holder_of(found: Expired) -> str:
    """The worker that held the job, and since when."""
    at, moment = found.claimed_at, "a time that is not known"
    if at is not None:
        try:
            moment = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        except (OverflowError, ValueError, OSError):  # infinity, for example
            moment = f"{at:g} s since 1970"
    return f"worker {found.place}, which claimed it at {moment}"


def lasting(seconds: float | None) -> str:
    """A duration for people: 4 ms, 0.12 s, 15 s, 2 min."""
    if seconds is None:
        return "some time"
    if seconds < 0.0995:  # above it two digits of milliseconds would be 1e+02
        return f"{seconds * 1_000:.2g} ms"
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:,.0f} {unit}"
