"""Running the jobs that are due, where the test is."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..errors import JobQueueError
from ..models import JobMixin
from ..rules.outcomes import HandlerOutcome
from ..tasks.registry import Registry, default_registry
from ..worker.running.effects import Comparison, Effects
from ..worker.running.joined import On
from ..worker.running.life import Apart, Life, at_once, run_now
from ..worker.running.run import Run
from .clock import do_chores
from .explain import explain_in
from .inline import Drained, Inline, Ran
from .replay import Replay, Twice
from .transaction import AsyncSide, Side, SyncSide, own_session, see_again

T = TypeVar("T")

_CRASHED = "crashed"


@overload
def drain(
    session: SyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
    most: int = 1_000,
    job: type[JobMixin] | None = None,
) -> Drained: ...
@overload
def drain(
    session: AsyncSide,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
    most: int = 1_000,
    job: type[JobMixin] | None = None,
) -> Coroutine[Any, Any, Drained]: ...
def drain(
    session: Side,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
    most: int = 1_000,
    job: type[JobMixin] | None = None,
) -> Any:
    """Run the due jobs in turn, in the session's own transaction, until no job is due. Returns the jobs that ran.

    `session`: with an `AsyncSession`, await the call. The session is flushed before, and its objects show the writes of the jobs
    afterwards. Nothing is committed: where a worker would commit there is a savepoint, and the writes of a failed handler are
    rolled back to it. So a rollback of the session undoes all writes.

    Handlers get a session of their own, as in production, on the session's connection. Both kinds of handlers run with both kinds of
    session. Schedules that are due enqueue their jobs first, and jobs whose lease has run out are rescued.

    A job that waits is suspended (`Ran.waits_for`). It goes on in this drain if its signal was sent, or the jobs that it waits for have ended.

    `queues`: the queues whose jobs run; None: all queues. `registry`: the tasks. `raise_errors`: raise the exception of a handler after its
    outcome is written; False: only apply the retry policy, and list it in `Drained.errors`. `most`: the most jobs, because a job that enqueues itself would go on forever.
    `job`: the class of the jobs, if it is not the registry's.

    Raises TaskError for a job whose task the registry does not know, JobQueueError if more than `most` jobs are due.
    """
    own, work = own_session(session), _Work(registry, queues, job or registry.job, raise_errors=raise_errors, most=most)
    return _done(own, work.all)


@overload
def work_one(
    session: SyncSide,
    job: JobMixin | int | None = None,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
) -> Ran: ...
@overload
def work_one(
    session: AsyncSide,
    job: JobMixin | int | None = None,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
) -> Coroutine[Any, Any, Ran]: ...
def work_one(
    session: Side,
    job: JobMixin | int | None = None,
    *,
    queues: Collection[str] | None = None,
    registry: Registry = default_registry,
    raise_errors: bool = True,
) -> Any:
    """As `drain`, but run a single job: the job that is due first, or `job`, itself or its id. Limits do not hold `job` back.

    Raises AssertionError, which says why, if there is none to run.
    """
    of = registry.job if job is None or isinstance(job, int) else type(job)
    own, work = own_session(session), _Work(registry, queues, of, raise_errors=raise_errors)
    return _done(own, partial(work.one, job))


@overload
def check_replay(
    session: SyncSide, job: JobMixin | int, *, harmless: Collection[str] = (), registry: Registry = default_registry
) -> Replay: ...
@overload
def check_replay(
    session: AsyncSide, job: JobMixin | int, *, harmless: Collection[str] = (), registry: Registry = default_registry
) -> Coroutine[Any, Any, Replay]: ...
def check_replay(
    session: Side, job: JobMixin | int, *, harmless: Collection[str] = (), registry: Registry = default_registry
) -> Any:
    """Run the handler of a job twice, and list the calls outside steps that the second run repeated.

    Use it as `assert not check_replay(session, job).repeated`. The first run ends as if its worker had been killed right before its outcome or its
    first wait. The second run counts as the run of the job, and the result is that of `work_one`. To check the code after a wait, call it again when
    the wait is over.

    It sees calls in the handler's own code: of functions written in Python, mocks, `open`, the functions of `os`, and `begin()`
    and `commit()` of SQLAlchemy's sessions and engines. It also sees steps that the second run calls again, because their names or arguments differ
    between the runs. It does not see calls that those functions make, other functions written in C, coroutines that a task runs
    (`asyncio.gather`), or a decorator of the handler. It leaves out calls of the context, the creation of objects, and functions of
    modules without outside effects, such as `json`, `logging` and `pydantic`.

    `harmless`: beginnings of the names of functions or modules that may be repeated, such as "shop.addresses.".

    Raises the exception of the handler, and AssertionError if the job is not due.
    """
    of = registry.job if isinstance(job, int) else type(job)
    own, kind = own_session(session), partial(Twice, harmless=harmless)
    work = _Work(registry, None, of, raise_errors=True, kind=kind)
    return _done(own, partial(work.one, job))


@dataclass(frozen=True, slots=True)
class _Place:
    """The session of a test. `on`: runs a function that uses its connection. `is_async`: whether it belongs to an `AsyncSession`."""

    session: Session
    on: On
    is_async: bool

    async def wait(self, life: Life, make: Callable[[Apart], Coroutine[Any, Any, None]]) -> None:
        """Begin or end a life: in the test's event loop, or in a loop of its own."""
        if self.is_async:
            await make(at_once)
        elif not life.is_empty:
            _waited(lambda: make(at_once))


