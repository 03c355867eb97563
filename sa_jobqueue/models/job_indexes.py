"""The constraints, indexes and storage of a job table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.schema import SchemaItem

from ..rules.lifecycle import JobStatus
from .base import field_checks, partial_index
from .job_readings import JobReadings, subject_index

#: Statements of `create_all` after the table is made.
AFTER_CREATE = (
    "ALTER TABLE %(fullname)s ALTER COLUMN status SET DEFAULT 'queued', ALTER COLUMN errors SET DEFAULT '[]'::jsonb",
    # `postgresql_with` on a Table is new in SQLAlchemy 2.1; this is the same on 2.0.
    (
        "ALTER TABLE %(fullname)s SET ("
        # Room for an update on the same page; renewals of a lease stay HOT.
        "fillfactor = 85, "
        # A queue's dead rows come from its traffic and not from its size: no scale factor.
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
        "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000, "
        "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000)"
    ),
    # The claim and the completion each leave an entry next to the first entry. Without room for them every page is split, and searched
    # for dead entries before: a sixth of the cost of a job on the server.
    "ALTER INDEX %(schema)s.job_pkey SET (fillfactor = 45)",
)


def constraints_and_indexes() -> tuple[SchemaItem, ...]:
    """The constraints and indexes of a job table. Each table needs its own."""
    return (
        sa.CheckConstraint(
            "status = ANY ('{queued,blocked,running,completed,failed,cancelled}'::text[])", name="job_status_check"
        ),
        *field_checks("job"),
        partial_index(
            "job_claim_idx", "queue", "priority", "run_at", "id", where="status = 'queued' AND concurrency_key IS NULL"
        ),
        partial_index("job_running_idx", "id", where="status = 'running'"),
        partial_index("job_failed_idx", "id", where="status = 'failed'"),
        partial_index("job_workflow_idx", "workflow_id", "id", where="workflow_id IS NOT NULL"),
        partial_index("job_blocked_idx", "blocked_by", where="blocked_by IS NOT NULL AND status = 'blocked'"),
        partial_index("job_schedule_idx", "schedule_id", "finished_at", where="schedule_id IS NOT NULL"),
        partial_index(
            "job_limit_idx",
            "LEAST(expires_at, deadline_at)",
            where="LEAST(expires_at, deadline_at) IS NOT NULL AND status IN ('queued', 'blocked')",
        ),
        partial_index(
            "job_key_ready_idx",
            "queue",
            "concurrency_key",
            "(- priority)",
            "run_at",
            "id",
            where="concurrency_key IS NOT NULL AND status = 'queued' AND run_at <= GREATEST(created_at, ready_at)",
        ),
        partial_index(
            "job_key_later_idx",
            "queue",
            "run_at",
            "id",
            where="concurrency_key IS NOT NULL AND status = 'queued' AND run_at > GREATEST(created_at, ready_at)",
        ),
        partial_index(
            "job_key_begun_idx",
            "concurrency_key",
            "(status <> 'queued')",
            "id",
            where="concurrency_key IS NOT NULL AND (status = 'running' OR (status = 'queued' AND claims > 0))",
        ),
        subject_index("job_subject_idx"),
        partial_index("job_purge_idx", "purge_at", where="purge_at IS NOT NULL"),
    )


# ---- The attributes of a job after an INSERT or UPDATE by a Session: all are known, without a query where possible.


def know_what_came_of_it(mapper: Mapper[Any], connection: sa.Connection, job: JobReadings) -> None:
    """After the INSERT the job is queued, or is a duplicate. A delay has become a time; both are counted from the transaction's now()."""
    known = vars(job)
    # As `set_committed_value` would, which searches for an older value.
    if known.get("_duplicate_of") is None:
        known["status"] = JobStatus.QUEUED
        known.setdefault("errors", [])
    else:
        known.update(_end_of_duplicate(job))
    for name in ("run_at", "expires_at", "deadline_at"):
        due = known.get(name)
        if isinstance(due, timedelta):
            set_committed_value(job, name, job.created_at + due)


def _end_of_duplicate(job: JobReadings) -> dict[str, Any]:
    """The values that the trigger `job_unique` has written. A role that only enqueues may not read them."""
    at, holder = job.created_at, "another job" if job.duplicate_of is None else f"job {job.duplicate_of}"
    error = {
        "at": at.isoformat(),
        "attempt": 0,
        "type": "Duplicate",
        "message": f"the unique key '{job.unique_key}' was held by {holder}",
        "traceback": "",
    }
    return {"status": JobStatus.CANCELLED, "finished_at": at, "purge_at": at + timedelta(days=1), "errors": [error]}


def load_times(mapper: Mapper[Any], connection: sa.Connection, job: JobReadings) -> None:
    """Load the times after an UPDATE too, and at once: under AsyncSession a lazy load would fail."""
    of = mapper.class_
    for time in (of.run_at, of.expires_at, of.deadline_at):
        if isinstance(job.__dict__.get(time.key), timedelta):
            set_committed_value(job, time.key, connection.scalar(sa.select(time).where(of.id == job.id)))
