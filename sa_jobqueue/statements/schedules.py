"""Schedules: which are due, and the jobs of their ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, Schedule, schema_function, status_literal
from .parts import array, epoch, epoch_of, in_seconds, members, rows, table_of

__all__ = [
    "MOVE",
    "due_schedules",
    "enqueue_ticks",
    "failing_schedules",
    "live_jobs",
    "move_schedules",
    "next_look",
    "pause_failing",
    "set_aside",
]


def next_look(*, schedule: type[Schedule] = Schedule) -> sa.Select[Any]:
    """Seconds until a worker has to look at a schedule next; no row if there is none."""
    columns = table_of(schedule).c
    return (
        sa.select(sa.type_coerce(epoch(columns.due_at) - epoch(sa.func.clock_timestamp()), sa.Float()))
        .where(columns.paused_at.is_(None))
        .order_by(columns.due_at)
        .limit(sa.literal_column("1"))
    )


def due_schedules(*, limit: int, only: int | None = None, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """The schedules that are due, locked; those that another transaction has locked are left. `only`: this one, if it is due.

    Times come in seconds since 1970, because a `datetime` cannot hold them all; and the database's now() with them.
    """
    columns = table_of(schedule).c
    this = [] if only is None else [columns.id == sa.bindparam("only_id", only, sa.BigInteger)]
    return (
        sa.select(
            columns.id, columns.name, columns.expression, columns.timezone, columns.missed, columns.catch_up, columns.overlap,
            columns.jitter, columns.pause_after, epoch_of(columns.counts_from), epoch_of(columns.next_at),
            epoch_of(columns.waiting_since), columns.error, epoch(sa.func.now()).label("now"),
        )
        .where(columns.paused_at.is_(None), columns.due_at <= sa.func.now(), *this)
        .order_by(columns.due_at, columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .with_for_update(key_share=True, skip_locked=True)
    )  # fmt: skip


def live_jobs(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Those of these schedules that have jobs which have not finished."""
    columns = table_of(job).c
    wanted = rows("wanted", id=array("schedule_ids", ids, sa.BigInteger()))
    # Not EXISTS, which may be planned as a hash over all live jobs.
    live = (
        sa.select(sa.literal_column("true", sa.Boolean))
        .where(columns.schedule_id == wanted.c.id, columns.finished_at.is_(None))
        .limit(sa.literal_column("1"))
        .correlate(wanted)
        .scalar_subquery()
    )
    return sa.select(wanted.c.id).where(live)


def failing_schedules(
    ids: Sequence[int], *, job: type[JobMixin] = Job, schedule: type[Schedule] = Schedule
) -> sa.Executable:
    """Those of these schedules whose last `pause_after` finished jobs have all failed, since they began to count."""
    jobs, table = table_of(job).c, table_of(schedule)
    last = (
        sa.select(jobs.status)
        .where(jobs.schedule_id == table.c.id, jobs.finished_at >= table.c.counts_from)
        .order_by(jobs.finished_at.desc())
        .limit(table.c.pause_after)
        .correlate(table)
        .subquery("last")
    )
    failed = (
        sa.select(sa.func.count().filter(last.c.status == status_literal(JobStatus.FAILED)))
        .correlate(table)
        .scalar_subquery()
    )
    wanted = table.c.id == sa.func.any(array("schedule_ids", ids, sa.BigInteger()))
    return sa.select(table.c.id).where(wanted, failed >= table.c.pause_after)


def enqueue_ticks(
    *,
    schedules: Sequence[int],
    times: Sequence[float],
    numbers: Sequence[int],
    delays: Sequence[float],
    schedule: type[Schedule] = Schedule,
) -> sa.Executable:
    """Insert a job for each tick: of which schedule it is, when it is, in seconds since 1970, for how many it stands, and how many
    seconds after it the job is due. Returns their ids.

    It calls a function of the schema, because a worker's role may insert no other jobs.
    """
    call = schema_function(
        "enqueue_ticks",
        table_of(schedule).schema,
        array("tick_schedules", schedules, sa.BigInteger()),
        array("tick_times", times, sa.Float(53)),
        array("tick_numbers", numbers, sa.Integer()),
        array("tick_delays", delays, sa.Float(53)),
        of=sa.BigInteger(),
    )
    return sa.select(call.label("id"))


#: The columns of `move_schedules`, each an array: the schedule, its next tick, when to look at it next (None: at the next tick), the
#: last tick for which a job was enqueued, the tick that waits; all in seconds since 1970. And how many ticks were left out.
MOVE: Mapping[str, Any] = {
    "id": sa.BigInteger(), "next_at": sa.Float(53), "due_at": sa.Float(53), "last_tick_at": sa.Float(53), "waiting_since": sa.Float(53),
    "left_out": sa.BigInteger(),
}  # fmt: skip


def move_schedules(*, schedule: type[Schedule] = Schedule, **given: Sequence[Any]) -> sa.Executable:
    """Write what a look at these schedules has brought; see `MOVE`. A schedule without a next tick has no more."""
    table = table_of(schedule)
    move = rows("move", **{name: array(f"move_{name}", given[name], of) for name, of in MOVE.items()})
    never: sa.ColumnElement[Any] = sa.literal_column("'infinity'::timestamptz")
    return (
        sa.update(table)
        .where(members(table.c.id, sa.select(move.c.id)), table.c.id == move.c.id)
        .values(
            next_at=sa.func.to_timestamp(move.c.next_at),
            due_at=sa.func.coalesce(sa.func.to_timestamp(sa.func.coalesce(move.c.due_at, move.c.next_at)), never),
            last_tick_at=sa.func.coalesce(sa.func.to_timestamp(move.c.last_tick_at), table.c.last_tick_at),
            waiting_since=sa.func.to_timestamp(move.c.waiting_since),
            left_out=table.c.left_out + move.c.left_out,
            error=sa.null(),
        )
    )


def set_aside(id: int, *, error: str, seconds: float, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Write down why nothing could be done about a schedule. It is looked at again after `seconds`.

    Returns its name, and the error that it had before.
    """
    table = table_of(schedule)
    this = (
        sa.select(table.c.id, table.c.error)
        .where(table.c.id == sa.bindparam("this_id", id, sa.BigInteger))
        .with_for_update(key_share=True)
        .cte("this")
    )
    return (
        sa.update(table)
        .where(table.c.id == this.c.id)
        .values(error=sa.bindparam("reason", error, sa.Text), due_at=in_seconds(seconds, name="delay_seconds"))
        .returning(table.c.name, this.c.error.label("before"))
    )


def pause_failing(ids: Sequence[int], *, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Pause schedules whose last jobs have failed. Returns their names."""
    columns = table_of(schedule).c
    return (
        sa.update(table_of(schedule))
        .where(columns.id == sa.func.any(array("schedule_ids", ids, sa.BigInteger())), columns.paused_at.is_(None))
        .values(
            paused_at=sa.func.now(),
            paused_by=sa.literal_column("'failures'"),
            pause_reason=sa.func.concat(
                sa.literal_column("'its last '"), columns.pause_after, sa.literal_column("' jobs have failed'")
            ),
        )
        .returning(columns.name, columns.pause_after)
    )
