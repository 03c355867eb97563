"""Numbers for a chart: jobs of one status by queue, what was enqueued lately, and how far schedules are behind. Each reads one index, up to a cap."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Executable, Float, Integer, bindparam, case, func, literal_column, select, type_coerce

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, Schedule, status_literal
from .depths import CAP
from .ends import has_run_out, is_held
from .parts import epoch, in_seconds, table_of

__all__ = ["arrivals", "count_by_queue", "running_jobs", "schedule_lag"]

#: Seconds for which a schedule may be due: a live worker looks within a second or two, without NOTIFY within 20.
_IN_TIME = 60.0


def count_by_queue(status: JobStatus, *, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per queue: the `number` of jobs of this status, among the last `cap` of all queues. For running and failed jobs."""
    columns = table_of(job).c
    last = (
        select(columns.queue)
        .where(columns.status == status_literal(status))
        .order_by(columns.id.desc())
        .limit(bindparam("cap", cap, Integer))
        .subquery("last")
    )
    return select(last.c.queue, func.count().label("number")).group_by(last.c.queue).order_by(last.c.queue)


def arrivals(*, within: timedelta, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per queue: the `number` of jobs that were enqueued `within` this time, among the last `cap` of all queues; and the `seconds`
    that these cover, fewer where there were more jobs. Jobs that are deleted as they complete are not there to be counted.
    """
    columns = table_of(job).c
    most = bindparam("cap", cap, Integer)
    begin = in_seconds(-within.total_seconds(), name="within_seconds")
    last = select(columns.queue, columns.created_at).order_by(columns.id.desc()).limit(most).subquery("last")
    recent = (
        select(last.c.queue, func.count().label("number"), func.min(last.c.created_at).label("first"))
        .where(last.c.created_at >= begin)
        .group_by(last.c.queue)
        .subquery("recent")
    )
    # Of fewer jobs than the cap, none is missing.
    whole = func.sum(recent.c.number).over() < most
    since = case((whole, begin), else_=func.min(recent.c.first).over())
    seconds = func.greatest(epoch(func.now() - since), literal_column("1.0", Float))
    return select(recent.c.queue, recent.c.number, type_coerce(seconds, Float).label("seconds")).order_by(
        recent.c.queue
    )


def running_jobs(*, cap: int = CAP, job: type[JobMixin] = Job) -> Executable:
    """A row per queue and worker: queue, worker, how many jobs are `running`, and of these those whose lease has `expired`; among
    `cap` of all.
    """
    table = table_of(job)
    held = (
        select(table.c.queue, table.c.worker, has_run_out(table).label("expired"))
        .where(is_held(table))
        .limit(bindparam("cap", cap, Integer))
        .subquery("held")
    )
    expired = func.count().filter(held.c.expired).label("expired")
    return select(held.c.queue, held.c.worker, func.count().label("running"), expired).group_by(
        held.c.queue, held.c.worker
    )


def schedule_lag(*, seen: float = _IN_TIME, schedule: type[Schedule] = Schedule) -> Executable:
    """One row about schedules that are not paused: their number, how many are `behind` and how many `failing`, and for how many
    `seconds` the first of those behind has been due.
    """
    columns = table_of(schedule).c
    behind = columns.due_at < in_seconds(-seen, name="seen_seconds")
    since = epoch(func.now() - func.min(columns.due_at).filter(behind))
    return select(
        func.count().label("number"),
        func.count().filter(behind).label("behind"),
        func.count().filter(columns.error.is_not(None)).label("failing"),
        type_coerce(func.coalesce(since, literal_column("0.0", Float)), Float).label("seconds"),
    ).where(columns.paused_at.is_(None))
