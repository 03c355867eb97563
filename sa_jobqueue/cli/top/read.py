"""What `top` shows, read from the database: at one time, without a change, and by indexes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...health import one_job
from ...health.one_job import JobSeen
from ...health.read import Figures
from ...health.work import QueueSeen, WorkerSeen, WorkflowCounts, read_workflows, read_working
from ...sql.chosen import Status
from ...statements import list_schedules
from ..filters import Filters
from ..jobs import newest_jobs

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


def settle(connection: sa.Connection) -> None:
    """Set what holds for the transaction of a read."""
    connection.execute(sa.select(*(sa.func.set_config(name, value, True) for name, value in _SETTINGS.items())))


def read_picture(connection: sa.Connection, *, failures: int, schedules: bool = False) -> Picture:
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


def read_job(connection: sa.Connection, id: int) -> JobSeen | None:
    """Read one job; None if it is not there."""
    settle(connection)
    return one_job.read_job(connection, id)
