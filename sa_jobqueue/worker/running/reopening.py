"""What a worker does when the database gives its handlers no connection.

Jobs whose session got none go back, no attempt spent; their queues pause, and nothing is claimed from them; a thread tries to
open a connection until it gets one. A queue whose handlers open no session is never paused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from ...durations import backoff
from ...log import get_logger
from .slots import Slots

__all__ = ["Reopening"]

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
        """By pool, the queues that wait for a connection of it. Each pool in here has a thread that tries. Under the lock."""
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
        if not is_tried:
            self._start(engine, pool)

    def finish(self) -> None:
        """Stop trying."""
        self._end.set()

    def _start(self, engine: sa.Engine, pool: sa.Pool) -> None:
        arguments = engine, pool
        try:
            threading.Thread(target=self._try_again, args=arguments, name="sa-jobqueue reopening", daemon=True).start()
        except RuntimeError:  # the host allows no more threads: the next job tries
            self._resume(pool)

    def _try_again(self, engine: sa.Engine, pool: sa.Pool) -> None:
        failures = 1
        while not self._end.wait(backoff(failures, first=_FIRST, most=_MOST)):
            try:
                self._open(engine)
            except BaseException as error:  # whatever listeners of the application's raise
                failures += 1
                logger.debug("still no connection for ctx.session: %r", error)
            else:
                self._resume(pool)
                return

    def _open(self, engine: sa.Engine) -> None:
        """Open a connection, or take one of the pool's, and check that the server answers."""
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
