"""Asking why jobs are not run, and workers for it: real ones, or only their rows.

assert whats(engine, job) == ["paused", "turn"]
with serving(engine, url, registry): ...
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobExplanation, Registry, explain_job
from sa_jobqueue.models import WorkerRow
from tests.support.waiting import wait_until
from tests.support.working import working


def why(engine: Engine, id: int) -> JobExplanation:
    with Session(engine) as session:
        return explain_job(session, id)


def whats(engine: Engine, id: int) -> list[str]:
    return [one.what for one in why(engine, id)]


def a_worker(engine: Engine, *queues: str, **columns: Any) -> None:
    """The row of a worker that is alive: no process is behind it, so nothing happens meanwhile."""
    values = {"host": "web-1", "pid": 7, "concurrency": 4, "version": "1", **columns}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), queues=list(queues), **values))


@contextmanager
def serving(engine: Engine, url: str, registry: Registry, **options: Any) -> Iterator[None]:
    """A worker meanwhile, whose row is there."""
    with working(url, registry, **options):
        wait_until(lambda: skipped(engine))
        yield


def skipped(engine: Engine) -> list[Any]:
    """What each worker says of the jobs that it skips."""
    with engine.connect() as connection:
        return list(connection.scalars(select(WorkerRow.skipped)))
