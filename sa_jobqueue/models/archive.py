"""The archive: finished jobs whose time in their own table is over, by the month in which they finished."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ..rules.lifecycle import JobStatus
from .base import Base, JsonObject, StatusText, partial_index
from .job_readings import JobReadings, SubjectColumns


class ArchivedJob(JobReadings, SubjectColumns, Base):
    """A job that has finished, and whose time to be kept in its own table is over.

    It reads like `Job`, by the same attributes. Workers move jobs here whose tasks say `archive=True`; no statement of the queue's
    changes one afterwards. The table is partitioned by the month of `finished_at`: a query that names a time reads only those months.
    """

    __tablename__ = "archived_job"

    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    """The number that it had as a `Job`."""
    finished_at: Mapped[datetime] = mapped_column(primary_key=True)
    """When it finished. Where plain SQL had written a time of the future, or none: when it was moved."""
    archived_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """When it was moved here."""
    run_at: Mapped[datetime]
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime | None]
    purge_at: Mapped[datetime | None]
    """When its time as a `Job` was over."""
    cancel_requested_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    ready_at: Mapped[datetime | None]
    tick_at: Mapped[datetime | None]
    claim_token: Mapped[int | None] = mapped_column(sa.BigInteger)
    schedule_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    workflow_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    """The workflow that it was a member of, which is gone."""
    blocked_by: Mapped[int | None] = mapped_column(sa.BigInteger)
    _duplicate_of: Mapped[int | None] = mapped_column("duplicate_of", sa.BigInteger)
    progress: Mapped[float | None] = mapped_column(sa.Float(53))
    """The last progress that its handler reported, 0 to 1."""
    claims: Mapped[int] = mapped_column(sa.Integer)
    ticks: Mapped[int | None] = mapped_column(sa.Integer)
    priority: Mapped[int] = mapped_column(sa.SmallInteger)
    attempt: Mapped[int] = mapped_column(sa.SmallInteger)
    max_attempts: Mapped[int] = mapped_column(sa.SmallInteger)
    rescues: Mapped[int] = mapped_column(sa.SmallInteger)
    units: Mapped[int | None] = mapped_column(sa.SmallInteger)
    inputs: Mapped[int | None] = mapped_column(sa.SmallInteger)
    status: Mapped[JobStatus] = mapped_column(StatusText())
    queue: Mapped[str]
    task: Mapped[str]
    args: Mapped[dict[str, Any]] = mapped_column(JsonObject())
    meta: Mapped[dict[str, Any]] = mapped_column(JsonObject())
    errors: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    """An entry per failed attempt or rescue: at, attempt, type, message, traceback."""
    result: Mapped[Any | None] = mapped_column(JSONB)
    uniqueness: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True))
    extras: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True))
    worker: Mapped[str | None]
    concurrency_key: Mapped[str | None] = mapped_column(sa.Text(collation="C"))
    progress_message: Mapped[str | None]
    """The message of that progress."""
    logs: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The log lines of its last attempt, if its task keeps them: `[seconds since 1970, level, text]` each, the oldest first."""
    steps: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The recorded steps in order, as objects with the columns of `job_steps`. Results of more than 1,000 bytes are left out."""
    columns: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """What a job table of your own has besides, by column, as JSON; None for a `Job`."""

    __table_args__ = (
        partial_index("archived_job_subject_idx", "subject_type", "subject_id", where="subject_type IS NOT NULL"),
        {"postgresql_partition_by": "RANGE (finished_at)"},
    )
    # A number is given once, in any month.
    __mapper_args__ = {"primary_key": [id]}  # noqa: A003, RUF012


class ArchivedTask(Base):
    """A task whose finished jobs are moved to the archive, as the code of a worker declares."""

    __tablename__ = "archived_task"

    name: Mapped[str] = mapped_column(primary_key=True)
    """Of the task, or one of its aliases."""
    declared_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
