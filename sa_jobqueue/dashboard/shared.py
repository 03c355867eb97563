"""What many viewers ask for at once is read once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

__all__ = ["Shared"]

T = TypeVar("T")
#: Answers that are kept at most.
_MOST = 100


class Shared(Generic[T]):
    """Answers by key, each kept for some seconds; of several that ask for one at the same time, one reads it.

    An answer that is an error goes to all that wait for it, and is not kept.
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
        future.add_done_callback(_is_well)  # which also says that its error was seen, if all who waited have gone
        self._kept[key] = now + self._keep, future
        # One viewer that goes away ends nothing for the others.
        answer = await asyncio.shield(future)
        # It is as old as its end.
        if self._kept.get(key, (0.0, None))[1] is future:
            self._kept[key] = monotonic() + self._keep, future
        return answer

    def _forget(self, now: float) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done() or now < kept[0]}


def _is_well(future: asyncio.Future[T]) -> bool:
    return not future.cancelled() and future.exception() is None
