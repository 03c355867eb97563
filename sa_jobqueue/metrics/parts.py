"""What the database says, part by part: each is some statements, whose values are added to the families."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any, TypeVar

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from ..doctor import LEVELS, Finding, examine
from ..health.read import Readings
from ..health.work import read_behind_workflows, read_limit_uses, read_paused_keys, read_ready_keys, read_workflows
from ..rules.lifecycle import JobStatus
from ..sql.readings.depths import count_by_queue, list_workers, schedule_lag
from ..sql.store import Store
from ..sql.workers import EVERY_QUEUE, read_pressure, serves
from ..util.log import get_logger
from . import names
from .names import LES, Metric

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Families:
    """Collects values. A metric without a value is not exposed."""

    def __init__(self) -> None:
        self._made: dict[Metric, Any] = {}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """A value; None: it is not known."""
        if value is not None:
            self._family(metric).add_metric(labels, value)

    def add_counts(self, metric: Metric, counts: Sequence[int], seconds: float, *labels: str) -> None:
        """Durations, counted in the buckets of `sa_jobqueue.rules.tally`, and their sum."""
        buckets = list(zip(LES, accumulate(counts), strict=True))
        self._family(metric).add_metric(labels, buckets=buckets, sum_value=seconds)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._made.values())

    def _family(self, metric: Metric) -> Any:
        found = self._made.get(metric)
        if found is None:
            found = self._made[metric] = _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
        return found


#: Queues above this number are added up under `OTHER`, so that names made by a program do not fill the memory of Prometheus.
_MOST_QUEUES = 200
OTHER = "other"

#: The name of a queue, or owner and name of a limit.
_Of = TypeVar("_Of", str, tuple[str, str])

#: Reads a part of the metrics, and adds its values.
Part = Callable[[sa.Connection, Store, Families], None]


def add_jobs(connection: sa.Connection, store: Store, families: Families) -> None:
    """Jobs and workers by queue."""
    depths = Readings(connection, store).depths
    counted = {
        status: {row.queue: row.number for row in connection.execute(count_by_queue(status, job=store.job))}
        for status in (JobStatus.RUNNING, JobStatus.FAILED)
    }
    workers: Sequence[Any] = connection.execute(list_workers(job=store.job)).all()
    live = [worker for worker in workers if not worker.stale]
    families.add(names.WORKERS, len(live), "live")
    families.add(names.WORKERS, len(workers) - len(live), "stale")
    named = {queue for worker in live for queue in worker.queues} - {EVERY_QUEUE}
    queues = sorted(
        {*(depth.queue for depth in depths), *counted[JobStatus.RUNNING], *counted[JobStatus.FAILED], *named}
    )
    serving = {queue: sum(serves(worker.queues, queue) for worker in live) for queue in queues}
    label = {queue: queue if number < _MOST_QUEUES else OTHER for number, queue in enumerate(queues)}
    ages = {depth.queue: depth.oldest_due_age or 0.0 for depth in depths}
    for metric, values, together in (
        (names.QUEUED, {depth.queue: depth.queued for depth in depths}, sum),
        (names.DUE, {depth.queue: depth.due for depth in depths}, sum),
        (names.OLDEST_DUE, ages, max),
        (names.RUNNING, counted[JobStatus.RUNNING], sum),
        (names.FAILED, counted[JobStatus.FAILED], sum),
        (names.QUEUE_WORKERS, serving, sum),
    ):
        for name, value in _together(label, values, together).items():
            families.add(metric, value, name)


def _together(
    label: Mapping[_Of, _Of], values: Mapping[_Of, float], together: Callable[[list[float]], float]
) -> dict[_Of, float]:
    """A value for each label; 0 where a queue has none."""
    of_label: dict[_Of, list[float]] = {}
    for queue, name in label.items():
        of_label.setdefault(name, []).append(values.get(queue, 0))
    return {name: together(found) for name, found in of_label.items()}


def add_limits(connection: sa.Connection, store: Store, families: Families) -> None:
    """Limits and pauses of queues and tasks, and how many keys take turns. Without any it reads empty tables."""
    uses, keys = read_limit_uses(connection, store), read_paused_keys(connection, store)
    said = {(use.owner, use.name): use for use in uses}
    waiting = {owner: use.due for owner, use in said.items()}
    for use in keys:  # keys of queues that may have no limits themselves
        waiting[use.owner, use.name] = waiting.get((use.owner, use.name), 0) + use.due
    label = _labels(sorted({*said, *waiting}))
    for metric, values, together in (
        (names.LIMITED, {owner: float(use.limited) for owner, use in said.items()}, max),
        (names.PAUSED, {owner: float(use.paused is not None) for owner, use in said.items()}, max),
        (names.PAUSED_DUE, waiting, sum),
    ):
        for labels, value in _together(label, values, together).items():
            families.add(metric, value, *labels)
    limited = {owner: place for owner, place in label.items() if owner in said and said[owner].running is not None}
    for metric, values in (
        (names.LIMIT_RUNNING, {owner: said[owner].running or 0 for owner in limited}),
        (names.LIMIT_USED, {owner: said[owner].used or 0 for owner in limited}),
    ):
        for labels, value in _together(limited, values, sum).items():
            families.add(metric, value, *labels)
    for labels, value in _together(label, {owner: float(use.broken) for owner, use in said.items()}, sum).items():
        if labels[0] == "task":
            families.add(names.BREAKERS_OPEN, value, labels[1])
    for queue, number in read_ready_keys(connection, store).items():
        families.add(names.READY_KEYS, number, queue)


def _labels(owners: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """The labels of queues and tasks: of each kind, all names beyond a number share a label."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for kind in ("queue", "task"):
        of_kind = [owner for owner in owners if owner[0] == kind]
        found |= {owner: owner if number < _MOST_QUEUES else (kind, OTHER) for number, owner in enumerate(of_kind)}
    return found


