"""What can go wrong, as one tree under `JobQueueError`.

The class docstring is the default message; attributes carry the evidence:

>>> raise SchemaError(found=None, needed=1)
Traceback (most recent call last):
...
sa_jobqueue.errors.SchemaError: the job queue's schema 'sa_jobqueue' is missing; version 1 is needed: run `sa-jobqueue migrate`
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments.ends import JobEnd

__all__ = [
    "AutocommitError",
    "ConfigurationError",
    "DatabaseUnavailable",
    "EmbeddedUnavailable",
    "HandlerTimeout",
    "HookError",
    "JobQueueError",
    "JobStopped",
    "JobSuspended",
    "MiddlewareError",
    "ObjectMissing",
    "OptionError",
    "PayloadError",
    "ResultError",
    "SchemaError",
    "SessionUnavailable",
    "SignalTimeout",
    "StatusError",
    "StepError",
    "SubjectError",
    "TaskError",
    "TaskWarning",
    "WaitTimeout",
    "WorkerBroken",
    "WorkflowError",
]


class JobQueueError(Exception):
    """The job queue could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


class JobStopped(BaseException):
    """The run of a job is to end: `ctx.raise_if_cancelled()` raises it in a handler.

    It is no `Exception`, so that an `except Exception` in the handler lets it pass, as asyncio's CancelledError.
    """


class JobSuspended(BaseException):
    """Ends the run of a handler that waits. When the wait is over, the handler runs again from its top, and recorded steps return their results.

    `except Exception` in the handler does not catch it. A handler that catches it in another way fails.
    """

    wait: Any = None


class ConfigurationError(JobQueueError):
    """A setting is wrong."""


class WorkflowError(JobQueueError, ValueError):
    """A workflow cannot be built so."""


class DatabaseUnavailable(JobQueueError):
    """The database does not answer."""


class EmbeddedUnavailable(JobQueueError):
    """The embedded PostgreSQL cannot be used."""


class SchemaError(JobQueueError):
    """The job queue's schema in the database is missing, too old or too new.

    `found` is the version there (None: no schema at all), `needed` the version this release works with. `others`: if it is missing, the
    schemas of the database that hold jobs.
    """

    def __init__(
        self,
        *,
        found: int | None,
        needed: int,
        schema: str = "sa_jobqueue",
        database: str | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.found, self.needed, self.schema, self.database, self.others = (
            found,
            needed,
            schema,
            database,
            tuple(others),
        )
        place = "" if database is None else f" of database {database!r}"
        option = "" if schema == "sa_jobqueue" else f" --schema {shlex.quote(schema)}"
        state = "is missing" if found is None else f"has version {found}"
        if others:
            state += f", but there is {' and '.join(map(repr, others))} (--schema {shlex.quote(others[0])})"
        if found is None or found < needed:
            rest = f"; version {needed} is needed: run `sa-jobqueue migrate{option}`"
        else:
            rest = (
                f", which releases made for version {needed} can no longer work with: upgrade the package sa-jobqueue"
            )
        super().__init__(f"the job queue's schema {schema!r}{place} {state}{rest}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled by what it was made of: its message alone would not do.
        make = partial(
            type(self),
            found=self.found,
            needed=self.needed,
            schema=self.schema,
            database=self.database,
            others=self.others,
        )
        return make, (), vars(self)


class AutocommitError(ConfigurationError):
    """The engine is in AUTOCOMMIT mode; the worker needs transactions. Give it an engine without that setting."""


class TaskError(JobQueueError):
    """A task is declared in a way that cannot work."""


class TaskWarning(UserWarning):
    """A task is declared where a worker that imports the application may not find it."""


class OptionError(JobQueueError, ValueError):
    """An option of a job (queue, priority, run_at, max_attempts, ...) has a value that cannot be stored."""


class PayloadError(JobQueueError, ValueError):
    """The arguments of a job do not fit its handler, or cannot be stored as JSON."""


class ObjectMissing(JobQueueError, LookupError):
    """The row of an object argument is not there when its job runs."""


class ResultError(JobQueueError, ValueError):
    """A job has no result, because it did not complete; or its result is not of the type that was asked for, or cannot be read."""


class StatusError(JobQueueError):
    """A job's status is changed by a statement, never by hand."""


class SubjectError(JobQueueError, ValueError):
    """A job's subject is no row that could be found again."""


class SessionUnavailable(JobQueueError):
    """`ctx.session` cannot be opened."""


class StepError(JobQueueError):
    """A step of a handler cannot be recorded, or does not match its record."""


class SignalTimeout(JobQueueError, TimeoutError):
    """No signal has come within the timeout of `ctx.wait_signal`."""


class WaitTimeout(JobQueueError, TimeoutError):
    """A job has not ended in the time that was given to wait for it.

    `ids`: the jobs that have not ended; `ended`: a `JobEnd` for each of the others that were awaited with them.
    """

    def __init__(self, ids: Sequence[int], seconds: float, *, ended: Sequence[JobEnd] = ()) -> None:
        self.ids: tuple[int, ...] = tuple(ids)
        self.seconds = seconds
        self.ended: tuple[JobEnd, ...] = tuple(ended)
        jobs = f"job {ids[0]} has" if len(ids) == 1 else f"{len(ids)} jobs, {ids[0]} for one, have"
        super().__init__(f"{jobs} not ended within {seconds:g} s")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.ids, self.seconds, ended=self.ended), (), vars(self)  # as SchemaError is


class WorkerBroken(JobQueueError):
    """A thread that the worker cannot do without has ended. Start the worker again."""


class MiddlewareError(JobQueueError):
    """A middleware does not keep to its rules: its `around` gives no context manager, or its `before_enqueue` no call."""


class HookError(JobQueueError):
    """A start hook (`on_worker_start`) has failed, so the worker does not start."""


class HandlerTimeout(JobQueueError, TimeoutError):
    """The handler took longer than its task's timeout."""
