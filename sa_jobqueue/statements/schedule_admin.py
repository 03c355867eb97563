"""What an operator does to schedules. Each is a statement, so it joins the caller's transaction:

>>> from sa_jobqueue import Schedule
>>> statement = pause_schedules(Schedule.task == "shop.report", reason="the provider is down")

The criteria are those of `select(Schedule).where(...)`. Rows are locked in the order of their ids, so two operators cannot
deadlock. Schedule objects that are already loaded keep what they show until they are refreshed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ColumnExpressionArgument,
    DateTime,
    Executable,
    Float,
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from ..failures import clean
from ..models import Job, JobMixin, Schedule, schema_function
from .admin import UNSYNCHRONIZED, check_criteria
from .beside import with_companions
from .parts import epoch, lock_in_order, members, table_of

__all__ = [
    "enqueued_ticks",
    "list_schedules",
    "lock_schedule",
    "pause_schedules",
    "remove_schedules",
    "resume_schedules",
    "run_schedules",
]

Criterion = ColumnExpressionArgument[bool]


def pause_schedules(
    *where: Criterion, reason: str = "paused by an operator", schedule: type[Schedule] = Schedule
) -> Executable:
    """Pause schedules: they enqueue nothing until they are resumed, whatever is deployed meanwhile. Returns their names.

    A pause that is there already keeps its beginning, and takes this reason. Jobs that are enqueued already are not touched.
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason must be a string, not {reason!r}")
    columns = table_of(schedule).c
    return (
        update(schedule)
        .where(_chosen("pause_schedules", where, schedule))
        .values(
            paused_at=func.coalesce(columns.paused_at, func.now()),
            paused_by=literal_column("'operator'"),
            pause_reason=bindparam("reason", clean(reason), Text),
        )
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def resume_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> Executable:
    """Let paused schedules go on, from now: the ticks of the pause are left out. Returns the names of those that were paused."""
    columns = table_of(schedule).c
    return (
        update(schedule)
        .where(_chosen("resume_schedules", where, schedule, columns.paused_at.is_not(None)))
        .values(paused_at=null())
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def remove_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> Executable:
    """Delete schedules. Returns their names. Their jobs stay. One that a worker's code declares is made again by that worker."""
    columns = table_of(schedule).c
    return (
        delete(schedule)
        .where(_chosen("remove_schedules", where, schedule, to_delete=True))
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def run_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> Executable:
    """Enqueue a job of each schedule now, beside its ticks, also if it is paused. Returns the ids of the jobs.

    Such a job has now() as its `tick_at`. `overlap` is not looked at.
    """
    columns = table_of(schedule).c
    call = schema_function(
        "enqueue_ticks",
        table_of(schedule).schema,
        *(
            func.array_agg(aggregate_order_by(cast(value, of), columns.id), type_=ARRAY(of))
            for value, of in (
                (columns.id, BigInteger()),
                (epoch(func.now()), Float(53)),
                (literal_column("1"), Integer()),
                (literal_column("0"), Float(53)),
            )
        ),
        of=BigInteger(),
    )
    return select(call.label("id")).where(*_given("run_schedules", where))


@with_companions
def list_schedules(*, job: type[JobMixin] = Job, schedule: type[Schedule] = Schedule) -> Select[Any]:
    """A row per schedule, by name: its columns; `now`; and of its last job, or one that has not finished, `job_id`, `job_status`,
    `job_created_at` and `job_finished_at`, which are NULL if there is none.
    """
    table, jobs = table_of(schedule), table_of(job).c
    last = (
        select(jobs.id, jobs.status, jobs.created_at, jobs.finished_at)
        .where(jobs.schedule_id == table.c.id)
        .order_by(jobs.finished_at.desc(), jobs.id.desc())  # those that have not finished come first
        .limit(literal_column("1"))
        .correlate(table)
        .lateral("last")
    )
    return (
        select(
            *table.c,
            last.c.id.label("job_id"),
            last.c.status.label("job_status"),
            last.c.created_at.label("job_created_at"),
            last.c.finished_at.label("job_finished_at"),
            func.now().label("now"),
        )
        .select_from(table.outerjoin(last, literal_column("true")))
        .order_by(table.c.name)
    )


def lock_schedule(name: str, *, lock: bool = True, schedule: type[Schedule] = Schedule) -> Executable:
    """What says which ticks of a schedule were dealt with, and `now`. `lock`: no worker moves it on until the transaction ends."""
    columns = table_of(schedule).c
    found = select(
        columns.id, columns.expression, columns.timezone, columns.counts_from, columns.next_at, columns.paused_at,
        columns.paused_by, func.now().label("now"),
    ).where(columns.name == bindparam("schedule_name", name, Text))  # fmt: skip
    return found.with_for_update(key_share=True) if lock else found


def enqueued_ticks(id: int, *, start: datetime, end: datetime, job: type[JobMixin] = Job) -> Executable:
    """The ticks of a schedule from `start` to `end`, both included, at which jobs of it were made that are still there."""
    columns = table_of(job).c
    time = DateTime(timezone=True)
    return select(columns.tick_at).where(
        columns.schedule_id == bindparam("of_schedule", id, BigInteger),
        columns.tick_at.between(literal(start, time), literal(end, time)),
    )


def _given(name: str, where: Sequence[Criterion]) -> Sequence[Criterion]:
    if not where:
        raise ValueError(f"say which schedules: {name}(Schedule.name == 'report'), or {name}(true()) for all of them")
    check_criteria(name, where)
    return where


def _chosen(
    name: str, where: Sequence[Criterion], schedule: type[Schedule], *also: Criterion, to_delete: bool = False
) -> ColumnElement[bool]:
    """The rows that match, locked in the order of their ids."""
    table = table_of(schedule)
    locked = lock_in_order(table, *_given(name, where), *also, skip_locked=False, to_delete=to_delete)
    return members(table.c.id, select(locked.c.id))
