"""What changes slowly and costs much is read once in a while for a whole process, whichever page asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa

__all__ = ["Kept"]

#: Answers that are kept of an engine at most.
_MOST = 200
T = TypeVar("T")


@dataclass(slots=True)
class _Place(Generic[T]):
    """One answer. `lock` is held by the one that reads it again."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    answer: list[T] = field(default_factory=list[T])


class Kept(Generic[T]):
    """Answers by engine and key, each kept for some seconds.

    While one look reads an answer again, the others get the last one; where there is none yet, they read it as well. They must not
    wait: over an async engine all looks are on one thread. An error goes to the one that reads, and is not kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._places: WeakKeyDictionary[Any, dict[Hashable, _Place[T]]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, connection: sa.Connection, key: Hashable, read: Callable[[], T]) -> T:
        """The answer for the engine of this connection and this key."""
        with self._lock:
            places = self._places.setdefault(connection.engine, {})
            if len(places) >= _MOST and key not in places:
                places.clear()
            place = places.setdefault(key, _Place())
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
