"""Answers that are shared: among simultaneous viewers of a page, and among all pages of a process for some seconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from .request import PageContext

T = TypeVar("T")
#: The most answers that are kept.
_MOST = 100


class Shared(Generic[T]):
    """Answers by key, each kept for some seconds, and read once for simultaneous callers.

    An error goes to all callers that wait for the answer, and is not kept.
    """

    def __init__(self, *, keep: float = 1.0) -> None:
        self._keep = keep
        self._kept: dict[Hashable, tuple[float, asyncio.Future[T]]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """The answer for this key."""
        now, loop = monotonic(), asyncio.get_running_loop()
        kept = self._kept.get(key)
        if kept is not None:
            until, future = kept
            if future.get_loop() is loop and (not future.done() or (now < until and _is_well(future))):
                return await asyncio.shield(future)
        if len(self._kept) >= _MOST:
            self._forget(now)
        future = asyncio.ensure_future(read())
        # It reads the error of a query whose request has gone, so that asyncio does not log it.
        future.add_done_callback(_is_well)
        self._kept[key] = now + self._keep, future
        # A viewer that goes away does not end the reading for the others.
        answer = await asyncio.shield(future)
        # The answer's age counts from the end of the reading.
        if self._kept.get(key, (0.0, None))[1] is future:
            self._kept[key] = monotonic() + self._keep, future
        return answer

    def _forget(self, now: float) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done() or now < kept[0]}


def _is_well(future: asyncio.Future[T]) -> bool:
    return not future.cancelled() and future.exception() is None


# ---- Expensive answers that change slowly are kept for a whole process.

#: The most answers that are kept of an engine.
_MOST_KEPT = 200
#: How many times as old as it is kept an answer may be that a page shows while it is read again.
_STALE = 10


@dataclass(slots=True)
class _Place(Generic[T]):
    """An answer. The page that reads it again holds the `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    answer: list[T] = field(default_factory=list[T])


class Kept(Generic[T]):
    """Answers by engine and key, each kept for some seconds.

    While a page reads an answer again, other pages get the last answer, or read it as well if there is none. They must not wait:
    over an async engine all pages are read on one thread. An error goes to the page that reads, and is not kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._places: WeakKeyDictionary[Any, dict[Hashable, _Place[T]]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get_stale(self, context: PageContext, key: Hashable, read: Callable[[PageContext], T]) -> T:
        """The answer, even if it is up to `_STALE` times as old as answers are kept: the page reads it again once its viewer has the page."""
        place = self._place(context.connection, key)
        if place.answer and place.until <= monotonic() < place.until + (_STALE - 1) * self._seconds:
            context.later.append(
                lambda connection: self.get(connection, key, lambda: read(replace(context, connection=connection)))
            )
            return place.answer[0]
        return self.get(context.connection, key, lambda: read(context))

    def get(self, connection: sa.Connection, key: Hashable, read: Callable[[], T]) -> T:
        """The answer for the engine of this connection and this key."""
        place = self._place(connection, key)
        if place.answer and monotonic() < place.until:
            return place.answer[0]
        if not place.lock.acquire(blocking=False):
            return place.answer[0] if place.answer else read()
        try:
            place.answer = [read()]
            place.until = monotonic() + self._seconds
            return place.answer[0]
        finally:
            place.lock.release()

    def _place(self, connection: sa.Connection, key: Hashable) -> _Place[T]:
        with self._lock:
            places = self._places.setdefault(connection.engine, {})
            if len(places) >= _MOST_KEPT and key not in places:
                places.clear()
            return places.setdefault(key, _Place())
