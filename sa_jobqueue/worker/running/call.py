"""A call of a handler: its arguments, its context, and its session if it opens a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from functools import cache, partial
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...arguments.context import AsyncJobContext, ClaimedJob, JobContext, Notes
from ...arguments.inputs import Inputs, Part
from ...arguments.loading import filled, load
from ...arguments.references import references
from ...errors import JobStopped, MiddlewareError, SessionUnavailable
from ...rules.job_fields import CHANGE_DEPTH
from ...rules.lifecycle import JobStatus, extra
from ...rules.outcomes import Discard
from ...sql.workflows.pruning import Input
from ...tasks.middleware import Middleware, change_depth, layers_around
from ...tasks.upcasts import version_of
from ...util.log import get_logger
from .reopening import Sessions
from .run import Run
from .steps import Steps
from .transaction import HandlerTransaction


def call_with_objects(
    run: Run, open_session: Callable[[], Session], handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a `def` handler with the objects its arguments refer to. `open_session`: for a handler without a context."""
    run.undecoded = True
    if wanted := list(references((args, kwargs))):
        load(_session(args, open_session), wanted)
        args, kwargs = filled(args), filled(kwargs)
    run.undecoded = False
    return handler(*args, **kwargs)


async def call_async_with_objects(
    run: Run, open_session: Callable[[], AsyncSession], handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Like `call_with_objects`, for an `async def` handler."""
    run.undecoded = True
    if wanted := list(references((args, kwargs))):
        await _session(args, open_session).run_sync(load, wanted)
        args, kwargs = filled(args), filled(kwargs)
    run.undecoded = False
    return await handler(*args, **kwargs)


def _session(args: tuple[Any, ...], open_session: Callable[[], Any]) -> Any:
    """The session of the handler's context, or a new session if it takes no context."""
    if args and isinstance(args[0], (JobContext, AsyncJobContext)):
        return args[0].session
    return open_session()


# ---- The results of other jobs that a member of a workflow takes: read along with the claims, or page by page while the job runs.

#: Results read at once, where a member takes many.
_PAGE = 1_000

#: Reads a page: (id of the job, position to begin after, number of results).
Read = Callable[[int, int, int], list[Input]]


class Taken(NamedTuple):
    """The results that a member takes. `parts`: None where they must still be read."""

    args: str
    number: int
    parts: list[Part] | None


def with_inputs(job: ClaimedJob, inputs: Sequence[Input] | None) -> ClaimedJob:
    """The job, with the results that it takes next to its arguments. None: they are read while the job runs."""
    parts = None if inputs is None else list(parts_of(inputs))
    return job._replace(args=json.dumps({"args": job.args, "parts": parts}))


def taken_by(job: ClaimedJob) -> Taken | None:
    """The results of other jobs that the job takes; None for nearly all jobs."""
    count = extra(job).get("inputs")
    if count is None:
        return None
    stored = json.loads(job.args or "")
    parts = stored["parts"]
    return Taken(stored["args"], count, None if parts is None else [Part(*part) for part in parts])


def parts_of(inputs: Sequence[Input]) -> Generator[Part]:
    """The parts that the handler gets: all that completed, and a `Failed` for each other job that it runs without."""
    for taken in inputs:
        if taken.status == JobStatus.COMPLETED or taken.policy in {"run", "cancel"}:
            yield Part(taken.parent_id, taken.status, taken.result, taken.error)


class Reader:
    """Reads the results that a member takes, page by page."""

    def __init__(self, job: ClaimedJob, inputs: Inputs, read: Read) -> None:
        self._id, self._inputs, self._read = job.id, inputs, read
        self._after = -1

    def _page(self) -> list[Any] | None:
        page = self._read(self._id, self._after, _PAGE)
        if not page:
            return None
        self._after = page[-1].position or 0
        return self._inputs.of_list(parts_of(page))

    def all(self) -> list[Any]:
        """All results. It waits for the database."""
        return list(self.stream())

    def stream(self) -> Generator[Any]:
        """Iterate over the results; one page of them is in memory."""
        while (page := self._page()) is not None:
            yield from page

    async def astream(self) -> AsyncGenerator[Any]:
        """Iterate over the results in an `async def` handler."""
        while (page := await asyncio.to_thread(self._page)) is not None:
            for result in page:
                yield result


def values_of(job: ClaimedJob, taken: Taken, inputs: Inputs, read: Read) -> list[Any] | Callable[[], list[Any]]:
    """The values for the handler's first parameters; where they must be read first, a function that does it."""
    if taken.parts is None:
        reader = Reader(job, inputs, read)
        if inputs.stream is not None:
            return [reader.astream() if inputs.stream else reader.stream()]
        return lambda: [reader.all()] if not inputs.count else inputs.each(parts_of(read(job.id, -1, inputs.count)))
    if inputs.count:
        return inputs.each(taken.parts)
    values = inputs.of_list(taken.parts)
    if inputs.stream is None:
        return [values]
    return [_as_async(values) if inputs.stream else iter(values)]


async def _as_async(values: list[Any]) -> AsyncGenerator[Any]:
    for value in values:
        yield value


# ---- The installed middleware around a handler's call.

#: How the messages of `contextlib` begin for a generator that does not yield exactly once.
_NOT_ONCE = "generator didn't "


#: `__exit__` of a context manager.
_Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], object]


