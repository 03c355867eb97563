"""How deep the queues are at the end of each minute: workers count it, charts read it step by step."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ...models import Backlog, Job, JobMixin, companions_of
from ...rules.lifecycle import JobStatus
from ..parts import ONE, ZERO, in_seconds, table_of
from ..tables import StorePart
from .depths import count_by_queue, queue_depths

#: Due jobs that are counted in the deep queues together, and at least in each queue; with more a queue is deep.
_COUNTED, _LEAST = 100_000, 1_000
#: The queue in the row that each counted minute has.
_NO_QUEUE: sa.ColumnElement[str] = sa.literal_column("''", sa.Text)


def _minute() -> sa.ColumnElement[datetime]:
    """The minute that is counted now. A count that is late, just after the end of the minute, is for that minute, too."""
    return sa.func.date_trunc(sa.literal_column("'minute'"), in_seconds(sa.literal_column("-30")))


def begin_count(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Take this minute for a count. Returns how many deep queues the last count found; no row if a worker has taken the minute before."""
    table = table_of(companions_of(job).backlog)
    last = table.alias("last")
    newest = sa.select(sa.func.max(table.alias("newest").c.at)).scalar_subquery()
    deep = sa.select(sa.func.count()).where(last.c.at == newest, last.c.due >= _LEAST).scalar_subquery()
    values = {"at": _minute(), "due": ZERO, "running": ZERO, "more": sa.false(), "queue": _NO_QUEUE}
    return insert(table).values(values).on_conflict_do_nothing().returning(deep)


def count_backlog(*, cap: int, job: type[JobMixin] = Job) -> sa.Insert:
    """Write a row for each queue with queued or running jobs; due jobs and running jobs are counted up to `cap` each."""
    table = table_of(companions_of(job).backlog)
    depths: Any = queue_depths(cap=cap, job=job)
    held: Any = count_by_queue(JobStatus.RUNNING, cap=cap, job=job)
    waits, runs = depths.subquery("waits").c, held.subquery("runs").c
    due = sa.func.coalesce(waits.due, ZERO)
    values = {
        "at": _minute(),
        "due": due,
        "running": sa.func.coalesce(runs.number, ZERO),
        "oldest": waits.oldest_due_age,
        "more": due >= sa.bindparam("cap", cap, sa.Integer),
        "queue": sa.func.coalesce(waits.queue, runs.queue),
    }
    both = waits.queue.table.join(runs.queue.table, waits.queue == runs.queue, full=True)
    return sa.insert(table).from_select(list(values), sa.select(*values.values()).select_from(both))


def drop_old_backlog(*, keep: timedelta, job: type[JobMixin] = Job) -> sa.Delete:
    """Delete the oldest hour of the counts of minutes older than `keep`."""
    at = table_of(companions_of(job).backlog).c.at
    hour = sa.select(sa.func.min(at.table.alias().c.at) + sa.literal_column("interval '1 hour'")).scalar_subquery()
    old = in_seconds(-keep.total_seconds(), name="keep_seconds")
    return sa.delete(at.table).where(at < sa.func.least(old, hour))


def backlog_in_steps(
    *, begin: datetime, until: datetime, step: timedelta, queues: Collection[str] = (), backlog: type[Backlog] = Backlog
) -> sa.Executable:
    """The last count of each step from `begin` to `until`: a row for each queue, and for the queue "". Steps without a count have no row.

    The columns: `step`, when the step began; queue, due, running, oldest, more. `queues`: only these, and "".
    """
    table = table_of(backlog)
    length: sa.ColumnElement[Any] = sa.bindparam("step", step)
    time = sa.DateTime(timezone=True)
    steps = sa.func.generate_series(sa.bindparam("begin", begin, time), sa.bindparam("until", until, time), length)
    start = steps.table_valued(sa.column("at", time), name="steps").render_derived(name="steps").c.at
    counted = table.alias("counted").c
    last = (
        sa.select(counted.at)
        .where(counted.queue == _NO_QUEUE, counted.at >= start, counted.at < start + length)
        .order_by(counted.at.desc())
        .limit(ONE)
        .lateral("last")
    )
    rows = table.c
    query = (
        sa.select(start.label("step"), rows.queue, rows.due, rows.running, rows.oldest, rows.more)
        .select_from(start.table.join(last, sa.true()).join(table, rows.at == last.c.at))
        .order_by(start)
    )
    return query.where(rows.queue.in_(["", *queues])) if queues else query


class Backlogs(StorePart):
    """Counting the backlog of all queues, once a minute, and deleting old counts."""

    def count_backlog(self, connection: sa.Connection) -> bool:
        """Count what is queued and running in each queue at the end of this minute. Returns False if a worker has done it before."""
        taken = connection.execute(begin_count(job=self.job)).one_or_none()
        if taken is None:
            return False
        cap = max(_COUNTED // max(taken[0], 1), _LEAST)
        connection.execute(count_backlog(cap=cap, job=self.job))
        return True

    def drop_old_backlog(self, connection: sa.Connection, *, keep: timedelta) -> int:
        """Delete the oldest counts of minutes older than `keep`. Returns how many rows were deleted; if any were, there may be more."""
        return connection.execute(drop_old_backlog(keep=keep, job=self.job)).rowcount
