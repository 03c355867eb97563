"""Every metric, once: its name, its kind, its labels and what it says. Exposition, documentation and dashboards use this table.

>>> JOBS.name, JOBS.labels
('sa_jobqueue_jobs_total', ('queue', 'task', 'outcome'))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..rules.tally import BOUNDS

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus keeps it."""
        if self.kind == "histogram":
            return tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
        return (self.name,)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"sa_jobqueue_{name}_total", "counter", help, labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"sa_jobqueue_{name}", "gauge", help, labels)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"sa_jobqueue_{name}", "histogram", help, labels)


def _defined() -> tuple[Metric, ...]:
    """All metrics defined so far."""
    return tuple(value for value in globals().values() if isinstance(value, Metric))


# ---- Metrics of a command's worker processes.

_OUTCOMES = "completed, retried, failed, cancelled, snoozed, suspended (it waits), released (given back to the queue) or lost (came after the claim was over)"
JOBS = _counter("jobs", f"How attempts ended. outcome: {_OUTCOMES}", "queue", "task", "outcome")
RUN_SECONDS = _histogram("job_run_seconds", "How long handlers took", "queue", "task")
WAIT_SECONDS = _histogram("job_wait_seconds", "How long jobs had been due when they started", "queue", "task")
RESCUED = _counter("rescued", "Jobs taken over from a worker that died", "queue", "task")
CLAIMED = _counter("claimed", "Jobs claimed")
CLAIM_SECONDS = _histogram(
    "claim_seconds", "How long claims took, with the outcomes written along; also those that brought no job"
)
SLOTS = _gauge("slots", "Jobs that may run at a time", "queue")
SLOTS_BUSY = _gauge("slots_busy", "Jobs that run", "queue")
SLOTS_STUCK = _gauge(
    "slots_stuck", "Slots held by handlers that timed out and have not come back; they count as busy", "queue"
)
BUFFERED = _gauge("buffered", "Jobs claimed that wait for a slot", "queue")
PROCESSES = _gauge("processes", "Worker processes that serve")
LISTENING = _gauge("listener_connected", "Worker processes that hear of new jobs by NOTIFY; the others poll")
UNWRITTEN = _gauge("unwritten", "Outcomes that wait to be written")
MEMORY = _gauge("memory_bytes", "Resident memory", "process")
LOOP_LAG = _gauge("loop_lag_seconds", "How long the event loop lately took to answer", "process")
CLAIM_SHARE = _gauge(
    "claim_share", "The share of its slots that a worker claims for; below 1 under pressure", "process"
)

WORKER = _defined()

# ---- what the database says

UP = _gauge("database_up", "1 if the database answered at the last look, else 0")
READ = _gauge("database_read", "1 if this part could be read at the last look, else 0", "part")
QUEUED = _gauge("queued", "Jobs that wait, due or not; counted up to 10,001", "queue")
DUE = _gauge("due", "Jobs that wait and whose time has come; counted up to 10,001", "queue")
OLDEST_DUE = _gauge(
    "oldest_due_seconds",
    "How long the first due job has waited; 0 if none is due. A job that a killed or stopped worker held counts from its first due time",
    "queue",
)
RUNNING = _gauge("running", "Jobs that run; 10,001 of all queues are counted", "queue")
FAILED = _gauge("failed", "Failed jobs that were not deleted yet; 10,001 of all queues are counted", "queue")
WORKERS = _gauge("workers", "Worker processes in the table of workers. state: live or stale", "state")
QUEUE_WORKERS = _gauge("queue_workers", "Live worker processes that serve a queue", "queue")
LIMITED = _gauge(
    "limited",
    "1 if a queue or task has limits, else 0. Of those that have limits or are paused. owner: queue or task",
    "owner",
    "name",
)
LIMIT_RUNNING = _gauge(
    "limit_running", "How many jobs of a queue or task may run at once, if that is limited", "owner", "name"
)
LIMIT_USED = _gauge("limit_used", "How many of them run; 10,001 running jobs are counted", "owner", "name")
PAUSED = _gauge(
    "paused", "1 if a queue or task is paused, else 0. Of those that have limits or are paused", "owner", "name"
)
PAUSED_DUE = _gauge(
    "paused_due",
    "Due jobs that wait because a queue or task is paused, or some keys of it; counted up to 10,001 for each. Of a task, those without a key that a claim has passed",
    "owner",
    "name",
)
BREAKERS_OPEN = _gauge(
    "breakers_open",
    "Breakers of a task and of its keys that are not closed. Only tasks with limits or open breakers have a series",
    "task",
)
READY_KEYS = _gauge(
    "ready_keys", "Keys with ready jobs; counted up to 1,001 in a queue, and up to 10,001 in all", "queue"
)
WORKFLOWS = _gauge(
    "workflows",
    "Workflows; counted up to 10,001. state: running, paused, or failed (they ended so, and were not retried or deleted yet)",
    "state",
)
WORKFLOW_OLDEST = _gauge(
    "workflow_oldest_seconds", "How long the oldest running workflow has been there; 0 if none runs"
)
WORKFLOW_EVENTS = _gauge(
    "workflow_events", "What has happened to jobs of workflows and no worker has read yet; counted up to 10,001"
)
WORKFLOWS_BEHIND = _gauge(
    "workflows_behind",
    "Workflows with job ends that no worker has handled yet, without paused workflows; counted up to 101",
)
WORKFLOW_BEHIND_SECONDS = _gauge(
    "workflow_behind_seconds",
    "How long ago the first job ended whose end was not read, in the first 101 of them; 0 if there is none",
)
WORKFLOWS_OVERDUE = _gauge(
    "workflows_overdue", "Workflows that have not ended although their deadline is over; counted up to 10,001"
)
SCHEDULES = _gauge("schedules", "Schedules that are not paused")
SCHEDULES_BEHIND = _gauge(
    "schedules_behind", "Schedules whose time passed more than a minute ago, and no worker has looked at them"
)
SCHEDULES_FAILING = _gauge("schedules_failing", "Schedules that cannot enqueue their jobs because of an error")
SCHEDULE_BEHIND_SECONDS = _gauge(
    "schedule_behind_seconds", "How long the schedule that is furthest behind has been due"
)
OVERDUE = _gauge("purge_overdue", "Finished jobs that should be deleted by now; counted up to 10,001")
OVERDUE_SECONDS = _gauge("purge_overdue_seconds", "How long the first of them has been due for deletion")

