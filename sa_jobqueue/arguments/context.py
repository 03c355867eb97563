"""What a handler is given: the claimed job, and a context that shows it and opens a session on first use.

>>> from sa_jobqueue import JobContext, task
>>> @task
... def greet(ctx: JobContext, name: str) -> None:
...     ctx.logger.info("hello %s, attempt %d of %d", name, ctx.attempt, ctx.max_attempts)
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..errors import JobStopped, OptionError
from ..rules.lifecycle import extra
from ..rules.limits import checked_units
from ..rules.outcomes import RateLimited
from ..rules.retry import Duration, RetryPolicy, seconds_of

if TYPE_CHECKING:
    from ..rules.callbacks import CallbackUrl

logger = logging.getLogger("sa_jobqueue.job")

#: Characters kept of a message of `progress`.
MAX_MESSAGE = 500
#: A sum of fractions may miss 0 or 1 by this much.
_ROUNDING = 1e-9

S = TypeVar("S", Session, AsyncSession)
P = ParamSpec("P")
R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds since 1970: any time between these two can be a `datetime`, in any time zone.
_FIRST, _LAST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2, 9999))


class ClaimedJob(NamedTuple):
    """A job as its claim returned it, in the order of the claim's RETURNING."""

    id: int
    claim_token: int
    """The fence: see `lifecycle.Claimed`."""
    queue: str
    task: str
    priority: int
    run_at: float
    """Seconds since 1970."""
    attempt: int
    max_attempts: int
    rescues: int
    args: str | None
    """JSON text. None if it is longer than the claim's limit: then it is fetched separately."""
    meta: str | None
    """JSON text, or None, as `args`."""
    created_at: float
    """Seconds since 1970."""
    extra: str | None = None
    """JSON text: see `lifecycle.Claimed`."""

    @property
    def fields(self) -> dict[str, Any]:
        """What log records about the job carry."""
        return {"job_id": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt}


def meta_of(job: ClaimedJob) -> Mapping[str, Any]:
    """The job's `meta`."""
    if job.meta is None or job.meta == "{}":
        return {}
    found = json.loads(job.meta)
    return found if isinstance(found, dict) else {}


class JobFacts:
    """The attributes of the claimed job that a handler's context and middleware's attempt share."""

    __slots__ = ("_job",)

    _job: ClaimedJob

    @property
    def job_id(self) -> int:
        """`Job.id`."""
        return self._job.id

    @property
    def task(self) -> str:
        """The name under which the job was enqueued. It may be an alias."""
        return self._job.task

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        """After this many failed attempts the job is `failed`."""
        return self._job.max_attempts

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metadata from the producer: tags, trace context, and the additions of a middleware's `before_enqueue`."""
        return meta_of(self._job)

    @property
    def enqueued_at(self) -> datetime:
        """When the row was inserted, by the database's clock; in UTC. The nearest time that Python can hold."""
        return _EPOCH + timedelta(seconds=min(max(self._job.created_at, _FIRST), _LAST))


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's fields to each record, and keeps the `extra` of the call itself."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class _OnlyKept(logging.LogRecord):
    """A record that only the kept line needs: no logging handler gets it. A whole record takes four times as long (November 2026)."""

    def __init__(self, level: int, msg: Any, args: Any) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.created, self.levelno, self.levelname = time.time(), level, logging.getLevelName(level)
        self.msg, self.exc_info = msg, None
        # As every record does: a single dict is for "%(name)s".
        self.args = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args


