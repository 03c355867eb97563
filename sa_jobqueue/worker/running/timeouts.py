"""A handler's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ...errors import HandlerTimeout
from .run import Run

__all__ = ["timed_out", "within"]

T = TypeVar("T")


def timed_out(run: Run) -> HandlerTimeout:
    """The exception that stands for a timeout."""
    return HandlerTimeout(f"{run.task.name} took longer than its timeout of {run.task.timeout:g} s")


async def within(seconds: float, run: Run, handler: Awaitable[T]) -> T:
    """Await an async handler for at most `seconds`. A TimeoutError of the handler's own is told apart."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await handler
    except TimeoutError as error:
        if limit.expired():
            raise timed_out(run) from error
        raise
