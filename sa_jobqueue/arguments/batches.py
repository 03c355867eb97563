"""The context of a batch handler, which gets the arguments of many jobs in one call.

@task(batch=Batching(500))
def index(ctx: BatchContext, orders: list[Order]) -> None: ...
"""

from __future__ import annotations

import logging
import typing
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..errors import JobStopped, OptionError, StepError
from ..rules.outcomes import Retry
from ..rules.retry import Duration
from .context import ClaimedJob, HandlerContext, JobContext, JobFacts, JobLogger, S, logger


class BatchJob(JobFacts):
    """A job of a batch, in `BatchContext.jobs`."""

    __slots__ = ()

    def __init__(self, job: ClaimedJob) -> None:
        self._job = job

    @property
    def idempotency_key(self) -> str:
        """A key for requests to other systems; the same in all attempts of the job."""
        return str(self._job.id)

    def __repr__(self) -> str:
        return f"<BatchJob {self._job.id} of {self._job.task}, attempt {self._job.attempt}>"


class Batched(Protocol):
    """The parts of a batch's context that the worker provides."""

    @property
    def jobs(self) -> Sequence[ClaimedJob]: ...
    @property
    def singled_out(self) -> dict[int, BaseException]: ...
    def notice_stop(self) -> bool: ...


class BatchHandlerContext(Generic[S]):
    """The common part of both batch contexts. The worker makes it."""

    __slots__ = ("_batch", "_logger", "_mine", "_open_session", "_session", "jobs")

    def __init__(self, batch: Batched, open_session: Callable[[], S]) -> None:
        self._batch = batch
        self._open_session: Callable[[], S] = open_session
        self._session: S | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self.jobs: tuple[BatchJob, ...] = tuple(map(BatchJob, batch.jobs))
        """The jobs of the batch, in the order of the items in each list of arguments."""
        self._mine = frozenset(self.jobs)

    @property
    def session(self) -> S:
        """A session in a transaction that the worker owns, opened on first use. Its writes commit together with the
        completions of all jobs of the batch, or not at all.
        """
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def fail(self, job: BatchJob, error: BaseException) -> None:
        """Fail the attempt of one job with `error`; the other jobs go on. The task's retry policy applies, as if the job's handler
        had raised `error`. `error` may also be a `Snooze`, `Cancel`, `Discard` or `RateLimited`.

        The handler's writes for the job still commit with the batch, unless the handler rolls them back
        (`ctx.session.begin_nested()`).

        Raises OptionError if `job` is not in this batch, or `error` is not an exception.
        """
        if not isinstance(error, BaseException):
            raise OptionError(f'ctx.fail takes an exception, not {error!r}: ctx.fail(job, ValueError("no address"))')
        if not isinstance(job, BatchJob) or job not in self._mine:
            raise OptionError(f"ctx.fail and ctx.retry take a job of this batch, ctx.jobs[0] say, not {job!r}")
        self._batch.singled_out[job.job_id] = error

    def retry(self, job: BatchJob, after: Duration | None = None, *, reason: str = "") -> None:
        """Run one job again after `after` (seconds or timedelta; default: the retry policy's delay). The attempt counts, as with `Retry`."""
        self.fail(job, Retry(after, reason=reason))

    @property
    def cancelled(self) -> bool:
        """True if the whole batch should stop: it timed out, its worker is stopping, or each of its jobs was cancelled, was lost, or exceeded its deadline.
        If the handler returns after it has read True, its writes roll back and no job completes.
        """
        return self._batch.notice_stop()

    def raise_if_cancelled(self) -> None:
        """Raise `JobStopped` if `cancelled` is true. `except Exception` does not catch it."""
        if self._batch.notice_stop():
            raise JobStopped(f"the batch of {len(self.jobs)} jobs is to stop")

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry task, queue and `jobs`, the number of jobs."""
        if self._logger is None:
            first = self._batch.jobs[0]
            self._logger = JobLogger(logger, {"task": first.task, "queue": first.queue, "jobs": len(self.jobs)})
        return self._logger

    if not typing.TYPE_CHECKING:  # type checkers report a missing attribute

        def __getattr__(self, name: str) -> Any:
            if name in _OF_ONE_JOB:
                raise StepError(
                    f"ctx.{name} is refused in a batch handler, which has {len(self.jobs)} jobs: steps, waits and progress belong to "
                    "one job; give the task no batch=..., or enqueue another task for them"
                )
            if hasattr(JobFacts, name) or name == "idempotency_key":
                raise AttributeError(f"a batch has several jobs: ctx.jobs[0].{name}, say")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


#: The attributes of `JobContext` that belong to a single job.
_OF_ONE_JOB = {
    name
    for cls in (JobContext, HandlerContext)
    for name in vars(cls)
    if not (name.startswith("_") or hasattr(BatchHandlerContext, name) or hasattr(BatchJob, name))
}


class BatchContext(BatchHandlerContext[Session]):
    """The context of a `def` batch handler; `session` is a `sqlalchemy.orm.Session`."""

    __slots__ = ()


class AsyncBatchContext(BatchHandlerContext[AsyncSession]):
    """The context of an `async def` batch handler; `session` is an `AsyncSession`."""

    __slots__ = ()
