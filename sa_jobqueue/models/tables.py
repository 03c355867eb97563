"""Companion tables of the jobs: workers, since when leases could be renewed, versions of the schema, and others."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, partial_index, vacuum_by_traffic


class WorkerRow(Base):
    """A worker process that is alive, or was until `seen_at`."""

    __tablename__ = "worker"

    id: Mapped[uuid.UUID] = mapped_column(UUID(as_uuid=True), primary_key=True)
    """New at each start; never a reusable host name."""
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(sa.Integer)
    queues: Mapped[list[str]] = mapped_column(ARRAY(sa.Text))
    concurrency: Mapped[int] = mapped_column(sa.Integer)
    version: Mapped[str]
    """The release of sa_jobqueue it runs."""
    started_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    stats_written: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    """How often it has added what it counted to the table `stat`: so that nothing is added twice if the answer to a COMMIT is lost."""
    lease: Mapped[float | None]
    """Seconds for which its claims hold."""
    schema_version: Mapped[int | None] = mapped_column(sa.Integer)
    """The version of the schema that its release is made for."""
    memory: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Bytes resident when it was last seen."""
    loop_lag: Mapped[float | None]
    """Seconds that its event loop lately took to answer."""
    tasks: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=sa.text("'{}'::jsonb"))
    """The tasks that the worker knows: `{name: {"queue": ..., "timeout": seconds or null, "aliases": [...]}}`; and "version", unless it is 1."""
    pressure: Mapped[str | None]
    """Why it claims less than it could, or "claims fail: ..." with the database's last message; NULL: neither."""
    skipped: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The first 100 jobs that its claims skip, and what refused to let them be claimed: `{"7": "..."}`; null: it waits until another
    job whose workers have died has ended here. NULL: it skips none.
    """
    drain_requested_at: Mapped[datetime | None]
    """Since when it is asked to claim no more, and to end when its jobs have ended."""
    slots: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """By queue, how many jobs of it run at once: `{"mail": 4}`. Their sum is `concurrency`."""
    wanted: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The slots that an operator wants, until the worker has them: `{"slots": {"mail": 20}}`; and "refused", the reason if the worker refuses
    them. NULL: no change is wanted."""


class Uptime(Base):
    """Since when, and until when, leases could be renewed, without a break in which they may have run out."""

    __tablename__ = "uptime"

    lease: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    """The lease, in milliseconds, that this row speaks for: how long a break may be depends on it."""
    since: Mapped[datetime]
    until: Mapped[datetime]


class SchemaVersion(Base):
    """The versions of the schema that were applied; the highest is current."""

    __tablename__ = "schema_version"

    version: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    applied_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    compatible_with: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("1"))
    """Releases made for this version of the schema, or a later version, can work with it."""


class UniqueKey(Base):
    """A key that is taken, and the job that has it."""

    __tablename__ = "unique_key"

    key: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """1 to 500 characters."""
    job_id: Mapped[int] = mapped_column(sa.BigInteger)
    """The job that has it, or had it last."""
    keep: Mapped[float | None]
    """Seconds for which the key stays taken after the job has ended."""
    expires_at: Mapped[datetime | None]
    """Until when it is taken; None: until the job gives it back."""

    __table_args__ = (partial_index("unique_key_expires_idx", "expires_at", where="expires_at IS NOT NULL"),)


vacuum_by_traffic(UniqueKey)


class Awaited(Base):
    """A job whose end a process waits for."""

    __tablename__ = "awaited"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    waiter: Mapped[uuid.UUID] = mapped_column(UUID(as_uuid=True), primary_key=True)
    """The listener of a process."""
    expires_at: Mapped[datetime]
    """Until when it waits, unless it renews the entry."""

    __table_args__ = ({"prefixes": ["UNLOGGED"]},)


vacuum_by_traffic(Awaited)

# ---- The table of what operators did.


