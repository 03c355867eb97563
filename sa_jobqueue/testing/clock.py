"""Letting time pass for the queue: its rows are moved into the past, because the database's now() cannot be moved."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from ..durations import Duration, checked_duration
from ..models import Job, JobMixin, companions_of
from ..statements.parts import table_of
from .sides import AsyncSide, Side, SyncSide, connection_of, is_async, on, see_again

__all__ = ["move_clock"]

#: Companions that say when workers were seen, and what is history.
_LEFT = ("worker", "uptime", "archived_job", "archived_task")


@overload
def move_clock(session: SyncSide, by: Duration, *, job: type[JobMixin] = Job) -> None: ...
@overload
def move_clock(session: AsyncSide, by: Duration, *, job: type[JobMixin] = Job) -> Coroutine[Any, Any, None]: ...
def move_clock(session: Side, by: Duration, *, job: type[JobMixin] = Job) -> Any:
    """Let this time pass for jobs and schedules: `by`, in seconds or as a timedelta. Of an `AsyncSession` the call is awaited.

    All times of the queue's rows that the session sees become that much earlier: when jobs are due, expire and have their deadline,
    when a lease or a unique key runs out, what a rate or a pause of a key waits for, and when a schedule is looked at. So the next
    `drain` runs what would be due by then: a delayed job, a retry after its backoff, a job of a schedule, one whose worker has died.

    `job`: the class of the jobs, if it is one of your own.

    Your own rows and columns, `datetime.now()` and the database's now() stay as they are. All is undone with the session's transaction.

    Raises OptionError for what is no duration.
    """
    earlier = sa.cast(sa.literal(timedelta(seconds=checked_duration(by, "move_clock: by")), sa.Interval), sa.Interval)
    at_once = is_async(session)

    def work(own: Session) -> None:
        own.flush()
        connection = connection_of(own, job)
        for table, times in _tables(job):
            connection.execute(sa.update(table).values({one: one - earlier for one in times}))
        see_again(own, at_once=at_once)

    return on(session, work)


def _tables(job: type[JobMixin]) -> Iterator[tuple[sa.Table, list[sa.Column[Any]]]]:
    """The job table and those beside it, each with its times."""
    beside = companions_of(job)
    others = [getattr(beside, one.name) for one in fields(beside) if one.name not in _LEFT]
    for table in (table_of(job), *map(table_of, others)):
        ours = table.info.get("sa_jobqueue", table.columns.keys())  # of a job table that has others, too
        if times := [one for one in table.columns if one.name in ours and isinstance(_stored(one.type), sa.DateTime)]:
            yield table, times


def _stored(of: TypeEngine[Any]) -> TypeEngine[Any]:
    return of.impl_instance if isinstance(of, sa.TypeDecorator) else of
