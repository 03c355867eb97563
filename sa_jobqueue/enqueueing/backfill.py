"""Backfilling a schedule: a job for each of its ticks in a range of time that has none.

    with engine.begin() as connection:
        plan = plan_backfill(connection, "daily report", start, end)
        plan.enqueue(connection)

A tick has a job if one of the schedule's jobs that are still there was made for it. Ticks that workers have still to deal with
are not in the plan, so none is enqueued twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ..errors import OptionError
from ..models import Job, JobMixin
from ..rules.schedules import is_stopped, rule_of, ticks_between
from ..sql.schedules.admin import enqueued_ticks, lock_schedule
from ..sql.schedules.due import enqueue_ticks

#: A backfill has at most this many ticks.
MOST = 100_000
#: Jobs that one statement inserts.
_PAGE = 5_000
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Backfill:
    """Which ticks of a schedule become jobs."""

    schedule_id: int
    ticks: Sequence[datetime]
    """Those that have no job, ascending."""
    there: int
    """How many ticks of the range have a job."""
    left_from: datetime | None
    """From here on the workers handle the range; None: it ends before."""
    job: type[JobMixin] = Job
    """The mapped class of the jobs."""

    def enqueue(self, connection: sa.Connection) -> None:
        """Enqueue their jobs, which are due now. In the transaction in which the plan was made."""
        for first in range(0, len(self.ticks), _PAGE):
            page = self.ticks[first : first + _PAGE]
            number = len(page)
            connection.execute(
                enqueue_ticks(
                    schedules=[self.schedule_id] * number,
                    times=[at.timestamp() for at in page],
                    numbers=[1] * number,
                    delays=[0.0] * number,
                    job=self.job,
                )
            )


def plan_backfill(
    connection: sa.Connection,
    name: str,
    start: datetime,
    end: datetime | None = None,
    *,
    lock: bool = True,
    most: int = MOST,
    job: type[JobMixin] = Job,
) -> Backfill | None:
    """Plan the jobs for the ticks from `start` on and before `end`, or by now; None if there is no such schedule.

    `lock`: the plan holds until the transaction ends, because no worker moves the schedule on. `job`: the mapped class of a job table
    of your own. Raises OptionError for a range that has more than `most` ticks, and for a rule that cannot be read.
    """  # fmt: skip
    row = connection.execute(lock_schedule(name, lock=lock, job=job)).one_or_none()
    if row is None:
        return None
    limit = _open_from(row)
    until: datetime = row.now if end is None else end
    last = min(until, limit)
    ticks: list[datetime] = []
    for at in ticks_between(rule_of(row.expression, row.timezone), start, last, anchor=row.next_at or row.counts_from):
        if len(ticks) == most:
            raise OptionError(f"there are more than {most:,} ticks from {start} to {last}: take a shorter range")
        ticks.append(at)
    there = set(connection.scalars(enqueued_ticks(row.id, start=ticks[0], end=ticks[-1], job=job))) if ticks else set()
    missing = [at for at in ticks if at not in there]
    return Backfill(row.id, missing, len(ticks) - len(missing), limit if until > limit else None, job)


def _open_from(row: Any) -> datetime:
    """From when on a tick is still to come, or a worker has to decide about it.

    A schedule whose pause has ended begins to count again; but a schedule that code declares again goes on where it was.
    """
    later: datetime = row.now + _INSTANT
    if is_stopped(row.paused_at, row.paused_by):
        return later
    undecided: datetime = row.counts_from + _INSTANT if row.next_at is None else row.next_at
    return min(undecided, later)
