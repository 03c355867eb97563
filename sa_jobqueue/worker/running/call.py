"""A call of a handler: its arguments, its context, and its session if it opens a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...arguments.context import AsyncJobContext, ClaimedJob, JobContext, Notes
from ...arguments.inputs import Inputs, Part
from ...arguments.loading import filled, load
from ...arguments.references import references
from ...errors import JobStopped, MiddlewareError, SessionUnavailable
from ...rules.job_fields import CHANGE_DEPTH
from ...rules.lifecycle import JobStatus, extra
from ...rules.outcomes import Discard, Outcome
from ...sql.workflows.pruning import Input
from ...tasks.middleware import Middleware, change_depth, installed, layers_around
from ...tasks.upcasts import version_of
from ...util.log import get_logger
from .attempt_end import Lost
from .gathering import Member
from .life import Values, run_now
from .reopening import Sessions
from .run import Run
from .steps import Steps
from .transaction import HandlerTransaction
from .verdict import of_value

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


class Inside:
    """`with Inside(layers, run) as inside: inside.enter(); ...` runs a handler inside these layers. Where an exception is suppressed, the code behind
    the block is next.
    """

    # One block with a loop, because nested `with` statements took 0.5 µs longer for each layer (Python 3.11, November 2026).
    __slots__ = ("_exits", "_layers", "_run")

    def __init__(self, layers: Sequence[Middleware], run: Run) -> None:
        self._layers, self._run = layers, run
        self._exits: list[_Exit] = []

    def __enter__(self) -> Self:
        return self

    def enter(self) -> None:
        """Enter the context managers of the layers. Raises JobStopped if the run was given up meanwhile: then nothing is entered."""
        attempt = self._run.begin_attempt()
        if self._run.settled:  # checked only now: a thread that gives the run up later finds the callbacks
            raise JobStopped(f"job {self._run.job.id} was given up before its handler was called")
        for layer in self._layers:
            manager: Any = layer.around(attempt)
            try:
                enter, leave = manager.__enter__, manager.__exit__
            except AttributeError:
                raise MiddlewareError(
                    f"{type(layer).__qualname__}.around() returned {manager!r}; it must return a context manager, with "
                    "__enter__ and __exit__: is @contextmanager missing, or is it an async one?"
                ) from None
            try:
                enter()
            except RuntimeError as error:
                raise _refused(layer, error)  # noqa: B904  # mostly it is the same exception
            self._exits.append(leave)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Leave the layers that were entered, the innermost first. Raises what is left of the exception, unless a layer suppresses it."""
        left, exits = error, self._exits
        while exits:
            leave = exits.pop()
            try:
                if left is None:
                    leave(None, None, None)
                # Exceptions that stop a handler are not suppressed: otherwise a stopped job would complete.
                elif leave(type(left), left, left.__traceback__) and isinstance(left, Exception):
                    left = None
            except BaseException as failure:
                left = failure if failure is left else _refused(self._layers[len(exits)], failure)
        try:
            if left is not None and left is not error:
                raise left
            return left is None
        finally:
            del left, error  # with their traceback they would refer to themselves


def call_inside(
    layers: Sequence[Middleware], run: Run, handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a `def` handler inside these layers."""
    with Inside(layers, run) as inside:
        inside.enter()
        return handler(*args, **kwargs)


async def call_async_inside(
    layers: Sequence[Middleware], run: Run, handler: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call an `async def` handler inside these layers."""
    with Inside(layers, run) as inside:
        inside.enter()
        return await handler(*args, **kwargs)


def _refused(layer: Middleware, error: BaseException) -> BaseException:
    """The exception for an error of the layer itself."""
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


async def in_session(session: Session | AsyncSession, work: Callable[..., object], *args: Any) -> None:
    """Call `work(session, *args)`, inside the `AsyncSession` if it is one."""
    if isinstance(session, AsyncSession):
        await session.run_sync(work, *args)
    else:
        work(session, *args)


def _note_changes(session: Session) -> None:
    """Set the job's change depth on the session, because the last flush comes after the handler."""
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
        if task.context is not None:
            args = (self._context(), *args)
        handler: Callable[..., Any] = task.handler
        if task.is_filled:
            injected = None if task.takes_objects else task.injected
            ready = None if injected is None else self._sessions.life.ready.get(injected)
            if ready is None:
                handler = self._call_filled_async if task.is_async else self._call_filled
            else:
                kwargs.update(ready)
        if installed.around or CHANGE_DEPTH in (run.job.meta or ""):
            call = call_async_inside if task.is_async else call_inside
            return call(layers_around((run.job,)), run, handler, *args, **kwargs)
        return handler(*args, **kwargs)

    def _context(self) -> JobContext | AsyncJobContext:
        run, lines = self.run, self.run.task.keep_logs
        if run.task.is_async:
            return AsyncJobContext(run.job, self._open_async, run.notice_stop, self._notes, lines, self._open_steps)
        return JobContext(run.job, self._open, run.notice_stop, self._notes, lines, self._open_steps)

    def _call_filled(self, *args: Any, **kwargs: Any) -> Any:
        with Values(self._sessions.life, self.run) as values:
            filled_in = run_now(self._filled(values, args, kwargs))
            return None if filled_in is None else self.run.task.handler(*filled_in[0], **filled_in[1])

    async def _call_filled_async(self, *args: Any, **kwargs: Any) -> Any:
        async with Values(self._sessions.life, self.run) as values:
            filled_in = await self._filled(values, args, kwargs)
            return None if filled_in is None else await self.run.task.handler(*filled_in[0], **filled_in[1])

    async def _filled(
        self, values: Values, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The handler's arguments, with injected values and loaded objects. None if the handler must not be called.

        For a `def` handler, the coroutine never waits.
        """
        task = self.run.task
        context = self._context() if task.context is None else args[0]
        if (injected := task.injected) is not None:
            kwargs |= await values.of(injected, context)
        if task.takes_objects:
            self.run.undecoded = True
            if wanted := list(references((args, kwargs))):
                await in_session(context.session, load, wanted)
                args, kwargs = filled(args), filled(kwargs)
            self.run.undecoded = False
        return args, kwargs

    # ---- What a batch has for each of its jobs: see `BatchCall`.

    def outcomes(self, value: Any) -> Sequence[Outcome | Lost]:
        """The outcomes of these runs, of what the handler has returned. Raises TypeError for what no handler may return."""
        return (of_value(self.run, value),)

    def error_of(self, run: Run) -> BaseException | None:
        """The exception that the handler has given a job, instead of raising it."""

    def take_failures(self) -> Sequence[tuple[Run, BaseException]]:
        """The jobs that are not in the call because their arguments do not fit or an object is missing, and why; the second time none."""
        return ()

    def parts(self, error: BaseException) -> Sequence[list[Member]]:
        """The runs in the batches that are next after the handler has raised `error`; none: it is the error of each job."""
        return ()

    def tell(self, outcome: str, error: BaseException | None) -> None:
        """End the attempt of the call, apart from those of its jobs."""

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
