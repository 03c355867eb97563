"""What the queues and the workers do just now: for `top` and for pages. Each part reads indexes, and stops counting at `CAP`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ..models import status_literal
from ..rules.lifecycle import JobStatus
from ..sql.limits import use as limit_use
from ..sql.limits.use import limits_said
from ..sql.parts import ONE, count_of
from ..sql.readings.depths import CAP, STALE, count_by_queue, queue_depths, running_jobs
from ..sql.readings.stats import sum_stats
from ..sql.store import Store, default_store
from ..sql.workers import EVERY_QUEUE, serves
from ..sql.workflows import readings as watching
from .read import Figures

#: Rates and times cover jobs that ended within this time.
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
    by_queue: Mapping[str, int] | None = None
    """The slots of each queue."""
    wanted: Mapping[str, Any] | None = None
    """The slots that an operator wants, as in `WorkerRow.wanted`."""

    def slots_of(self, queue: str) -> int:
        """The slots for the jobs of a queue."""
        slots = self.by_queue or {}
        return slots.get(queue, slots.get(EVERY_QUEUE, self.slots))


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
    now, since = connection.execute(
        sa.select(sa.func.now(), sa.func.date_trunc("minute", sa.func.now() - LATELY))
    ).one()

    summed = sum_stats(since=LATELY, by=("queue", "task"), queues=sorted(only or ()), stat=store.tables.stat)
    sums = _mine(connection.execute(summed).all(), only)
    held = _mine(connection.execute(running_jobs(job=store.job)).all(), only)
    workers = _workers(connection, held, store, only)
    seconds = (now - since).total_seconds()
    return Working(
        now,
        _queues(connection, workers, held, sums, seconds=seconds, store=store, only=only),
        _tasks(sums, seconds),
        workers,
        Figures.of(sums, seconds),
        sum(row.running for row in held),
        _failed(connection, store, only),
    )


def _failed(connection: sa.Connection, store: Store, only: Collection[str] | None) -> int:
    """The number of failed jobs up to `CAP`. Of all queues it is read from the index alone."""
    if only is None:
        failed = sa.select(ONE).where(store.job.status == status_literal(JobStatus.FAILED)).limit(CAP)
        return int(connection.scalar(sa.select(count_of(failed))) or 0)
    rows = connection.execute(count_by_queue(JobStatus.FAILED, job=store.job)).all()
    return sum(row.number for row in _mine(rows, only))


def read_workers(
    connection: sa.Connection, store: Store = default_store, *, only: Collection[str] | None = None
) -> list[WorkerSeen]:
    """The workers alone, likewise."""
    held = _mine(connection.execute(running_jobs(job=store.job)).all(), only)
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
    """Queues that have jobs, that workers serve, that are paused, or whose jobs ended in the last minutes; most due jobs first."""
    said_of = connection.execute(limits_said(job=store.job))
    limits = {row.name: row for row in said_of if row.owner == "queue"}
    paused = {name for name, row in limits.items() if row.paused is not None}
    depths = connection.execute(queue_depths(queues=QUEUES, only=only, job=store.job))
    deep = {row.queue: row for row in depths if row.queued}
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
    return sorted(found, key=lambda queue: (-queue.due, queue.name))


def _tasks(sums: Sequence[Any], seconds: float) -> list[tuple[str, Figures]]:
    """The tasks of the last minutes, the most frequent first."""
    counted: dict[str, list[Any]] = defaultdict(list)
    for row in sums:
        counted[row.task].append(row)
    found = [(name, Figures.of(rows, seconds)) for name, rows in counted.items()]
    return sorted(found, key=lambda entry: (-sum(entry[1].counts.values()), entry[0]))


def _workers(
    connection: sa.Connection, held: Sequence[Any], store: Store, only: Collection[str] | None
) -> list[WorkerSeen]:
    """The workers that have not left; stale workers first, because they need attention."""
    running: dict[str, int] = defaultdict(int)
    expired: dict[str, int] = defaultdict(int)
    for row in held:
        running[row.worker] += row.running
        expired[row.worker] += row.expired
    of = store.tables.worker
    rows = connection.execute(
        sa.select(
            of.id, of.host, of.pid, of.version, of.queues, of.concurrency, of.memory, of.loop_lag, of.pressure, of.slots,
            of.wanted,
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
            None if row.draining is None else float(row.draining), row.slots, row.wanted,
        )
        for row in rows
        if only is None or any(serves(row.queues, name) for name in only)
    ]  # fmt: skip
    return sorted(found, key=lambda worker: (not worker.stale, worker.name))


# ---- Workflows: how many there are, and which do not move on.


@dataclass(frozen=True, slots=True)
class WorkflowCounts:
    """How many workflows there are; each number is counted up to 10,001."""

    running: int
    """Workflows that have not ended and are not paused."""
    paused: int
    failed: int
    """Those that ended so, and were not retried or deleted yet."""
    overdue: int
    """Those that have not ended although their deadline is over."""
    events: int
    """What has happened to their jobs and was not read yet."""
    oldest: float | None
    """The age of the oldest running workflow in seconds; None if no workflow runs."""


@dataclass(frozen=True, slots=True)
class BehindWorkflow:
    """A workflow with unread events that is not paused. Usually the events are read a moment later."""

    id: int
    seconds: float | None
    """Since the first of that happened; None: the time is not known, as of a change by an operator."""


def read_workflows(connection: sa.Connection, store: Store = default_store) -> WorkflowCounts | None:
    """How many workflows there are; None: there are none."""
    row = connection.execute(watching.count_workflows(job=store.job)).one()
    if not row.exist:
        return None
    return WorkflowCounts(row.running, row.paused, row.failed, row.overdue, row.events, row.seconds)


def read_behind_workflows(connection: sa.Connection, store: Store = default_store) -> list[BehindWorkflow]:
    """The first 101 workflows, by id, that have unread events and are not paused."""
    behind = watching.workflows_behind(job=store.job)
    return [
        BehindWorkflow(row.id, None if row.seconds is None else max(row.seconds, 0.0))
        for row in connection.execute(behind)
    ]


# ---- Limits and pauses: how many permits are used, what waits because of a pause, and how many keys take turns.


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A queue or a task that has limits or is paused."""

    owner: str
    """Whether it is a "queue" or a "task"."""
    name: str
    limited: bool
    held: bool
    """Whether an operator has set its limits."""
    running: int | None
    """How many of its jobs may run at once."""
    used: int | None
    """How many do, where that is limited; 10,001 running jobs are counted."""
    paused: float | None
    """For how many seconds it is paused; None: it is not."""
    pause_reason: str | None
    broken: int = 0
    """How many breakers of the task, and of its keys, are not closed."""
    due: int = 0
    """Where it is paused: its jobs that are due, counted up to 10,001. Of a task, those without a key, from when a claim has passed them."""


