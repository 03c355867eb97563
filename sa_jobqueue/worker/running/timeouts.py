"""The rules of a handler's timeout.

1. The executor notes when a run's timeout is over, and lets asyncio cancel an async handler then (`within`).
2. A handler that does not end by itself is late (`is_late`): one on a thread at once, because nothing can stop it; an async
   one after some seconds for its cleanup, or sooner where its loop is blocked, so that asyncio cannot cancel it.
3. Maintenance gives up the attempts of late handlers: each has failed, its slot is stuck until the handler comes back
   (`Slots.abandon`), and what the handler writes afterwards is refused.
4. A worker whose queue has only stuck slots, at two checks, is restarted (`StuckQueues`).
5. So is a worker whose event loop a handler goes on blocking although its attempt was given up (`Patience`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from math import inf, isinf
from time import monotonic
from typing import TypeVar

from ...errors import HandlerTimeout
from ...rules.lifecycle import seconds_left
from .run import Run
from .slots import Slots

T = TypeVar("T")

#: Seconds that a blocked event loop has to end an async handler by itself, before maintenance gives the attempt up.
_ASYNC_MARGIN = 2.0
#: Seconds that a cancelled async handler has for its cleanup where the loop answers, for example to close a client or wait for a
#: rollback. As long as a handler may go on blocking the loop.
_CLEANUP = 10.0
#: Seconds that a handler may go on blocking the event loop after its attempt was given up.
_PATIENCE = 10.0


def timeout_of(run: Run, started: float) -> float | None:
    """When a run that `started` then must end: by its task's timeout, or sooner by its job's deadline. None: never."""
    timeout = inf if run.task.timeout is None else started + run.task.timeout
    latest = min(run.claimed + seconds_left(run.job, "deadline", 0.0), timeout)
    return None if isinf(latest) else latest


def timed_out(run: Run) -> HandlerTimeout:
    """The exception that stands for a timeout."""
    allowed, left = run.task.timeout, seconds_left(run.job, "deadline", 0.0)
    if run.started is not None and (allowed is None or run.claimed + left < run.started + allowed):
        return HandlerTimeout(f"{run.task.name} was still running at the deadline of its job")
    return HandlerTimeout(f"{run.task.name} took longer than its timeout of {run.task.timeout:g} s")


async def within(seconds: float, run: Run, handler: Awaitable[T]) -> T:
    """Await an async handler for at most `seconds`. The handler's own TimeoutError passes through."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await handler
    except TimeoutError as error:
        if limit.expired():
            raise timed_out(run) from error
        raise


def is_late(run: Run, now: float, *, blocked: bool) -> bool:
    """Whether the run's attempt must be given up. `blocked`: the event loop does not answer."""
    if run.timeout_at is None:
        return False
    if not run.task.is_async:
        return run.timeout_at <= now
    if blocked:
        return run.timeout_at + _ASYNC_MARGIN <= now and run.runner is not None
    return run.timeout_at + _CLEANUP <= now


class Patience:
    """How long a handler may block the event loop after its attempt was given up. For the watchdog's thread."""

    _since: float | None = None

    def is_over(self, on_loop: Iterable[Run], blocking: Run | None) -> bool:
        """Whether a handler has blocked the loop for too long. `blocking`: its run; None: any of the runs in `on_loop` may block.

        A known run that was not given up is left alone: its job would begin again elsewhere and block that loop.
        """
        if not (blocking.abandoned if blocking is not None else any(run.abandoned for run in on_loop)):
            self._since = None
            return False
        if self._since is None:
            self._since = monotonic()
        return monotonic() - self._since >= _PATIENCE

    def renew(self) -> None:
        """Begin again, because the loop has answered."""
        self._since = None


class StuckQueues:
    """Finds queues whose slots are all held by handlers that timed out. For the event loop."""

    def __init__(self) -> None:
        self._before: set[str] = set()

    def check(self, all_slots: Iterable[Slots]) -> Slots | None:
        """The slots of a queue that were all stuck at the last check, too.

        When a blocked loop goes on, the handlers that were given up meanwhile go on, too, and end: one check is not enough.
        """
        stuck = {slots.name: slots for slots in all_slots if 0 < slots.limit <= slots.stuck}
        lasting = next((slots for name, slots in stuck.items() if name in self._before), None)
        self._before = set(stuck)
        return lasting
