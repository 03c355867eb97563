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

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from ...models import Job, JobMixin, Schedule, companions_of, schema_function
from ...rules.failures import clean
from ..admin import UNSYNCHRONIZED, check_criteria
from ..parts import ONE, ZERO, epoch, lock_in_order, members, table_of

Criterion = sa.ColumnExpressionArgument[bool]


def pause_schedules(
    *where: Criterion, reason: str = "paused by an operator", schedule: type[Schedule] = Schedule
) -> sa.Executable:
    """Pause schedules: they enqueue nothing until they are resumed, also through deployments. Returns their names.

    A pause that is there already keeps its beginning, and takes this reason. Jobs that are enqueued already are not touched.
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason must be a string, not {reason!r}")
    columns = table_of(schedule).c
    return (
        sa.update(schedule)
        .where(_chosen("pause_schedules", where, schedule))
        .values(
            paused_at=sa.func.coalesce(columns.paused_at, sa.func.now()),
            paused_by=sa.literal_column("'operator'"),
            pause_reason=sa.bindparam("reason", clean(reason), sa.Text),
        )
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def resume_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Let paused schedules go on, from now: the ticks of the pause are left out. Returns the names of those that were paused."""
    columns = table_of(schedule).c
    return (
        sa.update(schedule)
        .where(_chosen("resume_schedules", where, schedule, columns.paused_at.is_not(None)))
        .values(paused_at=sa.null())
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def remove_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Delete schedules. Returns their names. Their jobs stay. A worker whose code declares a schedule makes it again."""
    columns = table_of(schedule).c
    return (
        sa.delete(schedule)
        .where(_chosen("remove_schedules", where, schedule, to_delete=True))
        .returning(columns.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def run_schedules(*where: Criterion, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Enqueue a job of each schedule now, in addition to its ticks, also if it is paused. Returns the ids of the jobs.

    Such a job has now() as its `tick_at`. `overlap` does not matter.
    """
    columns = table_of(schedule).c
    call = schema_function(
        "enqueue_ticks",
        table_of(schedule).schema,
        *(
            sa.func.array_agg(aggregate_order_by(sa.cast(value, of), columns.id), type_=ARRAY(of))
            for value, of in (
                (columns.id, sa.BigInteger()),
                (epoch(sa.func.now()), sa.Float(53)),
                (ONE, sa.Integer()),
                (ZERO, sa.Float(53)),
            )
        ),
        of=sa.BigInteger(),
    )
    return sa.select(call.label("id")).where(*_given("run_schedules", where))


def list_schedules(*, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """A row per schedule, by name: its columns; `now`; and of its last job, or a job that has not finished, `job_id`, `job_status`,
    `job_created_at` and `job_finished_at`, which are NULL if there is none.
    """
    table, jobs = table_of(companions_of(job).schedule), table_of(job).c
    last = (
        sa.select(jobs.id, jobs.status, jobs.created_at, jobs.finished_at)
        .where(jobs.schedule_id == table.c.id)
        .order_by(jobs.finished_at.desc(), jobs.id.desc())  # those that have not finished come first
        .limit(ONE)
        .correlate(table)
        .lateral("last")
    )
    return (
        sa.select(
            *table.c,
            last.c.id.label("job_id"),
            last.c.status.label("job_status"),
            last.c.created_at.label("job_created_at"),
            last.c.finished_at.label("job_finished_at"),
            sa.func.now().label("now"),
        )
        .select_from(table.outerjoin(last, sa.literal_column("true")))
        .order_by(table.c.name)
    )


def lock_schedule(name: str, *, lock: bool = True, job: type[JobMixin] = Job) -> sa.Executable:
    """The columns that tell which ticks of a schedule were handled, and `now`. `lock`: no worker moves it on until the transaction ends."""
    columns = table_of(companions_of(job).schedule).c
    found = sa.select(
        columns.id, columns.expression, columns.timezone, columns.counts_from, columns.next_at, columns.paused_at,
        columns.paused_by, sa.func.now().label("now"),
    ).where(columns.name == sa.bindparam("schedule_name", name, sa.Text))  # fmt: skip
    return found.with_for_update(key_share=True) if lock else found


def enqueued_ticks(id: int, *, start: datetime, end: datetime, job: type[JobMixin] = Job) -> sa.Executable:
    """The ticks of a schedule from `start` to `end`, both included, at which jobs of it were made that are still there."""
    columns = table_of(job).c
    time = sa.DateTime(timezone=True)
    return sa.select(columns.tick_at).where(
        columns.schedule_id == sa.bindparam("of_schedule", id, sa.BigInteger),
        columns.tick_at.between(sa.literal(start, time), sa.literal(end, time)),
    )


def _given(name: str, where: Sequence[Criterion]) -> Sequence[Criterion]:
    if not where:
        raise ValueError(f"say which schedules: {name}(Schedule.name == 'report'), or {name}(true()) for all of them")
    check_criteria(name, where)
    return where


def _chosen(
    name: str, where: Sequence[Criterion], schedule: type[Schedule], *also: Criterion, to_delete: bool = False
) -> sa.ColumnElement[bool]:
    """The rows that match, locked in the order of their ids."""
    table = table_of(schedule)
    locked = lock_in_order(table, *_given(name, where), *also, skip_locked=False, to_delete=to_delete)
    return members(table.c.id, sa.select(locked.c.id))
