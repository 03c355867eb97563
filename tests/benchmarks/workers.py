"""The worker under measurement, in a process of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sa_jobqueue import Worker, WorkerSettings
from sa_jobqueue.trials.bench.modes import connected, run_until_told

from .tasks import REGISTRY, STARTED

#: Slots of the one queue of a worker that is drained.
SLOTS = 100


def work(
    ready: Callable[[], Any],
    address: str,
    queues: dict[str, int],
    max_jobs: int | None = None,
    pin: bool = False,
    settings: WorkerSettings | None = None,
    beside: Callable[[Worker], None] | None = None,
) -> dict[str, int]:
    """Work until nothing is due, or `max_jobs` were claimed, as `sa-jobqueue work --drain` does. Returns what became of the jobs.

    `beside`: is called with the worker before it begins.
    """
    if pin:  # as `sa-jobqueue work --pin` does, before there are threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    worker = _connected(address, queues, max_jobs=max_jobs, settings=settings)
    if beside is not None:
        beside(worker)
    ready()
    worker.run(until_idle=True)
    return dict(worker.counts)


def serve(ready: Callable[[], Any], address: str, queues: dict[str, int]) -> dict[int, float]:
    """Work until told to stop. Returns what the handlers noted in `STARTED`."""
    run_until_told(_connected(address, queues), ready, now=True)
    return dict(STARTED)


def _connected(address: str, queues: dict[str, int], **options: Any) -> Worker:
    logging.getLogger("sa_jobqueue").setLevel(logging.ERROR)  # not even that max_jobs were claimed
    return connected(Worker(address, queues, registry=REGISTRY, **options))
