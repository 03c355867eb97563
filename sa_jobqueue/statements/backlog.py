"""Numbers for a chart: jobs of one status by queue, what was enqueued lately, and how far schedules are behind. Each reads one index, up to a cap."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, Schedule, status_literal
from .depths import CAP
from .ends import has_run_out, is_held
from .parts import epoch, in_seconds, table_of

__all__ = ["arrivals", "count_by_queue", "running_jobs", "schedule_lag"]

#: Seconds for which a schedule may be due: a live worker looks within a second or two, without NOTIFY within 20.
_IN_TIME = 60.0


def count_by_queue(status: JobStatus, *, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue: the `number` of jobs of this status, among the last `cap` of all queues. For running and failed jobs."""
    columns = table_of(job).c
    last = (
        sa.select(columns.queue)
        .where(columns.status == status_literal(status))
        .order_by(columns.id.desc())
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("last")
    )
    return sa.select(last.c.queue, sa.func.count().label("number")).group_by(last.c.queue).order_by(last.c.queue)


def arrivals(*, within: timedelta, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue: the `number` of jobs that were enqueued `within` this time, among the last `cap` of all queues; and the `seconds`
    that these cover, fewer where there were more jobs. Jobs that are deleted as they complete are not there to be counted.
    """
    columns = table_of(job).c
    most = sa.bindparam("cap", cap, sa.Integer)
    begin = in_seconds(-within.total_seconds(), name="within_seconds")
    last = sa.select(columns.queue, columns.created_at).order_by(columns.id.desc()).limit(most).subquery("last")
    recent = (
        sa.select(last.c.queue, sa.func.count().label("number"), sa.func.min(last.c.created_at).label("first"))
        .where(last.c.created_at >= begin)
        .group_by(last.c.queue)
        .subquery("recent")
    )
    # Of fewer jobs than the cap, none is missing.
    whole = sa.func.sum(recent.c.number).over() < most
    since = sa.case((whole, begin), else_=sa.func.min(recent.c.first).over())
    seconds = sa.func.greatest(epoch(sa.func.now() - since), sa.literal_column("1.0", sa.Float))
    return sa.select(recent.c.queue, recent.c.number, sa.type_coerce(seconds, sa.Float).label("seconds")).order_by(
        recent.c.queue
    )


def running_jobs(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and worker: queue, worker, how many jobs are `running`, and of these those whose lease has `expired`; among
    `cap` of all.
    """
    table = table_of(job)
    held = (
        sa.select(table.c.queue, table.c.worker, has_run_out(table).label("expired"))
        .where(is_held(table))
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("held")
    )
    expired = sa.func.count().filter(held.c.expired).label("expired")
    return sa.select(held.c.queue, held.c.worker, sa.func.count().label("running"), expired).group_by(
        held.c.queue, held.c.worker
    )


def schedule_lag(*, seen: float = _IN_TIME, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """One row about schedules that are not paused: their number, how many are `behind` and how many `failing`, and for how many
    `seconds` the first of those behind has been due.
    """
    columns = table_of(schedule).c
    behind = columns.due_at < in_seconds(-seen, name="seen_seconds")
    since = epoch(sa.func.now() - sa.func.min(columns.due_at).filter(behind))
    return sa.select(
        sa.func.count().label("number"),
        sa.func.count().filter(behind).label("behind"),
        sa.func.count().filter(columns.error.is_not(None)).label("failing"),
        sa.type_coerce(sa.func.coalesce(since, sa.literal_column("0.0", sa.Float)), sa.Float).label("seconds"),
    ).where(columns.paused_at.is_(None))
