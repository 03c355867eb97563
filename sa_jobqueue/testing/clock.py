"""Letting time pass for the queue: its rows are moved into the past, because the database's now() cannot be moved."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, overload

from sqlalchemy import Column, DateTime, Interval, Table, TypeDecorator, cast, literal, update
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from ..durations import Duration, checked_duration
from ..models import Base, Job, SchemaVersion, Uptime, WorkerRow
from ..statements.parts import table_of
from .sides import AsyncSide, Side, SyncSide, connection_of, is_async, on, see_again

__all__ = ["move_clock"]

#: Tables that say what happened to the schema, and when workers were seen.
_LEFT = (SchemaVersion, Uptime, WorkerRow)


@overload
def move_clock(session: SyncSide, by: Duration) -> None: ...
@overload
def move_clock(session: AsyncSide, by: Duration) -> Coroutine[Any, Any, None]: ...
def move_clock(session: Side, by: Duration) -> Any:
    """Let this time pass for jobs and schedules: `by`, in seconds or as a timedelta. Of an `AsyncSession` the call is awaited.

    All times of the queue's rows that the session sees become that much earlier: when jobs are due, expire and have their deadline,
    when a lease or a unique key runs out, what a rate or a pause of a key waits for, and when a schedule is looked at. So the next
    `drain` runs what would be due by then: a delayed job, a retry after its backoff, a job of a schedule, one whose worker has died.

    Your own rows, `datetime.now()` and the database's now() stay as they are. All is undone with the session's transaction.

    Raises OptionError for what is no duration.
    """
    earlier = cast(literal(timedelta(seconds=checked_duration(by, "move_clock: by")), Interval), Interval)
    at_once = is_async(session)

    def work(own: Session) -> None:
        own.flush()
        connection = connection_of(own, Job)
        for table in _tables():
            connection.execute(update(table).values({one: one - earlier for one in _times(table)}))
        see_again(own, at_once=at_once)

    return on(session, work)


def _tables() -> Iterator[Table]:
    left = [table_of(one) for one in _LEFT]
    return (
        table for table in Base.metadata.sorted_tables if table not in left and next(_times(table), None) is not None
    )


def _times(table: Table) -> Iterator[Column[Any]]:
    return (column for column in table.columns if isinstance(_stored(column.type), DateTime))


def _stored(of: TypeEngine[Any]) -> TypeEngine[Any]:
    return of.impl_instance if isinstance(of, TypeDecorator) else of
