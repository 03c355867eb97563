"""Workflows as rows: what is stored of the graph, and what has happened to its jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ..util.schema import SCHEMA
from .base import Base, DueTime, JsonObject, field_checks, partial_index, vacuum_by_traffic

# Left out of the INSERT where they are not set, as of `Job`.
_UNSAID_TIME = sa.DateTime(timezone=True).evaluates_none()

#: The task of a member that completes by itself, once its parents have.
GATE = "(gate)"


class WorkflowRow(Base):
    """A workflow: jobs that wait for each other. `Workflow` and `Batch` make such rows."""

    __tablename__ = "workflow"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=False), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=sa.text("now()"))
    watched_id: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("9223372036854775807"), deferred=True)
    """A job of it that has not ended: while it has not, neither has the workflow."""
    fail_fast: Mapped[bool] = mapped_column(server_default=sa.text("false"))
    """Whether all its jobs are cancelled when a job has failed."""
    is_broken: Mapped[bool] = mapped_column(server_default=sa.text("false"), deferred=True)
    """Whether a job of it did not complete, according to the events so far."""
    status: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("'running'"))
    """running, completed, failed (a job has failed), or cancelled (no job has failed, and a job was cancelled)."""
    deadline_at: Mapped[datetime | None] = mapped_column(DueTime(SCHEMA).evaluates_none())
    """After that time its jobs are cancelled."""
    finished_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """When the last job ended."""
    purge_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """When it may be deleted, with its jobs; None: not yet, or never."""
    paused_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """Since when none of its jobs is started."""
    cancelled_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    retain: Mapped[float | None] = mapped_column(sa.Float(53).evaluates_none())
    """Seconds for which it stays after its end; None: forever. A failed workflow stays for at least 30 days."""
    name: Mapped[str] = mapped_column(server_default=sa.text("'workflow'"))
    meta: Mapped[dict[str, Any]] = mapped_column(JsonObject().evaluates_none(), server_default=sa.text("'{}'::jsonb"))
    reason: Mapped[str | None] = mapped_column(sa.Text().evaluates_none())
    """Why it was cancelled."""

    __table_args__ = (
        sa.CheckConstraint(
            "status = ANY ('{running,completed,failed,cancelled}'::text[])", name="workflow_status_check"
        ),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="workflow_name_check"),
        sa.CheckConstraint("retain >= 0", name="workflow_retain_check"),
        partial_index("workflow_deadline_idx", "deadline_at", where="deadline_at IS NOT NULL AND finished_at IS NULL"),
        partial_index("workflow_purge_idx", "purge_at", where="purge_at IS NOT NULL"),
        partial_index("workflow_running_idx", "created_at", where="finished_at IS NULL AND paused_at IS NULL"),
        partial_index("workflow_paused_idx", "paused_at", where="finished_at IS NULL AND paused_at IS NOT NULL"),
        partial_index("workflow_failed_idx", "finished_at", where="status = 'failed'"),
    )


class WorkflowDependency(Base):
    """A job that waits for another one of its workflow."""

    __tablename__ = "workflow_dependency"

    child_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    parent_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    position: Mapped[int | None] = mapped_column(sa.Integer)
    """Where among the child's inputs the parent's result goes; None: the child does not take it."""
    policy: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("'cancel'"))
    """What becomes of the child if the parent does not complete: "cancel"; "run", with a `Failed` in place of the result; "skip": run,
    without it; "count": it needs some of these parents, see `WorkflowJoin`."""

    __table_args__ = (
        sa.CheckConstraint("policy = ANY ('{cancel,run,skip,count}'::text[])", name="workflow_dependency_policy_check"),
        sa.Index("workflow_dependency_parent_idx", "parent_id"),
    )


class WorkflowJoin(Base):
    """A job that needs only some of its parents."""

    __tablename__ = "workflow_join"

    job_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    workflow_id: Mapped[int] = mapped_column(sa.BigInteger)
    needed: Mapped[int] = mapped_column(sa.Integer)
    missing: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("0"))
    """At least this many more have to complete before counting again is worth while."""
    spare: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("0"))
    """This many may fail before it is."""

    __table_args__ = (
        sa.CheckConstraint("needed >= 1", name="workflow_join_needed_check"),
        sa.Index("workflow_join_workflow_idx", "workflow_id"),
    )


class WorkflowCallback(Base):
    """A job that is enqueued when something happens to a workflow."""

    __tablename__ = "workflow_callback"

    workflow_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    fired_at: Mapped[datetime | None]
    priority: Mapped[int] = mapped_column(sa.SmallInteger)
    max_attempts: Mapped[int] = mapped_column(sa.SmallInteger)
    units: Mapped[int | None] = mapped_column(sa.SmallInteger)
    delay: Mapped[float | None]
    """Seconds until it is due."""
    event: Mapped[str] = mapped_column(sa.Text)
    """success, failure or end."""
    task: Mapped[str]
    queue: Mapped[str]
    args: Mapped[dict[str, Any]] = mapped_column(JSONB)
    meta: Mapped[dict[str, Any]] = mapped_column(JSONB)
    extras: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    concurrency_key: Mapped[str | None] = mapped_column(sa.Text(collation="C"))
    subject_type: Mapped[str | None] = mapped_column(sa.Text(collation="C"))
    subject_id: Mapped[str | None] = mapped_column(sa.Text(collation="C"))

    __table_args__ = (
        sa.CheckConstraint("event = ANY ('{success,failure,end}'::text[])", name="workflow_callback_event_check"),
        *field_checks("workflow_callback"),
    )


class WorkflowEvent(Base):
    """Something has happened to a job of a workflow, and its children have not been looked at since."""

    __tablename__ = "workflow_event"

    workflow_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(sa.BigInteger)
    """The job; or minus the workflow's id: those that wait to be looked at."""
    completed: Mapped[bool | None]
    """Whether the job completed; None: it is to be looked at."""


vacuum_by_traffic(WorkflowRow, also="fillfactor = 70, ")
vacuum_by_traffic(WorkflowDependency)
vacuum_by_traffic(WorkflowEvent)
