"""Jobs in the archive: each was a job in its table, and was moved as a worker does it. For tests with a database of their own.

id = archived_job(engine, "failed", queue="mail")
move(connection, id)  # a job that is there
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, func, select, update

from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.sql.archive import make_months_of
from sa_jobqueue.sql.store import store_of
from tests.support.factory import make_job

__all__ = ["ERROR", "archived_job", "move"]

#: How a job that failed did so.
ERROR = {
    "at": "2026-01-02T03:04:05+00:00",
    "attempt": 1,
    "type": "shop.Down",
    "message": "no answer",
    "traceback": "File x",
}


def archived_job(engine: Engine, status: str = "completed", **columns: Any) -> int:
    """Make a job, and move it."""
    with engine.begin() as connection:
        id = make_job(connection, status, **columns)
        move(connection, id)
    return id


def move(connection: Connection, *ids: int, job: type[JobMixin] = Job) -> None:
    """Move these jobs, which have ended."""
    store, of_these = store_of(job), job.id.in_(ids)
    names = connection.scalars(select(job.task).where(of_these).distinct()).all()
    store.declare_archived(connection, names, [])
    connection.execute(make_months_of(select(job.id).where(of_these), job=job))
    connection.execute(update(job).where(of_these).values(purge_at=func.now() - timedelta(seconds=1)))
    assert store.prune(connection, archive=True).jobs == len(ids)
