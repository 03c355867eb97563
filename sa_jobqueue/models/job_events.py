"""What an INSERT or an UPDATE by a Session leaves in a job: all of it is known, with no query where that can be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import set_committed_value

from ..lifecycle import JobStatus
from .job_readings import JobReadings

__all__ = ["know_what_came_of_it", "load_times"]


def know_what_came_of_it(mapper: Mapper[Any], connection: sa.Connection, job: JobReadings) -> None:
    """After the INSERT the job is queued, or is a duplicate. A delay has become a time; both are counted from the transaction's now()."""
    known = vars(job)
    # As `set_committed_value` would, which looks for an older value.
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
    """What the trigger `job_unique` has written. A role that only enqueues may not read it."""
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
