"""Counting jobs, by queue."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    ColumnExpressionArgument,
    Executable,
    Float,
    and_,
    func,
    literal_column,
    select,
    type_coerce,
)

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, status_literal
from .parts import in_seconds, table_of

__all__ = ["count_jobs"]


def count_jobs(
    *where: ColumnExpressionArgument[bool], lately: float = 3_600.0, job: type[JobMixin] = Job
) -> Executable:
    """A row per queue, by name: queue, queued, due, oldest_due_age, blocked, running, completed, failed, cancelled.

    `due` are the queued jobs whose time has come; `oldest_due_age` is how long, in seconds, the first of them has
    waited. completed, failed and cancelled count the jobs that ended within the last `lately` seconds.
    `where` narrows what is counted, as in `select(Job).where(...)`.
    """
    columns = table_of(job).c
    status = columns.status

    def having(*criteria: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count().filter(and_(*criteria))

    recent = columns.finished_at >= in_seconds(-lately, name="lately_seconds")
    due = and_(status == status_literal(JobStatus.QUEUED), columns.run_at <= func.now())
    # A job that is due since ever (-infinity) has waited since the year 2: there is no difference to infinity before
    # PostgreSQL 17, and no JSON for it.
    since = func.greatest(columns.run_at, literal_column("timestamptz '0002-01-01 00:00:00+00'"))
    oldest = func.extract("epoch", func.now() - func.min(since).filter(due))
    return (
        select(
            columns.queue,
            having(status == status_literal(JobStatus.QUEUED)).label("queued"),
            having(due).label("due"),
            type_coerce(oldest, Float).label("oldest_due_age"),
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