# Loops, because nested `with` statements took 0.5 µs longer for each layer (Python 3.11, November 2026).
def call_inside(
    layers: Sequence[Middleware], run: Run, handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a `def` handler inside these layers. Raises JobStopped if the run was given up meanwhile: then nothing is entered."""
    exits: list[_Exit] = []
    in_handler = False
    try:
        _enter(layers, run, exits)
        in_handler = True
        value = handler(*args, **kwargs)
        in_handler = False
        while exits:
            exits.pop()(None, None, None)
    except BaseException as error:
        _unwind(layers, exits, error if in_handler else _refused(layers[len(exits)], error))
        return None
    return value


async def call_async_inside(
    layers: Sequence[Middleware], run: Run, handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Like `call_inside`, for an `async def` handler."""
    exits: list[_Exit] = []
    in_handler = False
    try:
        _enter(layers, run, exits)
        in_handler = True
        value = await handler(*args, **kwargs)
        in_handler = False
        while exits:
            exits.pop()(None, None, None)
    except BaseException as error:
        _unwind(layers, exits, error if in_handler else _refused(layers[len(exits)], error))
        return None
    return value


def _enter(layers: Sequence[Middleware], run: Run, exits: list[_Exit]) -> None:
    """Enter the context managers of the layers, and add their `__exit__` to `exits`."""
    attempt = run.begin_attempt()
    if run.settled:  # checked only now: a thread that gives it up later finds the callbacks
        raise JobStopped(f"job {run.job.id} was given up before its handler was called")
    for layer in layers:
        manager: Any = layer.around(attempt)
        try:
            enter, leave = manager.__enter__, manager.__exit__
        except AttributeError:
            raise MiddlewareError(
                f"{type(layer).__qualname__}.around() returned {manager!r}; it must return a context manager, with "
                "__enter__ and __exit__: is @contextmanager missing, or is it an async one?"
            ) from None
        enter()
        exits.append(leave)


def _unwind(layers: Sequence[Middleware], exits: list[_Exit], error: BaseException) -> None:
    """Leave the layers that were entered, the innermost first, with an exception. Raises what is left of it, unless a layer suppresses it."""
    left: BaseException | None = error
    while exits:
        leave = exits.pop()
        try:
            if left is None:
                leave(None, None, None)
            # What stops a handler is no Exception: if it were suppressed, the job that was broken off would complete.
            elif leave(type(left), left, left.__traceback__) and isinstance(left, Exception):
                left = None
        except BaseException as failure:
            left = failure if failure is left else _refused(layers[len(exits)], failure)
    try:
        if left is not None:
            raise left
    finally:
        del left, error  # with their traceback they would refer to themselves


def _refused(layer: Middleware, error: BaseException) -> BaseException:
    """The exception for what a layer has raised itself."""
    if not (isinstance(error, RuntimeError) and str(error).startswith(_NOT_ONCE)):
        return error
    refused = MiddlewareError(
        f"{type(layer).__qualname__}.around() must yield once, and end when an exception comes out of its yield: {error}"
    )
    refused.__cause__ = error
    return refused


logger = get_logger(__name__)

T = TypeVar("T")

#: If two threads open a job's session at once, both get the first thread's.
_opening = Lock()


def _note_changes(session: Session) -> None:
    """Tell the session, whose last flush comes after the handler, that a change has enqueued the job."""
    if depth := change_depth.get():
        session.info[CHANGE_DEPTH] = depth


class Call:
    """The call of a run's handler. The thread or task that runs the handler makes and ends it."""

    __slots__ = ("_ended", "_notes", "_sessions", "_settled", "async_session", "run", "steps", "transaction")

    def __init__(self, run: Run, sessions: Sessions, notes: Notes) -> None:
        self.run, self._sessions, self._notes = run, sessions, notes
        self.transaction: HandlerTransaction | None = None
        self.async_session: AsyncSession | None = None
        self.steps: Steps | None = None
        self._settled = self._ended = False

    def invoke(self) -> Any:
        """Call the handler. Returns its value, or, for an `async def` handler, its coroutine.

        The only place where a handler is called. Raises PayloadError if the stored arguments do not fit it.
        """
        run = self.run
        job, task = run.job, run.task
        if job.rescues and not task.rules.rescue:
            raise Discard("its worker died, and it may not run twice (rescue=False)")
        taken = None if job.extra is None else taken_by(job)
        text = (job.args or "") if taken is None else taken.args
        if job.extra is not None or task.version != 1:
            text = task.upcasts.current(text, version_of(extra(job)))
        if taken is None:
            args, kwargs = task.decode(text)
            return self._invoke(args, kwargs)
        args, kwargs = task.decode_after(taken.number, text)
        values = values_of(job, taken, task.inputs(taken.number), self._sessions.read_inputs)
        if not callable(values):
            return self._invoke((*values, *args), kwargs)
        if task.is_async:
            return self._read_and_await(values, args, kwargs)
        return self._invoke((*values(), *args), kwargs)

    # No function in `invoke`: its cells would cost each job 0.05 µs.
    async def _read_and_await(self, read: Callable[[], list[Any]], args: tuple[Any, ...], kwargs: Any) -> Any:
        return await self._invoke((*await asyncio.to_thread(read), *args), kwargs)

    def _invoke(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = self.run
        task = run.task
        run.undecoded = False
        handler: Callable[..., Any] = task.handler
        context = None if task.context is None else self._context()
        layers = layers_around((run.job,))
        if task.is_filled:
            handler = self._filled(handler, context, kwargs)
        if layers:
            call = call_async_inside if task.is_async else call_inside
            return call(layers, run, handler, args if context is None else (context, *args), kwargs)
        if context is None:
            return handler(*args, **kwargs)
        return handler(context, *args, **kwargs)

    def _context(self) -> JobContext | AsyncJobContext:
        run, lines = self.run, self.run.task.keep_logs
        if run.task.is_async:
            return AsyncJobContext(run.job, self._open_async, run.notice_stop, self._notes, lines, self._open_steps)
        return JobContext(run.job, self._open, run.notice_stop, self._notes, lines, self._open_steps)

    def _filled(
        self, handler: Callable[..., Any], context: JobContext | AsyncJobContext | None, kwargs: dict[str, Any]
    ) -> Callable[..., Any]:
        """`handler` with the objects that its arguments refer to, and with its injected values, as far as `kwargs` has not got them."""
        task, life = self.run.task, self._sessions.life
        if task.takes_objects:
            if task.is_async:
                handler = partial(call_async_with_objects, self.run, self._open_async, handler)
            else:
                handler = partial(call_with_objects, self.run, self._open, handler)
        if (injected := task.injected) is None:
            return handler
        if (ready := life.ready.get(injected)) is not None:
            kwargs.update(ready)
            return handler
        call = life.call_async if task.is_async else life.call
        only = cache(self._context if context is None else lambda: context)
        return partial(call, self.run, injected, only, handler)

    def settle(self) -> bool:
        """Whether this call decides the run's outcome: another thread may have given the run up."""
        self._settled = self._settled or self.run.settle()
        return self._settled

    def close(self, *, failed: bool = False) -> None:
        """Roll back what was not committed. `failed`: whether the attempt has failed."""
        self._ended = True
        if self.transaction is not None:
            try:
                self.transaction.close(failed=failed)
            except Exception:  # a connection that is broken has rolled back by itself
                logger.debug("a handler's session did not close", exc_info=True)

    async def in_greenlet(self, work: Callable[[], T]) -> T:
        """Run code for a `Session` inside the `AsyncSession`, if there is one."""
        if self.async_session is None:
            return work()
        return await self.async_session.run_sync(lambda _: work())

    def _open(self) -> Session:
        self._refuse_late()
        _, made = self._sessions.open()
        with _opening:
            self.transaction = transaction = self.transaction or made
        self._refuse_late()  # a thread that was left behind may open it just when the job ends
        _note_changes(transaction.session)
        return transaction.session

    def _open_async(self) -> AsyncSession:
        self._refuse_late()
        self.async_session, self.transaction = self._sessions.open_async()
        self._refuse_late()
        _note_changes(self.async_session.sync_session)
        return self.async_session

    def _open_steps(self) -> Steps:
        self._refuse_late()
        run, task, checkpoints = self.run, self.run.task, self._sessions.checkpoints
        with _opening:
            if self.steps is None and checkpoints is not None:
                self.steps = Steps(
                    run.job, checkpoints, self._sessions, lambda: run.renewed,
                    policy=task.steps, limit=task.registry.max_payload, callbacks=task.registry.callbacks,
                )  # fmt: skip
        if self.steps is None:
            raise SessionUnavailable("there are no steps here: nothing can record them")
        return self.steps

    def _refuse_late(self) -> None:
        """Raise after the end of the job: a session opened then would be neither committed nor closed."""
        if self._ended:
            self.close()
            raise SessionUnavailable("the job has ended: ctx.session cannot be opened any more")
