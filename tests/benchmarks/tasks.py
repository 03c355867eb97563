"""What the measured workers run."""

from __future__ import annotations

from sa_jobqueue import Registry, task

REGISTRY = Registry()


@task(registry=REGISTRY, name="nothing")
async def nothing(n: int) -> None:
    """Do nothing."""


@task(registry=REGISTRY, name="nothing_sync")
def nothing_sync(n: int) -> None:
    """Do nothing, on a thread."""


@task(registry=REGISTRY, name="nothing_deleted", retain=0)
async def nothing_deleted(n: int) -> None:
    """Do nothing, and leave no row."""
