"""Middleware: code of the application's around each job, and before each enqueueing.

>>> from contextlib import contextmanager
>>> class Timed(Middleware):
...     @contextmanager
...     def around(self, attempt):
...         print(f"{attempt.task} begins")
...         yield
>>> timed = Timed()
>>> add_middleware(timed)
>>> remove_middleware(timed)

The list is the process's own. Where it is empty, a job pays for reading it twice, and an enqueueing for reading it once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

from ..arguments.context import ClaimedJob, JobFacts, meta_of
from ..errors import MiddlewareError
from ..rules.job_fields import CHANGE_DEPTH
from .calls import Call

Callback: TypeAlias = Callable[[str, BaseException | None], object]
"""Called with an outcome, as `lifecycle.OUTCOMES` names it, or "lost", and with the exception behind it, if there is any."""


class Attempt(JobFacts):
    """The attempt around which a middleware runs. The worker makes it.

    The call of a batch has one attempt, with the attributes of its first job. Its `jobs` are the attempts of all jobs, whose
    `at_end` gets the outcome of each job. The attempt of the batch ends with "completed" if the handler's writes were committed, and with "released"
    if the batch failed and runs again in halves.
    """

    __slots__ = ("_began", "_jobs", "_meta")

    def __init__(self, job: ClaimedJob, jobs: Sequence[Attempt] | None = None) -> None:
        self._job, self._began, self._jobs = job, time.time(), jobs
        self._meta: Mapping[str, Any] | None = None

    @property
    def of_batch(self) -> bool:
        """Whether this is the attempt of a batch."""
        return self._jobs is not None

    @property
    def jobs(self) -> Sequence[Attempt]:
        """The attempts of all jobs in the handler's call: of the jobs of a batch, or only this attempt."""
        return (self,) if self._jobs is None else self._jobs

    @property
    def rescues(self) -> int:
        """How often the job's worker has died, or left while it ran. These runs do not count as attempts."""
        return self._job.rescues

    @property
    def meta(self) -> Mapping[str, Any]:
        """As a handler's `ctx.meta`, decoded once."""
        if self._meta is None:
            self._meta = super().meta
        return self._meta

    @property
    def waited(self) -> float:
        """Seconds from when the job was due, or enqueued if that was later, until the attempt began. Never below 0, also where clocks
        differ.
        """
        # `run_at` may be infinite, and neither time is this machine's.
        waited = self._began - max(self._job.run_at, self._job.created_at)
        return waited if 0.0 < waited < float("inf") else 0.0

    @property
    def fields(self) -> dict[str, Any]:
        """The extras of log lines about the job: job_id, task, queue, attempt. For a batch: task, queue, and `jobs`, the number of jobs."""
        if self._jobs is None:
            return self._job.fields
        return {"task": self.task, "queue": self.queue, "jobs": len(self._jobs)}

    def at_end(self, callback: Callback) -> None:
        """Call `callback(outcome, error)` once, when the outcome of the attempt is decided and the writes of its `ctx.session` are
        committed. The callback that was added last comes first.

        `outcome`: "completed", "retried", "failed", "cancelled", "snoozed", "suspended", "released" or "lost". `error`: the exception
        behind it, or None. The callback may come on another thread, and while the handler still runs: a handler that does not end after
        its timeout is given up. What a callback raises is logged, and changes nothing.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        if self._jobs is not None:
            return f"<Attempt of {len(self._jobs)} jobs of {self.task}>"
        return f"<Attempt {self.attempt} of {self.task}[{self.job_id}]>"


class Middleware:
    """Code around each job. Override either method, or both; `add_middleware` installs an object of the class."""

    def before_enqueue(self, call: Call) -> Call:
        """The call to enqueue in place of `call`; mostly `call.with_meta(...)`.

        For `enqueue`, `Task.call` and `TaskName.call`. An exception goes to their caller, before any SQL. Where an argument is an object
        that has no key yet, `call.args` has a placeholder.
        """
        return call

    def around(self, attempt: Attempt) -> AbstractContextManager[object]:
        """A context manager that is entered before the handler is called and left after it has returned, on the same thread, in the
        same task. It is the same for handlers of both kinds, and must not block for long.

        An exception of the handler comes through it. If entering it raises, the handler is not called. What it raises, it raises
        as the handler would: `Retry`, `Snooze`, `RateLimited`, `Cancel` and `Discard` mean the same, any other exception is a failed attempt.
        """
        return nullcontext()


class _Installed:
    """The installed middleware. The tuples are replaced, never changed: any thread reads them, and a thread with the lock replaces them."""

    __slots__ = ("all", "around", "enqueueing")

    def __init__(self) -> None:
        self.all: tuple[Middleware, ...] = ()
        self.around: tuple[Middleware, ...] = ()
        """Those that override `around`."""
        self.enqueueing: tuple[Middleware, ...] = ()
        """Those that override `before_enqueue`."""

    def put(self, every: tuple[Middleware, ...]) -> None:
        self.all = every
        self.around = tuple(middleware for middleware in every if _overrides(middleware, "around"))
        self.enqueueing = tuple(middleware for middleware in every if _overrides(middleware, "before_enqueue"))


installed = _Installed()
"""What is installed in this process."""

_lock = threading.Lock()


def add_middleware(middleware: Middleware) -> None:
    """Put `middleware` around each job that this process starts from now on, and before each enqueueing.

    The middleware that was added first is the outermost. If it is there already, it stays in its place. For any thread; the application's modules
    are the place, because workers and child processes import them. Raises TypeError for what is no `Middleware`.
    """
    if not isinstance(middleware, Middleware):
        given: Any = middleware
        is_class = isinstance(given, type) and issubclass(given, Middleware)
        mend = f"give it an object, {given.__name__}()" if is_class else "derive its class from sa_jobqueue.Middleware"
        raise TypeError(f"add_middleware() takes a Middleware, not {given!r}: {mend}")
    with _lock:
        if not any(known is middleware for known in installed.all):
            installed.put((*installed.all, middleware))


def remove_middleware(middleware: Middleware) -> None:
    """Take `middleware` off the list; nothing if it is not there. An attempt that has begun ends with it."""
    with _lock:
        installed.put(tuple(known for known in installed.all if known is not middleware))


def before_enqueue(call: Call) -> Call:
    """The call after all installed middleware has changed it in turn."""
    made = call
    for middleware in installed.enqueueing:
        made = middleware.before_enqueue(made)
        if not isinstance(made, Call):
            raise MiddlewareError(
                f"{type(middleware).__qualname__}.before_enqueue() returned {made!r}; it must return the call that it was given, or a "
                "changed one, call.with_meta(...)"
            )
    return made if made.meta == call.meta else made._replace(given_meta=call.meta)


def _overrides(middleware: Middleware, method: str) -> bool:
    found = getattr(middleware, method)
    return getattr(found, "__func__", None) is not getattr(Middleware, method)


# ---- The job's fields on each log line that its handler writes, by any logger.

Source = Callable[[], Mapping[str, Any]]

_fields: ContextVar[Mapping[str, Any] | None] = ContextVar("sa_jobqueue_job_fields", default=None)
#: Functions that return more fields for lines of handlers. Any thread reads the list.
_sources: list[Source] = []


def add_job_fields(handler: logging.Handler) -> None:
    """Give the records that pass `handler` the fields of the job in whose handler they are logged: job_id, task, queue, attempt; with
    OpenTelemetry, trace_id and span_id, too. A field that a record has already stays.

    It installs a middleware. Threads that a handler starts do not know the job, but those of `asyncio.to_thread` do.
    """
    add_middleware(_middleware)
    handler.addFilter(_filter)  # once, however often it is added


def are_added() -> bool:
    """Whether lines carry them in this process."""
    return _middleware in installed.all


def add_source(source: Source) -> None:
    """Let lines of handlers carry what `source()` returns just then, too."""
    if source not in _sources:
        _sources.append(source)


def remove_source(source: Source) -> None:
    """Let them carry it no longer; nothing if they do not."""
    with suppress(ValueError):
        _sources.remove(source)


class _JobFields(Middleware):
    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        token = _fields.set(attempt.fields)
        try:
            yield
        finally:
            _fields.reset(token)


def _filter(record: logging.LogRecord) -> bool:
    fields = _fields.get()
    if fields is not None:
        _add(record, fields)
        for source in tuple(_sources):
            with suppress(Exception):  # a line without its trace is better than none
                _add(record, source())
    return True


def _add(record: logging.LogRecord, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)


_middleware = _JobFields()


# ---- The depth of a job in a chain of jobs that changes enqueue: see `on_change`.

change_depth: ContextVar[int] = ContextVar("sa_jobqueue_change_depth", default=0)
"""The `change_depth` of the job whose handler runs; 0 by default."""


class _Changed(Middleware):
    """Sets the depth of the job, or the greatest depth of a batch's jobs, during the handler's call."""

    def __init__(self, jobs: Sequence[ClaimedJob]) -> None:
        found = [meta_of(job).get(CHANGE_DEPTH) for job in jobs]
        self._depth = max((depth for depth in found if type(depth) is int), default=0)  # `meta` can be written by hand

    @contextmanager
    def around(self, attempt: Attempt) -> Generator[None]:
        token = change_depth.set(self._depth)
        try:
            yield
        finally:
            change_depth.reset(token)


def layers_around(jobs: Sequence[ClaimedJob]) -> tuple[Middleware, ...]:
    """The layers around the handler's call for these jobs."""
    for job in jobs:
        if job.meta is not None and CHANGE_DEPTH in job.meta:
            return (*installed.around, _Changed(jobs))
    return installed.around
