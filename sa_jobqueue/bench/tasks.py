"""What the measured workers run."""

from __future__ import annotations

import time

from sa_jobqueue.tasks import Registry, task

__all__ = ["REGISTRY", "STARTED", "note", "note_sync", "nothing", "nothing_sync"]

REGISTRY = Registry()

#: When each job began, by its number, on the monotonic clock that all processes of the machine share.
STARTED: dict[int, float] = {}


@task(registry=REGISTRY, name="bench.nothing")
async def nothing(n: int, payload: str) -> None:
    """Do nothing."""


@task(registry=REGISTRY, name="bench.nothing_sync")
def nothing_sync(n: int, payload: str) -> None:
    """Do nothing, on a thread."""


@task(registry=REGISTRY, name="bench.note")
async def note(n: int, payload: str) -> None:
    """Note when it began."""
    STARTED[n] = time.perf_counter()


@task(registry=REGISTRY, name="bench.note_sync")
def note_sync(n: int, payload: str) -> None:
    """Note when it began, on a thread."""
    STARTED[n] = time.perf_counter()
