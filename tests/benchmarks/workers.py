"""The worker under measurement, in a process of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import text

from sa_jobqueue import Worker, WorkerSettings
from sa_jobqueue.worker.process.inside import tune_gc

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
    worker = _connected(address, queues)
    pipe = ready()

    def heed() -> None:
        with suppress(EOFError):
            pipe.recv()
        worker.stop(now=True)

    threading.Thread(target=heed, daemon=True).start()
    worker.run()
    return dict(STARTED)


def _connected(address: str, queues: dict[str, int], **options: Any) -> Worker:
    logging.getLogger("sa_jobqueue").setLevel(logging.ERROR)  # not even that max_jobs were claimed
    worker = Worker(address, queues, registry=REGISTRY, **options)
    with worker.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    tune_gc()  # as the command `work` does
    return worker
