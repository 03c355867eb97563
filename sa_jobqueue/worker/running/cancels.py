"""Cancels of the task that runs async handlers one after the other. Each handler's cancels must not reach the next one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from .run import Run

__all__ = ["is_foreign", "take_back"]


def is_foreign(error: BaseException, run: Run, runner: asyncio.Task[Any]) -> bool:
    """Whether the runner was cancelled, and not on behalf of this run."""
    return isinstance(error, asyncio.CancelledError) and not run.interrupted and runner.cancelling() > 0


async def take_back(runner: asyncio.Task[Any], run: Run) -> None:
    """Undo the cancels that the handler itself made of its task: they were this job's affair."""
    ours = 1 if run.interrupted else 0
    if runner.cancelling() <= ours:
        return
    while runner.cancelling() > ours:
        runner.uncancel()
    # Before Python 3.13 a cancel that was not raised yet still would be, in the middle of what comes next.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
