"""Ending queued and blocked jobs that must not be started any more, because their expiry or their deadline is over."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from ..models import Job, JobMixin, status_in, status_literal
from ..rules.lifecycle import DEADLINE_OVER, EXPIRED, TRANSITIONS, Event, JobStatus, Rules
from ..rules.outcomes import ErrorEntry
from .apply import append_error, as_entry
from .ends import ended, ended_id
from .parts import ZERO, materialized, members, table_of
from .tables import StorePart
from .unique import given_back, key_of
from .workflows.actions import NOT_COMPLETED, member_events


def end_expired(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Cancel at most `limit` jobs that were not started by their expiry, except those that are locked.

    Returns their ids, queues and tasks.
    """
    table = table_of(job)
    over = _over(table, table.c.expires_at <= sa.func.now(), sa.not_(_was_started(table)), limit=limit)
    return _end(table, over, Event.CANCEL, EXPIRED, retain=Rules().retain, job=job)


def end_overdue(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Fail at most `limit` waiting jobs whose deadline is over, except those that are locked. Returns their ids, queues and tasks."""
    table = table_of(job)
    over = _over(table, table.c.deadline_at <= sa.func.now(), limit=limit)
    return _end(table, over, Event.DISCARD, DEADLINE_OVER, retain=Rules().retain_failed, job=job)


def forget_expiry(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Take the expiry from at most `limit` jobs that were started in time and wait for another attempt. Returns their ids.

    Such an expiry has no effect any more, and every later search would find it.
    """
    table = table_of(job)
    over = _over(table, table.c.expires_at <= sa.func.now(), _was_started(table), limit=limit)
    return (
        sa.update(table)
        .where(members(table.c.id, sa.select(over.c.id)), _waits(table))
        .values(expires_at=sa.null())
        .returning(table.c.id)
    )


def _waits(table: sa.Table) -> sa.ColumnElement[bool]:
    return status_in(table.c.status, (JobStatus.QUEUED, JobStatus.BLOCKED))


def is_late(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a job that waits will not be run, because its expiry or deadline is over. Never NULL."""
    expired = sa.and_(table.c.expires_at <= sa.func.now(), sa.not_(_was_started(table)))
    return sa.and_(
        _waits(table),
        sa.func.coalesce(sa.or_(expired, table.c.deadline_at <= sa.func.now()), sa.literal_column("false")),
    )


def _was_started(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.or_(table.c.attempt > ZERO, table.c.rescues > ZERO)


def _over(table: sa.Table, *which: sa.ColumnElement[bool], limit: int) -> sa.CTE:
    """Waiting jobs that match `which` and whose earliest limit is over, locked. An index has the earliest limit of each job."""
    first = sa.func.least(table.c.expires_at, table.c.deadline_at)
    return materialized(
        sa.select(table.c.id, key_of(table).label("key"), table.c.workflow_id)
        .where(_waits(table), first <= sa.func.now(), *which)
        .order_by(first)
        .limit(sa.bindparam("page", limit))
        .with_for_update(key_share=True, skip_locked=True),
        "over",
    )


def _end(
    table: sa.Table, over: sa.CTE, event: Event, error: ErrorEntry, *, retain: float | None, job: type[JobMixin]
) -> sa.Executable:
    return (
        sa.update(table)
        .where(members(table.c.id, sa.select(over.c.id)), _waits(table))
        .values(
            **ended(status_literal(TRANSITIONS[JobStatus.QUEUED, event]), retain=retain, of=table),
            errors=append_error(table, as_entry(error)),
        )
        .returning(ended_id(table, follows=event is Event.DISCARD), table.c.queue, table.c.task)
        .add_cte(*given_back([over], job), member_events([over], NOT_COMPLETED, notify=True, job=job))
    )


# ---- Ending jobs that wait although their time is over.


class Late(NamedTuple):
    """A job that waited although its time was over, and was ended."""

    id: int
    queue: str
    task: str


class Expiry(StorePart):
    """Ending pages of jobs that are not to be started any more."""

    def end_expired(self, connection: sa.Connection, *, limit: int = 1_000) -> list[Late]:
        """Cancel jobs that were not started by their expiry, and return them."""
        statement = end_expired(limit=limit, job=self.job)
        return list(map(Late._make, connection.execute(statement)))

    def end_overdue(self, connection: sa.Connection, *, limit: int = 1_000) -> list[Late]:
        """Fail jobs that wait although their deadline is over, and return them."""
        statement = end_overdue(limit=limit, job=self.job)
        return list(map(Late._make, connection.execute(statement)))

    def forget_expiry(self, connection: sa.Connection, *, limit: int = 1_000) -> list[int]:
        """Take the expiry from jobs that were started in time and wait for another attempt, and return their ids."""
        return list(connection.execute(forget_expiry(limit=limit, job=self.job)).scalars())