@dataclass(frozen=True, slots=True)
class PausedKey:
    """A paused key of a queue or a task, whose other keys may go on."""

    owner: str
    name: str
    key: str
    paused: float
    """For how many seconds."""
    pause_reason: str | None
    due: int = 0
    """Its jobs that are due, counted up to 10,001."""


def read_limit_uses(connection: sa.Connection, store: Store = default_store) -> list[LimitUse]:
    """The queues and tasks with limits or a pause, by owner and name; the first 1,000. Without limits it reads an empty table."""
    said = connection.execute(limit_use.limits_said(job=store.job)).mappings().all()
    used: Counter[tuple[str, str]] = Counter()
    if any(row["running"] is not None for row in said):
        for row in connection.execute(limit_use.running_of_tasks(job=store.job)):
            used["queue", row.queue] += row.running
            used["task", row.task] += row.running
    due = _due(connection, [(row["owner"], row["name"]) for row in said if row["paused"] is not None], store)
    return [
        LimitUse(**row, used=None if row["running"] is None else used[owner], due=due.get(owner, 0))
        for row in said
        for owner in [(row["owner"], row["name"])]
    ]


def _due(connection: sa.Connection, paused: Sequence[tuple[str, str]], store: Store) -> dict[tuple[str, str], int]:
    """The due jobs of queues and tasks that are paused."""
    job = store.job
    due: dict[tuple[str, str], int] = {}
    if queues := [name for owner, name in paused if owner == "queue"]:
        rows = connection.execute(limit_use.due_of_queues(queues, job=job))
        due |= {("queue", row.name): row.due for row in rows}
    if tasks := [name for owner, name in paused if owner == "task"]:
        of_tasks = limit_use.ready_of_keys(["task"] * len(tasks), tasks, [None] * len(tasks), job=job)
        due |= {("task", row.name): row.due for row in connection.execute(of_tasks)}
    return due


def read_paused_keys(connection: sa.Connection, store: Store = default_store) -> list[PausedKey]:
    """At most 100 paused keys, among the first 10,001 keys that operators have configured."""
    said = connection.execute(limit_use.paused_keys(job=store.job)).mappings().all()
    if not said:
        return []
    owners, names, keys = ([row[part] for row in said] for part in ("owner", "name", "key"))
    counted = connection.execute(limit_use.ready_of_keys(owners, names, keys, job=store.job))
    due = {(row.owner, row.name, row.key): row.due for row in counted}
    return [PausedKey(**row, due=due.get((row["owner"], row["name"], row["key"]), 0)) for row in said]


def read_ready_keys(connection: sa.Connection, store: Store = default_store) -> dict[str, int]:
    """How many keys of each queue have ready jobs; counted up to 1,001 of a queue, and up to 10,001 of all."""
    rows = connection.execute(limit_use.ready_keys(job=store.job))
    return {row.queue: row.number for row in rows}
