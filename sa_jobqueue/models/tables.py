"""The tables beside the jobs: workers, since when leases could be renewed, versions of the schema."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, vacuum_by_traffic

__all__ = ["Awaited", "SchemaVersion", "UniqueKey", "Uptime", "WorkerRow"]


class WorkerRow(Base):
    """One worker process that is alive, or was until `seen_at`."""

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
    """The tasks it knows: `{name: {"queue": ..., "timeout": seconds or null, "aliases": [...]}}`."""
    pressure: Mapped[str | None]
    """Why it claims less than it could, or "claims fail: ..." with what the database said lately; NULL: neither."""
    skipped: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The first 100 jobs that its claims skip, and what refused to let them be claimed: `{"7": "..."}`; null: it waits until another
    job whose workers have died has ended here. NULL: it skips none.
    """
    drain_requested_at: Mapped[datetime | None]
    """Since when it is asked to claim no more, and to end when its jobs have ended."""
    slots: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """By queue, how many jobs of it run at once: `{"mail": 4}`. Their sum is `concurrency`."""


class Uptime(Base):
    """Since when, and until when, leases could be renewed, without a break in which they may have run out."""

    __tablename__ = "uptime"

    lease: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    """The lease, in milliseconds, that this row speaks for: how long a break may be depends on it."""
    since: Mapped[datetime]
    until: Mapped[datetime]


class SchemaVersion(Base):
    """The versions of the schema that were applied; the highest is the current one."""

    __tablename__ = "schema_version"

    version: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    applied_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    compatible_with: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("1"))
    """Releases made for this version of the schema, or a later one, can work with it."""


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

    __table_args__ = (
        sa.Index("unique_key_expires_idx", "expires_at", postgresql_where=sa.text("expires_at IS NOT NULL")),
    )


vacuum_by_traffic(UniqueKey)


class Awaited(Base):
    """A job whose end a process waits for."""

    __tablename__ = "awaited"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    waiter: Mapped[uuid.UUID] = mapped_column(UUID(as_uuid=True), primary_key=True)
    """The listener of a process."""
    expires_at: Mapped[datetime]
    """Until when it waits, unless it says so again."""

    __table_args__ = ({"prefixes": ["UNLOGGED"]},)


vacuum_by_traffic(Awaited)
