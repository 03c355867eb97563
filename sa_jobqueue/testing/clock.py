"""Letting time pass for the queue: its rows are moved into the past, because the database's now() cannot be moved."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from ..errors import OptionError
from ..models import Job, JobMixin, companions_of
from ..rules.failures import entry
from ..rules.lifecycle import Rules, decide
from ..rules.outcomes import Rescued
from ..rules.retry import Duration, checked_duration
from ..rules.settings import WorkerSettings
from ..sql.leases import Expired
from ..sql.parts import table_of
from ..sql.schedules.due import Ticked
from ..sql.store import Store, store_of
from ..tasks.registry import Registry
from ..worker.running.joined import connection_of
from .transaction import AsyncSide, Side, SyncSide, is_async, on, see_again

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
    `drain` runs what would be due by then: a delayed job, a retry after its backoff, a job of a schedule, a job whose worker has died.

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
            connection.execute(sa.update(table).values({time: time - earlier for time in times}))
        see_again(own, at_once=at_once)

    return on(session, work)


def _tables(job: type[JobMixin]) -> Iterator[tuple[sa.Table, list[sa.Column[Any]]]]:
    """The job table and its companion tables, each with its times."""
    beside = companions_of(job)
    others = [getattr(beside, field.name) for field in fields(beside) if field.name not in _LEFT]
    for table in (table_of(job), *map(table_of, others)):
        ours = table.info.get("sa_jobqueue", table.columns.keys())  # of a job table that has others, too
        if times := [
            column for column in table.columns if column.name in ours and isinstance(_stored(column.type), sa.DateTime)
        ]:
            yield table, times


def _stored(of: TypeEngine[Any]) -> TypeEngine[Any]:
    return of.impl_instance if isinstance(of, sa.TypeDecorator) else of


# ---- The chores of workers, done once: schedules, leases that have run out, jobs whose time is over.

_PAGE = 1_000


def do_chores(session: Session, *, registry: Registry, job: type[JobMixin]) -> None:
    """Enqueue the jobs of due schedules, rescue jobs whose lease has run out, and end those whose expiry or deadline is over."""
    connection, store = connection_of(session, job), store_of(job)
    _rescue(connection, store, registry)
    store.forget_expiry(connection, limit=_PAGE)
    store.end_expired(connection, limit=_PAGE)
    store.end_overdue(connection, limit=_PAGE)
    resume_waiting(connection, store)
    ticked = Ticked()
    store.enqueue_due(connection, ticked, limit=_PAGE, random=random.random)
    for name, reason in ticked.bad:
        raise OptionError(f"schedule {name!r} cannot be used: {reason}")


def resume_waiting(connection: sa.Connection, store: Store) -> bool:
    """Put suspended jobs that can go on back into their queues. Returns whether there were any."""
    waits = table_of(companions_of(store.job).wait)
    joins = waits.c.jobs.is_not(None), waits.c.resumed_at.is_(None)
    connection.execute(
        sa.update(waits).where(*joins).values(due_at=sa.func.now())
    )  # which workers look at ever less often
    return store.resume_waiting(connection, most=_PAGE).jobs > 0


def _rescue(connection: sa.Connection, store: Store, registry: Registry) -> None:
    if found := store.expired(connection, limit=_PAGE):
        rescued = Rescued(entry("WorkerLost", "the lease of its worker had run out"))
        store.apply(
            connection, [decide(job.claim, rescued, _rules(job, registry), random=random.random()) for job in found]
        )


def _rules(found: Expired, registry: Registry) -> Rules:
    task = registry.get(found.task)
    return replace(task.rules if task is not None else Rules(), max_rescues=WorkerSettings().max_rescues)
