"""Injected values, and the hooks at the start and stop of a worker.

The thread of the `def` handler that first needs a value makes the value. For `async def` handlers, a separate asyncio task makes and closes a
shared value.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeAlias, TypeVar, cast

from ...arguments.injected import Injected, Provided
from ...errors import HookError, JobStopped
from ...util.log import get_logger
from .run import Run

logger = get_logger(__name__)

T = TypeVar("T")
#: Does work that may block, and waits for it.
Apart: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]

#: The result if the maker of a value was stopped.
_AGAIN = object()


async def at_once(work: Callable[[], T]) -> T:
    """Do the work on this thread."""
    return work()


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, so `def` handlers share the code of `async def` handlers."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # it was raised in the coroutine, which turned it into an error
            raise error.__cause__ from None
        raise
    raise RuntimeError(f"{work} waits for something")


class Life:
    """The shared values and the hooks of a process, or of a `drain` of the testing kit. `start`, `stop`: the hooks.

    For any thread; `begin` and `end` are for the event loop of the `async def` handlers.
    """

    def __init__(self, start: Sequence[Callable[[], Any]] = (), stop: Sequence[Callable[[], Any]] = ()) -> None:
        self._start, self._stop = start, stop
        self._context = contextvars.copy_context()
        """The context variables for providers of the scope "worker", without those of any job."""
        self.ready: dict[Injected, dict[str, Any]] = {}
        """The values of handlers that need only shared values, after they were made. Read without the lock."""
        # Under the lock.
        self._made_or_making: dict[Provided, Future[Any]] = {}
        self._closers: list[tuple[Provided, Callable[[Apart], Awaitable[object]]]] = []
        """The functions that close the values, in the order in which the values were made."""
        self._over = False
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps only weak references
        self._has_begun = False

    # ---- beginning and end

    async def begin(self, apart: Apart) -> None:
        """Call the start hooks in order. Raises HookError for the first that fails."""
        for hook in self._start:
            try:
                await _called(hook, apart)
            except (Exception, SystemExit) as error:
                raise HookError(f"on_worker_start: {_name(hook)} failed: {type(error).__name__}: {error}") from error
        self._has_begun = True

    async def end(self, apart: Apart) -> None:
        """Close all values and call the stop hooks, in reverse order. Failures are logged. A second call has no effect."""
        with self._lock:
            self._over = True
        await self.close(apart)
        has_begun, self._has_begun = self._has_begun, False
        for hook in reversed(self._stop) if has_begun else ():
            try:
                await _called(hook, apart)
            except (Exception, SystemExit) as error:
                logger.error("on_worker_stop: %s failed: %r", _name(hook), error, exc_info=error)

    async def close(self, apart: Apart) -> None:
        """Close the values of the scope "worker" in reverse order. A job that needs a value later makes it again."""
        with self._lock:
            self._made_or_making.clear()
            self.ready.clear()
        while self._closers:
            value, close = self._closers.pop()
            try:
                await close(apart)
            except (Exception, SystemExit) as error:
                _log_unclosed(value, error)

    @property
    def is_empty(self) -> bool:
        """Whether there are no hooks and no values."""
        return not (self._start or self._stop or self._closers)

    def note_ready(self, injected: Injected, values: dict[str, Any]) -> None:
        """Store these values in `ready` for the next call, if all have the scope "worker" and are still open."""
        with self._lock:
            made = [(name, self._made_or_making.get(value)) for name, value in injected.values]
            if all(known and known.done() and known.result() is values[name] for name, known in made):
                self.ready[injected] = values

    # ---- Values of the scope "worker": each is made once, also if many handlers ask at the same time.

    async def shared(self, value: Provided, *, is_async: bool) -> Any:
        """A value for handlers of this kind. A `def` handler's thread blocks where an `async def` handler waits."""
        found: Any = _AGAIN
        while found is _AGAIN:
            making, is_maker = self._claimed(value)
            if is_maker:
                make = self._live(value, making, is_async=is_async)
                if is_async:
                    # In a task of its own: the job that needs it first may be cancelled, and what is entered and left in one task may
                    # use anyio's scopes. Not by `context=`, which a task factory of the application's need not take.
                    task = self._context.copy().run(asyncio.get_running_loop().create_task, make)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._context.copy().run(run_now, make)
            found = await asyncio.wrap_future(making) if is_async and not making.done() else making.result()
        return found

    def _claimed(self, value: Provided) -> tuple[Future[Any], bool]:
        """A future for the value, and whether the caller must make the value."""
        with self._lock:
            if (known := self._made_or_making.get(value)) is not None:
                return known, False
            if self._over:
                raise JobStopped(f"the worker leaves, and calls {value.name} no more")
            self._made_or_making[value] = making = Future[Any]()
            making.set_running_or_notify_cancel()  # a task that waits cannot cancel it for the others
            return making, True

    async def _live(self, value: Provided, making: Future[Any], *, is_async: bool) -> None:
        """Make and share a value. For `async def` handlers, also wait and close the value at the end."""
        over, task = (asyncio.Event(), asyncio.current_task()) if is_async else (None, None)

        async def close(apart: Apart) -> None:
            if over is None or task is None:
                await apart(lambda: run_now(_exit(value, manager, None)))
                return
            over.set()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        try:
            given = {name: await self.shared(needed, is_async=is_async) for name, needed in value.takes}
            shared, manager = await _entered(value, given)
        except BaseException as error:
            self._failed(value, making, error)
            if not isinstance(error, Exception):
                raise
            return
        is_kept = self._succeeded(value, making, shared, None if manager is None else close)
        if manager is None or (is_kept and over is None):
            return
        try:
            if is_kept and over is not None:
                await over.wait()
        except BaseException as error:  # the loop ends, or code that the provider started cancels this task
            self._forget(value)
            await _exit(value, manager, error)
            raise
        await _exit(value, manager, None)

    def _succeeded(
        self, value: Provided, making: Future[Any], shared: Any, close: Callable[[Apart], Awaitable[object]] | None
    ) -> bool:
        """Share the value. Returns False if the worker is leaving: then the caller closes the value."""
        with self._lock:
            if is_kept := not self._over:
                if close is not None:
                    self._closers.append((value, close))
            else:
                self._made_or_making.pop(value, None)
        making.set_result(shared if is_kept else _AGAIN)
        return is_kept

    def _failed(self, value: Provided, making: Future[Any], error: BaseException) -> None:
        """Pass the failure to the waiting handlers. The next job that needs the value tries again. If the maker was only stopped, the waiting handlers try again."""
        self._forget(value)
        if isinstance(error, Exception):
            making.set_exception(error)
        else:
            making.set_result(_AGAIN)

    def _forget(self, value: Provided) -> None:
        with self._lock:
            self._made_or_making.pop(value, None)
            self.ready.clear()