def _done(
    session: Session | AsyncSession, work: Callable[[_Place], Coroutine[Any, Any, T]]
) -> T | Coroutine[Any, Any, T]:
    """The result of `work`, or its coroutine for an `AsyncSession`."""
    if isinstance(session, AsyncSession):
        run_sync = session.run_sync
        return work(_Place(session.sync_session, lambda act: run_sync(lambda _: act()), is_async=True))
    return run_now(work(_Place(session, at_once, is_async=False)))


@dataclass(slots=True)
class _Work:
    """The work of a call."""

    registry: Registry
    queues: Collection[str] | None
    job: type[JobMixin]
    raise_errors: bool = field(kw_only=True)
    most: int = field(kw_only=True, default=1)
    kind: Callable[..., Inline] = field(kw_only=True, default=Inline)

    async def all(self, place: _Place) -> Drained:
        ran = list[Ran]()
        async with self._at_work(place) as inline:
            while (run := await place.on(inline.next)) is not None:
                for ended in await _run(inline, run, place):
                    ran.append(self._checked(ended, ran))
                if ran[-1].outcome == _CRASHED:
                    break
        return cast(Drained, await place.on(lambda: self._drained(place.session, ran)))

    async def one(self, job: JobMixin | int | None, place: _Place) -> Ran:
        async with self._at_work(place) as inline:
            run = await place.on(lambda: self._only(place.session, inline, job))
            return self._checked((await _run(inline, run, place, alone=True))[0], [])

    @asynccontextmanager
    async def _at_work(self, place: _Place) -> AsyncGenerator[Inline]:
        inline: Inline = await place.on(lambda: self._begin(place.session))
        try:
            await place.wait(inline.life, inline.life.begin)
            yield inline
        finally:
            await place.wait(inline.life, inline.life.end)
            await place.on(lambda: see_again(place.session, at_once=place.is_async))

    def _begin(self, session: Session) -> Inline:
        inline = self.kind(session, registry=self.registry, queues=self.queues, job=self.job)
        do_chores(session, registry=self.registry, job=self.job)
        return inline

    def _only(self, session: Session, inline: Inline, job: JobMixin | int | None) -> Run:
        run = inline.next() if job is None else inline.this(job if isinstance(job, int) else job.id)
        if run is None:
            raise AssertionError(f"nothing was run: {self._why(session)}")
        return run

    def _checked(self, ran: Ran, before: list[Ran]) -> Ran:
        error = ran.error
        if self.raise_errors and error is not None and not isinstance(error, HandlerOutcome):
            error.add_note(
                f"From {ran}. With raise_errors=False it is left to the task's retry policy, as a worker would."
            )
            raise error
        if len(before) >= self.most > 1:
            raise JobQueueError(
                f"{self.most:,} jobs have run, and others are due; the last was {ran}: does a job enqueue itself? most=... allows more"
            )
        return ran

    def _drained(self, session: Session, ran: list[Ran]) -> Drained:
        return Drained(ran, "" if ran else self._why(session))

    def _why(self, session: Session) -> str:
        return str(explain_in(session, queues=self.queues, registry=self.registry, job=self.job))


async def _run(inline: Inline, run: Run, place: _Place, *, alone: bool = False) -> list[Ran]:
    """Run a job, with others in its batch unless it is to run `alone`."""
    unit: Run = await place.on(lambda: inline.unit(run, alone=alone))
    if run.task.is_async and place.is_async:
        return await inline.run_async(unit, place.on)
    of_async = partial(inline.run_alone, unit, at_once)
    ran: list[Ran] = await place.on(lambda: _waited(of_async) if run.task.is_async else inline.run(unit))
    return ran


def _waited(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine, by an event loop of its own: in this thread or, if a loop runs there, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(make()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="sa-jobqueue drain")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]


# ---- What a block of a test writes, which the database then forgets.


@overload
def effects(session: SyncSide) -> AbstractContextManager[Effects]: ...
@overload
def effects(session: AsyncSide) -> AbstractAsyncContextManager[Effects]: ...
def effects(session: Side) -> Any:
    """Undo the writes of a block, and return them.

    `with effects(session) as rows:`, or `async with` for an `AsyncSession`. In the block `drain` or `work_one` run jobs, or the test calls a handler.

    It sees what the database saw: triggers, cascades and plain SQL as well, but no TRUNCATE. Of the queue's own tables, and of job tables of
    your own, it shows the jobs that were enqueued. Tables of up to 100,000 rows are compared.

    Raises JobQueueError if the session's transaction was ended in the block, or a table is larger.
    """
    own = own_session(session)
    return _async_effects(own) if isinstance(own, AsyncSession) else _effects(own)


@contextmanager
def _effects(session: Session) -> Generator[Effects]:
    comparison = Comparison(session)
    try:
        yield comparison.found
    except BaseException:
        comparison.undo()
        raise
    comparison.compare()


@asynccontextmanager
async def _async_effects(session: AsyncSession) -> AsyncGenerator[Effects]:
    comparison = await session.run_sync(Comparison)
    try:
        yield comparison.found
    except BaseException:
        await session.run_sync(lambda _: comparison.undo())
        raise
    await session.run_sync(lambda _: comparison.compare())
