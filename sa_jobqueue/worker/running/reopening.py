"""What a worker does when the database gives its handlers no connection; and the sessions and reports of runs.

Jobs whose session got no connection go back, no attempt spent; their queues pause, and nothing is claimed from them; a thread
tries until it can open a connection. A queue whose handlers open no session is never paused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from ...errors import SessionUnavailable
from ...rules.lifecycle import Event
from ...rules.retry import backoff
from ...sql.apply import Answer
from ...sql.store import Store, default_store
from ...sql.workflows.pruning import Input
from ...tasks.calls import AsyncSessionMaker, SessionMaker
from ...util.log import get_logger
from .attempt_end import InDoubt, MaybeWritten, RunEnding, ToWrite, Written
from .life import Life
from .run import Run, Runs
from .slots import Slots
from .steps import Checkpoints
from .transaction import HandlerTransaction
from .writer import OutcomeWriter

logger = get_logger(__name__)

#: Seconds before the first try; doubled after each failure, up to the second number.
_FIRST, _MOST = 0.25, 2.0
#: Seconds between two checks whether the worker ends, while the event loop tries.
_END_CHECK = 0.1
_ASK = "SELECT 1"


class Reopening:
    """The queues that wait for a connection. `loop` is that of async engines. `wake()` is called when jobs are wanted again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, all_slots: Mapping[str, Slots], wake: Callable[[], None]
    ) -> None:
        self._loop, self._all_slots, self._wake = loop, all_slots, wake
        self._waiting: dict[sa.Pool, set[str]] = {}
        """By pool, the queues that wait for a connection of it. For each pool in here a thread tries. Under the lock."""
        self._lock = threading.Lock()
        self._end = threading.Event()

    def pause(self, queue: str, engine: sa.Engine, why: str) -> None:
        """Pause a queue because no connection of `engine` could be had for one of its jobs. For any thread."""
        pool = engine.pool  # read once: the worker replaces it when a connection of its own breaks
        with self._lock:
            is_tried = pool in self._waiting
            queues, slots = self._waiting.setdefault(pool, set()), self._all_slots[queue]
            if slots.name in queues or self._end.is_set():
                return
            queues.add(slots.name)
            slots.pause()
        logger.warning(
            "no connection for ctx.session (%s): queue %r waits until one can be opened; its jobs go back, no attempt spent",
            why, slots.name,
        )  # fmt: skip
        if is_tried:
            return
        try:
            threading.Thread(
                target=self._try_again, args=(engine, pool), name="sa-jobqueue reopening", daemon=True
            ).start()
        except RuntimeError:  # the host allows no more threads: the next job tries
            self._resume(pool)

    def finish(self) -> None:
        """Stop trying."""
        self._end.set()

    def _try_again(self, engine: sa.Engine, pool: sa.Pool) -> None:
        failures = 1
        while not self._end.wait(backoff(failures, first=_FIRST, most=_MOST)):
            try:
                self._open(engine)
            except BaseException as error:  # anything that the application's listeners raise
                failures += 1
                logger.debug("still no connection for ctx.session: %r", error)
            else:
                self._resume(pool)
                return

    def _open(self, engine: sa.Engine) -> None:
        """Open a connection, or take one from the pool, and check that the server answers."""
        if not engine.dialect.is_async:
            with engine.connect() as connection:
                connection.exec_driver_sql(_ASK)
            return
        trying = asyncio.run_coroutine_threadsafe(_open_async(engine), self._loop)
        while not trying.done():
            if self._end.wait(_END_CHECK):
                trying.cancel()
        trying.result()

    def _resume(self, pool: sa.Pool) -> None:
        with self._lock:
            queues = self._waiting.pop(pool)
            for queue in queues.difference(*self._waiting.values()):
                self._all_slots[queue].resume()  # before it may be paused again
        self._wake()
        logger.info("there is a connection for ctx.session again: %s", ", ".join(map(repr, sorted(queues))))


async def _open_async(engine: sa.Engine) -> None:
    async with AsyncEngine(engine).connect() as connection:
        await connection.exec_driver_sql(_ASK)


# ---- Where the ending of a run goes: to the writer, or to the end of its claim.


class Reports:
    """Passes changes to `writer`; claims that need no change end in `runs`. `suspended()` is called when a job waits. For any thread."""

    def __init__(self, runs: Runs, writer: OutcomeWriter, suspended: Callable[[], None]) -> None:
        self._runs, self._writer, self._suspended = runs, writer, suspended

    def report(self, run: Run, ending: RunEnding) -> None:
        """Note the end of a run."""
        run.ended = monotonic()
        if type(ending) is ToWrite:  # nearly all
            self._writer.add(ending.change)
        elif isinstance(ending, InDoubt):
            self._writer.doubt([ending.committed])
            self._writer.add(ending.change)
        elif isinstance(ending, MaybeWritten):
            self._writer.ask(ending.change)
        elif isinstance(ending, Written):
            self._runs.end([ending.change], Answer.APPLIED)
            if ending.change.event is Event.SUSPEND:
                self._suspended()
        else:
            self._runs.drop(run)


# ---- Where handlers' sessions come from: the worker's engines, or the application's own sessionmakers.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes the session of a handler, together with the transaction that it joins."""

    engine: sa.Engine | None = None
    async_engine: AsyncEngine | None = None
    maker: SessionMaker | None = None
    async_maker: AsyncSessionMaker | None = None
    translate: Mapping[str | None, str | None] | None = None
    idle_timeout: float | None = None
    store: Store = default_store
    checkpoints: Checkpoints | None = None
    life: Life = field(default_factory=Life)
    """Makes the injected values of handlers."""

    def open(self) -> tuple[Session, HandlerTransaction]:
        """A session for a `def` handler, and its transaction."""
        session = Session(self.engine) if self.maker is None else _checked(self.maker(), Session)
        return session, self._transaction(session, self.engine)

    def open_async(self) -> tuple[AsyncSession, HandlerTransaction]:
        """A session for an `async def` handler, and its transaction; does no I/O."""
        maker = self.async_maker
        session = AsyncSession(expire_on_commit=False) if maker is None else _checked(maker(), AsyncSession)
        engine = None if self.async_engine is None else self.async_engine.sync_engine
        return session, self._transaction(session.sync_session, engine)

    def read_inputs(self, id: int, after: int, limit: int) -> list[Input]:
        """A page of the results that a member of a workflow takes, read in a transaction of its own."""
        if self.engine is None:
            raise SessionUnavailable("the results of other jobs are read by an Engine, and the worker has none")
        with self.engine.connect() as connection:
            translated = connection.execution_options(schema_translate_map=dict(self.translate or {}))
            return self.store.page_of_inputs(translated, id, after=after, limit=limit)

    def _transaction(self, session: Session, engine: sa.Engine | None) -> HandlerTransaction:
        database = None if self.engine is None else self.engine.url
        return HandlerTransaction(
            session,
            engine=engine,
            database=database,
            translate=self.translate,
            idle=self.idle_timeout,
            store=self.store,
        )


def _checked(made: T, wanted: type[T]) -> T:
    """Check the session that the application's sessionmaker made: the other kind would keep nothing, and report no error."""
    if not isinstance(made, wanted):
        raise SessionUnavailable(f"the application's sessionmaker made {made!r}; a {wanted.__name__} is expected")
    return made