TABLE_BYTES = _gauge("table_bytes", "Size of a table, without indexes, with TOAST", "table")
TABLE_LIVE = _gauge("table_live_rows", "Live rows of a table, as PostgreSQL estimates them", "table")
TABLE_DEAD = _gauge("table_dead_rows", "Rows of a table that vacuum has not removed yet", "table")
TABLE_SINCE_VACUUM = _gauge("table_since_vacuum_seconds", "Time since the last vacuum of a table", "table")
TABLE_SINCE_ANALYZE = _gauge("table_since_analyze_seconds", "Time since the last analyze of a table", "table")
TABLE_AUTOVACUUMS = _counter("table_autovacuums", "Vacuums of a table by autovacuum", "table")
INDEX_BYTES = _gauge("index_bytes", "Size of an index", "table", "index")
INDEX_SCANS = _counter("index_scans", "Scans of an index", "table", "index")
INDEX_ROWS_READ = _counter(
    "index_rows_read",
    "Entries of an index that its scans read. By job_claim_idx: what claims read, but for jobs with a key",
    "table",
    "index",
)

SNAPSHOT_SECONDS = _gauge(
    "database_oldest_snapshot_seconds", "Age of the oldest transaction that keeps vacuum from removing rows"
)
SNAPSHOT_XIDS = _gauge(
    "database_oldest_snapshot_xids", "The same in transactions, also of standbys and replication slots"
)
LOCK_WAITS = _gauge("database_lock_waits", "Sessions that wait for a lock; not the workers' own")
ACTIVE = _gauge("database_connections_active", "Sessions that execute something; not the workers' own")
CONNECTIONS = _gauge("database_connections", "Connections of clients to the server")
CONNECTIONS_MAX = _gauge("database_connections_max", "Connections that the server allows to roles without privileges")
REPLICATION_SECONDS = _gauge("database_replication_lag_seconds", "How far the last standby is behind")
REPLICATION_BYTES = _gauge("database_replication_lag_bytes", "WAL that the last standby has not replayed")
NOTIFY_QUEUE = _gauge("database_notify_queue_ratio", "How full the notification queue is, from 0 to 1")
FROZEN_AGE = _gauge("database_frozenxid_age", "Transactions since the oldest row that is not frozen")
TRANSACTIONS = _counter("database_transactions", "Transactions in this database. end: commit or rollback", "end")
DEADLOCKS = _counter("database_deadlocks", "Deadlocks in this database")
TEMP_BYTES = _counter("database_temp_bytes", "Bytes written to temporary files")
BLOCKS = _counter(
    "database_blocks", "Blocks of this database asked for. from: disk (or the system's cache) or buffers", "from"
)
BLOCK_SECONDS = _counter(
    "database_block_seconds",
    "Time spent reading and writing blocks, where track_io_timing is on. what: read or write",
    "what",
)
IO_BLOCKS = _counter(
    "database_io_blocks",
    "Blocks of tables and indexes on the whole server, from PostgreSQL 16 on. process: its kind; what: read, write, extend, hit or evict",
    "process",
    "what",
)
IO_SECONDS = _counter(
    "database_io_seconds", "Time of the same, where track_io_timing is on. what: read or write", "process", "what"
)
FINDING = _gauge(
    "doctor_finding",
    "1 for the level of each check of the doctor, else 0. level: ok, notice or problem",
    "check",
    "level",
)

METRICS = _defined()
DATABASE = METRICS[len(WORKER) :]

#: The upper bounds of the histograms' buckets as their label `le` has them.
LES = (*(f"{bound:g}" if bound != int(bound) else f"{bound:.1f}" for bound in BOUNDS), "+Inf")