class AuditEntry(Base):
    """What an operator did in one transaction."""

    __tablename__ = "audit"
    __table_args__ = (
        partial_index("audit_errors_idx", "id", where="action IN ('resolve_errors', 'mute_errors', 'show_errors', 'acknowledge', 'unacknowledge')"),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """When that transaction began."""
    count: Mapped[int] = mapped_column(sa.BigInteger)
    """How many jobs, schedules or other things were changed by it."""
    action: Mapped[str] = mapped_column(sa.Text)
    """"retry", "cancel", "pause" and so on."""
    who: Mapped[str] = mapped_column(sa.Text)
    """As the application named the viewer."""
    target: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """What it was done to, as it was asked for: `{"id": ["7"]}`, `{"status": ["failed"], "queue": ["mail"]}`."""


# ---- The tables of the progress and the log lines of running jobs.


class Progress(Base):
    """How far a job is, or was at its end: what its handler last told `ctx.progress`."""

    __tablename__ = "job_progress"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    claim_token: Mapped[int] = mapped_column(sa.BigInteger)
    """Of the claim that wrote it. If the job has another token by now, this row says nothing any more."""
    fraction: Mapped[float]
    written_at: Mapped[datetime]
    claims: Mapped[int] = mapped_column(sa.Integer)
    """`Job.claims` at that claim: a claim does not overwrite the report of a later claim."""
    message: Mapped[str | None]


class LogPart(Base):
    """Some log lines of a claim of a job, written together."""

    __tablename__ = "job_log"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    claim_token: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    part: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    """0, 1, ...: the order of the parts of a claim. The oldest are deleted when there are more lines than are kept."""
    written_at: Mapped[datetime]
    attempt: Mapped[int] = mapped_column(sa.SmallInteger)
    lines: Mapped[list[Any]] = mapped_column(JSONB)
    """`[seconds since 1970, level, text]` each, the oldest first."""


vacuum_by_traffic(Progress, also="fillfactor = 50, ")  # room for an update on the same page
vacuum_by_traffic(LogPart)

# ---- The table of how jobs ended, by minute and by hour.


class Stat(Base):
    """How the jobs of a task in a queue ended within a minute or an hour, in all workers together."""

    __tablename__ = "stat"

    seconds: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    """How long the time is for which the row stands: 60, or 3600."""
    at: Mapped[datetime] = mapped_column(primary_key=True)
    """When that time began."""
    completed: Mapped[int] = mapped_column(sa.BigInteger)
    retried: Mapped[int] = mapped_column(sa.BigInteger)
    """Attempts that failed and are followed by another."""
    failed: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that failed for good."""
    cancelled: Mapped[int] = mapped_column(sa.BigInteger)
    snoozed: Mapped[int] = mapped_column(sa.BigInteger)
    suspended: Mapped[int] = mapped_column(sa.BigInteger)
    released: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that their worker gave back."""
    rescued: Mapped[int] = mapped_column(sa.BigInteger)
    """Jobs that were taken from a worker that died."""
    lost: Mapped[int] = mapped_column(sa.BigInteger)
    """Outcomes that came when their claim was over, so that they were not written."""
    run_seconds: Mapped[float]
    """How long all handlers together took."""
    wait_seconds: Mapped[float]
    """How long all jobs together had been due when their handlers were called."""
    queue: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    task: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """The name of the task; "(unknown)" for jobs that a worker gave back because it has no task of their name."""
    runs: Mapped[list[int]] = mapped_column(ARRAY(sa.BigInteger))
    """Handlers by how long they took, in the buckets of `sa_jobqueue.rules.tally`."""
    waits: Mapped[list[int]] = mapped_column(ARRAY(sa.BigInteger))
    """Handlers by how long their jobs had been due, likewise."""


vacuum_by_traffic(Stat, also="fillfactor = 50, ")


class Backlog(Base):
    """How many jobs of a queue were due and ran at the end of a minute. A queue without queued and running jobs has no row."""

    __tablename__ = "backlog"

    at: Mapped[datetime] = mapped_column(primary_key=True)
    """When that minute began."""
    due: Mapped[int] = mapped_column(sa.Integer)
    """Queued jobs whose time had come."""
    running: Mapped[int] = mapped_column(sa.Integer)
    oldest: Mapped[float | None] = mapped_column(sa.REAL)
    """Seconds for which the first due job had waited; NULL if none was due."""
    more: Mapped[bool]
    """Whether counting stopped, so that more jobs were due than `due`."""
    queue: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    """The name of the queue; "" in a row of each minute that was counted, whatever was queued."""