class _Kept(logging.Logger):
    """Passes what is logged on to `logger`, and to `keep`. The level of `logger` is no limit for what is kept."""

    def __init__(self, keep: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logger.name)
        self.parent = logger
        self._keep = keep

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return level >= logging.INFO or logger.isEnabledFor(level)

    def _log(self, level: int, msg: object, args: Any, *rest: Any, **options: Any) -> None:
        wants = rest or options.get("exc_info") or options.get("stack_info")
        if wants or logger.isEnabledFor(level) or logging.getLogRecordFactory() is not logging.LogRecord:
            options["stacklevel"] = options.get("stacklevel", 1) + 1  # past this method
            super()._log(level, msg, args, *rest, **options)
        else:
            self.handle(_OnlyKept(level, msg, args))

    def handle(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self._keep(record)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


class Notes(Protocol):
    """The receiver of a handler's progress and log records."""

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Take how far the job is: `fraction` from 0 to 1, and perhaps a text."""

    def use(self, job: ClaimedJob, used: Mapping[str, int]) -> None:
        """Take what the job has used of named units."""

    def keep(self, job: ClaimedJob, limit: int) -> Callable[[logging.LogRecord], None]:
        """The sink for this claim's log records; it keeps the last `limit`."""
        ...


class StepCall(NamedTuple):
    """A call of `ctx.step`."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    retry: RetryPolicy | None
    revision: int


class StepRuntime(Protocol):
    """Runs and records the steps of a handler. `arun`, `asession`, `soon` and `idle` are for async handlers."""

    def run(self, call: StepCall) -> Any: ...
    async def arun(self, call: StepCall) -> Any: ...
    def session(self, name: str) -> AbstractContextManager[Session]: ...
    def asession(self, name: str) -> AbstractAsyncContextManager[AsyncSession]: ...
    def patched(self, name: str) -> Callable[[], bool]: ...
    def callback_url(self, name: str, expires_in: Duration) -> Callable[[], CallbackUrl]: ...
    def wait_signal(self, name: str, hint: Any, timeout: Duration | None, question: object) -> Callable[[], Any]: ...
    def sleep(self, *, seconds: float | None = None, at: datetime | None = None) -> Callable[[], None]: ...
    def join(self, ids: Sequence[int]) -> Callable[[], list[Any]]: ...
    def now(self, ask: Callable[[], R]) -> R: ...
    async def soon(self, ask: Callable[[], R]) -> R: ...
    async def idle(self) -> None: ...


#: The job and the name of the step that the current code runs in; None outside steps.
current_step: ContextVar[tuple[int, str] | None] = ContextVar("sa_jobqueue_step", default=None)


class HandlerContext(JobFacts, Generic[S]):
    """What both contexts share. The executor passes all but the job; `keep_logs`: see `Task.keep_logs`."""

    __slots__ = ("_is_stopping", "_keep_logs", "_logger", "_notes", "_open_session", "_open_steps", "_session")

    def __init__(  # noqa: PLR0917  # keywords would take longer for each job
        self,
        job: ClaimedJob,
        open_session: Callable[[], S],
        is_stopping: Callable[[], bool],
        notes: Notes,
        keep_logs: int,
        open_steps: Callable[[], StepRuntime],
    ) -> None:
        self._job = job
        self._open_steps = open_steps
        self._open_session: Callable[[], S] = open_session
        self._is_stopping = is_stopping
        self._notes, self._keep_logs = notes, keep_logs
        self._session: S | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def tick_at(self) -> datetime | None:
        """The tick of its schedule for which the job was made, in UTC; the last tick, if the job stands for several. None: the job
        is of no schedule.
        """
        tick = None if self._job.extra is None else extra(self._job).get("tick")
        return None if tick is None else _EPOCH + timedelta(seconds=min(max(float(tick[0]), _FIRST), _LAST))

    @property
    def ticks(self) -> int | None:
        """For how many ticks of its schedule the job stands. None: it is of no schedule."""
        tick = None if self._job.extra is None else extra(self._job).get("tick")
        return None if tick is None else tick[1]

    @property
    def workflow_id(self) -> int | None:
        """The workflow that the job is a member of; None: it is in none."""
        return None if self._job.extra is None else extra(self._job).get("workflow")

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, task, queue and attempt. With `@task(keep_logs=True)` its lines are kept."""
        if self._logger is None:
            job = self._job
            behind = _Kept(self._notes.keep(job, self._keep_logs)) if self._keep_logs else logger
            self._logger = JobLogger(behind, job.fields)
        return self._logger

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far the job is: `fraction` from 0 to 1, and perhaps a text, which is cut after 500 characters.

        It returns at once, in an async handler too: nothing is awaited. The worker writes the last value that the job has set, up to
        4 times a second and in a transaction of its own. So others see it while the job runs, as `Job.progress`, and it stays if
        the attempt fails.

        Raises OptionError, a ValueError, for a number outside of 0 to 1, for NaN, and for what is no number or no text.
        """
        checked = _checked_message(message)
        self._notes.report(self._job, _checked_fraction(fraction), checked)

    def used(self, **units: int) -> None:
        """Report the named units that this run has used, 0 to 999,999,999 each: `ctx.used(tokens=1834)`. In the rates of the unit, the number
        replaces the job's estimate, `options(units={"tokens": 1800})`. A later report replaces an earlier report.

        The call returns at once, in an async handler too. The worker writes the report within about a quarter of a second, unless the job was
        claimed again meanwhile. The next attempt takes the estimate again.

        Raises OptionError, a ValueError, for any other amount.
        """
        self._notes.use(self._job, checked_units(units, least=0))

    @property
    def cancelled(self) -> bool:
        """True once this run should stop: an operator cancelled the job, the attempt timed out, its lease is lost, or the
        worker is stopping and its grace time is over. A long sync handler checks it from time to time.

        If a handler has seen True and then returns, the job is not completed: the handler's writes roll back, and the job is
        cancelled or goes back to the queue. An outcome that the handler returns (`Snooze`, `Cancel`, ...) counts as always.
        """
        return self._is_stopping()

    def raise_if_cancelled(self) -> None:
        """Raise `JobStopped` if `cancelled` is true. The handler's writes roll back, as if it had returned after it saw that.

        `JobStopped` is no `Exception`: an `except Exception` on the way lets it pass.
        """
        if self._is_stopping():
            raise JobStopped(f"job {self._job.id} is to stop")

    @property
    def idempotency_key(self) -> str:
        """A key for systems that handle each key only once. Every run of this step of this job has the same key.

        In a step it is "JOB:STEP:OCCURRENCE", such as "17:charge:1". Outside steps it is the job's id, "17".
        """
        inside = current_step.get()
        if inside is None or inside[0] != self._job.id:
            return str(self._job.id)
        name, _, number = inside[1].rpartition("#")
        return f"{self._job.id}:{name}:{number}" if number.isdecimal() and name else f"{self._job.id}:{inside[1]}:1"

    def rate_limited(self, retry_after: Duration) -> RateLimited:
        """The outcome for a "429 Too Many Requests" of the other side: return it or raise it, as `return ctx.rate_limited(30)`.

        The job runs again after `retry_after` (seconds or timedelta), and no attempt is spent. Until then no worker starts another job
        with its key; if it has none, no job of its queue. Nothing happens by the call alone.

        Raises TypeError or ValueError for what is no such time.
        """
        return RateLimited(retry_after)

    @property
    def _steps(self) -> StepRuntime:
        return self._open_steps()

    @property
    def session(self) -> S:
        """A session in a transaction that the worker owns, opened on first use.

        What the handler writes through it commits together with the job's completion, or not at all. A `commit()` on it
        publishes nothing early.
        """
        if self._session is None:
            self._session = self._open_session()
        return self._session


def _checked_fraction(value: float) -> float:
    if type(value) is float and 0.0 <= value <= 1.0:
        return value
    try:
        fraction = float("nan") if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        fraction = float("nan")
    if not -_ROUNDING <= fraction <= 1 + _ROUNDING:
        raise OptionError(
            f"progress must be a number from 0 to 1, not {_shown(value)}: for page 12 of 30 it is 12 / 30"
        )
    return min(max(fraction, 0.0), 1.0)


def _checked_message(message: str | None) -> str | None:
    if message is None:
        return None
    if not isinstance(message, str):
        raise OptionError(f"the message of a progress must be a text, not {_shown(message)}")
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def _shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # the application's own
        return f"a {type(value).__name__}"


def _ids(jobs: Iterable[Any]) -> list[int]:
    ids = [job if isinstance(job, int) else getattr(job, "id", None) for job in jobs]
    if wrong := [job for job, job_id in zip(jobs, ids, strict=True) if not isinstance(job_id, int)]:
        raise OptionError(
            f"ctx.join takes jobs that were inserted, or their ids, not {_shown(wrong[0])}: flush the session first"
        )
    return ids  # type: ignore[return-value]


def _checked_time(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise OptionError(f"ctx.sleep_until takes a time with its zone, not {when!r}: datetime.now(UTC), say")
    return when


class JobContext(HandlerContext[Session]):
    """The context of a `def` handler; `session` is a `sqlalchemy.orm.Session`."""

    __slots__ = ()

    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(  # type: ignore[overload-cannot-match]  # it does, with `retry` or `revision`
        self, name: str, function: Callable[..., R], /, *args: Any, retry: RetryPolicy | None, revision: int = 1, **kwargs: Any
    ) -> R: ...  # fmt: skip
    @overload
    def step(  # type: ignore[overload-cannot-match]
        self, name: str, function: Callable[..., R], /, *args: Any, revision: int, **kwargs: Any
    ) -> R: ...
    def step(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: RetryPolicy | None = None,
        revision: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Call `function(*args, **kwargs)` and record its result. Later runs of the job return the recorded result and do not call the function.

        `name`: of the step. Steps of one name are numbered in the order of their calls. `retry`: try a failed call again in this attempt,
        after the pauses of the policy, until the next pause would outlast the lease; then, and by default, the job's attempt fails.
        `revision`: the function is called again if the record has a lower revision.

        Returns the value as it was stored, checked against the return annotation of the function. Raises PayloadError for a value
        that cannot be stored, StepError for a step inside a step and after 10,000 steps, and any exception of the function.
        """
        return self._steps.run(StepCall(name, function, args, kwargs, retry, revision))

    def step_session(self, name: str) -> AbstractContextManager[Session]:
        """A session whose writes commit together with the record of the step, at the end of the block.

        Later runs of the job execute the block again, in a transaction that is rolled back. So use the block only for work on the database.
        """
        return self._steps.session(name)

    def wait_signal(
        self, name: str, type: Any = Any, *, timeout: Duration | None = None, question: object = None
    ) -> Any:
        """Wait for the next `Signal` of this name, and return its payload, checked against `type`. Meanwhile the job is blocked and holds no slot.

        `timeout`: seconds or timedelta, after which it raises SignalTimeout. `question`: a question to a person, whose answer is the signal: a text, or
        {"question": text, "choices": {label: payload}}, whose labels are buttons on the dashboard. Without choices, the dashboard shows Yes and No
        for a `bool`, a button for each value of a `Literal` or an `Enum`, and a field for JSON for other types. Raises OptionError for choices that
        do not fit the type.
        """
        return self._steps.now(self._steps.wait_signal(name, type, timeout, question))

    def callback_url(self, name: str, *, expires_in: Duration = timedelta(days=7)) -> CallbackUrl:
        """An address for another system or a person. The first POST to the address sends the signal `address.signal`, for
        which the handler waits by `ctx.wait_signal(address.signal)`. The body of the POST is the payload.

        The address is recorded as a step, so each run of the job gets the same address. `name`: tells the addresses of a job apart. `expires_in`:
        seconds or timedelta, up to 30 days. Raises ConfigurationError if the registry has no `callbacks`, and OptionError for an invalid name or
        time.
        """
        return self._steps.now(self._steps.callback_url(name, expires_in))

    def sleep_for(self, delay: Duration) -> None:
        """Wait for `delay` (seconds or timedelta). Meanwhile the job is blocked and holds no slot; the wait spends no attempt."""
        self._steps.now(self._steps.sleep(seconds=seconds_of(delay, what="ctx.sleep_for(...)")))

    def sleep_until(self, when: datetime) -> None:
        """Wait until this time, which must have a time zone. Raises OptionError for a time without a zone."""
        self._steps.now(self._steps.sleep(at=_checked_time(when)))

    def join(self, jobs: Iterable[Any]) -> list[Any]:
        """Wait until these jobs (or ids) have ended, and return their results in order, with a `Failed` for each job that did not complete.

        The results are plain JSON for tasks with `record=True`, and None for other tasks.
        """
        return self._steps.now(self._steps.join(_ids(list(jobs))))

    def patched(self, name: str) -> bool:
        """Whether the job runs the code with the patch `name` from here on. False if earlier code has already passed this place: the job has
        recorded steps that come after it. The answer stays the same for the job.
        """
        return self._steps.now(self._steps.patched(name))


class AsyncJobContext(HandlerContext[AsyncSession]):
    """The context of an `async def` handler; `session` is a `sqlalchemy.ext.asyncio.AsyncSession`."""

    __slots__ = ()

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(  # type: ignore[overload-cannot-match]
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: Any, retry: RetryPolicy | None, revision: int = 1,
        **kwargs: Any,
    ) -> R: ...  # fmt: skip
    @overload
    async def step(  # type: ignore[overload-cannot-match]
        self, name: str, function: Callable[..., R], /, *args: Any, retry: RetryPolicy | None, revision: int = 1, **kwargs: Any
    ) -> R: ...  # fmt: skip
    @overload
    async def step(  # type: ignore[overload-cannot-match]
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: Any, revision: int, **kwargs: Any
    ) -> R: ...
    @overload
    async def step(  # type: ignore[overload-cannot-match]
        self, name: str, function: Callable[..., R], /, *args: Any, revision: int, **kwargs: Any
    ) -> R: ...
    async def step(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: RetryPolicy | None = None,
        revision: int = 1,
        **kwargs: Any,
    ) -> Any:
        """As `JobContext.step`. An `async def` function is awaited, a `def` function runs on a thread."""
        return await self._steps.arun(StepCall(name, function, args, kwargs, retry, revision))

    def step_session(self, name: str) -> AbstractAsyncContextManager[AsyncSession]:
        """As `JobContext.step_session`: `async with ctx.step_session("mark") as session:`."""
        return self._steps.asession(name)

    async def wait_signal(
        self,
        name: str,
        type: Any = Any,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109
        question: object = None,
    ) -> Any:
        """As `JobContext.wait_signal`."""
        return await self._steps.soon(self._steps.wait_signal(name, type, timeout, question))

    async def callback_url(self, name: str, *, expires_in: Duration = timedelta(days=7)) -> CallbackUrl:
        """As `JobContext.callback_url`."""
        return await self._steps.soon(self._steps.callback_url(name, expires_in))

    async def sleep_for(self, delay: Duration) -> None:
        """As `JobContext.sleep_for`."""
        await self._steps.soon(self._steps.sleep(seconds=seconds_of(delay, what="ctx.sleep_for(...)")))

    async def sleep_until(self, when: datetime) -> None:
        """As `JobContext.sleep_until`."""
        await self._steps.soon(self._steps.sleep(at=_checked_time(when)))

    async def join(self, jobs: Iterable[Any]) -> list[Any]:
        """As `JobContext.join`."""
        return await self._steps.soon(self._steps.join(_ids(list(jobs))))

    async def patched(self, name: str) -> bool:
        """As `JobContext.patched`."""
        return await self._steps.soon(self._steps.patched(name))
