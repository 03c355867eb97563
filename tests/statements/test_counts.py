"""Counting jobs by queue."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from sa_jobqueue.models import Job
from sa_jobqueue.statements import count_jobs
from tests.support.factory import make_job, make_jobs

HOUR = timedelta(hours=1)


def test_each_queue_is_counted_by_what_its_jobs_do(connection: Connection) -> None:
    """Queues by name; what ended long ago is left out."""
    make_jobs(connection, 2, queue="b")
    make_job(connection, queue="b", run_at=-2 * HOUR)
    make_job(connection, queue="b", run_at=HOUR)
    make_job(connection, "running", queue="b")
    make_job(connection, "blocked", queue="a")
    for status in ("completed", "failed", "failed", "cancelled"):
        make_job(connection, status, queue="a")
        make_job(connection, status, queue="a", finished_at=-2 * HOUR)

    a, b = connection.execute(count_jobs()).mappings()

    assert dict(a) == {
        "queue": "a", "queued": 0, "due": 0, "oldest_due_age": None, "blocked": 1, "running": 0,
        "completed": 1, "failed": 2, "cancelled": 1,
    }  # fmt: skip
    assert dict(b) == {
        "queue": "b", "queued": 4, "due": 3, "oldest_due_age": 7_200.0, "blocked": 0, "running": 1,
        "completed": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip


def test_criteria_and_the_time_looked_back_narrow_it(connection: Connection) -> None:
    """As in a select; an empty table has no queues."""
    assert connection.execute(count_jobs()).all() == []
    make_job(connection, "completed", queue="a", finished_at=-2 * HOUR)
    make_job(connection, "completed", queue="b")

    (found,) = connection.execute(count_jobs(Job.queue == "a", lately=3 * 3_600)).all()

    assert (found.queue, found.completed) == ("a", 1)