def add_workflows(connection: sa.Connection, store: Store, families: Families) -> None:
    """Workflows, and workflows that do not advance. Without any it reads empty tables."""
    counts = read_workflows(connection, store)
    if counts is None:
        return
    behind = read_behind_workflows(connection, store)
    families.add(names.WORKFLOWS, counts.running, "running")
    families.add(names.WORKFLOWS, counts.paused, "paused")
    families.add(names.WORKFLOWS, counts.failed, "failed")
    families.add(names.WORKFLOW_OLDEST, counts.oldest or 0.0)
    families.add(names.WORKFLOW_EVENTS, counts.events)
    families.add(names.WORKFLOWS_BEHIND, len(behind))
    families.add(names.WORKFLOW_BEHIND_SECONDS, max((flow.seconds or 0.0 for flow in behind), default=0.0))
    families.add(names.WORKFLOWS_OVERDUE, counts.overdue)


def add_schedules(connection: sa.Connection, store: Store, families: Families) -> None:
    """How far schedules are behind."""
    row: Any = connection.execute(schedule_lag(job=store.job)).one()
    families.add(names.SCHEDULES, row.number)
    families.add(names.SCHEDULES_BEHIND, row.behind)
    families.add(names.SCHEDULES_FAILING, row.failing)
    families.add(names.SCHEDULE_BEHIND_SECONDS, row.seconds)


def add_cleanup(connection: sa.Connection, store: Store, families: Families) -> None:
    """Finished jobs that are still there."""
    overdue = Readings(connection, store).overdue
    families.add(names.OVERDUE, overdue.rows)
    families.add(names.OVERDUE_SECONDS, overdue.seconds)


def add_tables(connection: sa.Connection, store: Store, families: Families) -> None:
    """Sizes, dead rows and vacuums."""
    readings = Readings(connection, store)
    for table in readings.tables:
        families.add(names.TABLE_BYTES, table.bytes + table.toast_bytes, table.name)
        families.add(names.TABLE_LIVE, table.live, table.name)
        families.add(names.TABLE_DEAD, table.dead, table.name)
        families.add(names.TABLE_SINCE_VACUUM, table.since_vacuum, table.name)
        families.add(names.TABLE_SINCE_ANALYZE, table.since_analyze, table.name)
        families.add(names.TABLE_AUTOVACUUMS, table.autovacuums, table.name)
    for index in readings.indexes:
        families.add(names.INDEX_BYTES, index.bytes, index.table, index.name)
        families.add(names.INDEX_SCANS, index.scans, index.table, index.name)
        families.add(names.INDEX_ROWS_READ, index.rows_read, index.table, index.name)


