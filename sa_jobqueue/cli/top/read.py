"""What `top` shows, read from the database: at one time, without a change, and by indexes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, func, select

from sa_jobqueue.health import QueueSeen, WorkerSeen, WorkflowCounts, read_workflows, read_working
from sa_jobqueue.health.figures import Figures
from sa_jobqueue.models import Job
from sa_jobqueue.statements import list_schedules

from ..filters import READING, Filters, Status
from ..jobs import newest_jobs

__all__ = ["JobSeen", "Picture", "read_job", "read_picture"]

#: Bytes of arguments, a result or errors up to which they are read again and again.
SHOWN = 100_000
#: The columns of a job that are short.
_PLAIN = (
    Job.id, Job.task, Job.queue, Job.priority, Job.attempt, Job.max_attempts, Job.rescues, Job.worker, Job.created_at, Job.run_at,
    Job.claimed_at, Job.lease_expires_at, Job.cancel_requested_at, Job.finished_at, Job.purge_at,
)  # fmt: skip

# The statistics of a queue's table are often old, and a plan by them would read the whole table each second.
_SETTINGS = {
    "statement_timeout": "2s",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is shown besides single jobs."""

    now: datetime
    queues: Sequence[QueueSeen]
    tasks: Sequence[tuple[str, Figures]]
    workers: Sequence[WorkerSeen]
    lately: Figures
    running: int
    failed: int
    """How many failed jobs are kept, up to `CAP`."""
    failures: Sequence[Any]
    """The newest of them."""
    schedules: Sequence[Any] | None
    """None: they were not asked for."""
    workflows: WorkflowCounts | None = None
    """None: there are none."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as its row, in which a value that is too long is None; what its state is called; and the time."""

    job: Any
    reading: str
    now: datetime


def settle(connection: Connection) -> None:
    """Set what holds for the transaction of a read."""
    connection.execute(select(*(func.set_config(name, value, True) for name, value in _SETTINGS.items())))


def read_picture(connection: Connection, *, failures: int, schedules: bool = False) -> Picture:
    """Read a picture with at most this number of failed jobs. The connection is in a transaction that was begun for it."""
    settle(connection)
    found = read_working(connection)
    return Picture(
        found.now,
        found.queues,
        found.tasks,
        found.workers,
        found.lately,
        found.running,
        found.failed,
        newest_jobs(connection, Filters(status=[Status.FAILED]), failures),
        connection.execute(list_schedules()).mappings().all() if schedules else None,
        read_workflows(connection),
    )


def read_job(connection: Connection, id: int) -> JobSeen | None:
    """Read one job; None if it is not there."""
    settle(connection)
    short = (
        case((func.pg_column_size(value) <= SHOWN, value)).label(value.key)
        for value in (Job.args, Job.meta, Job.result, Job.errors)
    )
    query = select(*_PLAIN, *short, READING.label("reading"), func.now().label("now")).where(Job.id == id)
    row = connection.execute(query).one_or_none()
    return None if row is None else JobSeen(row, row.reading, row.now)
