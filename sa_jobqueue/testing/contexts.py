"""For unit tests without a database: contexts of handlers, with no job and no worker behind them, and a check of upcasters."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from pydantic_core import to_json
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..arguments.context import AsyncJobContext, ClaimedJob, HandlerContext, JobContext, S
from ..errors import PayloadError, SessionUnavailable
from ..tasks.tasks import AnyTask


class _Heard:
    """Receives the progress and log lines of a handler, and tells it to stop."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.progress: list[tuple[float, str | None]] = []
        self.lines: list[str] = []
        self.used: dict[str, int] = {}

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        self.progress.append((fraction, message))

    def use(self, job: ClaimedJob, used: Mapping[str, int]) -> None:
        self.used |= used

    def keep(self, job: ClaimedJob, limit: int) -> Callable[[logging.LogRecord], None]:
        return lambda record: self.lines.append(record.getMessage())


class _FakeContext(HandlerContext[S]):
    __slots__ = ("_heard",)

    def __init__(
        self,
        session: S | None = None,
        *,
        job_id: int = 1,
        task: str = "fake",
        queue: str = "default",
        attempt: int = 1,
        max_attempts: int = 10,
        meta: Mapping[str, Any] | None = None,
        enqueued_at: datetime | None = None,
        tick_at: datetime | None = None,
        ticks: int = 1,
    ) -> None:
        enqueued = time.time() if enqueued_at is None else enqueued_at.timestamp()
        extra = None if tick_at is None else json.dumps({"tick": [tick_at.timestamp(), ticks]})
        text = json.dumps(dict(meta or {}))
        claimed = ClaimedJob(job_id, 1, queue, task, 4, enqueued, attempt, max_attempts, 0, "{}", text, enqueued, extra)
        self._heard = _Heard()
        opened: Callable[[], Any] = lambda: session or _none()  # noqa: E731
        super().__init__(claimed, opened, lambda: self._heard.is_stopping, self._heard, 1, _no_steps)

    def cancel(self) -> None:
        """From now on `ctx.cancelled` is true."""
        self._heard.is_stopping = True

    @property
    def said(self) -> list[tuple[float, str | None]]:
        """The values that the handler has given to `ctx.progress`, each with its message."""
        return self._heard.progress

    @property
    def units(self) -> dict[str, int]:
        """The numbers that the handler has reported with `ctx.used`, by unit."""
        return self._heard.used

    @property
    def lines(self) -> list[str]:
        """The lines that it has logged by `ctx.logger`, from INFO on."""
        return self._heard.lines


class FakeJobContext(_FakeContext[Session], JobContext):
    """The context of a `def` handler that a test calls itself: `send_receipt(FakeJobContext(session), 7)`.

    `session`: what `ctx.session` is; without a session, a handler that asks for it fails. The other arguments are the attributes of the job.
    """

    __slots__ = ()


class FakeAsyncJobContext(_FakeContext[AsyncSession], AsyncJobContext):
    """The context of an `async def` handler, likewise: `await send_receipt(FakeAsyncJobContext(async_session), 7)`."""

    __slots__ = ()


def _no_steps() -> NoReturn:
    raise SessionUnavailable("this context records no steps: run the job with jobqueue.drain()")


def _none() -> NoReturn:
    raise SessionUnavailable("this context has no session: give it the test's, FakeJobContext(session)")


def check_upcasts(task: AnyTask, samples: Mapping[int, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Run the upcasters of `task` over arguments of older versions, and check that the handler takes the results.

    `samples`: stored arguments as plain JSON, by version, at least one for each older version. Take them from rows: `Job.args`. Do not take
    rows of jobs that take results of other jobs.

    Returns the arguments of the handler by name, one dict per sample, in the order of `samples`. Mapped objects are references.
    Raises AssertionError if a sample cannot be read or a version has no sample, TaskError if an upcaster is missing.
    """
    __tracebackhide__ = True  # so that pytest shows the line of the test
    task.resolve()
    read = list[dict[str, Any]]()
    for version, rows in samples.items():
        for number, row in enumerate(list(rows)):
            try:
                args, kwargs = task.decode(task.upcasts.current(to_json(row).decode(), version))
            except PayloadError as error:
                raise AssertionError(f"sample {number} of version {version}: {error}") from error
            names = [*task.parameters.positional][: len(args)]
            read.append(dict(zip(names, args, strict=False)) | kwargs)
    older = range(1, task.version)
    if missing := [version for version in older if not list(samples.get(version, ()))]:
        raise AssertionError(
            f"task {task.name!r} has version {task.version}, and no sample of version {', '.join(map(str, missing))}"
        )
    return read