class Values:
    """The injected values of an attempt: `with` for a `def` handler, `async with` for an `async def` handler. The end of the block closes
    the values of the scope "attempt".
    """

    def __init__(self, life: Life, run: Run) -> None:
        self._life, self._run = life, run
        self._made: dict[Provided, Any] = {}
        self._managers: list[tuple[Provided, Any]] = []

    async def of(self, injected: Injected, context: object = None) -> dict[str, Any]:
        """The values by parameter. `context`: the handler's context, for providers that take it."""
        if (ready := self._life.ready.get(injected)) is not None:
            return ready
        values = {name: await self._value(value, context) for name, value in injected.values}
        self._life.note_ready(injected, values)
        return values

    async def _value(self, value: Provided, context: object) -> Any:
        if value.scope == "worker":
            return await self._life.shared(value, is_async=self._run.task.is_async)
        if value not in self._made:
            given = {name: await self._value(needed, context) for name, needed in value.takes}
            if value.context is not None:
                given[value.context] = context
            self._made[value], manager = await _entered(value, given)
            if manager is not None:
                self._managers.append((value, manager))
        return self._made[value]

    def __enter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run_now(self.__aexit__(kind, error, traceback))

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        left = error
        while self._managers:
            value, manager = self._managers.pop()
            try:
                await _exit(value, manager, left)
            except BaseException as failure:
                if failure is left:
                    continue
                if isinstance(failure, Exception):
                    _log_unclosed(value, failure, self._run)
                else:
                    left = failure  # only an exception that stops the handler replaces the handler's exception
        try:
            if left is not None and left is not error:
                raise left
        finally:
            del left, error  # with their tracebacks they would refer to themselves


async def _entered(value: Provided, given: dict[str, Any]) -> tuple[Any, Any]:
    """Call a provider. Returns the value, and the context manager that closes it, or None."""
    if value.manager is None:
        made = value.provider(**given)
        return (await made if value.awaits else made), None
    manager = value.manager(**given)
    return (await manager.__aenter__() if value.awaits else manager.__enter__()), manager


async def _exit(value: Provided, manager: Any, error: BaseException | None) -> None:
    given = (None, None, None) if error is None else (type(error), error, error.__traceback__)
    if value.awaits:
        await manager.__aexit__(*given)
    else:
        manager.__exit__(*given)


def _log_unclosed(value: Provided, error: BaseException, run: Run | None = None) -> None:
    job, fields = ("", {}) if run is None else (f"job {run.job.id}: ", run.job.fields)
    logger.error("%s%s could not close its value: %r", job, value.name, error, exc_info=error, extra=fields)


def _name(hook: Callable[[], Any]) -> str:
    return getattr(hook, "__qualname__", None) or repr(hook)


async def _called(hook: Callable[[], Any], apart: Apart) -> None:
    if inspect.iscoroutinefunction(hook):
        await hook()
    else:
        await apart(hook)
