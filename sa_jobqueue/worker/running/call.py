"""One call of a handler: its arguments, its context, and its session if it opens one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...context import AsyncJobContext, JobContext, Notes
from ...errors import SessionUnavailable
from ...log import get_logger
from ...middleware import installed
from ...outcomes import Discard
from .around import surrounded
from .inputs import taken_by, values_of
from .objects import call_async_with_objects, call_with_objects
from .run import Run
from .sessions import Sessions
from .transaction import HandlerTransaction

__all__ = ["Call"]

logger = get_logger(__name__)

T = TypeVar("T")

#: Of two threads that open one job's session at once both get the first one's.
_opening = Lock()


class Call:
    """The call of one run's handler. The thread or task that runs the handler makes and ends it."""

    __slots__ = ("_ended", "_notes", "_sessions", "_settled", "async_session", "run", "transaction")

    def __init__(self, run: Run, sessions: Sessions, notes: Notes) -> None:
        self.run, self._sessions, self._notes = run, sessions, notes
        self.transaction: HandlerTransaction | None = None
        self.async_session: AsyncSession | None = None
        self._settled = self._ended = False

    def invoke(self) -> Any:
        """Call the handler: what it returns, or, of an `async def` handler, what is to be awaited.

        The only place where a handler is called. Raises PayloadError if the stored arguments do not fit it.
        """
        run = self.run
        job, task = run.job, run.task
        if job.rescues and not task.rules.rescue:
            raise Discard("its worker died, and it may not run twice (rescue=False)")
        taken = None if job.extra is None else taken_by(job)
        if taken is None:
            args, kwargs = task.decode(job.args or "")
            return self._invoke(args, kwargs)
        args, kwargs = task.decode_after(taken.number, taken.args)
        values = values_of(job, taken, task.inputs(taken.number), self._sessions.read_inputs)
        if not callable(values):
            return self._invoke((*values, *args), kwargs)
        if task.is_async:
            return self._read_and_await(values, args, kwargs)
        return self._invoke((*values(), *args), kwargs)

    async def _read_and_await(
        self, read: Callable[[], list[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        values = await asyncio.to_thread(read)
        return await self._invoke((*values, *args), kwargs)

    def _invoke(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = self.run
        job, task = run.job, run.task
        run.undecoded = False
        handler: Callable[..., Any] = task.handler
        if task.takes_objects:
            handler = self._with_objects(handler)
        if layers := installed.around:
            handler = surrounded(run, layers, handler)
        if task.context is None:
            return handler(*args, **kwargs)
        if task.is_async:
            async_context = AsyncJobContext(job, self._open_async, run.notice_stop, self._notes, task.keep_logs)
            return handler(async_context, *args, **kwargs)
        context = JobContext(job, self._open, run.notice_stop, self._notes, task.keep_logs)
        return handler(context, *args, **kwargs)

    def _with_objects(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """`handler`, called with the objects that the arguments name."""
        if self.run.task.is_async:
            return partial(call_async_with_objects, self.run, self._open_async, handler)
        return partial(call_with_objects, self.run, self._open, handler)

    def settle(self) -> bool:
        """Whether the outcome of this call is the run's; another thread may have given the run up."""
        self._settled = self._settled or self.run.settle()
        return self._settled

    def close(self, *, failed: bool = False) -> None:
        """Roll back what was not committed. `failed`: so has the attempt."""
        self._ended = True
        if self.transaction is not None:
            try:
                self.transaction.close(failed=failed)
            except Exception:  # a connection that is broken has rolled back by itself
                logger.debug("a handler's session did not close", exc_info=True)

    async def in_greenlet(self, work: Callable[[], T]) -> T:
        """Do what is written for a `Session` with an `AsyncSession`."""
        if self.async_session is None:
            return work()
        return await self.async_session.run_sync(lambda _: work())

    def _open(self) -> Session:
        self._refuse_late()
        _, made = self._sessions.open()
        with _opening:
            self.transaction = transaction = self.transaction or made
        self._refuse_late()  # a thread that was left behind may open it just when the job ends
        return transaction.session

    def _open_async(self) -> AsyncSession:
        self._refuse_late()
        self.async_session, self.transaction = self._sessions.open_async()
        self._refuse_late()
        return self.async_session

    def _refuse_late(self) -> None:
        """What is opened after the end would be neither committed nor closed."""
        if self._ended:
            self.close()
            raise SessionUnavailable("the job has ended: ctx.session cannot be opened any more")
