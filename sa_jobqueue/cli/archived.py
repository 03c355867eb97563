"""A job of the archive, as `show` needs it: found by its number, with its log lines and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_jobqueue.models import ArchivedJob, Job, Progress

from .filters import reading_of

__all__ = ["LogLine", "Said", "find_archived", "lines_of", "said_of"]


class LogLine(NamedTuple):
    """A line as `job_logs` returns it."""

    attempt: int
    at: datetime
    level: str
    message: str


class Said(NamedTuple):
    """How far a handler said that it is, and when; None: it is not known any more."""

    fraction: float
    message: str | None
    written_at: datetime | None


def find_archived(session: Session, id: int) -> Any:
    """The job, what it is called, and the database's time; None if the archive has no such job."""
    found = sa.select(ArchivedJob, reading_of(ArchivedJob), sa.func.now()).where(ArchivedJob.id == id)
    # A number may be there twice, as after a restore.
    return session.execute(found.order_by(ArchivedJob.finished_at.desc()).limit(1)).one_or_none()


def lines_of(job: ArchivedJob) -> Sequence[LogLine]:
    """The log lines of its last attempt."""
    return [
        LogLine(job.attempt, datetime.fromtimestamp(seconds, UTC), level, message)
        for seconds, level, message in job.logs or ()
    ]


def said_of(job: Job | ArchivedJob, progress: Progress | None) -> Said | None:
    """How far it was. `progress`: what the table of progress has of a job that is not in the archive."""
    if isinstance(job, ArchivedJob):
        return None if job.progress is None else Said(job.progress, job.progress_message, None)
    return None if progress is None else Said(progress.fraction, progress.message, progress.written_at)