def add_pressure(connection: sa.Connection, store: Store, families: Families) -> None:
    """What presses on the database just now."""
    pressure = read_pressure(connection)
    families.add(names.SNAPSHOT_SECONDS, pressure.snapshot_seconds or 0.0)
    families.add(names.SNAPSHOT_XIDS, pressure.snapshot_xids)
    families.add(names.LOCK_WAITS, pressure.lock_waits)
    families.add(names.ACTIVE, pressure.active)
    families.add(names.REPLICATION_SECONDS, pressure.replication_seconds)
    families.add(names.REPLICATION_BYTES, pressure.replication_bytes)


def add_server(connection: sa.Connection, store: Store, families: Families) -> None:
    """The server's limits, and the counters of this database."""
    readings = Readings(connection, store)
    server = readings.server
    families.add(names.CONNECTIONS, server.connections)
    families.add(names.CONNECTIONS_MAX, server.connections_max)
    families.add(names.NOTIFY_QUEUE, server.notify_queue)
    families.add(names.FROZEN_AGE, server.frozen_age)
    families.add(names.TRANSACTIONS, server.commits, "commit")
    families.add(names.TRANSACTIONS, server.rollbacks, "rollback")
    families.add(names.DEADLOCKS, server.deadlocks)
    families.add(names.TEMP_BYTES, server.temp_bytes)
    families.add(names.BLOCKS, server.blocks_read, "disk")
    families.add(names.BLOCKS, server.blocks_hit, "buffers")
    families.add(names.BLOCK_SECONDS, server.read_seconds, "read")
    families.add(names.BLOCK_SECONDS, server.write_seconds, "write")
    for process in readings.io:
        for what, value in (
            ("read", process.reads),
            ("write", process.writes),
            ("extend", process.extends),
            ("hit", process.hits),
            ("evict", process.evictions),
        ):
            families.add(names.IO_BLOCKS, value, process.process, what)
        families.add(names.IO_SECONDS, process.read_seconds, process.process, "read")
        families.add(names.IO_SECONDS, process.write_seconds, process.process, "write")


PARTS: Mapping[str, Part] = {
    "jobs": add_jobs,
    "limits": add_limits,
    "workflows": add_workflows,
    "schedules": add_schedules,
    "cleanup": add_cleanup,
    "pressure": add_pressure,
    "server": add_server,
    "tables": add_tables,
}

# ---- The doctor's findings as metrics. An examination takes longer than a scrape may, so a thread of its own makes it, at most once a minute.

logger = get_logger(__name__)

#: Seconds between two examinations.
_EVERY = 60.0


class Findings:
    """The findings of the doctor's last examination. Any thread may call it."""

    def __init__(self, engine: sa.Engine, store: Store) -> None:
        self._engine, self._store = engine, store
        self._lock = threading.Lock()
        self._at = 0.0
        self._looking = False
        """Whether an examination is in progress, which may hang. A scrape sets it, with `_at` under the lock; the examining thread resets it."""
        self._found: list[Finding] = []
        """Replaced as a whole by the examining thread."""

    def collect(self) -> Iterator[Family]:
        """The last findings; starts a new examination if they are old."""
        with self._lock:
            due = not self._looking and (not self._at or monotonic() >= self._at + _EVERY)
            if due:
                self._looking, self._at = True, monotonic()
        if due:
            try:
                threading.Thread(target=self._look, name="sa-jobqueue metrics doctor", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._looking = False
                logger.debug("the doctor has no thread")
        families = Families()
        for finding in self._found:
            for level in LEVELS:
                families.add(names.FINDING, finding.level == level, finding.name, level)
        return iter(families)

    def _look(self) -> None:
        try:
            self._found = examine(self._engine, probe=False, store=self._store)
        except Exception:  # the database does not answer, which has a metric of its own
            self._found = []
            logger.debug("the doctor could not look", exc_info=True)
        finally:
            self._looking = False
