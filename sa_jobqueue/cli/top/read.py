"""What `top` shows, read from the database: at one time, without a change, and by indexes only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select

from sa_jobqueue.health import WorkflowCounts, one_job, read_workflows
from sa_jobqueue.health.one_job import SHOWN, JobSeen
from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.statements import list_schedules, sum_stats
from sa_jobqueue.statements.backlog import count_by_queue, running_jobs
from sa_jobqueue.statements.depths import queue_depths
from sa_jobqueue.statements.limit_use import limits_said
from sa_jobqueue.statements.overview import STALE

from ..figures import Figures
from ..filters import Filters, Status
from ..jobs import newest_jobs

__all__ = ["LATELY", "SHOWN", "JobSeen", "Picture", "QueueSeen", "WorkerSeen", "read_job", "read_picture"]

#: Rates and times are of what jobs came to within this time.
LATELY = timedelta(minutes=5)
#: Queues that are read.
QUEUES = 200

# The statistics of a queue's table are often old, and a plan by them would read the whole table each second.
_SETTINGS = {
    "statement_timeout": "2s",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue: numbers up to `CAP`, ages in seconds."""

    name: str
    queued: int
    due: int
    oldest: float | None
    running: int
    served: int
    """By how many workers that are not stale."""
    lately: Figures
    limit: int | None = None
    """How many of its jobs may run at once."""
    paused: float | None = None
    """For how many seconds it is paused; None: it is not."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker process."""

    name: str
    queues: Sequence[str]
    running: int
    slots: int
    memory: int | None
    loop_lag: float | None
    unseen: float
    stale: bool
    pressure: str | None


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


def settle(connection: Connection) -> None:
    """Set what holds for the transaction of a read."""
    connection.execute(select(*(func.set_config(name, value, True) for name, value in _SETTINGS.items())))


def read_picture(connection: Connection, *, failures: int, schedules: bool = False) -> Picture:
    """Read a picture with at most this number of failed jobs. The connection is in a transaction that was begun for it."""
    settle(connection)
    now, since = connection.execute(select(func.now(), func.date_trunc("minute", func.now() - LATELY))).one()
    sums = connection.execute(sum_stats(since=LATELY, by=("queue", "task"))).all()
    held = connection.execute(running_jobs()).all()
    workers = _workers(connection, held)
    seconds = (now - since).total_seconds()
    return Picture(
        now,
        _queues(connection, workers, held, sums, seconds),
        _tasks(sums, seconds),
        workers,
        Figures.of(sums, seconds),
        sum(row.running for row in held),
        sum(row.number for row in connection.execute(count_by_queue(JobStatus.FAILED))),
        newest_jobs(connection, Filters(status=[Status.FAILED]), failures),
        connection.execute(list_schedules()).mappings().all() if schedules else None,
        read_workflows(connection),
    )


def read_job(connection: Connection, id: int) -> JobSeen | None:
    """Read one job; None if it is not there."""
    settle(connection)
    return one_job.read_job(connection, id)


def _queues(
    connection: Connection, workers: Sequence[WorkerSeen], held: Sequence[Any], sums: Sequence[Any], seconds: float
) -> list[QueueSeen]:
    """Those with jobs, those that workers serve, those that are paused, and those of the last minutes; the one with the most due jobs first."""
    limits = {row.name: row for row in connection.execute(limits_said()) if row.owner == "queue"}
    paused = {name for name, row in limits.items() if row.paused is not None}
    deep = {row.queue: row for row in connection.execute(queue_depths(queues=QUEUES))}
    running: dict[str, int] = defaultdict(int)
    for row in held:
        running[row.queue] += row.running
    counted: dict[str, list[Any]] = defaultdict(list)
    for row in sums:
        counted[row.queue].append(row)
    served: dict[str, int] = defaultdict(int)
    for worker in workers:
        for name in worker.queues:
            served[name] += not worker.stale
    found: list[QueueSeen] = []
    for name in {*deep, *running, *counted, *served, *paused}:
        row = deep.get(name)
        queued, due, oldest = (0, 0, None) if row is None else (row.queued, row.due, row.oldest_due_age)
        lately = Figures.of(counted[name], seconds)
        said = limits.get(name)
        limit, since = (None, None) if said is None else (said.running, said.paused)
        found.append(QueueSeen(name, queued, due, oldest, running[name], served[name], lately, limit, since))
    return sorted(found, key=lambda one: (-one.due, one.name))


def _tasks(sums: Sequence[Any], seconds: float) -> list[tuple[str, Figures]]:
    """The tasks of the last minutes, the most frequent first."""
    counted: dict[str, list[Any]] = defaultdict(list)
    for row in sums:
        counted[row.task].append(row)
    found = [(name, Figures.of(rows, seconds)) for name, rows in counted.items()]
    return sorted(found, key=lambda one: (-sum(one[1].counts.values()), one[0]))


def _workers(connection: Connection, held: Sequence[Any]) -> list[WorkerSeen]:
    """The workers that have not left; the stale ones first, because they need a look."""
    running: dict[str, int] = defaultdict(int)
    expired: dict[str, int] = defaultdict(int)
    for row in held:
        running[row.worker] += row.running
        expired[row.worker] += row.expired
    rows = connection.execute(
        select(
            WorkerRow.id, WorkerRow.host, WorkerRow.pid, WorkerRow.queues, WorkerRow.concurrency, WorkerRow.memory,
            WorkerRow.loop_lag, WorkerRow.pressure, func.extract("epoch", func.now() - WorkerRow.seen_at).label("unseen"),
        )
    )  # fmt: skip
    found = [
        WorkerSeen(
            f"{row.host}:{row.pid}", row.queues, running[str(row.id)], row.concurrency, row.memory, row.loop_lag,
            float(row.unseen), row.unseen > STALE or expired[str(row.id)] > 0, row.pressure,
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not one.stale, one.name))
