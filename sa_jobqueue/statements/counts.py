"""Counting jobs, by queue."""

from __future__ import annotations

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, status_literal
from .parts import in_seconds, table_of

__all__ = ["count_jobs"]


def count_jobs(
    *where: sa.ColumnExpressionArgument[bool], lately: float = 3_600.0, job: type[JobMixin] = Job
) -> sa.Executable:
    """A row per queue, by name: queue, queued, due, oldest_due_age, blocked, running, completed, failed, cancelled.

    `due` are the queued jobs whose time has come; `oldest_due_age` is how long, in seconds, the first of them has
    waited. completed, failed and cancelled count the jobs that ended within the last `lately` seconds.
    `where` narrows what is counted, as in `select(Job).where(...)`.
    """
    columns = table_of(job).c
    status = columns.status

    def having(*criteria: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(sa.and_(*criteria))

    recent = columns.finished_at >= in_seconds(-lately, name="lately_seconds")
    due = sa.and_(status == status_literal(JobStatus.QUEUED), columns.run_at <= sa.func.now())
    # A job that is due since ever (-infinity) has waited since the year 2: there is no difference to infinity before
    # PostgreSQL 17, and no JSON for it.
    since = sa.func.greatest(columns.run_at, sa.literal_column("timestamptz '0002-01-01 00:00:00+00'"))
    oldest = sa.func.extract("epoch", sa.func.now() - sa.func.min(since).filter(due))
    return (
        sa.select(
            columns.queue,
            having(status == status_literal(JobStatus.QUEUED)).label("queued"),
            having(due).label("due"),
            sa.type_coerce(oldest, sa.Float).label("oldest_due_age"),
            having(status == status_literal(JobStatus.BLOCKED)).label("blocked"),
            having(status == status_literal(JobStatus.RUNNING)).label("running"),
            *(
                having(status == status_literal(end), recent).label(end.value)
                for end in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
            ),
        )
        .select_from(job)  # so that a session that is bound by class finds its engine
        .where(*where)
        .group_by(columns.queue)
        .order_by(columns.queue)
    )
