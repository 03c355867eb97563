"""Waiting in tests: for a condition, with a deadline, never for a time.

wait_until(lambda: count(session) == 5)
job = wait_until(lambda: session.scalar(finished_job))       # what the predicate returns, once it is true
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds: far more than any condition takes on a busy machine. Only a failing test waits for so long."""


def wait_until(predicate: Callable[[], T], timeout: float = PATIENCE, message: str = "") -> T:
    """Call `predicate` until it returns something true, and return that. An AssertionError in it means: not yet."""
    failure: AssertionError | None = None
    for pause in _pauses(timeout):
        try:
            failure = None
            if value := predicate():
                return value
        except AssertionError as error:
            failure = error
        time.sleep(pause)
    raise failure or AssertionError(f"after {timeout} s still waiting for {message or predicate}")


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = PATIENCE, message: str = ""
) -> T:
    """As `wait_until`, in an event loop; the predicate may be a coroutine function."""
    failure: AssertionError | None = None
    for pause in _pauses(timeout):
        try:
            failure = None
            result = predicate()
            if value := (await result if isinstance(result, Awaitable) else result):
                return value
        except AssertionError as error:
            failure = error
        await asyncio.sleep(pause)
    raise failure or AssertionError(f"after {timeout} s still waiting for {message or predicate}")


def _pauses(timeout: float) -> Iterator[float]:
    """From 2 ms, growing to 200 ms, until the time is up; the last look comes at the deadline itself."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, 0.2)
    yield 0.0
