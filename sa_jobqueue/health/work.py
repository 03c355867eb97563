"""What the queues and the workers do just now: for `top` and for pages. Each part reads indexes, and stops counting at `CAP`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..statements.backlog import count_by_queue, running_jobs
from ..statements.depths import queue_depths
from ..statements.limit_use import limits_said
from ..statements.overview import STALE
from ..statements.stats import sum_stats
from ..statements.workers import EVERY_QUEUE, serves
from ..store import Store, default_store
from .figures import Figures

__all__ = ["LATELY", "QueueSeen", "WorkerSeen", "Working", "read_workers", "read_working"]

#: Rates and times are of what jobs came to within this time.
LATELY = timedelta(minutes=5)
#: Queues that are read.
QUEUES = 200


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
    id: str = ""
    version: str = ""
    up: float = 0.0
    """Seconds since it began."""
    draining: float | None = None
    """For how many seconds it is asked to drain; None: it is not."""


@dataclass(frozen=True, slots=True)
class Working:
    """All of it."""

    now: datetime
    queues: Sequence[QueueSeen]
    tasks: Sequence[tuple[str, Figures]]
    workers: Sequence[WorkerSeen]
    lately: Figures
    running: int
    failed: int
    """How many failed jobs are kept, up to `CAP`."""


def read_working(
    connection: sa.Connection, store: Store = default_store, *, only: Collection[str] | None = None
) -> Working:
    """Read it. `only`: of these queues alone, and of the workers that serve one of them; None: of all."""
    tables = store.tables
    now, since = connection.execute(
        sa.select(sa.func.now(), sa.func.date_trunc("minute", sa.func.now() - LATELY))
    ).one()

    summed = sum_stats(since=LATELY, by=("queue", "task"), queues=sorted(only or ()), stat=tables.stat)
    sums = _mine(connection.execute(summed).all(), only)
    held = _mine(connection.execute(running_jobs(job=tables.job)).all(), only)
    failed = _mine(connection.execute(count_by_queue(JobStatus.FAILED, job=tables.job)).all(), only)
    workers = _workers(connection, held, store, only)
    seconds = (now - since).total_seconds()
    return Working(
        now,
        _queues(connection, workers, held, sums, seconds=seconds, store=store, only=only),
        _tasks(sums, seconds),
        workers,
        Figures.of(sums, seconds),
        sum(row.running for row in held),
        sum(row.number for row in failed),
    )


def read_workers(
    connection: sa.Connection, store: Store = default_store, *, only: Collection[str] | None = None
) -> list[WorkerSeen]:
    """The workers alone, likewise."""
    held = _mine(connection.execute(running_jobs(job=store.tables.job)).all(), only)
    return _workers(connection, held, store, only)


def _mine(rows: Sequence[Any], only: Collection[str] | None) -> list[Any]:
    return [row for row in rows if only is None or row.queue in only]


def _queues(
    connection: sa.Connection,
    workers: Sequence[WorkerSeen],
    held: Sequence[Any],
    sums: Sequence[Any],
    *,
    seconds: float,
    store: Store,
    only: Collection[str] | None,
) -> list[QueueSeen]:
    """Those with jobs, those that workers serve, those that are paused, and those of the last minutes; the one with the most due jobs first."""
    said_of = connection.execute(limits_said(limit=store.tables.limit))
    limits = {row.name: row for row in said_of if row.owner == "queue"}
    paused = {name for name, row in limits.items() if row.paused is not None}
    deep = {row.queue: row for row in connection.execute(queue_depths(queues=QUEUES, job=store.tables.job))}
    running: dict[str, int] = defaultdict(int)
    for row in held:
        running[row.queue] += row.running
    counted: dict[str, list[Any]] = defaultdict(list)
    for row in sums:
        counted[row.queue].append(row)
    named = {name for worker in workers for name in worker.queues} - {EVERY_QUEUE}
    live = [worker.queues for worker in workers if not worker.stale]
    found: list[QueueSeen] = []
    for name in {*deep, *running, *counted, *named, *paused}:
        if only is not None and name not in only:
            continue
        row = deep.get(name)
        queued, due, oldest = (0, 0, None) if row is None else (row.queued, row.due, row.oldest_due_age)
        lately = Figures.of(counted[name], seconds)
        said = limits.get(name)
        limit, since = (None, None) if said is None else (said.running, said.paused)
        served = sum(serves(queues, name) for queues in live)
        found.append(QueueSeen(name, queued, due, oldest, running[name], served, lately, limit, since))
    return sorted(found, key=lambda one: (-one.due, one.name))


def _tasks(sums: Sequence[Any], seconds: float) -> list[tuple[str, Figures]]:
    """The tasks of the last minutes, the most frequent first."""
    counted: dict[str, list[Any]] = defaultdict(list)
    for row in sums:
        counted[row.task].append(row)
    found = [(name, Figures.of(rows, seconds)) for name, rows in counted.items()]
    return sorted(found, key=lambda one: (-sum(one[1].counts.values()), one[0]))


def _workers(
    connection: sa.Connection, held: Sequence[Any], store: Store, only: Collection[str] | None
) -> list[WorkerSeen]:
    """The workers that have not left; the stale ones first, because they need a look."""
    running: dict[str, int] = defaultdict(int)
    expired: dict[str, int] = defaultdict(int)
    for row in held:
        running[row.worker] += row.running
        expired[row.worker] += row.expired
    of = store.tables.worker
    rows = connection.execute(
        sa.select(
            of.id, of.host, of.pid, of.version, of.queues, of.concurrency, of.memory, of.loop_lag, of.pressure,
            sa.func.extract("epoch", sa.func.now() - of.seen_at).label("unseen"),
            sa.func.extract("epoch", sa.func.now() - of.started_at).label("up"),
            sa.func.extract("epoch", sa.func.now() - of.drain_requested_at).label("draining"),
        )
    )  # fmt: skip
    found = [
        WorkerSeen(
            f"{row.host}:{row.pid}",
            row.queues if only is None else [name for name in row.queues if name in only or name == EVERY_QUEUE],
            running[str(row.id)], row.concurrency, row.memory, row.loop_lag, float(row.unseen),
            row.unseen > STALE or expired[str(row.id)] > 0, row.pressure, str(row.id), row.version, float(row.up),
            None if row.draining is None else float(row.draining),
        )
        for row in rows
        if only is None or any(serves(row.queues, name) for name in only)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not one.stale, one.name))
